"""The commands behind the front door, each a typed parser over the classes that do the work."""

import logging
import re
import shlex
import subprocess
import sys
import traceback
import warnings
from argparse import ArgumentError
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import SUPPRESS, ActionConfigFile, ArgumentParser, Namespace
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback

from ralseg.config import COMMON_KEYS, refuse_class_nulls, refuse_nulls, resolve_configs
from ralseg.config_errors import explained, parsed
from ralseg.data.datamodule import SegmentationData
from ralseg.engine.acquire_trainer import AcquireTrainer
from ralseg.engine.fit_trainer import FitTrainer
from ralseg.engine.trainer import SCORE, RunTrainer
from ralseg.errors import ConfigError, RalsegError
from ralseg.models.segmenter import Segmenter
from ralseg.runtime import allowed_imports, run_folder
from ralseg.runtime.files import write_atomically
from ralseg.runtime.mlflow_logger import RunLogger, tracking_uri
from ralseg.runtime.mlflow_queue import shown

Arguments = list[str] | dict[str, Any]
"""What a person typed, or the values of a configuration."""


class ConfigInRunFolder(SaveConfigCallback):
    """Writes the resolved configuration into the run's folder and to MLflow, never over another one."""

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write ``config.yaml``, or ``config-001.yaml`` where a resumed run finds one."""
        path = run_folder.numbered(Path(trainer.default_root_dir), "config", ".yaml")
        write_atomically(path, self.parser.dump(self.config, skip_none=False))
        for logger in trainer.loggers:
            if isinstance(logger, RunLogger):
                logger.log_file(path)


class CheckedCLI(LightningCLI):
    """A command line that says what is wrong with a configuration in ralseg's own words."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The default segmenter, and what it and the data take from elsewhere in the configuration."""
        parser.set_defaults({"model": {"class_path": "ralseg.FPNSegmenter"}})
        parser.link_arguments("data.class_names", "model.init_args.class_names", apply_on="instantiate")
        parser.link_arguments("seed_everything", "data.seed")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, and say which key is wrong and what was probably meant."""
        command = args[0] if isinstance(args, list) else args["subcommand"]
        with explained(self._subcommand_parsers[command], command, args):
            super().parse_arguments(parser, args)

    def before_instantiate_classes(self) -> None:
        """Look at what the parser has let through."""
        command = self.config["subcommand"]
        refuse_nulls(self.config[command], self._subcommand_parsers[command].get_defaults())
        refuse_class_nulls(self.config[command].as_dict())

    def instantiate_classes(self) -> None:
        """Make the objects; what a constructor cannot work with is the configuration's fault."""
        with constructors_refusals():
            super().instantiate_classes()


@contextmanager
def constructors_refusals() -> Iterator[None]:
    """Turn what constructors raise on values of the wrong kind into a :class:`ConfigError`."""
    try:
        yield
    except RalsegError:
        raise
    except ValueError as error:  # the parser's, where something else could stand in the class's place
        said = _said_by_ralseg(error) or _said_in_lines(str(error))
        if said is None:
            raise
        raise said from error
    except (TypeError, AttributeError, OverflowError, MemoryError) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"a value of the configuration cannot be used: {error or type(error).__name__} (at {place.line!r} in "
            f"{Path(place.filename).name}; RALSEG_DEBUG=1 shows more)"
        ) from error


def _said_by_ralseg(error: BaseException | None) -> RalsegError | None:
    """The error of ralseg that another one was raised from."""
    while error is not None and not isinstance(error, RalsegError):
        error = error.__cause__ or error.__context__
    return error


def _said_in_lines(message: str) -> RalsegError | None:
    """What constructors have said where a name could stand in the class's place: the parser keeps only the words."""
    if not message.startswith("Does not validate against any of the Union subtypes"):
        return None
    lines = re.findall(r"^\s+- (?!Expected a )(.+)$", message, re.MULTILINE)
    return ConfigError("; ".join(lines)) if lines else None


class SegmenterCLI(CheckedCLI):
    """`ralseg pretrain` and `ralseg test`: one configuration serves both."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """The commands, with the arguments that are not the user's to give."""
        lightning_only = {"model", "dataloaders", "datamodule", "ckpt_path", "verbose", "weights_only"}
        return {"pretrain": {"model", "datamodule"}, "test": lightning_only}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Early stopping on the reward set."""
        super().add_arguments_to_parser(parser)
        parser.add_lightning_class_args(EarlyStopping, "early_stopping")
        parser.set_defaults(
            {"early_stopping.monitor": SCORE, "early_stopping.mode": "max", "early_stopping.patience": 10}
        )


class SegmenterOfSeedCLI(SegmenterCLI):
    """One of several `pretrain` runs that differ in their seed."""

    def before_instantiate_classes(self) -> None:
        """Give the run the folder ``seed<number>`` below the configured one."""
        super().before_instantiate_classes()
        config = self.config[self.config["subcommand"]]
        folder = Path(config["trainer"]["default_root_dir"] or "runs/ralseg")
        config["trainer"]["default_root_dir"] = str(folder / f"seed{config['seed_everything']}")


class FitCLI(CheckedCLI):
    """`ralseg fit`."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """The command, with the arguments that are not the user's to give."""
        lightning_only = {"train_dataloaders", "val_dataloaders", "ckpt_path", "weights_only"}
        return {"fit": {"model", "datamodule"} | lightning_only}


class AcquireCLI(CheckedCLI):
    """`ralseg acquire`."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """The command, with the arguments that are not the user's to give."""
        return {"acquire": {"model", "datamodule"}}


_QUIET = {"exit_on_error": False}  # raise what is wrong: the default shows ninety lines of usage before it


def run_cli(cli: type[LightningCLI], trainer: type, arguments: Arguments) -> int:
    """Parse ``arguments`` and run their command."""
    warnings.filterwarnings("ignore", message=".*LightningCLI's args parameter.*")  # they are meant to go first
    cli(
        Segmenter,
        SegmentationData,
        trainer_class=trainer,
        subclass_mode_model=True,
        save_config_callback=ConfigInRunFolder,
        save_config_kwargs={"save_to_log_dir": False},
        seed_everything_default=0,
        auto_configure_optimizers=False,
        load_from_checkpoint_support=False,
        parser_kwargs={"prog": "ralseg", **_QUIET, **{name: _QUIET for name in cli.subcommands()}},
        args=arguments,
    )
    return 0


def run_acquire(config: dict[str, Any]) -> int:
    """Run `acquire` with the values of a configuration: a cell of a study, which nobody typed."""
    arguments = sys.argv[1:]
    # what Lightning gives to the processes that it starts for further devices: the same values, as YAML
    sys.argv[1:] = ["acquire", "--config", yaml.safe_dump(config, sort_keys=False)]
    try:
        with explained_errors(["acquire"]):
            return run_cli(AcquireCLI, AcquireTrainer, {"subcommand": "acquire", "acquire": config})
    finally:
        sys.argv[1:] = arguments


def run_pretrain(arguments: list[str]) -> int:
    """Run `pretrain`; with `--seeds 0,1,2`, once for each seed, each in a folder of its own."""
    if "--seeds" not in arguments:
        return run_cli(SegmenterCLI, RunTrainer, arguments)
    place = arguments.index("--seeds")
    try:
        seeds = [int(seed) for seed in arguments[place + 1].split(",")]
    except (IndexError, ValueError):
        raise ConfigError("--seeds takes whole numbers with commas between, 0,1,2 for example") from None
    rest = arguments[:place] + arguments[place + 2 :]
    for seed in seeds:
        run_cli(SegmenterOfSeedCLI, RunTrainer, [*rest, "--seed_everything", str(seed)])
    return 0


def run_label(arguments: list[str]) -> int:
    """Run `label`: `acquire` with a page for people."""
    from ralseg.label_command import label_arguments

    acquiring = resolve_configs(label_arguments(arguments))
    sys.argv[1:] = acquiring  # what Lightning gives to the processes that it starts for further devices
    return run_cli(AcquireCLI, AcquireTrainer, acquiring)


def run_init(arguments: list[str]) -> int:
    """Run `init`."""
    from ralseg.project import init_project

    parser = ArgumentParser(
        prog="ralseg init", description=(init_project.__doc__ or "").split("\n")[0], exit_on_error=False
    )
    parser.add_argument("folder", type=str, help="Holds images/ and masks/, and perhaps dataset.yaml.")
    parser.add_argument("--out", type=str | None, help="The file to write; the folder's name with .yaml by default.")
    parser.add_argument(
        "--classes",
        type=str | None,
        help="Names of classes in order of mask values, road,crack; or road=#804080,car=#00008e",
    )
    parser.add_argument("--pixels", type=int | None, help="Pixels that images are scaled down to: 98304 is 256x384.")
    parser.add_argument("--overwrite", action="store_true", help="Replace a configuration that is there.")
    config = parsed(parser, "init", arguments)
    classes = None if config.classes is None else [name.strip() for name in config.classes.split(",")]
    init_project(config.folder, config.out, classes, config.pixels, config.overwrite)
    return 0


def run_data(arguments: list[str]) -> int:
    """Run `data check`. Other commands' keys may stand in its configuration and are passed over."""
    if arguments[:1] != ["check"]:
        raise ConfigError("usage: ralseg data check --config NAME.yaml [--out FOLDER]")
    from ralseg.data.check import check_data

    parser = data_parser("ralseg data check", check_data.__doc__)
    parser.add_argument("--out", type=str, default="data_check", help="Folder for the report and the contact sheet.")
    config = parsed(parser, "data check", arguments[1:])
    return check_data(make_data(parser, config), Path(config.out))


def make_data(parser: ArgumentParser, config: Namespace) -> SegmentationData:
    """The data of a configuration of :func:`data_parser`."""
    refuse_nulls(config, parser.get_defaults())
    with constructors_refusals():
        data: SegmentationData = parser.instantiate_classes(config).data
    return data


def data_parser(prog: str, description: str | None) -> ArgumentParser:
    """A parser of the key ``data`` alone; the keys of other commands are passed over."""
    parser = ArgumentParser(prog=prog, description=description, exit_on_error=False)
    parser.add_argument("-c", "--config", action=ActionConfigFile, help="A configuration of any command.")
    parser.add_class_arguments(SegmentationData, "data")
    for key in COMMON_KEYS:
        if key != "data":
            parser.add_argument(f"--{key}", type=Any, default=SUPPRESS, help=SUPPRESS)
    return parser


def run_compare(arguments: list[str]) -> int:
    """Run `compare`; its arguments as they were typed, for `--emit` repeats them."""
    from ralseg.studies.plan import Study, find_cell, make_cells, run_cell
    from ralseg.studies.run import compare_study

    parser = ArgumentParser(
        prog="ralseg compare", description="Compare methods over paired seeds; write a report.", exit_on_error=False
    )
    parser.add_argument("-c", "--config", action=ActionConfigFile, help="Configuration of the study.")
    parser.add_class_arguments(Study)
    parser.add_argument("--report_only", action="store_true", help="Run nothing; gather what exists, upload, report.")
    parser.add_argument("--emit", choices=["commands"], help="Print the cells' commands for any scheduler, and stop.")
    parser.add_argument("--cell", type=str | None, help="Run this cell alone (method/seed0), as --emit prints it.")
    resolved = resolve_configs(["compare", *arguments])
    config = parsed(parser, "compare", resolved[1:])
    refuse_nulls(config, parser.get_defaults())
    plain = config.as_dict()
    study = Study(**{option.name: plain[option.name] for option in fields(Study)})
    if config.emit:
        rest = [argument for argument in arguments if argument not in ("--emit", "--emit=commands", "commands")]
        allowed = ",".join(allowed_imports.allowed_by_user())
        rest += [allowed_imports.FLAG, allowed] if allowed else []
        for cell in make_cells(study):
            print(shlex.join(["ralseg", "compare", *rest, "--cell", cell.title]))
        return 0
    if config.cell:
        problem = run_cell(find_cell(make_cells(study), config.cell), run_allowed_acquire)
        if problem is not None:
            raise RalsegError(f"{config.cell}: {problem}")
        return 0
    whole = parser.dump(config, skip_none=False)
    return compare_study(study, run_allowed_acquire, load_study_data, whole, config.report_only)


def run_allowed_acquire(config: dict[str, Any]) -> int:
    """Run a cell of a study in whatever process it is in: it may import what the study may."""
    quiet_console()
    allowed_imports.restrict()
    with allowed_imports.restricted():
        return run_acquire(config)


def load_data(config: dict[str, Any]) -> SegmentationData:
    """The data that a configuration describes."""
    parser = data_parser("ralseg", None)
    return make_data(parser, parser.parse_object({"data": config.get("data", {})}))


def load_study_data(config: dict[str, Any]) -> SegmentationData | None:
    """The data of a run or of a study's cells, for pictures; None where they are not at hand."""
    try:
        return load_data(config)
    except (RalsegError, ArgumentError) as error:  # a page about results of other machines needs no data
        logging.getLogger(__name__).warning("no pictures of images: the data are not at hand (%s)", error)
        return None


def run_dashboard(arguments: list[str]) -> int:
    """Run `dashboard`: a page with the reports of studies, and MLflow's own on the store that ralseg writes to."""
    parser = ArgumentParser(
        prog="ralseg dashboard", description="Serve the studies of this folder and MLflow's page.", exit_on_error=False
    )
    parser.add_argument("--port", type=int, default=5000, help="MLflow's port; the studies are at the next free one.")
    config = parsed(parser, "dashboard", arguments)
    uri = tracking_uri()
    if uri.startswith("http"):
        print(f"MLFLOW_TRACKING_URI names a server; open {shown(uri)}")
        return 0
    store = Path(uri.removeprefix("sqlite:///"))
    if not store.is_file():
        raise ConfigError(f"{store}: no runs have been tracked in this folder; start in the one you run ralseg in")
    from ralseg.studies.dashboard import HOST, serve, study_pages

    mlflow = f"http://{HOST}:{config.port}"
    page = serve(partial(study_pages, uri, mlflow), config.port + 1)
    print(f"studies and their reports: http://{HOST}:{page.server_port}")
    print(f"MLflow: {mlflow} (Ctrl-C ends both)", flush=True)
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, "--port", str(config.port)]
    command += ["--workers", "1"]  # one person looks on; each of MLflow's four takes seconds to start
    return subprocess.call(command)


def quiet_console() -> None:
    """Drop the lines that are no news to anyone who runs ralseg."""
    expected = ("litlogger", "TPU available", "GPU available", "estimate number of stepping batches")
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
        lambda record: not any(part in record.getMessage() for part in expected)
    )
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # Lightning's own use of torch
    warnings.filterwarnings("ignore", message=r".*module\(s\) in eval mode.*")  # a frozen encoder
    warnings.filterwarnings("ignore", message=".*exists and is not empty.*")  # a resumed run
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")  # all is cached
    warnings.filterwarnings("ignore", message=".*It is recommended to use `self.log.*")  # the same on every rank


@contextmanager
def explained_errors(arguments: list[str]) -> Iterator[None]:
    """Turn what parsers and workers raise into errors that name the way out."""
    try:
        with explained(None, arguments[0], arguments):
            yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise RalsegError(
            f"{str(error).strip()} That is often memory: lower data.num_workers or data.batch_size, then go on with "
            "--ckpt last"
        ) from error


def run(arguments: list[str]) -> int:
    """Run the command that ``arguments`` begin with; it may import what they allow."""
    rest = allowed_imports.take_allowed(arguments)
    quiet_console()
    allowed_imports.restrict()
    with allowed_imports.restricted(), explained_errors(rest):
        return _dispatch(rest)


def run_predict(arguments: list[str]) -> int:
    """Run `predict`."""
    from ralseg import predict_command

    return predict_command.run_predict(arguments)


def run_export(arguments: list[str]) -> int:
    """Run `export`."""
    from ralseg import export_command

    return export_command.run_export(arguments)


def run_labels(arguments: list[str]) -> int:
    """Run `labels`."""
    from ralseg import labels_command

    return labels_command.run_labels(arguments, load_data)


def run_explain(arguments: list[str]) -> int:
    """Run `explain`."""
    from ralseg import explain_command

    return explain_command.run_explain(arguments, load_study_data)


_ON_RUNS = {"predict": run_predict, "export": run_export, "labels": run_labels, "explain": run_explain}
"""Commands that read what others have left, and are imported only when they are wanted."""


def _dispatch(arguments: list[str]) -> int:
    sys.argv[1:] = arguments  # what Lightning gives to the processes that it starts for further devices
    command, rest = arguments[0], arguments[1:]
    if command == "init":
        return run_init(rest)
    if command == "data":
        return run_data(rest)
    if command == "compare":
        return run_compare(rest)
    if command == "label":
        return run_label(rest)
    if command == "dashboard":
        return run_dashboard(rest)
    if command in _ON_RUNS:
        return _ON_RUNS[command](rest)
    if command == "fit":
        return run_cli(FitCLI, FitTrainer, arguments)
    if command == "acquire":
        return run_cli(AcquireCLI, AcquireTrainer, arguments)
    return run_pretrain(arguments)
