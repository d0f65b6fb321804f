"""Mistakes and questions that are answered before torch is imported: as the parser would, and nothing else."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralseg import cli, early
from ralseg.cli import main
from ralseg.config import config_folder, resolve_configs
from ralseg.config_words import Typed
from support.configs import ACQUIRE, FIT, PRETRAIN

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(str(path.relative_to(config_folder())) for path in config_folder().rglob("*.yaml"))
OF_KIND = {"pretrain": ["pretrain", "test"], "acquire": ["acquire"], "compare": ["compare"], "tune": ["fit"]}
OF_PART = {"data": ["pretrain", "fit", "acquire", "data check"], "segmenter": ["pretrain"], "agent": ["fit"]}
NO_TORCH = "import sys; from ralseg.cli import main; code = main(sys.argv[1:]); assert 'torch' not in sys.modules; "


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ralseg"])
    monkeypatch.setattr(early, "may_be_new", lambda name: False)
    monkeypatch.setenv("RALSEG_ALLOW_IMPORT", "")
    for name in early._SEVERAL_PROCESSES:
        monkeypatch.delenv(name, raising=False)
    for name, text in {"fit": FIT, "acquire": ACQUIRE, "pretrain": PRETRAIN}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


@pytest.mark.slow
def test_what_is_known_is_what_the_parsers_say():
    """In a process of its own: tests define classes, which a help text would list."""
    code = "import json; from ralseg.early_files import make; print('known:' + json.dumps(make()))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    made = json.loads(ran.stdout.rpartition("known:")[2])
    there = {path.name: path.read_text(encoding="utf-8") for path in early.KNOWN.iterdir()}
    assert made.keys() == there.keys()
    assert [name for name in made if made[name] != there[name]] == [], "run `make known` and commit ralseg/known"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("fit --help", 0), ("acquire -h", 0), ("data check --help", 0), ("labels import --help", 0), ("labl", 2),
        ("fit --config camvid_dqnn.yaml", 2), ("fit --config absent/mine.yaml", 2), ("fit --xyzzyx 3", 2),
        ("pretrain --config wrong.yaml", 2), ("acquire --config wrong.yaml", 2),
    ],
)  # fmt: skip
def test_nothing_heavy_is_imported(folder, arguments, code):
    (folder / "wrong.yaml").write_text("trainer: {mx_epochsy: 3}\n")
    ran = subprocess.run([sys.executable, "-c", f"{NO_TORCH}sys.exit(code)", *arguments.split()], capture_output=True)
    assert ran.returncode == code, ran.stderr.decode()


FILES = {
    "unknown group": ("fit", "data: {bogus: {a: {b: 1}, c: 2}}"),
    "deep": ("fit", "trainer: {game: {budgt: 3}}"),
    "top": ("pretrain", "modle: {class_path: ralseg.FPNSegmenter}"),
    "nothing like it": ("pretrain", "nothing: 1"),
    "of another command": ("acquire", FIT),
    "section": ("pretrain", "pretrain: {trainer: {max_epoch: 3}}"),
    "class": ("data check", "data: {dataset: {class_path: ralseg.data.SyntheticStreet}}"),
    "agent": ("fit", "agent: {class_path: ralseg.DQNN}"),
    "oracle": ("acquire", "oracle: {class_path: ralseg.MaskOracl}\npolicy: entropy"),
    "option of a class": ("fit", "agent: {class_path: ralseg.DQN, init_args: {gama: 1}}"),
    "class in a class": (
        "fit",
        "model: {class_path: ralseg.FPNSegmenter, init_args: {optimizer: {class_path: torch.optim.AdmW}}}",
    ),
    "option in a class in a class": (
        "fit",
        "model: {class_path: ralseg.FPNSegmenter, "
        "init_args: {optimizer: {class_path: torch.optim.AdamW, init_args: {lrr: 1}}}}",
    ),
    "of the final training": (
        "acquire",
        "policy: entropy\ntrainer: {final: {optimizer: {class_path: torch.optim.AdamW, init_args: {lrr: 1}}}}",
    ),
    "predict": ("predict", "imges: 1"),
    "a study": ("compare", "metods: 1"),
}
TYPED = [
    *("fit --config fit.yaml --data.bach_size 3", "fit --batch_size 3", "fit --trainer.game.budgt=3"),
    *("compare --metods 3", "predict --imges .", "export --formt x", "labels export x --frmt 3", "init --clases x"),
    *("labels import x --frmt 3", "dashboard --prt 3", "test --xyzzy", "fit --policy entropy", "fit --model.encodr 3"),
    *("fit --config fit.yaml --model.init_args.encodr=3", "fit --config fit.yaml --agent.gama 3"),
    "data check --policy entropy --modle x",
    "fit --config fit.yaml --data.dataset.num_trian 3",
]


def both_ways(arguments, capsys, monkeypatch) -> tuple[str, str]:
    """What is said early, without any parser, and what the parser says."""
    with monkeypatch.context() as patched:
        patched.setattr(cli, "run", lambda arguments: pytest.fail("it went on to the parser"))
        assert main(arguments) == 2
    said = capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setattr(early, "check", lambda arguments: None)
        assert main(arguments) == 2
    return said, capsys.readouterr().err


@pytest.mark.parametrize("case", FILES)
def test_a_wrong_file_is_refused_in_the_parsers_words(folder, capsys, monkeypatch, case):
    command, text = FILES[case]
    (folder / "mine.yaml").write_text(text)
    said, by_parser = both_ways([*command.split(), "--config", "mine.yaml"], capsys, monkeypatch)
    assert said == by_parser


@pytest.mark.parametrize("line", TYPED)
def test_what_was_typed_is_refused_in_the_parsers_words(capsys, monkeypatch, line):
    said, by_parser = both_ways(line.split(), capsys, monkeypatch)
    assert said == by_parser


@pytest.mark.parametrize("name", SHIPPED)
def test_no_shipped_configuration_is_refused(name):
    kind = name.split("/")[0] if "/" in name else name.removesuffix(".yaml").split("_")[-1]
    for command in OF_PART.get(kind, OF_KIND.get(kind, ["fit"])):
        early.check(resolve_configs([*command.split(), "--config", name]))


def documented() -> list[str]:
    """The commands of the README and the documentation, without their configurations."""
    found = list[str]()
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in re.findall(r"```(?:bash|sh|console)\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
            found += [line for line in block.replace("\\\n", " ").splitlines() if line.startswith("ralseg ")]
    return sorted(set(found))


@pytest.mark.parametrize("line", documented())
def test_no_documented_command_is_refused(folder, line):
    arguments = shlex.split(line, comments=True)[1:]
    for position, argument in enumerate(arguments):
        if argument == "--config":
            arguments[position + 1] = str(folder / "empty.yaml")
    (folder / "empty.yaml").write_text("{}\n")
    early.check(resolve_configs(arguments))


def test_there_are_documented_commands():
    assert len(documented()) > 20


OPTIONS = json.loads((early.KNOWN / "options.json").read_text())["commands"]
REAL = [(command, key) for command, about in OPTIONS.items() if about for key in about["keys"]]


@given(st.sampled_from(REAL), st.integers(1, 40), st.sampled_from(["3", "null", "{a: 1}", "[x]"]))
def test_options_of_a_parser_also_shortened_ones_are_left_to_it(option, length, value):
    command, key = option
    early.check([*command.split(), f"--{key[:length]}", value])
    early.check([*command.split(), f"--{key}={value}"])


@pytest.mark.parametrize(
    "text",
    ["trainer.max_epochs: 3", "model: {dropout: 0.3}", "trainer: {callbacks+: []}", "data: {seed: 3}", "trainer: null"],
)
def test_what_only_the_parser_can_judge_goes_on_to_it(folder, text):
    (folder / "mine.yaml").write_text(text)
    early.check(resolve_configs(["fit", "--config", "mine.yaml", "--agent", "mine.Agent", "--agent.hiden", "3"]))


def test_a_name_that_the_sources_have_but_the_list_has_not_goes_on_to_the_parser(monkeypatch):
    monkeypatch.undo()
    early.check(["fit", "--data.may_be_new_too", "3", "--help"])  # help comes first
    with pytest.raises(early.ConfigError):
        early.check(["fit", "--data.xyzzyx", "3"])
    early.check(["fit", "--data.is_unsure", "3"])


def test_other_libraries_than_it_was_made_with_leave_all_to_the_parser(monkeypatch):
    monkeypatch.setattr(early, "versions", lambda: {"lightning": "9"})
    early._options.cache_clear()
    try:
        early.check(["fit", "--data.xyzzyx", "3"])
        assert early.help_text(["fit", "--help"]) is None
    finally:
        early._options.cache_clear()


def test_one_of_several_processes_leaves_it_to_the_first(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    early.check(["fit", "--data.xyzzyx", "3"])


def test_help_with_anything_else_is_the_parsers():
    assert early.help_text(["fit", "--help", "--model", "ralseg.SmpSegmenter"]) is None
    assert "--agent" in (early.help_text(["fit", "--help"]) or "")


def test_files_are_named_by_what_was_typed():
    assert list(Typed("fit", ["fit", "--config", "# mine.yaml\na: 1\n"]).files()) == [("mine.yaml", {"a": 1})]
