"""Configurations that build on others, and where they are found."""

import shutil
import sys
from pathlib import Path

import pytest
import yaml

from ralseg.cli import main
from ralseg.config import config_folder, find_config, load_config, merge, resolve_configs, set_option
from ralseg.errors import ConfigError
from support.configs import CONF, PRETRAIN

SHIPPED = sorted(str(path.relative_to(config_folder())) for path in config_folder().rglob("*.yaml"))
WHOLE = [name for name in SHIPPED if "/" not in name]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ralseg"])
    return tmp_path


def write(path, **content):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(yaml.safe_dump(content))


def printed(capsys, command, name, *options):
    """The whole configuration as the parser of a command understands it."""
    with pytest.raises(SystemExit) as stop:
        main([command, "--config", name, *options, "--print_config"])
    said = capsys.readouterr()
    assert stop.value.code == 0, said.err
    return yaml.safe_load(said.out)


def test_the_policy_in_the_box_chooses_where_none_is_named(folder, capsys):
    write("run.yaml", base="synthetic_acquire.yaml")
    assert "policy" not in load_config("run.yaml")
    assert printed(capsys, "acquire", "run.yaml")["policy"] == "ralseg"


# -- files that build on others ----------------------------------------------------------------------


def test_a_base_is_found_beside_the_file_that_names_it(folder):
    write("mine/common.yaml", data={"size": [8, 8], "flip": True})
    write("mine/run.yaml", base=["common.yaml"], data={"size": None})
    assert load_config("mine/run.yaml") == {"data": {"size": None, "flip": True}}
    write("common.yaml", data={"size": "of another folder"})
    assert load_config("mine/run.yaml")["data"]["flip"]
    assert load_config(str(folder / "mine" / "run.yaml"))["data"]["flip"]


def test_a_base_may_be_a_shipped_one_and_stand_alone(folder):
    write("run.yaml", base="synthetic_pretrain.yaml", trainer={"max_epochs": 2})
    found = load_config("run.yaml")
    assert found["trainer"]["max_epochs"] == 2
    assert found["trainer"]["default_root_dir"] == "runs/synthetic_pretrain"
    write("part.yaml", base=["data/synthetic"])
    assert load_config("part.yaml") == load_config("data/synthetic.yaml")


def test_several_levels_and_the_last_word(folder):
    write("one.yaml", a=1, b=1, c=1, d=1)
    write("two.yaml", base=["one.yaml"], b=2, c=2, d=2)
    write("beside.yaml", c=3, d=3)
    write("three.yaml", base=["two.yaml", "beside.yaml"], d=4)
    assert load_config("three.yaml") == {"a": 1, "b": 2, "c": 3, "d": 4}
    # one that two others build on is no circle
    write("four.yaml", base=["three.yaml", "one.yaml"])
    assert load_config("four.yaml") == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_another_class_takes_nothing_over(folder):
    write("base.yaml", agent={"class_path": "ralseg.DQN", "init_args": {"gamma": 0.9, "batch_size": 4}})
    write("same.yaml", base=["base.yaml"], agent={"class_path": "ralseg.DQN", "init_args": {"gamma": 0.5}})
    write("silent.yaml", base=["base.yaml"], agent={"init_args": {"gamma": 0.5}})
    write("other.yaml", base=["base.yaml"], agent={"class_path": "ralseg.PairedBlocks", "init_args": {"gamma": 0.5}})
    write("plain.yaml", base=["base.yaml"], agent={"class_path": "ralseg.PairedBlocks"})
    expected = {"class_path": "ralseg.DQN", "init_args": {"gamma": 0.5, "batch_size": 4}}
    assert load_config("same.yaml")["agent"] == load_config("silent.yaml")["agent"] == expected
    assert load_config("other.yaml")["agent"] == {"class_path": "ralseg.PairedBlocks", "init_args": {"gamma": 0.5}}
    assert load_config("plain.yaml")["agent"] == {"class_path": "ralseg.PairedBlocks"}


def test_the_parser_gets_all_of_it(folder, capsys):
    write("own/net.yaml", base=["segmenter/fpn_lite0_theta_0.yaml"], model={"init_args": {"dropout": 0.25}})
    text = "base: [own/net.yaml, data/synthetic.yaml]\ntrainer: {max_epochs: 3}\ndata: {size: null, cache_gb: 1e-3}\n"
    Path("run.yaml").write_text(text)
    found = printed(capsys, "pretrain", "run.yaml", "--model.pyramid_channels", "16")
    given = found["model"]["init_args"]
    assert (given["dropout"], given["pyramid_channels"], given["segmentation_channels"]) == (0.25, 16, 32)
    assert found["trainer"]["max_epochs"] == 3
    assert found["data"]["dataset"]["init_args"]["num_train"] == 170
    assert found["data"]["cache_gb"] == 0.001  # YAML's own readers take 1e-3 for a text
    assert "base" not in found


def test_inputs_stay_as_they_were(folder):
    one, two = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merge(one, two) == {"a": {"b": 1, "c": 2}}
    assert set_option(one, "a.d.e", [1, None]) == {"a": {"b": 1, "d": {"e": [1, None]}}}
    assert (one, two) == ({"a": {"b": 1}}, {"a": {"c": 2}})


# -- what cannot work --------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["b.yaml", "../sub/b.yaml"])
def test_a_circle_is_named(folder, capsys, named):
    write("sub/a.yaml", base=[named])
    write("sub/b.yaml", base=["a.yaml"])
    with pytest.raises(ConfigError, match=r"builds on itself \(.*a\.yaml -> .*b\.yaml -> .*a\.yaml\); take it out"):
        load_config("sub/a.yaml")
    assert main(["pretrain", "--config", "sub/a.yaml"]) == 2
    assert "builds on itself" in capsys.readouterr().err


def test_a_base_that_is_not_there(folder, capsys):
    write("bare.yaml", base=["synthetic_pretrian.yaml"])
    write("path.yaml", base=["parts/absent.yaml"])
    write("whole.yaml", base=[str(folder / "absent.yaml")])
    assert main(["pretrain", "--config", "bare.yaml"]) == 2
    said = capsys.readouterr().err
    assert "bare.yaml: `base` names synthetic_pretrian.yaml: neither a file here nor a shipped one" in said
    assert "did you mean synthetic_pretrain.yaml?" in said
    for name in ("path.yaml", "whole.yaml"):
        assert main(["pretrain", "--config", name]) == 2
        assert f"absent.yaml: no such configuration (named by {name})" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["- a list\n", "just a word\n", "a: [1, 2\n", "a: 1\n b: 2\n", "\x00"])
def test_a_base_that_is_no_configuration(folder, capsys, text):
    Path("bad.yaml").write_text(text)
    write("run.yaml", base=["bad.yaml"])
    assert main(["pretrain", "--config", "run.yaml"]) == 2
    said = capsys.readouterr().err
    assert "bad.yaml: " in said
    assert "Traceback" not in said


# -- where they are found ----------------------------------------------------------------------------


def test_a_local_file_goes_before_a_shipped_one(folder):
    assert Path(find_config("synthetic_pretrain")) == config_folder() / "synthetic_pretrain.yaml"
    Path("synthetic_pretrain.yaml").write_text(PRETRAIN)
    assert find_config("synthetic_pretrain.yaml") == "synthetic_pretrain.yaml"


def test_all_ways_to_name_a_config(folder):
    shipped = str(config_folder() / "synthetic_compare.yaml")
    assert resolve_configs(["compare", "--config", "synthetic_compare"])[2] == shipped
    assert resolve_configs(["compare", "-c", "synthetic_compare.yaml"])[2] == shipped
    assert resolve_configs(["compare", "--config=synthetic_compare"])[1] == f"--config={shipped}"
    (composed,) = resolve_configs(["--config=synthetic_dqn"])
    assert yaml.safe_load(composed.removeprefix("--config=")) == load_config("synthetic_dqn.yaml")
    assert resolve_configs(["--config", "a: 1\nb: 2\n"])[1] == "a: 1\nb: 2\n"  # of a process that started this one
    assert resolve_configs(["fit", "--config"]) == ["fit", "--config"]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_config_loads(name, folder):
    content = load_config(name)
    assert content
    assert "base" not in content
    assert load_config(name.removesuffix(".yaml")) == content


def agent_of(name) -> dict:
    return load_config(name)["agent"]["init_args"]


def test_the_dqns_differ_in_values_not_in_keys_so_that_one_can_replace_the_other(folder):
    ours, paper = agent_of("agent/dqn.yaml"), agent_of("agent/dqn_paper.yaml")
    assert ours.keys() == paper.keys()
    assert agent_of("camvid_dqn.yaml") == ours
    assert agent_of("camvid_dqn_paper.yaml") == paper
    assert agent_of("camvid_cpu_dqn_paper.yaml") == paper | {"epsilon_decay": 400.0, "reward_scale": 100.0}
    assert agent_of("camvid_cpu_dqn_released.yaml") == agent_of("agent/dqn_released.yaml")
    city = agent_of("cityscapes_dqn_paper.yaml")
    assert city["optimizer"]["init_args"] == paper["optimizer"]["init_args"] | {"lr": 1e-4}
    assert city == paper | {"replay_size": 3200, "optimizer": city["optimizer"]}


PARTS = {"data": "pretrain", "segmenter": "pretrain", "agent": "fit"}
"""The command that takes the parts in each folder of configs."""


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in WHOLE])
def test_every_shipped_part_parses(name, folder, capsys):
    kind = name.split("/")[0]
    content, found = load_config(name), printed(capsys, PARTS[kind], name)
    key = {"segmenter": "model"}.get(kind, kind)
    assert contains(found[key], content[key])


@pytest.mark.parametrize("name", WHOLE)
def test_every_shipped_config_parses_from_any_folder(name, folder, capsys):
    kind = name.removesuffix(".yaml").split("_")[-1]
    # a segmenter's configuration serves `test` too
    first, second = {"pretrain": ("pretrain", "test"), "acquire": ("acquire",) * 2, "compare": ("compare",) * 2}.get(
        kind, ("fit", "fit")
    )
    rest = ["--policy", "uniform"] if kind == "acquire" else []
    content = printed(capsys, first, name, *rest)
    assert contains(content, load_config(name))
    if kind == "compare":
        assert content["acquire"] in WHOLE
    else:
        assert content["data"]["dataset"]["class_path"].startswith("ralseg.data.")
    # what is printed is accepted again
    write("again.yaml", **content)
    again = printed(capsys, second, "again.yaml")
    assert again.get("model") == content.get("model")


def contains(found, wanted) -> bool:
    """Whether all that a configuration says is in what a parser made of it."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(contains(found.get(key), value) for key, value in wanted.items())
    return found == wanted


def test_the_tests_own_configs_parse(folder, capsys):
    for name, command in {"pretrain": "pretrain", "fit": "fit", "acquire": "acquire"}.items():
        shutil.copy(CONF / f"{name}.yaml", folder)
        rest = ["--policy", "uniform"] if command == "acquire" else []
        assert contains(printed(capsys, command, f"{name}.yaml", *rest), load_config(f"{name}.yaml"))


def test_a_misspelt_file_of_ones_own_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos.yaml").write_text("data: {}")
    with pytest.raises(ConfigError, match=r"did you mean photos\.yaml\?"):
        find_config("fotos.yaml")


@pytest.mark.parametrize("option", ["--model.scheduler", "--model.init_args.scheduler"])
def test_a_schedule_that_is_typed_is_as_long_as_the_run_in_every_spelling(option):
    schedule = "torch.optim.lr_scheduler.LinearLR"
    filled = '{"class_path": "torch.optim.lr_scheduler.LinearLR", "init_args": {"total_iters": 0}}'
    assert resolve_configs(["pretrain", option, schedule]) == ["pretrain", option, filled]
    assert resolve_configs(["pretrain", f"{option}={schedule}"]) == ["pretrain", f"{option}={filled}"]
    length = f"{option}.init_args.total_iters=0"
    assert resolve_configs(["pretrain", f"{option}.class_path", schedule]) == [
        *("pretrain", f"{option}.class_path", schedule, length)
    ]
    assert resolve_configs(["pretrain", f"{option}.class_path={schedule}"])[-1] == length
    assert resolve_configs(["pretrain", "--ckpt", "last"]) == ["pretrain", "--ckpt", "last"]


def test_importing_the_entry_point_runs_nothing():
    import ralseg.__main__

    assert ralseg.__main__.main
