"""`ralseg label`: `acquire` with the page as its oracle, for people who label in a browser."""

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

import yaml

from ralseg.annotation import journal, people
from ralseg.annotation.page.serving import PORT
from ralseg.config import command_config
from ralseg.config_errors import explained
from ralseg.errors import ConfigError
from ralseg.runtime import run_folder

ORACLE = "ralseg.annotation.PageOracle"
_OPTIONS = ("host", "port", "open_browser", "min_answers", "reserves", "reask")
_DESCRIPTION = """Label regions in a browser: `ralseg acquire` with a page of its own in place of masks or crops.

RUN is the folder of an `acquire` run; or give --config, as `ralseg init` writes it. The same command goes on with a run
that was stopped. All other options are those of `ralseg acquire`."""


def label_arguments(arguments: list[str]) -> list[str]:
    """What `acquire` must be told so that it does what was typed after `ralseg label`."""
    run = arguments[0] if arguments and not arguments[0].startswith("-") else None
    with explained(None, "label", arguments):
        typed, rest = _parser().parse_known_args(arguments[1:] if run else arguments)
    if (run is None) == (not typed.config):
        raise ConfigError(
            "ralseg label takes the folder of an acquire run, ralseg label RUN, or else a configuration to begin with, "
            "ralseg label --config NAME.yaml"
        )
    names = [str(config_of(Path(run)))] if run else typed.config
    before = _readable(command_config(names, "acquire"))
    folder = Path(run or _root_in(rest) or _value(before, "trainer", "default_root_dir") or "runs/ralseg")
    refuse_revealed(before.get("oracle"), folder)
    given = {key: value for key in _OPTIONS if (value := getattr(typed, key)) is not None}
    oracle = {"class_path": ORACLE, "init_args": _options_of(before.get("oracle")) | given}
    made = ["--config", f"# {', '.join(names)}\n{yaml.safe_dump(before, sort_keys=False)}"]
    made += ["--trainer.default_root_dir", run] if run else _scored(before, rest)
    return ["acquire", *made, *rest, "--oracle", json.dumps(oracle), "--ckpt", "last"]


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        "ralseg label", "ralseg label RUN | --config NAME.yaml [--key value ...]", _DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter, exit_on_error=False, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("-c", "--config", action="append", default=[], help="A configuration to begin with.")
    parser.add_argument("--host", help="Address to listen at; 127.0.0.1, this machine alone, by default.")
    parser.add_argument(
        "--port", type=int, help=f"Port; the one from before, or a free one from {PORT} on, by default."
    )
    parser.add_argument(
        *("--open",),
        dest="open_browser",
        action="store_const",
        const=True,
        help="Also open the page in a browser here.",
    )
    parser.add_argument("--min_answers", type=int, help="So many answers of a step are enough to go on with.")
    parser.add_argument("--reserves", type=int, help="Regions that may take the place of skipped ones, at each step.")
    parser.add_argument("--reask", type=float, help="Share of the answers that a second annotator gives, too.")
    return parser


def _readable(config: Any) -> Any:
    """A configuration without what the parser wrote in place of a function: a default, which it knows itself.

    Examples:
        >>> _readable({"final": {"max_steps": 4, "optimizer": "Unable to serialize instance <function>"}})
        {'final': {'max_steps': 4}}
    """
    if not isinstance(config, dict):
        return config
    kept = {key: value for key, value in config.items() if not str(value).startswith("Unable to serialize instance")}
    return {key: _readable(value) for key, value in kept.items()}


def config_of(folder: Path) -> Path:
    """The newest configuration in a run's folder."""
    found = sorted(folder.glob("config*.yaml"))  # config.yaml, config-001.yaml: the order of their names is another
    numbered = [path for path in found if path.name != "config.yaml"]
    if not found:
        raise ConfigError(
            f"{folder}: holds no configuration of an acquire run; begin with `ralseg label --config NAME.yaml`, which "
            "makes the folder that its trainer.default_root_dir names"
        )
    return (numbered or found)[-1]


def refuse_revealed(oracle: Any, folder: Path) -> None:
    """Refuse to go on with a run whose labels were revealed: nobody could say later what people have labelled."""
    named = oracle if isinstance(oracle, str) else (oracle or {}).get("class_path", "")
    is_revealed = named in ("", "masks", "MaskOracle") or named.endswith(".MaskOracle")
    is_revealed = is_revealed and not (folder / people.FOLDER / journal.FILE).is_file()
    if is_revealed and any((folder / run_folder.CHECKPOINTS).glob("*.ckpt")):
        raise ConfigError(
            f"{folder}: the labels of this run were revealed from masks; go on with it by `ralseg acquire`, or give "
            "another --trainer.default_root_dir to label by hand"
        )


def _options_of(oracle: Any) -> dict[str, Any]:
    """What a configuration says of the page, if that is its oracle."""
    if not isinstance(oracle, dict) or not str(oracle.get("class_path", "")).endswith("PageOracle"):
        return {}
    return dict(oracle.get("init_args") or {})


def _root_in(arguments: list[str]) -> str | None:
    """The folder that was typed."""
    option = "--trainer.default_root_dir"
    for place, argument in enumerate(arguments):
        if argument == option and place + 1 < len(arguments):
            return arguments[place + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return None


def _value(config: dict[str, Any], *keys: str) -> Any:
    """A value of a configuration; None where there is none."""
    found: Any = config
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _scored(config: dict[str, Any], arguments: list[str]) -> list[str]:
    """Score each step, unless somebody has said otherwise: people want to see what their work brings."""
    key = "trainer.acquisition.score_steps"
    is_said = _value(config, *key.split(".")) is not None
    is_said = is_said or any(argument.startswith(f"--{key}") for argument in arguments)
    return [] if is_said else [f"--{key}", "true"]
