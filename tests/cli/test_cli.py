import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch
import yaml

from ralseg.cli import COMMANDS, main
from ralseg.config import config_folder
from support.configs import PRETRAIN
from support.data import make_folder

REPO = Path(__file__).parents[2]
SHIPPED = sorted(str(path.relative_to(config_folder())) for path in config_folder().rglob("*.yaml"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    Path("tiny.yaml").write_text(PRETRAIN)
    return tmp_path


def ralseg(*arguments, cwd, **environment):
    command = [sys.executable, "-m", "ralseg", *arguments]
    return subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=300)


def test_help_is_quick_and_imports_nothing_heavy(tmp_path):
    start = time.monotonic()
    result = ralseg("--help", cwd=tmp_path)
    assert time.monotonic() - start < 3
    for command in ("pretrain", "fit", "test", "data"):
        assert command in result.stdout
    code = "import sys; from ralseg.cli import main; main(['--help']); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.endswith("False\n")


def test_commands_do_not_import_mlflow_before_they_need_it(forge):
    packages = forge.packages()
    assert "torch" in packages
    assert "mlflow" not in packages


def test_unknown_commands_and_configs(capsys):
    assert main(["fitt"]) == 2
    assert "unknown command 'fitt'" in capsys.readouterr().err
    assert main(["pretrain", "--config", "nope.yaml"]) == 2
    assert "synthetic_pretrain.yaml" in capsys.readouterr().err


def test_the_page_of_commands_has_all_of_them():
    page = (REPO / "docs/commands.md").read_text()
    assert [name for name in COMMANDS if f"\nralseg {name} " not in page] == []


def test_print_config_of_data_check(folder, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["data", "check", "--config", "synthetic_pretrain.yaml", "--print_config"])
    assert stop.value.code == 0
    assert yaml.safe_load(capsys.readouterr().out)["data"]["layout"] == {
        "class_path": "ralseg.GridLayout",
        "init_args": {"rows": 4, "columns": 6},
    }


@pytest.mark.slow
def test_bare_names_resolve_after_install_of_a_wheel(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", tmp_path, REPO],
        check=True,
        capture_output=True,
    )
    wheel = next(tmp_path.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        assert {f"ralseg/configs/{name}" for name in SHIPPED} <= set(archive.namelist())
        page = {name for name in archive.namelist() if name.startswith("ralseg/annotation/page/static/")}
        assert {Path(name).suffix for name in page} == {".html", ".js", ".css", ".svg"}
        kinds = {Path(name).suffix for name in archive.namelist() if "dist-info" not in name and name not in page}
        assert kinds == {".py", ".yaml", ".j2", ".typed", ".ckpt", ".json", ".txt"}  # nothing that runs by itself
        assert [name for name in archive.namelist() if name.endswith(".ckpt")] == ["ralseg/agents/shipped/ralseg.ckpt"]
        archive.extractall(tmp_path / "site")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = "import ralseg; from ralseg.config import find_config; print(find_config('camvid_pretrain'))"
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    found = subprocess.run([sys.executable, "-c", code], cwd=elsewhere, env=environment, capture_output=True, text=True)
    assert Path(found.stdout.strip()) == tmp_path / "site/ralseg/configs/camvid_pretrain.yaml"


@pytest.mark.slow
def test_pretrain_then_test_with_mlflow(folder, capsys):
    assert main(["pretrain", "--config", "tiny.yaml", "--trainer.logger", "true"]) == 0
    assert "best reward_set/miou" in capsys.readouterr().out
    assert sorted(p.name for p in Path("run/checkpoints").iterdir()) == ["best.ckpt", "last.ckpt", "last.previous.ckpt"]
    splits = json.loads(Path("run/splits.json").read_text())
    assert len(splits["train_set"]) == 6
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    assert config["trainer"]["max_epochs"] == 4
    assert config["seed_everything"] == 1

    assert main(["test", "--config", "tiny.yaml", "--trainer.logger", "true"]) == 0
    table = capsys.readouterr().out
    assert "pedestrian" in table
    report = json.loads(Path("run/test.json").read_text())
    assert f"{100 * report['test_set/miou']:.2f}" in table
    assert 0.03 < report["test_set/miou"] < 1

    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("ralseg").experiment_id])
    (tested,) = runs  # `test` adds to the run that it tests
    assert tested.info.status == "FINISHED"
    assert tested.data.metrics["segmenter/loss"] > 0
    assert tested.data.metrics["test_set/miou"] == pytest.approx(report["test_set/miou"])
    assert tested.data.metrics["test_set/iou/road"] == pytest.approx(report["test_set/iou/road"])
    artifacts = {file.path for file in client.list_artifacts(tested.info.run_id)}
    assert {"config.yaml", "test.json"} <= artifacts


@pytest.mark.slow
def test_learning_happens_and_runs_are_repeatable(folder, capsys):
    scores = []
    for name in ("one", "two"):
        options = ["--trainer.default_root_dir", name, "--trainer.max_epochs", "12"]
        options += ["--model.encoder", "tu-tf_efficientnet_lite0", "--model.encoder_weights", "efficientnet_lite0"]
        assert main(["pretrain", "--config", "tiny.yaml", *options]) == 0
        weights = torch.load(f"{name}/checkpoints/last.ckpt", weights_only=True)["state_dict"]
        scores.append((weights, capsys.readouterr().out.split()[2]))
    assert float(scores[0][1]) > 15  # guessing "road" everywhere gives about 3
    assert all(torch.equal(scores[0][0][k], scores[1][0][k]) for k in scores[0][0])


def test_a_run_too_short_to_be_validated_is_an_error_not_an_empty_folder(folder, capsys):
    assert main(["pretrain", "--config", "tiny.yaml", "--trainer.check_val_every_n_epoch", "9"]) == 2
    assert "trainer.check_val_every_n_epoch=9: a training of 4 epochs" in capsys.readouterr().err
    assert not (folder / "run").exists()  # said before anything is trained


def test_several_seeds_in_one_go_differ_in_weights_and_images(folder, capsys):
    options = ["--seeds", "4,5", "--data.fit_images", "3", "--trainer.max_epochs", "2"]
    assert main(["pretrain", "--config", "tiny.yaml", *options]) == 0
    kept = [torch.load(f"run/seed{seed}/checkpoints/best.ckpt", weights_only=True) for seed in (4, 5)]
    weights = [content["state_dict"]["net.decoder.p5.weight"] for content in kept]
    assert not torch.equal(*weights)
    assert yaml.safe_load(Path("run/seed5/config.yaml").read_text())["seed_everything"] == 5
    assert main(["pretrain", "--config", "tiny.yaml", "--seeds", "four"]) == 2
    assert "--seeds takes whole numbers" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_is_never_overwritten_by_accident(folder, capsys):
    assert main(["pretrain", "--config", "tiny.yaml"]) == 0
    before = Path("run/checkpoints/last.ckpt").read_bytes()
    assert main(["pretrain", "--config", "tiny.yaml", "--seed_everything", "2"]) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert Path("run/checkpoints/last.ckpt").read_bytes() == before
    assert main(["pretrain", "--config", "tiny.yaml", "--ckpt", "last", "--trainer.max_epochs", "6"]) == 0
    assert torch.load("run/checkpoints/last.ckpt", weights_only=True)["epoch"] == 5
    others = ["--data.fit_images", "2", "--trainer.max_epochs", "7"]
    assert main(["pretrain", "--config", "tiny.yaml", "--ckpt", "last", *others]) == 2
    assert "of a training on other images; go on with the data.dataset" in capsys.readouterr().err
    assert main(["pretrain", "--config", "tiny.yaml", "--trainer.overwrite", "true", "--seed_everything", "2"]) == 0
    assert torch.load("run/checkpoints/last.ckpt", weights_only=True)["epoch"] == 3


@pytest.mark.slow
def test_checkpoints_that_do_not_fit_say_what_differs(folder, capsys):
    assert main(["pretrain", "--config", "tiny.yaml"]) == 0
    assert main(["test", "--config", "tiny.yaml", "--model.pyramid_channels", "64"]) == 2
    said = capsys.readouterr().err
    assert "decoder_pyramid_channels: 32 in the checkpoint, 64 here" in said
    assert main(["test", "--config", "tiny.yaml", "--ckpt", "absent.ckpt"]) == 2
    assert "absent.ckpt: no such checkpoint" in capsys.readouterr().err
    Path("junk.ckpt").write_bytes(b"junk")
    assert main(["test", "--config", "tiny.yaml", "--ckpt", "junk.ckpt"]) == 3
    assert "junk.ckpt: not a checkpoint" in capsys.readouterr().err


def test_a_checkpoint_that_runs_code_is_refused(folder, capsys):
    class Evil:
        def __reduce__(self):
            return (os.system, ("touch owned",))

    torch.save({"state_dict": {}, "evil": Evil()}, "evil.ckpt")
    assert main(["test", "--config", "tiny.yaml", "--ckpt", "evil.ckpt"]) == 3
    assert "cannot" not in capsys.readouterr().out
    assert not Path("owned").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--data.layout.rows", "5"],
            "data.layout rows=5 does not divide the image height 64; the nearest counts that do: 4 or 8",
        ),
        (
            ["--data.splits.train", "60"],
            "subset 'train' has 12 left; set data.splits.state and "
            "data.splits.train to fewer, for example data.splits: {state: 1, train: 4}",
        ),
        (["--model.encoder_weights", "absent.pth"], "model.encoder_weights"),
        (["--data.splits", "absent.json"], "absent.json: no such split file (data.splits)"),
        (["--data.crop", "[32,32]"], "set data.crop to null"),
        (["--data.batch_size", "0"], "data.batch_size=0 must be at least 1"),
        (["--data.fit_on", "[valid]"], "there is no set 'valid'"),
        (["--model.dropout", "null"], "model.dropout is null, but needs a value; leave it out for the default, 0.2"),
        (["--model.label_stride", "null"], "model.label_stride is null, but needs a value"),
        (["--data.layout.rows", "null"], "data.layout.rows is null, but needs a value"),
    ],
)
def test_bad_values_name_the_key(folder, capsys, options, message):
    assert main(["pretrain", "--config", "tiny.yaml", *options]) in (2, 3)
    assert message in capsys.readouterr().err
    assert not Path("run/checkpoints").exists()


def test_bad_types_and_typos_name_the_key(folder, capsys):
    for options, message in (
        (["--data.batch_size", "many"], "data.batch_size"),
        (["--data.batchsize", "3"], "batchsize"),
    ):
        assert main(["pretrain", "--config", "tiny.yaml", *options]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert len(said.splitlines()) < 6  # not ninety lines of usage


# -- data check --------------------------------------------------------------------------------------


def test_data_check_shows_a_clean_data_set(folder, capsys):
    assert main(["data", "check", "--config", "tiny.yaml"]) == 0
    out = capsys.readouterr().out
    assert "0 problems in 20 images" in out
    assert "Jensen-Shannon" in out
    assert Path("data_check/contact_sheet.png").stat().st_size > 10_000
    report = json.loads(Path("data_check/report.json").read_text())
    assert report["images"] == {"train": 12, "val": 4, "test": 4}
    assert sum(report["pixels"]["val"].values()) == 4 * 64 * 96


def test_data_check_names_every_problem(folder, capsys):
    root = make_folder(folder / "mine")
    (root / "images/train/000.png").write_bytes(b"junk")
    (root / "masks/val/001.png").write_bytes((root / "masks/val/001.png").read_bytes()[:60])
    dataset = {"class_path": "ralseg.data.Folder", "init_args": {"root": str(root)}}
    layout = {"class_path": "ralseg.GridLayout", "init_args": {"rows": 2, "columns": 2}}
    content = {"dataset": dataset, "layout": layout, "splits": {"state": 1, "train": 2}}
    Path("mine.yaml").write_text(yaml.safe_dump({"data": content}))
    assert main(["data", "check", "--config", "mine.yaml"]) == 3
    out = capsys.readouterr().out
    assert "2 problems" in out
    assert "images/train/000.png" in out.replace("\n", "")
    assert "masks/val/001.png" in out.replace("\n", "")
    report = json.loads(Path("data_check/report.json").read_text())
    assert len(report["problems"]) == 2


# -- real CamVid -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_real_camvid_through_the_command_line(folder, capsys, camvid_root, monkeypatch):
    monkeypatch.setenv("RALSEG_CAMVID", camvid_root)
    common = ["--config", "camvid_cpu_pretrain.yaml", "--trainer.logger", "false"]
    common += ["--trainer.enable_progress_bar", "false", "--data.reward_images", "20"]
    assert main(["pretrain", *common, "--trainer.max_epochs", "45"]) == 0
    assert main(["test", *common, "--trainer.limit_test_batches", "2"]) == 0  # 48 of 233 images
    report = json.loads(Path("runs/camvid_cpu_pretrain/test.json").read_text())
    assert report["test_set/miou"] > 0.2  # by guessing: 0.03
    assert len(report) == 13
