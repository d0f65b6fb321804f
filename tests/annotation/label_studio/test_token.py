"""The token of Label Studio, where a configuration or a command line has it: in no file and no message."""

import pytest
import yaml
from jsonargparse import ArgumentParser

from ralseg.annotation import LabelStudioOracle
from ralseg.commands import constructors_refusals
from ralseg.engine.acquire_trainer import find_oracle
from ralseg.errors import ConfigError
from ralseg.labels import Oracle

SECRET = "0123secret4567"
PATH = "ralseg.annotation.LabelStudioOracle"


def choose(oracle: str | Oracle = "masks") -> None:
    """What `acquire` takes."""


def parser() -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_function_arguments(choose)
    return parser


def test_a_saved_configuration_has_stars():
    typed = yaml.safe_dump({"class_path": PATH, "init_args": {"token": SECRET}})
    config = parser().parse_args(["--oracle", typed])
    saved = parser().dump(config, skip_none=False)
    assert SECRET not in saved
    assert "token: '**********'" in saved
    oracle = parser().instantiate(config).oracle
    assert isinstance(oracle, LabelStudioOracle)
    assert oracle._secret() == SECRET


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (f"{{class_path: {PATH}, init_args: {{token: {SECRET}, urk: 3}}}}", "has no option urk; it has document_root"),
        (f"{{class_path: {PATH}, init_args: {{token: {SECRET}, wait: perhaps}}}}", "of the wrong kind"),
        (f"{{class_path: ralseg.annotation.LabelStudioOracl, init_args: {{token: {SECRET}}}}}", "LabelStudioOracl"),
        (f"{{class_path: {PATH}, init_args: {{token: {SECRET}}}", "neither a name"),
        (f"{{init_args: {{token: {SECRET}}}}}", "neither a name"),
    ],
)
def test_what_is_typed_wrongly_is_said_without_it(typed, said):
    with pytest.raises(ConfigError, match=said) as caught:
        find_oracle(typed)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"), [("url: ftp://x", "^url: the address"), ("min_answers: 0", "min_answers=0")]
)
def test_values_that_a_constructor_refuses_are_said_without_it(options, said):
    config = parser().parse_args(["--oracle", f"{{class_path: {PATH}, init_args: {{token: {SECRET}, {options}}}}}"])
    with pytest.raises(ConfigError, match=said) as caught, constructors_refusals():
        parser().instantiate(config)
    assert "Namespace" not in str(caught.value)
    assert SECRET not in str(caught.value)
