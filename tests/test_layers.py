"""Dependencies go one way: each module imports only from modules above it in this list."""

import ast
from pathlib import Path

import ralseg

MODULES = """
ralseg ralseg.errors ralseg.randomness ralseg.ranks ralseg.files ralseg.interrupts ralseg.imports ralseg.nulls
ralseg.shipped ralseg.regions ralseg.ledger ralseg.checkpoints ralseg.run_folder ralseg.post ralseg.tracking
ralseg.guards
ralseg.data.readers ralseg.data.base ralseg.data.camvid ralseg.data.cityscapes ralseg.data.gtav ralseg.data.folder
ralseg.data.synthetic ralseg.data ralseg.data.cache ralseg.data.masks ralseg.oracle ralseg.data.samples
ralseg.data.splits ralseg.data.module ralseg.data.check ralseg.encoders ralseg.metrics ralseg.segmenter
ralseg.trainer ralseg.features ralseg.influence ralseg.measures ralseg.representation ralseg.replay
ralseg.query ralseg.policies ralseg.baselines ralseg.player ralseg.labelling ralseg.game ralseg.curves ralseg.ralis
ralseg.play ralseg.loop ralseg.progress ralseg.game_trainer ralseg.al_trainer
ralseg.people ralseg.acquisition ralseg.find_policy ralseg.selection ralseg.final ralseg.acquire
ralseg.statistics ralseg.verdict ralseg.study ralseg.engines ralseg.mirror ralseg.figures ralseg.report ralseg.compare
ralseg.commands ralseg.cli ralseg.__main__
"""
ORDER = MODULES.split()
ROOT = Path(ralseg.__file__).parent


def module_name(path: Path) -> str:
    parts = ["ralseg", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts).removesuffix(".__init__")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in ORDER else node.module for a in node.names
            }
    return {name for name in found if name.split(".")[0] == "ralseg"}


def test_every_module_has_its_place():
    assert sorted(map(module_name, ROOT.rglob("*.py"))) == sorted(ORDER)


def test_imports_point_upwards():
    for path in ROOT.rglob("*.py"):
        name = module_name(path)
        for imported in imports(path):
            assert ORDER.index(imported) < ORDER.index(name), f"{name} imports {imported}"


def test_only_the_oracle_reveals():
    users = [p.name for p in ROOT.rglob("*.py") if ".reveal_box(" in p.read_text()]
    assert users == ["oracle.py"]
