"""`ralseg acquire`: the right regions, the right number of them, and everything that is written."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch
from conftest import make_folder, small_data
from PIL import Image
from test_loop import SUMMARY, game, model
from test_loop import play as play_game

from ralseg import labelling
from ralseg.acquire import AcquireTrainer
from ralseg.acquisition import AcquisitionConfig
from ralseg.baselines import BASELINES, Uniform
from ralseg.checkpoints import read_checkpoint
from ralseg.cli import main
from ralseg.data import Folder
from ralseg.data.module import SegmentationData
from ralseg.data.splits import SplitSizes
from ralseg.errors import ConfigError, DataError
from ralseg.final import FinalTraining
from ralseg.find_policy import load_policy
from ralseg.player import SegmenterPlayer
from ralseg.policies import Needs
from ralseg.regions import GridShape
from ralseg.representation import look_at_regions
from ralseg.segmenter import FPNSegmenter
from ralseg.selection import mask_name

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


def final(**changes) -> FinalTraining:
    adam = {"optimizer": lambda p: torch.optim.AdamW(p, lr=1e-3)}
    return FinalTraining(**({"max_steps": 4, "validate_every": 2} | adam | changes))


def acquire(
    folder, policy="entropy", data=None, oracle="masks", ckpt=None, options=None, args=None, model_names=None, **rules
):
    """Acquire 10 of 36 regions in steps of 4, 4 and 2; returns the trainer and its result."""
    rules = {"budgets": [10], "regions_per_step": 4, "pool_size": 3} | rules
    trainer = AcquireTrainer(
        AcquisitionConfig(**rules), **({"final": final()} | QUIET | (options or {})), default_root_dir=str(folder)
    )
    player = SegmenterPlayer(model(names=model_names).segmenter)
    return trainer, trainer.acquire(player, data or small_data(), policy, args, oracle, ckpt)


def selected(folder: Path) -> list[tuple[str, ...]]:
    rows = list(csv.DictReader((folder / "selection.csv").open()))
    return [(row["step"], row["image"], row["row"], row["column"]) for row in rows]


@pytest.fixture(scope="module")
def policy_file(tmp_path_factory) -> str:
    """A policy that `ralseg fit` has trained for a moment."""
    folder = tmp_path_factory.mktemp("policy")
    play_game(folder, game(episodes=2), model(**SUMMARY))
    return str(folder / "checkpoints" / "best.ckpt")


def test_everything_that_is_written(tmp_path):
    trainer, result = acquire(tmp_path, budgets=[4, 10])
    data = trainer.fit_loop.play.data
    assert len(selected(tmp_path)) == len(set(selected(tmp_path))) == 10
    assert [row[0] for row in selected(tmp_path)] == ["0"] * 4 + ["1"] * 4 + ["2"] * 2
    for budget in (4, 10):
        scores = result["budgets"][str(budget)]
        assert 0 <= scores["test_set/miou"] <= 1
        assert scores["iterations"] == 4
        shares = scores["class_frequencies"]
        assert sum(shares["selected"]) == pytest.approx(1) == pytest.approx(sum(shares["available"]))
        assert shares["selected_entropy"] > 0
        folder = tmp_path / f"budget_{budget:06d}"
        assert (folder / "checkpoints" / "best.ckpt").is_file()
        assert isinstance(smp.from_pretrained(str(folder / "smp")), smp.FPN)
    row = next(csv.DictReader((tmp_path / "selection.csv").open()))
    x, y, w, h = (int(row[key]) for key in "xywh")
    index = data.dataset.names.index(row["image"])
    shown = np.asarray(Image.open(tmp_path / "labels" / f"{row['image']}.png"))
    box = (slice(y, y + h), slice(x, x + w))
    assert (shown[box] == data.dataset.read_mask(index)[box]).all()
    hidden = shown == 255
    revealed = {r[1:] for r in selected(tmp_path) if r[1] == row["image"]}
    assert hidden.mean() >= 1 - len(revealed) / 6 - 1e-9
    assert len(list((tmp_path / "overlays").glob("*.png"))) == min(12, len({r[1] for r in selected(tmp_path)}))
    assert json.loads((tmp_path / "result.json").read_text())["method"] == "entropy"


@pytest.mark.parametrize("name", sorted(BASELINES))
@pytest.mark.parametrize("candidates", ["pools", "global"])
def test_every_baseline_in_both_modes(tmp_path, name, candidates):
    acquire(tmp_path, name, candidates=candidates, options={"final": final(max_steps=2)})
    assert len(set(selected(tmp_path))) == 10


def test_methods_meet_the_same_candidates(tmp_path, policy_file):
    seen = {}
    for policy in ("uniform", "margin", policy_file):
        trainer = AcquireTrainer(AcquisitionConfig([10], 4, pool_size=3), default_root_dir=str(tmp_path / "r"), **QUIET)
        trainer._policy, trainer._policy_args, trainer._oracle = policy, {}, "masks"
        data = small_data()
        data.setup()
        trainer.strategy.connect(SegmenterPlayer(model().segmenter))
        trainer._data_connector.attach_datamodule(trainer.lightning_module, data)
        play = trainer.make_play()
        play.observe()
        seen[policy] = play.observation.pools.tolist()
    assert seen["uniform"] == seen["margin"] == seen[policy_file]


def test_what_is_not_looked_at_costs_no_look_and_is_noted_all_the_same(tmp_path, monkeypatch):
    looked = []

    def counting(*arguments, **options):
        looked[-1] += len(arguments[5])
        return look_at_regions(*arguments, **options)

    monkeypatch.setattr(labelling, "look_at_regions", counting)
    for name, needs in (("blind", Uniform.needs), ("looking", Needs())):
        looked.append(0)
        monkeypatch.setattr(Uniform, "needs", needs)
        acquire(tmp_path / name, "uniform", options={"final": final(max_steps=2)})
    assert looked == [10, 10 * 3]
    assert (tmp_path / "blind/selection.csv").read_text() == (tmp_path / "looking/selection.csv").read_text()


@pytest.mark.parametrize("prior", ["entropy", "margin", "bald"])
def test_a_policy_that_has_learned_nothing_is_its_prior(tmp_path, prior):
    query = model(**SUMMARY, prior=prior, prior_weight=0.5).query
    query.build(small_data().class_names, 12, 0)
    weights = {f"query.{name}": weight for name, weight in query.state_dict().items()}
    torch.save({"ralseg": {"policy": query.description()}, "state_dict": weights}, tmp_path / "policy.ckpt")
    for name, policy in (("learned", str(tmp_path / "policy.ckpt")), ("baseline", prior)):
        acquire(tmp_path / name, policy, options={"final": final(max_steps=2)})
    assert selected(tmp_path / "learned") == selected(tmp_path / "baseline")


def test_policies_of_before_the_prior_could_be_chosen_still_load(tmp_path, policy_file):
    saved = read_checkpoint(Path(policy_file))
    about = saved["ralseg"]["policy"]
    del about["prior"], about["prior_weight"]
    about["entropy_prior"] = 0.7
    torch.save(saved, tmp_path / "old.ckpt")
    policy = load_policy(tmp_path / "old.ckpt", SimpleNamespace(class_names=about["class_names"]))
    assert (policy.query.representation.prior, policy.query.prior_weight) == ("entropy", 0.7)


def test_a_learned_policy_is_used_as_it_was_trained(tmp_path, policy_file):
    _, result = acquire(tmp_path, policy_file)
    assert result["method"].startswith("learned-")
    assert len(set(selected(tmp_path))) == 10


def test_a_policy_that_does_not_fit_says_what_differs(tmp_path, policy_file):
    data = SegmentationData(Folder(str(make_folder(tmp_path / "data"))), SplitSizes(1, 2), grid=GridShape(2, 3))
    with pytest.raises(ConfigError, match=r"does not fit this data: class_names is \['sky'.*\['ground'"):
        acquire(tmp_path / "run", policy_file, data)
    state = tmp_path / "state"
    play_game(state, game(episodes=2, validation_plays=0))
    with pytest.raises(ConfigError, match="num_state_regions is 12 in the policy and 24 here"):
        acquire(tmp_path / "run 2", str(state / "checkpoints" / "last.ckpt"), small_data(splits=SplitSizes(4, 4)))
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    with pytest.raises(ConfigError, match="holds no policy"):
        acquire(tmp_path / "run 3", str(tmp_path / "other.ckpt"))


def test_a_branch_equals_a_direct_run_and_touches_nothing(tmp_path):
    _, both = acquire(tmp_path / "both", budgets=[4, 10])
    _, direct = acquire(tmp_path / "direct", budgets=[4])
    _, whole = acquire(tmp_path / "whole", budgets=[10])
    assert both["budgets"]["4"] == direct["budgets"]["4"]
    assert both["budgets"]["10"] == whole["budgets"]["10"]
    assert selected(tmp_path / "both") == selected(tmp_path / "whole")


@pytest.mark.parametrize(
    ("rules", "count"),
    [
        ({"budgets": [3]}, 3),  # smaller than K
        ({"budgets": [9], "regions_per_step": 4}, 9),  # K does not divide it
        ({"budgets": [36], "pool_size": 50}, 36),  # the whole set, and N larger than what is left
        ({"budgets": [5, 7], "regions_per_step": 36}, 7),
    ],
)
def test_budgets_are_met_exactly(tmp_path, rules, count):
    acquire(tmp_path, "uniform", options={"final": final(max_steps=2)}, **rules)
    assert len(set(selected(tmp_path))) == len(selected(tmp_path)) == count


def test_impossible_budgets_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="37 exceeds the 36 regions"):
        acquire(tmp_path, budgets=[37])
    with pytest.raises(ConfigError, match="ascending"):
        AcquisitionConfig(budgets=[10, 4])
    with pytest.raises(ConfigError, match="no checkpoint at"):
        acquire(tmp_path, initial_weights="nowhere.ckpt")


def test_whole_images_by_configuration(tmp_path):
    acquire(tmp_path, data=small_data(grid=GridShape(1, 1)), budgets=[3], regions_per_step=1, pool_size=2)
    assert {row[2:] for row in selected(tmp_path)} == {("0", "0")}


def test_steps_can_be_scored(tmp_path):
    _, result = acquire(tmp_path, score_steps=True)
    assert len(result["miou_by_step"]) == 4  # theta_0, and after each step
    acquire(tmp_path / "not", score_steps=False)
    assert selected(tmp_path) == selected(tmp_path / "not")


OWN = """
import torch
from ralseg.policies import Needs, Policy

class Rarest(Policy):
    needs = Needs(measures=("probability",))
    def __init__(self, wanted: int = 0):
        self.wanted = wanted
    def scores(self, observation, generator):
        return observation.measures["probability"][..., self.wanted]

class Wrong(Policy):
    def scores(self, observation, generator):
        return torch.zeros(3)
"""


def test_a_policy_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own_policy.py").write_text(OWN)
    _, result = acquire(tmp_path / "run", "own_policy.Rarest", args={"wanted": 2})
    assert result["method"] == "own_policy.Rarest"
    for name, message in (
        ("own_policy.Rarer", "cannot be imported"),
        ("json.JSONDecoder", "is no subclass of ralseg.policies.Policy"),
        ("entropi", "neither a file nor one of bald, class_balanced_entropy"),
    ):
        with pytest.raises(ConfigError, match=message):
            acquire(tmp_path / "other", name)
    with pytest.raises(ConfigError, match="unexpected keyword"):
        acquire(tmp_path / "other", "own_policy.Rarest", args={"want": 2})
    with pytest.raises(Exception, match=r"Wrong.scores gave the shape \(3,\), but the candidates have \(4, 3\)"):
        acquire(tmp_path / "other", "own_policy.Wrong")


class Killed(Exception):
    pass


@pytest.mark.parametrize("after", [1, 2])
def test_an_acquisition_that_was_cut_off_ends_the_same(tmp_path, monkeypatch, after):
    _, whole = acquire(tmp_path / "whole", "bald", budgets=[4, 10])
    finished = AcquireTrainer.step_finished

    def cut(self, play):
        if play.step == after + 1:
            raise Killed
        finished(self, play)

    with monkeypatch.context() as patch:
        patch.setattr(AcquireTrainer, "step_finished", cut)
        with pytest.raises(Killed):
            acquire(tmp_path / "cut", "bald", budgets=[4, 10])
    _, resumed = acquire(tmp_path / "cut", "bald", budgets=[4, 10], ckpt="last")
    assert selected(tmp_path / "cut") == selected(tmp_path / "whole")
    assert resumed["budgets"] == whole["budgets"]
    _, again = acquire(tmp_path / "cut", "bald", budgets=[4, 10], ckpt="last")
    assert again["budgets"] == whole["budgets"]
    with pytest.raises(ConfigError, match="other rules: pool_size, policy differ"):
        acquire(tmp_path / "cut", "entropy", budgets=[4, 10], ckpt="last", pool_size=2)


def test_a_run_goes_on_only_as_it_was_started(tmp_path, policy_file):
    acquire(tmp_path, policy_file)
    other = tmp_path / "other.ckpt"
    content = torch.load(policy_file, weights_only=True)
    torch.save(content | {"changed": 1}, other)
    with pytest.raises(ConfigError, match="other rules: policy differ"):
        acquire(tmp_path, str(other), ckpt="last")
    with pytest.raises(ConfigError, match="other rules: grid differ"):
        acquire(tmp_path, policy_file, small_data(grid=GridShape(1, 6)), ckpt="last")
    with pytest.raises(ConfigError, match="a final training with other options"):
        acquire(tmp_path, policy_file, ckpt="last", options={"final": final(max_steps=6)})
    with pytest.raises(ConfigError, match="8 was not among the budgets when the run"):
        acquire(tmp_path, policy_file, ckpt="last", budgets=[8, 10])


def test_masks_never_leave_their_folder_nor_collide():
    names = ("a/b.png", "frame.0001", "frame.0002", "../x.png", "a/../x.png", "/etc/x.jpg", "x.png")
    places = [str(mask_name(name)) for name in names]
    assert places == ["a/b.png", "frame.0001.png", "frame.0002.png", "__/x.png", "a/__/x.png", "etc/x.png", "x.png"]


def unlabelled_data(root: Path) -> SegmentationData:
    """Six images of the acquisition set, without masks."""
    return SegmentationData(
        Folder(str(root)), SplitSizes(state=1, train=2), size=(32, 48), grid=GridShape(2, 3), batch_size=4
    )


def test_people_label_what_nobody_has_labelled(tmp_path):
    root = make_folder(tmp_path / "data", train=9, size=(66, 97))
    names = sorted(path.name for path in (root / "masks" / "train").glob("*.png"))
    kept = tmp_path / "hidden"
    kept.mkdir()
    for name in names[3:]:
        (root / "masks" / "train" / name).rename(kept / name)
    torch.manual_seed(0)

    def run(ckpt=None):
        options = {"final": final(), **QUIET}
        trainer = AcquireTrainer(
            AcquisitionConfig([6], 4, pool_size=3), default_root_dir=str(tmp_path / "run"), **options
        )
        data = unlabelled_data(root)
        torch.manual_seed(0)
        net = FPNSegmenter(data.class_names, "tu-test_resnet", "none", 32, 32, freeze_encoder=True, cache_features=True)
        return trainer.acquire(SegmenterPlayer(net), data, "entropy", None, "none", ckpt)

    rounds = 0
    result = run()
    while result is None:
        rounds += 1
        manifest = json.loads((tmp_path / "run" / "to_label" / "manifest.json").read_text())
        assert len(manifest["regions"]) == (4, 2)[rounds - 1]
        assert manifest["classes"] == {"0": "ground", "1": "plant", "2": "stone"}
        for number, wanted in enumerate(manifest["regions"]):
            box = (wanted["x"], wanted["y"], wanted["x"] + wanted["width"], wanted["y"] + wanted["height"])
            crop = Image.open(tmp_path / "run" / "to_label" / wanted["crop"])
            assert crop.size == (wanted["width"], wanted["height"])
            mask = Image.open(kept / Path(wanted["image"]).name).crop(box)
            if number == 0 and rounds == 1:
                wrong = tmp_path / "run" / "to_label" / wanted["mask"]
                mask.resize((3, 3)).save(wrong)
                continue
            mask.save(tmp_path / "run" / "to_label" / wanted["mask"])
        if rounds == 1:
            with pytest.raises(DataError, match=r"mask has 3x3 pixels, its crop 33x3[23]"):
                run("last")
            first = manifest["regions"][0]
            box = (first["x"], first["y"], first["x"] + first["width"], first["y"] + first["height"])
            Image.open(kept / Path(first["image"]).name).crop(box).save(wrong)
        result = run("last")
    assert rounds == 2
    assert len(set(selected(tmp_path / "run"))) == 6
    assert result["budgets"]["6"]["class_frequencies"]["available"] is None
    assert 0 <= result["budgets"]["6"]["test_set/miou"] <= 1


CONFIG = """
seed_everything: 1
trainer:
  default_root_dir: run
  logger: false
  enable_progress_bar: false
  enable_model_summary: false
  acquisition: {budgets: [4, 6], regions_per_step: 4, pool_size: 3}
  final:
    max_steps: 2
    validate_every: 2
    optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 1.0e-3}}
model:
  segmenter:
    class_path: ralseg.segmenter.FPNSegmenter
    init_args:
      {encoder: tu-test_resnet, encoder_weights: none, pyramid_channels: 32, segmentation_channels: 32,
       freeze_encoder: true}
data:
  dataset:
    class_path: ralseg.data.SyntheticStreets
    init_args: {num_train: 12, num_val: 4, num_test: 4, height: 64, width: 96}
  splits: {state: 2, train: 6}
  grid: {rows: 2, columns: 3}
"""


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(CONFIG)
    assert main(["acquire", "--config", "tiny.yaml", "--policy", "margin"]) == 0
    assert "margin on SyntheticStreets, seed 1" in capsys.readouterr().out
    assert main(["acquire", "--config", "tiny.yaml", "--policy", "margin"]) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert main(["acquire", "--config", "tiny.yaml", "--policy", "margins", "--trainer.overwrite", "true"]) == 2
    assert "neither a file nor one of" in capsys.readouterr().err
