"""Every command that a page shows is one that ralseg, make or a script would take: it is parsed, for real.

What a command needs that is not there (photographs, a run, parts of one's own) is made small; nothing is run. Inline
commands are tried where they hold no placeholder in capitals.
"""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ralseg
from ralseg import (
    cache_command,
    commands,
    explain_command,
    export_command,
    label_command,
    labels_command,
    predict_command,
)
from ralseg.cli import main
from support.browser import open_browser
from support.site import look, served

ROOT = Path(ralseg.__file__).parent.parent
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
BLOCK = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.M | re.S)
PLACEHOLDER = re.compile(r"\b[A-Z][A-Z_]+\b|\.\.\.|<")
PARSERS = (cache_command, commands, explain_command, export_command, labels_command, predict_command)
RUNS = ("photos", "photos/acquire")


def lines_of(block: str) -> list[str]:
    """The commands of a block, whole, without what is said about them."""
    joined = re.sub(r"\\\n\s*", " ", block)
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in joined.splitlines()]
    return [part.strip().removeprefix("$ ") for line in lines for part in re.split(r"&&|;", line) if part.strip()]


def commands_of(text: str) -> list[str]:
    """What a page tells people to type."""
    found = [
        line for kind, block in BLOCK.findall(text) if kind in ("bash", "sh", "console") for line in lines_of(block)
    ]
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", BLOCK.sub("", text))]
    return found + [span for span in spans if span.startswith(("ralseg ", "make ", "python "))]


SHOWN = sorted({(line, page) for page, text in TEXTS.items() for line in commands_of(text)})
TYPED = {line: page for line, page in reversed(SHOWN)}
BLOCKS = {line for text in TEXTS.values() for kind, block in BLOCK.findall(text) for line in lines_of(block)}


class Parsed(Exception):
    """Stands for all that a command would do."""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with all that commands of the pages name."""
    folder = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(0)
    for name in ("photos", "new_photos"):
        for split, count in (("train", 8), ("val", 3), ("test", 3)):
            for number in range(count):
                for kind, pixels in (
                    ("images", rng.integers(0, 256, (64, 96, 3))),
                    ("masks", rng.integers(0, 2, (64, 96))),
                ):
                    path = folder / name / kind / split / f"{number:04}.png"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(pixels.astype(np.uint8)).save(path)
    (folder / "photos/dataset.yaml").write_text("classes: [road, crack]\n")
    for _, block in BLOCK.findall(TEXTS["docs/plugins.md"]):
        named = re.match(r"# (\w+\.(?:py|yaml))\n", block)
        if named:
            (folder / named[1]).write_text(block)
    (folder / "docs").symlink_to(ROOT / "docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["init", "photos"]) == 0
    for name in ("my", "study"):
        shipped = {"my": "synthetic_dqn", "study": "synthetic_compare"}[name]
        (folder / f"{name}.yaml").write_text(f"base: {shipped}.yaml\n")
    for name in RUNS:
        run = folder / "runs" / name
        run.mkdir(parents=True, exist_ok=True)
        (run / "config.yaml").write_text((folder / "photos.yaml").read_text())
    return folder


@pytest.fixture
def parse_only(place, monkeypatch):
    """Commands stop once they know what was typed."""

    def stop(function):
        def wrapped(*arguments, **options):
            function(*arguments, **options)
            raise Parsed

        return wrapped

    monkeypatch.chdir(place)
    for module in PARSERS:
        monkeypatch.setattr(module, "parsed", stop(module.parsed))
    monkeypatch.setattr(
        commands.CheckedCLI, "before_instantiate_classes", stop(commands.CheckedCLI.before_instantiate_classes)
    )
    monkeypatch.setattr(label_command, "refuse_revealed", lambda *_: None)


def of(program: str) -> list[str]:
    """The commands of a program; those with placeholders and mere names of commands are left out."""
    meant = [line for line in TYPED if line.startswith(f"{program} ") and not PLACEHOLDER.search(line)]
    shown = [line for line in meant if line in BLOCKS or re.search(r" --\w[\w.]* \S| --help$", line)]
    # one of those that differ in spaces or in the numbers of a list: a parser takes half a second
    return [*{" ".join(re.sub(r"\d+(,\d+)+", "0,1", line).split()): line for line in shown}.values()]


@pytest.mark.slow
@pytest.mark.parametrize("line", of("ralseg"))
def test_ralseg_takes_it(line, parse_only, capsys):
    try:
        code = main(shlex.split(re.sub(r"\$\w+", "0", line))[1:])  # $seed, in a loop of the shell
    except Parsed:
        return
    except SystemExit as stop:
        code = stop.code  # --print_config ends so
    if code == 0 and re.search(r" --(help|print_config)\b", line):
        return
    pytest.fail(f"{TYPED[line]}: {line}\nexit code {code}: {capsys.readouterr().err}")


def test_every_command_of_ralseg_has_a_name_that_it_knows():
    """Those with placeholders too."""
    from ralseg.cli import COMMANDS

    named = {line: line.split()[1] for line in TYPED if line.startswith("ralseg ")}
    assert len(named) > 80
    known = {*COMMANDS, "COMMAND", "--help", "--version"}
    assert [f"{TYPED[line]}: {line}" for line, name in named.items() if name not in known] == []


def test_make_has_every_target():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {line: line.split()[1:] for line in of("make")}
    assert named
    assert [f"{TYPED[line]}: {line}" for line, names in named.items() if set(names) - targets] == []


@pytest.mark.parametrize("line", [line for line in TYPED if line.startswith("python ")])
def test_a_script_knows_its_options(line):
    """It is there, and has each option and subcommand in its source."""
    words = shlex.split(line)[1:]
    if words[0] in ("-m", "-c") or not words[0].endswith(".py"):
        assert words[0] == "-m", line
        return
    source = (ROOT / words[0]).read_text()
    options = [word.partition("=")[0] for word in words[1:] if word.startswith("--")]
    own = [word for word in options if "." not in word]  # others are those of `ralseg acquire`
    subcommands = [word for word in words[1:2] if re.fullmatch("[a-z]+", word)]
    missing = [word for word in (*own, *subcommands) if not re.search(rf"(?<![\w-]){re.escape(word)}\b", source)]
    assert not missing, f"{TYPED[line]}: {line}"


@pytest.mark.slow
def test_a_look_at_a_site_finds_what_is_wrong(tmp_path):
    (tmp_path / "good.html").write_text('<link rel="icon" href="data:,"><h1 id="a">A</h1><a href="#a">a</a>')
    (tmp_path / "bad.html").write_text(
        '<link rel="icon" href="data:,"><img src="none.png"><a href="good.html#b">b</a><a href="gone.html">c</a>'
        '<div style="width: 3000px">wide</div><script>console.error("oh")</script>'
        '<script src="http://127.0.0.2:9/x.js"></script>'
    )
    with served(tmp_path) as base, open_browser() as browser:
        assert look(browser, base, ["good.html"], None) == []
        found = "\n".join(look(browser, base, ["bad.html", "good.html"], tmp_path))
    for said in (
        "bad.html on a desk: wider than the screen: div wide",
        "bad.html on a phone: oh",
        "asks http://127.0.0.2:9/x.js",
        "no picture at",
        "bad.html: no place #b on good.html",
        "bad.html: no page gone.html",
    ):
        assert said in found
    assert (tmp_path / "bad.html.phone.png").is_file()
