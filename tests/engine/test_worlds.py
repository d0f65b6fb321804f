"""Games in many worlds: what an episode is played on, what theta_0 knows, and that it can be resumed."""

import json

import lightning.pytorch as pl
import pytest
import torch

from ralseg.agents import CreditRegression, PolicySearch
from ralseg.data import Mixture, SegmentationData, SplitSizes, SyntheticStreets, SyntheticWorlds
from ralseg.engine import Game
from ralseg.engine.worlds import WorldCasting
from ralseg.errors import ConfigError, PoolExhausted
from ralseg.labels import GridLayout
from ralseg.models import ClosedFormSegmenter
from support.data import towns
from support.games import Photograph, assert_same, everything, game, play
from support.games import segmenter as fpn

OWN = {"reward_on": "own_world", "known_images": (1, 3), "budget": 6, "regions_per_step": 3, "pool_size": 3}


def worlds(num_train=3, num_val=2, images=9, **options) -> SegmentationData:
    dataset = SyntheticWorlds(num_train, num_val, images=images, height=32, width=48)
    return data_of(dataset, **options)


def data_of(dataset, **options) -> SegmentationData:
    return SegmentationData(
        dataset, SplitSizes(state=0, train=None), **({"layout": GridLayout(2, 2), "flip": False} | options)
    )


def casting(data, budget=6, known=(1, 3)) -> WorldCasting:
    data.setup()
    return WorldCasting(data, budget, known)


def segmenter(data):
    torch.manual_seed(0)
    return ClosedFormSegmenter(data.class_names, encoder="tu-test_resnet", encoder_weights="none", components=6)


def credit():
    return CreditRegression(["entropy", "margin", "novelty"], episodes_per_update=2, context=["variety", "confidence"])


# -- the draw ----------------------------------------------------------------------------------------


def test_an_episode_has_a_world_of_its_own_and_no_image_two_roles():
    data = worlds(reward_images=2)
    found = casting(data)
    casts = {kind: [found.draw(kind, number, ()) for number in range(60)] for kind in ("train", "validation")}
    for kind, prefix in (("train", "world_"), ("validation", "val_")):
        for cast in casts[kind]:
            images = [*cast.known, *cast.played, *cast.paying]
            assert len(images) == len(set(images))
            assert {data.dataset.world(image) for image in images} == {cast.scene.partition(":")[0]}
            assert cast.scene.startswith(prefix)
            assert 1 <= len(cast.known) <= 3
            assert 1 <= len(cast.paying) <= 2
            assert 4 * len(cast.played) >= 6
        assert {len(cast.known) for cast in casts[kind]} == {1, 2, 3}
    assert len({cast.scene.partition(":")[0] for cast in casts["train"]}) == 3
    few = sum(len(cast.known) == 1 for cast in casts["train"])
    assert few > sum(len(cast.known) == 3 for cast in casts["train"])
    again = casting(worlds(reward_images=2))
    assert [again.draw("train", number, ()) for number in range(60)] == casts["train"]
    other = casting(worlds(reward_images=2, seed=1))
    assert [other.draw("train", number, ()) for number in range(60)] != casts["train"]


def test_a_real_set_counts_as_much_as_all_synthetic_worlds():
    parts = {
        "drawn": SyntheticWorlds(5, 1, images=9, height=32, width=48),
        "streets": SyntheticStreets(9, 0, 0, 32, 48),
    }
    found = casting(data_of(Mixture(parts)))
    families = [found.draw("train", number, ()).scene.partition("/")[0] for number in range(200)]
    assert 70 < families.count("streets") < 130


def test_another_scene_pays_where_a_world_has_several():
    data = data_of(towns().dataset)
    found = casting(data, budget=4, known=(1, 1))
    for number in range(20):
        cast = found.draw("train", number, ())
        (scene,) = {data.dataset.scene(image) for image in cast.paying}
        assert scene not in {data.dataset.scene(image) for image in cast.played}
        assert cast.scene.endswith(f": {scene}")


def test_worlds_that_are_too_small_are_refused():
    data = worlds(images=4)
    with pytest.raises(PoolExhausted, match=r"world 'world_000' has 4 images; without the 3 that theta_0 may see.*"):
        casting(data)
    without = casting(worlds(num_val=1))
    without._families["validation"] = {}
    with pytest.raises(ConfigError, match=r"no world to play episodes of validation in.*validation_plays to 0"):
        without.draw("validation", 0, ())
    with pytest.raises(ConfigError, match=r"known_images=\[3, 1\] must be the fewest and the most"):
        Game(known_images=(3, 1))


def test_a_network_that_learns_by_gradients_is_refused(tmp_path):
    data = worlds()
    with pytest.raises(ConfigError, match=r"own_world makes a theta_0 for each episode.*ralseg\.ClosedFormSegmenter"):
        play(tmp_path, game(**OWN), PolicySearch(["entropy"], pairs=1), data=data, model=fpn(names=data.class_names))


def test_files_of_theta_0_are_refused():
    with pytest.raises(ConfigError, match=r"each episode makes its own theta_0; leave out initial_weights \(a.ckpt\)"):
        casting(worlds()).check((), "a.ckpt")


# -- the game ----------------------------------------------------------------------------------------


class Look(pl.Callback):
    """Notes what the segmenter knows at the first step of each episode."""

    def __init__(self):
        self.known: list[tuple[int, int]] = []

    def on_train_epoch_start(self, trainer, module):
        session = trainer.fit_loop.session
        if session.step == 0:
            regions, shares = session.theta_0_regions()
            self.known.append((len(session.cast.known), len(shares) // 4))
            assert float(module.segmenter.counts.sum()) > 0
            assert set(regions.images.indices) == set(session.cast.known)


def test_each_episode_starts_from_what_its_own_images_taught(tmp_path):
    data, look = worlds(), Look()
    trainer = play(tmp_path, game(**OWN), credit(), data=data, model=segmenter(data), callbacks=[look])
    assert look.known
    assert all(images == shown for images, shown in look.known)
    history = json.loads((tmp_path / "history.json").read_text())
    starts = {record["weights"]: record["miou"][0] for record in history}
    assert len(set(starts.values())) > 1
    trained, validated = ({r["weights"] for r in history if r["kind"] == kind} for kind in ("train", "validation"))
    assert not trained & validated
    assert all(name.startswith("learned from world_") for name in trained)
    assert all(record["scene"].startswith("val_") == (record["kind"] == "validation") for record in history)
    by_draw = {}
    for record in history:
        by_draw.setdefault((record["kind"], record["draw"]), set()).add(record["miou"][0])
    assert all(len(scores) == 1 for scores in by_draw.values())
    assert trainer.fit_loop.session.agent.gram.any()


def test_a_game_in_worlds_that_was_killed_ends_like_one_that_was_not(tmp_path):
    def run(name, **more):
        data = worlds()
        return play(tmp_path / name, game(**OWN), credit(), data=data, model=segmenter(data), **more)

    stops = (3, 9, 10)
    expected = everything(run("whole", checkpoint_every=1, callbacks=[Photograph(*stops)]))
    for stop in stops:
        assert_same(expected, everything(run(f"cut {stop}", ckpt="last")), f"cut at {stop}")


def test_the_weights_of_a_worlds_policy_fit_any_data(tmp_path):
    data = worlds()
    play(tmp_path, game(**OWN), credit(), data=data, model=segmenter(data))
    saved = torch.load(tmp_path / "policy.ckpt", weights_only=True)
    assert saved["ralseg"]["policy"]["fits"] == {}
