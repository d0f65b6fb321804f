"""Reward on other scenes: who plays where, what pays, and that it can be resumed to the last bit."""

import csv
import json
from collections import Counter

import lightning.pytorch as pl
import pytest
import torch

from ralseg.data import CamVid, SegmentationData
from ralseg.engine import Game
from ralseg.engine.loop import session_of
from ralseg.engine.scenes import Casting, able_to_pay, draw_cast, known_scenes
from ralseg.errors import ConfigError, HiddenLabelError, PoolExhausted
from ralseg.labels import GridLayout
from ralseg.runtime.checkpoints import read_checkpoint
from ralseg.runtime.seeding import stream
from support.data import Towns, small_data, towns
from support.games import Kill, Killed, Photograph, assert_same, blocks, dqn, everything, game, play, segmenter
from support.layouts import Blobs

OTHERS = {"reward_on": "other_scenes"}
SCENES = {image: "AABBBCCD"[image] for image in range(8)}
SIX = dict.fromkeys(SCENES, 6)


# -- the draw ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [None, 1, 2, 50])
def test_a_cast_keeps_scenes_apart(most):
    for seed in range(30):
        cast = draw_cast(SCENES, SIX, 20, stream(seed, "x"), most)
        assert {SCENES[image] for image in cast.paying} == {cast.scene}
        assert list(cast.played) == [image for image in SCENES if SCENES[image] != cast.scene]
        there = list(SCENES.values()).count(cast.scene)
        assert len(cast.paying) == len(set(cast.paying)) == min(there, most or there)
        assert cast == draw_cast(SCENES, SIX, 20, stream(seed, "x"), most)


def test_every_scene_that_can_pays_as_often_and_every_image_too():
    casts = [draw_cast(SCENES, SIX, 20, stream(seed, "x"), 2) for seed in range(800)]
    paid = Counter(cast.scene for cast in casts)
    assert sorted(paid) == ["A", "B", "C", "D"]
    assert all(160 < count < 240 for count in paid.values())
    images = Counter(image for cast in casts if cast.scene == "B" for image in cast.paying)
    assert sorted(images) == [2, 3, 4]
    assert all(count > 0.5 * paid["B"] for count in images.values())


def test_a_scene_pays_only_if_the_others_hold_the_budget():
    assert able_to_pay(SCENES, SIX, 30) == ["A", "B", "C", "D"]
    assert able_to_pay(SCENES, SIX, 31) == ["A", "C", "D"]
    assert able_to_pay(SCENES, SIX, 42) == ["D"]
    assert {draw_cast(SCENES, SIX, 31, stream(seed, "x")).scene for seed in range(50)} == {"A", "C", "D"}
    uneven = SIX | {7: 60}
    assert able_to_pay(SCENES, uneven, 50) == ["A", "B", "C"]  # regions are counted, not images
    with pytest.raises(
        PoolExhausted, match=r"budget=43 regions; there are A \(2 images, 36 regions beside it\), B \(3"
    ):
        able_to_pay(SCENES, SIX, 43)
    with pytest.raises(ConfigError, match=r"no scene can pay.*there are none"):
        able_to_pay({}, {}, 1)
    many = {image: f"{image:03d}" for image in range(300)}
    with pytest.raises(ConfigError, match=r"019 \(1 images, 299 regions beside it\), 280 more; lower the budget"):
        able_to_pay(many, dict.fromkeys(many, 1), 300)


def test_casts_follow_from_seed_kind_and_number():
    def drawn(seed, kind):
        data = towns(seed=seed)
        data.setup()
        casting = Casting(data, 10)
        return [casting.draw(kind, number, ()) for number in range(30)]

    assert drawn(0, "train") == drawn(0, "train")
    assert len({cast.scene for cast in drawn(0, "train")}) == 3
    others = [drawn(0, "validation"), drawn(1, "train")]
    assert all([cast.scene for cast in other] != [cast.scene for cast in drawn(0, "train")] for other in others)


def test_what_theta_0_has_seen_neither_plays_nor_pays():
    data = towns(reward_images=2)
    data.setup()
    dataset, casting = data.dataset, Casting(data, 10)
    labelled = {*data.splits.train_set, *data.splits.reward_set}
    seen = {dataset.names[image] for image in sorted(labelled)[::3]}
    for number in range(20):
        cast = casting.draw("train", number, seen)
        used = {dataset.names[image] for image in (*cast.played, *cast.paying)}
        assert not used & seen
        assert set(cast.played) == {
            i for i in labelled if dataset.names[i] not in seen and dataset.scene(i) != cast.scene
        }
        assert len(cast.paying) <= 2
        assert not {*cast.played, *cast.paying} & set(data.splits.state_set)


def test_images_of_other_layouts_are_counted_region_by_region():
    data = towns(layout=Blobs())
    data.setup()
    images = data.splits.train_set + data.splits.reward_set
    of_scene = {scene: data.regions([i for i in images if data.dataset.scene(i) == scene]) for scene in "ABC"}
    total = sum(map(len, of_scene.values()))
    budget = total - sorted(map(len, of_scene.values()))[1]
    able = {scene for scene, regions in of_scene.items() if total - len(regions) >= budget}
    assert 0 < len(able) < 3
    assert {Casting(data, budget).draw("train", number, ()).scene for number in range(30)} == able


# -- refusals ----------------------------------------------------------------------------------------


class HalfKnown(Towns):
    def scene(self, index):
        return None if self.names[index] == "val_00002" else super().scene(index)


def test_data_sets_without_scenes_are_refused(tmp_path):
    message = r"trainer\.game\.reward_on=other_scenes: SyntheticStreets knows no scenes.*'scenes' of its dataset\.yaml"
    with pytest.raises(ConfigError, match=message):
        play(tmp_path / "none", game(**OTHERS))
    dataset = HalfKnown(num_train=14, num_val=5, num_test=5, height=64, width=96)
    with pytest.raises(ConfigError, match=r"knows no scene of image val_00002 \(1 of 11 images have none"):
        play(tmp_path / "half", game(**OTHERS), data=small_data(dataset=dataset))
    state = dataset.names.index("val_00002")
    assert state not in known_scenes(dataset, [i for i in range(len(dataset)) if i != state])


def theta_0(path, seed=0, **options) -> str:
    """A theta_0 that says what images it was trained on."""
    trainer = pl.Trainer(default_root_dir=path.parent, max_epochs=0, logger=False, accelerator="cpu")
    trainer.fit(segmenter(seed), datamodule=towns(seed=seed, **options))
    trainer.save_checkpoint(path)
    return str(path)


def test_a_theta_0_that_leaves_too_little_is_refused_before_anything_is_played(tmp_path):
    greedy = theta_0(tmp_path / "greedy.ckpt", fit_on=["train_set"])
    modest = theta_0(tmp_path / "modest.ckpt", fit_images=2)
    rules = game(budget=25, initial_weights=[modest], validation_weights=[greedy], **OTHERS)
    with pytest.raises(ConfigError, match=r"no scene can pay.*without the 6 images that .*greedy\.ckpt was trained on"):
        play(tmp_path / "run", rules, data=towns())
    assert not (tmp_path / "run" / "episodes").exists()
    with pytest.raises(ConfigError, match=r"no scene can pay.*\(data\.splits\)$"):
        play(tmp_path / "run", game(budget=60, **OTHERS), data=towns())


def test_another_word_is_refused():
    with pytest.raises(ConfigError, match=r"trainer\.game\.reward_on='scenes' must be one of reward_set, other_scenes"):
        Game(reward_on="scenes")


# -- the game ----------------------------------------------------------------------------------------


class Watch(pl.Callback):
    """Notes which images are scored on in each episode, and looks whether labels that are played on are hidden."""

    def __init__(self):
        self.scored: dict[int, list[set[int]]] = {}

    def on_validation_start(self, trainer, module):
        self.scored.setdefault(session_of(trainer).episode_number, []).append(set())

    def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        session = session_of(trainer)
        self.scored[session.episode_number][-1].update(batch.image_index.tolist())
        for image in session.regions.images.indices:
            with pytest.raises(HiddenLabelError):
                session.data.masks[image]


def labelled_images(folder) -> list[set[str]]:
    tables = sorted((folder / "episodes").iterdir())
    return [{row["image"] for row in csv.DictReader(table.open())} for table in tables]


@pytest.mark.parametrize("agent", [dqn, blocks])
def test_no_region_is_paid_on_its_own_scene(tmp_path, agent):
    data, watch = towns(flip=True), Watch()
    trainer = play(tmp_path, game(**OTHERS), agent(), data=data, callbacks=[watch])
    dataset, history = data.dataset, trainer.fit_loop.session.history
    scene_of = dict(zip(dataset.names, map(dataset.scene, range(len(dataset))), strict=True))
    labelled = data.splits.train_set + data.splits.reward_set
    used = labelled_images(tmp_path)
    assert len(used) == len(history) == len(watch.scored)
    for record, names in zip(history, used, strict=True):
        paying = {image for image in labelled if dataset.scene(image) == record["scene"]}
        assert names
        assert record["scene"] not in {scene_of[name] for name in names}
        assert record["played"] == len(labelled) - len(paying)
        assert all(images == paying for images in watch.scored[record["number"]])
        assert len(watch.scored[record["number"]]) >= 3
        assert record["labelled"] == 10
    reward_names = {dataset.names[image] for image in data.splits.reward_set}
    assert set.union(*used) & reward_names  # the reward set is played on too, where its scene does not pay
    assert len({record["scene"] for record in history}) > 1
    assert json.loads((tmp_path / "history.json").read_text())[0]["scene"] == history[0]["scene"]
    by_draw = {}
    for record in history:
        by_draw.setdefault((record["kind"], record["draw"]), set()).add(record["scene"])
    assert all(len(scenes) == 1 for scenes in by_draw.values())
    assert [index for batch in data.val_dataloader() for index in batch.image_index.tolist()] == data.splits.reward_set


def test_theta_0_is_scored_anew_for_each_scene_that_pays(tmp_path):
    trainer = play(tmp_path, game(validation_plays=4, **OTHERS), data=towns())
    session = trainer.fit_loop.session
    first = {}
    for record in session.history:
        first.setdefault(record["scene"], set()).add(record["miou"][0])
    assert len(first) == 3
    assert all(len(scores) == 1 for scores in first.values())
    assert len(set.union(*first.values())) == 3
    assert len(session.initial_scores) == 3


def test_episodes_leave_out_what_their_own_theta_0_has_seen(tmp_path):
    files = [theta_0(tmp_path / f"{seed}.ckpt", seed=seed, fit_images=3) for seed in range(2)]
    seen = {file: set(read_checkpoint(tmp_path / file)["ralseg"]["trained_on"]) for file in files}
    assert len(set.union(*seen.values())) > 3
    data, watch = towns(reward_images=2), Watch()
    trainer = play(tmp_path / "run", game(initial_weights=files, **OTHERS), data=data, callbacks=[watch])
    history = trainer.fit_loop.session.history
    assert {record["weights"] for record in history} == set(files)
    for record, names in zip(history, labelled_images(tmp_path / "run"), strict=True):
        scored = {data.dataset.names[image] for images in watch.scored[record["number"]] for image in images}
        assert not (names | scored) & seen[record["weights"]]
        assert len(scored) <= 2
        left = {*data.splits.train_set, *data.splits.reward_set}
        left = {image for image in left if data.dataset.names[image] not in seen[record["weights"]]}
        assert record["played"] == sum(data.dataset.scene(image) != record["scene"] for image in left)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "agent", "options"),
    [
        ({}, dqn, {"reward_images": 2}),
        ({"weight_average": 0.5}, blocks, {}),
        ({"budget": 9}, dqn, {"layout": Blobs()}),
    ],
    ids=["dqn", "blocks", "blobs"],
)
def test_a_game_that_was_killed_ends_like_one_that_was_not(tmp_path, rules, agent, options):
    files = [theta_0(tmp_path / f"{seed}.ckpt", seed=seed, fit_images=2) for seed in range(2)]
    rules = game(episodes=2, initial_weights=files, validation_plays=2, **OTHERS, **rules)
    stops = (7, 12, 14)  # in an episode, between, in another

    def run(name, **more):
        return play(tmp_path / name, rules, agent(), data=towns(**options), **more)

    expected = everything(run("whole", checkpoint_every=1, callbacks=[Photograph(*stops)]))
    scenes = [record["scene"] for record in expected["session"]["history"]]
    assert scenes[3] != scenes[4]  # else a resumed run could score on the scene of before unnoticed
    for stop in stops:
        resumed = run(f"cut {stop}", ckpt="last")
        assert_same(expected, everything(resumed), f"cut at {stop}")
    assert_same(expected, everything(run("whole", ckpt="last")), "at the end")


def test_data_score_on_the_reward_set_again_after_a_failure(tmp_path):
    data = towns()
    with pytest.raises(Killed):
        play(tmp_path, game(**OTHERS), data=data, callbacks=[Kill(4)])
    assert [index for batch in data.val_dataloader() for index in batch.image_index.tolist()] == data.splits.reward_set


# -- the reward set, as ever -------------------------------------------------------------------------


def test_by_default_the_reward_set_pays_and_scenes_do_not_matter(tmp_path):
    watch, data = Watch(), towns(flip=True)
    known = play(tmp_path / "known", game(), data=data, callbacks=[watch])
    unknown = play(tmp_path / "unknown", game())
    assert_same(everything(known), everything(unknown))
    for record in known.fit_loop.session.history:
        assert (record["scene"], record["played"]) == (None, 6)
        assert all(images == set(data.splits.reward_set) for images in watch.scored[record["number"]])
    train_names = {data.dataset.names[image] for image in data.splits.train_set}
    assert set.union(*labelled_images(tmp_path / "known")) <= train_names
    assert list(known.fit_loop.session.initial_scores) == [""]


def test_checkpoints_from_before_the_choice_go_on_with_the_reward_set_only(tmp_path):
    rules = game(episodes=2)
    whole = everything(play(tmp_path / "whole", rules, data=towns()))
    play(tmp_path / "old", rules, data=towns(), max_epochs=5, checkpoint_every=1)
    path = tmp_path / "old/checkpoints/last.ckpt"
    saved = read_checkpoint(path)
    session = saved["loops"]["fit_loop"]["state_dict"]["session"]
    for key in ("reward_on", "short_training", "credit_pixels"):
        del session["rules"][key]
    del session["is_amid_game_elsewhere"]
    torch.save(saved, path)
    with pytest.raises(ConfigError, match="other rules: reward_on differ"):
        play(tmp_path / "old", game(episodes=2, **OTHERS), data=towns(), ckpt="last")
    assert_same(whole, everything(play(tmp_path / "old", rules, data=towns(), ckpt="last")))
    play(tmp_path / "new", game(episodes=2, **OTHERS), data=towns(), max_epochs=5, checkpoint_every=1)
    with pytest.raises(ConfigError, match="other rules: reward_on differ"):
        play(tmp_path / "new", rules, data=towns(), ckpt="last")


# -- theta_0s are read once --------------------------------------------------------------------------


def test_theta_0s_are_read_once_for_all_episodes(tmp_path, monkeypatch):
    files = [theta_0(tmp_path / f"{seed}.ckpt", seed=seed) for seed in range(2)]
    read = []

    def noted(path, *args):
        read.append(path.name)
        return read_checkpoint(path, *args)

    monkeypatch.setattr("ralseg.runtime.checkpoints.read_checkpoint", noted)
    play(tmp_path / "run", game(initial_weights=files), data=towns(), fast_dev_run=False)
    assert sorted(name for name in read if name in ("0.ckpt", "1.ckpt")) == ["0.ckpt", "1.ckpt"]


# -- real CamVid -------------------------------------------------------------------------------------


def test_casts_of_the_published_split(camvid_root):
    data = SegmentationData(CamVid(camvid_root), "al_splits.json", layout=GridLayout(4, 6), reward_images=51)
    data.setup()
    casting = Casting(data, 480)
    casts = [casting.draw("train", number, ()) for number in range(40)]
    assert {(cast.scene, len(cast.played), len(cast.paying)) for cast in casts} == {
        ("0001TP", 183, 18),
        ("0006R0", 174, 27),
        ("0016E5", 45, 51),
    }
    assert {cast.scene for cast in [Casting(data, 1081).draw("train", n, ()) for n in range(20)]} == {
        "0001TP",
        "0006R0",
    }
