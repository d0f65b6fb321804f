"""The small configurations of tests/conf as text."""

from pathlib import Path

CONF = Path(__file__).parent.parent / "conf"
PRETRAIN, FIT, ACQUIRE, STUDY = (
    (CONF / f"{name}.yaml").read_text() for name in ("pretrain", "fit", "acquire", "study")
)
