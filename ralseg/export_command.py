"""`ralseg export`: a trained segmenter as a file that other programs run."""

from pathlib import Path

from ralseg.config_errors import parsed
from ralseg.errors import ConfigError
from ralseg.models.export import FORMATS, TOLERANCE
from ralseg.models.loading import load, write_complete
from ralseg.predict_command import parser_of, required, run_of

_COMPLETE = "checkpoint"
_KINDS = (*FORMATS, _COMPLETE)
_DEFAULT_OUT = {
    "onnx": "segmenter.onnx",
    "torchscript": "segmenter.pt",
    "smp": "segmenter_smp",
    _COMPLETE: "segmenter.ckpt",
}


def run_export(arguments: list[str]) -> int:
    """Run `export` with what was typed."""
    parser = parser_of("export", "Write a trained segmenter in a format of others, and check that it gives the same.")
    parser.add_argument("--format", type=str | None, help=f"One of {', '.join(_KINDS)}.")
    parser.add_argument("--out", type=str | None, help="The file to write, or the folder for smp.")
    parser.add_argument("--overwrite", type=bool, nargs="?", const=True, default=False, help="Replace what is there.")
    config = parsed(parser, "export", arguments)
    kind = required(config.format, "export", "--format", f"one of {', '.join(_KINDS)}")
    if kind not in _KINDS:
        raise ConfigError(f"--format {kind}: is none of {', '.join(_KINDS)}")
    export(run_of(config.ckpt, "export"), kind, Path(config.out or _DEFAULT_OUT[kind]), config.overwrite)
    return 0


def export(ckpt: Path, kind: str, out: Path, overwrite: bool = False) -> None:
    """Write the segmenter of a run in a format of others, or as a checkpoint that needs no other file.

    Args:
        ckpt: A checkpoint, or the folder of a run.
        kind: ``onnx``, ``torchscript``, ``smp`` or ``checkpoint``.
        out: The file to write, or the folder for ``smp``.
        overwrite: Replace what is there.
    """
    _make_room(out, kind, overwrite)
    if kind == _COMPLETE:
        write_complete(ckpt, out)
        print(f"{out}: written, with all weights")
        return
    segmenter = load(ckpt)
    written = FORMATS[kind](segmenter, out)
    takes = "images of any size" if written.size is None else f"images of {written.size[0]}x{written.size[1]} pixels"
    print(
        f"{out}: written, for {takes}; its logits differ from PyTorch's by at most {written.difference:.1e} "
        f"({TOLERANCE:g} of the largest is allowed)"
    )


def _make_room(out: Path, kind: str, overwrite: bool) -> None:
    is_there = any(out.iterdir()) if out.is_dir() else out.exists()
    if is_there and not overwrite:
        raise ConfigError(f"--out {out}: is there already; give another name, or replace it by --overwrite true")
    if out.is_dir() and kind != "smp":
        raise ConfigError(f"--out {out}: is a folder; give a file, {out / _DEFAULT_OUT[kind]} for example")
    if out.is_file() and kind == "smp":
        raise ConfigError(f"--out {out}: is a file, but smp is a folder of several")
