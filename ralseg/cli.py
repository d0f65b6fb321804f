"""The front door: `ralseg COMMAND ...`, which imports nothing heavy until a command needs it."""

import os
import sys
from difflib import get_close_matches

from ralseg import __version__, early
from ralseg.config import resolve_configs
from ralseg.errors import RalsegError
from ralseg.runtime.memory import keep_freed_memory
from ralseg.runtime.signals import Interrupted, interrupts

COMMANDS = {
    "init": "look at a folder of images and masks, and write one configuration for all commands",
    "pretrain": "train a segmenter: theta_0, or the full-supervision upper bound",
    "fit": "play episodes on labelled images and learn the policy",
    "acquire": "spend a labelling budget with a learned policy or a heuristic, then train and test",
    "label": "label regions in a browser, while the model learns and asks for the next ones",
    "explain": "a page about why a run chose its regions: features, scores, prediction and label",
    "predict": "the classes of all images of a folder, by a trained segmenter",
    "export": "a trained segmenter as ONNX, TorchScript or for segmentation-models-pytorch",
    "labels": "`ralseg labels export|import`: regions to label, and labels, as files of CVAT, COCO, VOC, PNG",
    "compare": "methods x budgets x seeds: acquire runs, statistics, one HTML report",
    "dashboard": "the studies of this folder with their reports, and MLflow's page on all runs",
    "test": "test a segmenter's checkpoint, IoU class by class",
    "cache": "what is kept between runs: scaled images and features; `ralseg cache clear` deletes it",
    "data": "`ralseg data check`: counts, class frequencies, a contact sheet, every problem found",
}

_GOES_ON = dict.fromkeys(
    ("pretrain", "fit", "acquire"), "; the same command with --ckpt last goes on where this one was"
) | dict.fromkeys(("compare", "label", "predict"), "; the same command goes on where this one was")

_HELP = """usage: ralseg COMMAND --config NAME.yaml [--key value ...]

Learn which image regions to label next.

commands:
{commands}

A bare config name that is not a file here is looked up among the shipped ones.
`ralseg COMMAND --help` lists every option, `ralseg COMMAND --config NAME.yaml --print_config` the
whole configuration. Exit codes: 0 done, 1 internal error, 2 configuration, 3 data, 4 more regions asked for
than there are, 130 and 143 stopped by Ctrl-C and SIGTERM: the same command with --ckpt last goes on (`compare`
and `label` by themselves).
"""


def quiet_libraries() -> None:
    """Settings that libraries read once, when they are imported."""
    # idle OpenMP threads that spin make torch ten times slower on busy cores
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # small files, each with a bar of its own
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # a store that is away must not hold up a study
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return the process's exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        print(_HELP.format(commands="\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.items())))
        return 0
    if arguments[0] == "--version":
        print(f"ralseg {__version__}")
        return 0
    if arguments[0] not in COMMANDS:
        close = get_close_matches(arguments[0], COMMANDS, 1)
        hint = f"did you mean {close[0]}? C" if close else "c"
        print(f"ralseg: unknown command {arguments[0]!r}; {hint}ommands are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    text = early.help_text(arguments)
    if text is not None:
        print(text, end="")
        return 0
    quiet_libraries()
    keep_freed_memory()
    try:
        with interrupts.handled():
            resolved = resolve_configs(arguments)
            early.check(resolved)
            # `compare` needs its arguments as they were typed, to repeat them; `label` to make `acquire`'s of them
            return run(arguments if arguments[0] in ("compare", "label") else resolved)
    except (RalsegError, Interrupted) as error:
        if os.environ.get("RALSEG_DEBUG"):
            raise
        if is_reported_by_another(error):
            return 0
        way_on = _GOES_ON.get(arguments[0], "") if isinstance(error, Interrupted) else ""
        print(f"ralseg: {error}{way_on}", file=sys.stderr)
        return error.exit_code
    finally:
        end_other_processes()


def run(arguments: list[str]) -> int:
    """Import what the command needs and run it."""
    if arguments[0] == "cache":
        from ralseg.cache_command import run_cache

        return run_cache(arguments[1:])
    from ralseg import commands

    return commands.run(arguments)


def is_reported_by_another(error: BaseException) -> bool:
    """Whether this is one of several processes, and the first one says what is wrong."""
    distributed = sys.modules.get(
        "ralseg.runtime.distributed"
    )  # torch takes seconds to import, and may not have been needed
    return distributed is not None and distributed.is_reported_by_first(error)


def end_other_processes() -> None:
    """Leave no process behind that waits for this one."""
    distributed = sys.modules.get("ralseg.runtime.distributed")
    if distributed is not None:
        distributed.end_processes()


def entry_point() -> None:
    """The console script."""
    sys.exit(main())
