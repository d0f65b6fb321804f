"""Agents that learn a feature policy, in real games: whoever plays, wherever they stop, and on other data."""

from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch

from ralseg.acquisition.features import class_histogram
from ralseg.agents import CreditRegression, FeaturePolicy, GroupAdvantage, PolicySearch
from ralseg.agents.loading import load_policy
from ralseg.data import Folder, SegmentationData, SplitSizes
from ralseg.engine import actors
from ralseg.engine.session import Session
from ralseg.labels import GridLayout
from ralseg.runtime.checkpoints import read_checkpoint
from support.actors import PoolHere, learned
from support.closed_form import closed_form
from support.data import make_folder, small_data
from support.games import UNTRAINED, acquire, assert_same, game, play, segmenter, selected

NAMES = ["entropy", "bald", "rarity", "novelty", "nearest_frame", "labelled_in_image"]
RULES = game(episodes=8, validation_every=4, validation_plays=1, credit_pixels=200)
"""Two groups of each agent below, with a round of validation before, between and after."""
AGENTS = {
    "search": lambda: PolicySearch(NAMES, hidden=2, pairs=2),
    "group": lambda: GroupAdvantage(NAMES, group_size=2, groups=2),
    "credit": lambda: CreditRegression(NAMES, epsilon=0.3, episodes_per_update=4),
}


def played(folder, name, **options):
    return play(folder, RULES, AGENTS[name](), data=small_data(flip=False), model=closed_form(), **options)


@pytest.fixture(scope="module", params=AGENTS)
def whole(request, tmp_path_factory):
    """An agent's name, the folder of a run on a closed form that nothing has stopped, and all that it has learned."""
    folder = tmp_path_factory.mktemp(request.param)
    trainer = played(folder, request.param)
    assert trainer.fit_loop.session.agent.updates == 2
    return request.param, folder, learned(trainer)


@pytest.fixture
def here(monkeypatch):
    """Actors in this process."""
    monkeypatch.setattr(actors, "WorkerPool", PoolHere)


@pytest.mark.slow
def test_the_run_is_the_same_whoever_plays(tmp_path, here, whole):
    name, folder, expected = whole
    trainer = played(tmp_path, name, actors=2)
    session = trainer.fit_loop.session
    assert session.elsewhere._pool.done == len(session.plan)
    assert_same(expected, learned(trainer))
    assert_same(read_checkpoint(folder / "policy.ckpt"), read_checkpoint(tmp_path / "policy.ckpt"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "before", "after"),
    [(13, 0, 0), (24, 1, 1)],  # a step of the third game of a group; between two games of the next
)
def test_a_run_that_was_cut_off_amid_a_group_ends_like_one_that_was_not(tmp_path, here, whole, stop, before, after):
    name, _, expected = whole
    cut = played(tmp_path, name, max_epochs=stop, checkpoint_every=stop, actors=before)
    assert cut.fit_loop.session.agent.gains  # else it was not in the middle of a group
    assert_same(expected, learned(played(tmp_path, name, ckpt="last", actors=after)))


@pytest.mark.slow
def test_what_was_learned_on_a_closed_form_chooses_for_an_fpn_and_for_other_classes(tmp_path, whole):
    _, folder, _ = whole
    file = str(folder / "policy.ckpt")
    _, result = acquire(tmp_path / "file", file, options=UNTRAINED)
    assert result["method"].startswith("learned-")
    assert len(set(selected(tmp_path / "file"))) == 10
    data = small_data()
    data.setup()
    policy = load_policy(Path(file), data)
    acquire(tmp_path / "object", policy, options=UNTRAINED)
    assert selected(tmp_path / "file") == selected(tmp_path / "object")
    other = SegmentationData(Folder(str(make_folder(tmp_path / "data"))), SplitSizes(1, 2), layout=GridLayout(2, 3))
    acquire(tmp_path / "other", file, other, model=segmenter(names=other.class_names), options=UNTRAINED)
    assert len(set(selected(tmp_path / "other"))) == 10


@pytest.mark.slow
def test_policy_search_learns_on_an_fpn(tmp_path, monkeypatch):
    scores, times = FeaturePolicy.scores, []

    def noted(self, observation, generator):
        times.append(observation.actions[..., 0].unique().tolist())
        return scores(self, observation, generator)

    monkeypatch.setattr(FeaturePolicy, "scores", noted)
    rules = game(episodes=4, validation_every=4, validation_plays=1)
    session = play(tmp_path, rules, PolicySearch(pairs=2)).fit_loop.session
    assert session.agent.updates == 1
    weights = session.agent.policy.net.weight.detach()
    assert weights.isfinite().all()
    assert (weights != 0).all()
    assert times == [[pytest.approx(spent - 0.5)] for spent in (0, 0.4, 0.8)]  # of the last round: 4, 4 and 2 of 10


# -- what theta_0 knows ------------------------------------------------------------------------------


def theta_0(path, trained_on) -> str:
    """A theta_0 that says it was trained on these images."""
    trainer = pl.Trainer(default_root_dir=path.parent, max_epochs=0, logger=False, accelerator="cpu")
    trainer.fit(segmenter(), datamodule=small_data())
    trainer.save_checkpoint(path)
    saved = read_checkpoint(path)
    saved["ralseg"]["trained_on"] = trained_on
    torch.save(saved, path)
    return str(path)


@pytest.fixture
def known(monkeypatch):
    """The images that were taken for theta_0's, with their class shares, by the file of theta_0."""
    ask, found = Session.theta_0_regions, {}

    def noted(self):
        regions, shares = ask(self)
        images = [] if regions is None else regions.images.indices
        found.setdefault(Path(self.weights_name).name, []).append((images, shares))
        return regions, shares

    monkeypatch.setattr(Session, "theta_0_regions", noted)
    return found


def policy():
    found = FeaturePolicy(["rarity", "novelty", "nearest_frame"], start={"rarity": 1.0, "novelty": 1.0})
    found.build(("a",), 0, seed=0)
    return found


def test_images_to_acquire_from_are_never_known_before(tmp_path, data, known):
    names = data.dataset.names
    file = theta_0(tmp_path / "all.ckpt", list(names))  # of other data, whose images have the same names
    acquire(tmp_path / "run", policy(), initial_weights=file, options=UNTRAINED)
    expected = {*data.splits.state_set, *data.splits.train_set}
    assert known["all.ckpt"]
    for images, shares in known["all.ckpt"]:
        assert set(images) == expected
        labels = data.mask_oracle(images).label(torch.arange(6 * len(images)))
        assert torch.equal(shares, class_histogram(labels, len(data.class_names)))
    assert not expected & set(data.splits.acquisition_set)
    file = theta_0(tmp_path / "hidden.ckpt", [names[image] for image in data.splits.acquisition_set])
    acquire(tmp_path / "hidden", policy(), initial_weights=file, options=UNTRAINED)
    acquire(tmp_path / "none", policy(), options=UNTRAINED)
    assert known["hidden.ckpt"]
    for images, shares in known["hidden.ckpt"] + known[""]:
        assert images == []
        assert shares.shape == (0, len(data.class_names))
    assert selected(tmp_path / "run") != selected(tmp_path / "hidden")


def test_every_game_knows_the_images_of_its_own_theta_0(tmp_path, data, known):
    names, files = data.dataset.names, []
    own = {"0.ckpt": data.splits.state_set[:1], "1.ckpt": data.splits.state_set[1:]}
    for file, images in own.items():
        files.append(theta_0(tmp_path / file, [names[image] for image in images]))
    rules = game(episodes=4, validation_plays=2, initial_weights=files)
    play(tmp_path / "run", rules, PolicySearch(["rarity", "novelty"], pairs=2))
    assert known.keys() == own.keys()
    for file, images in own.items():
        assert all(found == images for found, _ in known[file])
