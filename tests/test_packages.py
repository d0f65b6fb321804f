"""Dependencies go one way: a package imports only from itself and from the packages before it in ``ORDER``."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

import ralseg

ORDER = ["runtime", "labels", "data", "models", "acquisition", "agents", "engine", "annotation", "studies"]
TOP = "top-level modules"
BELOW_ALL = {"ralseg.errors", "ralseg.config"}
"""Everyone may import these; they import nothing of ralseg but one another."""
ROOT = Path(ralseg.__file__).parent


def name_of(path: Path) -> str:
    parts = ["ralseg", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts).removesuffix(".__init__")


PATHS = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
SENTENCE_END = re.compile(r"[.!?](?=\s|$)")


def package_of(module: str) -> str:
    """Name of the package that a module belongs to, or ``TOP``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in PACKAGES else TOP


def tree_of(module: str) -> ast.Module:
    return ast.parse(PATHS[module].read_text(encoding="utf-8"))


def imports(module: str) -> set[str]:
    """What a module imports of ralseg, wherever in it: modules, and names of packages as ``package:name``."""
    inside = module if PATHS[module].name == "__init__.py" else module.rpartition(".")[0]
    found = set()
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), inside)
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                found.add(inner if inner in PATHS else f"{source}:{alias.name}")
    return {name for name in found if re.match(r"ralseg\b", name)}


def modules_imported(module: str) -> set[str]:
    """The modules that a module depends on, but for those that everyone may import, and ralseg's version."""
    if module == "ralseg":  # imports when a name is first used; what it says to type checkers is no dependency
        return set()
    return {name.partition(":")[0] for name in imports(module) - {"ralseg:__version__"}} - BELOW_ALL


def test_every_package_has_its_place():
    assert sorted(ORDER) == PACKAGES


@pytest.mark.parametrize("module", PATHS)
def test_imports_point_downwards(module):
    levels = {package: level for level, package in enumerate([*ORDER, TOP])}
    own = levels[package_of(module)]
    assert [name for name in modules_imported(module) if levels[package_of(name)] > own] == []
    if module in BELOW_ALL:
        assert modules_imported(module) == set()


@pytest.mark.parametrize("package", [*PACKAGES, TOP])
def test_imports_within_a_package_have_no_circle(package):
    graph = {
        module: {name for name in modules_imported(module) if package_of(name) == package}
        for module in PATHS
        if package_of(module) == package
    }
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("module", PATHS)
def test_modules_say_what_they_are_for(module):
    said = ast.get_docstring(tree_of(module))
    assert said, "no docstring"
    first = said.splitlines()[0]
    assert len(SENTENCE_END.findall(first)) == 1, first
    assert first[-1] in ".!?", first
    if PATHS[module].name == "__init__.py":
        assert len(SENTENCE_END.findall(said)) >= 2, said


def test_only_the_oracle_reveals():
    users = [module for module, path in PATHS.items() if ".reveal_box(" in path.read_text(encoding="utf-8")]
    assert users == ["ralseg.labels.oracle"]
