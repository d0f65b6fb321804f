"""Games that other processes play: whoever plays them, the run is the same."""

import json
import pickle

import lightning.pytorch as pl
import pytest
import torch

from ralseg.engine import FitTrainer, actors
from ralseg.engine.loop import result_of
from ralseg.errors import ConfigError, NotFiniteError, RalsegError
from ralseg.runtime import workers
from ralseg.runtime.checkpoints import read_checkpoint
from support.actors import PoolHere, forged_worker, learned
from support.closed_form import closed_form
from support.data import small_data, towns
from support.games import assert_same, blocks, dqn, game, play, segmenter


def three():
    """Blocks of three games, whose exploration depends a lot on how many steps were played before."""
    return blocks(block=["entropy", "policy", "perturbed"], epsilon_start=1.0, epsilon_decay=4.0)


AGENTS = {"blocks": three, "dqn": dqn}
RULES = game(episodes=6, validation_every=3, weight_average=0.5)


@pytest.fixture
def here(monkeypatch):
    """Actors in this process."""
    monkeypatch.setattr(actors, "WorkerPool", PoolHere)


class Listen(pl.Callback):
    """Notes what every step has told."""

    def __init__(self):
        self.results, self.starts = [], 0

    def on_train_epoch_start(self, trainer, module):
        self.starts += 1

    def on_train_epoch_end(self, trainer, module):
        self.results.append(result_of(trainer))

    def told(self):
        def timeless(figures):
            return {name: value for name, value in figures.items() if "seconds" not in name}

        return [
            {
                "what": [r.kind, r.axis, r.labelled, r.rounds, r.is_budget],
                "line": r.line if r.news is None else "",  # it ends with the seconds
                "metrics": timeless(r.metrics),
                "episode": r.episode
                and [timeless(r.episode.record), r.episode.regions, r.episode.steps, r.episode.round_metrics],
            }
            for r in self.results
        ]


@pytest.fixture(scope="module")
def played_here(tmp_path_factory):
    """What a run of each agent gives without actors."""
    found = {}
    for name, agent in AGENTS.items():
        folder, listen = tmp_path_factory.mktemp(name), Listen()
        trainer = play(folder, RULES, agent(), callbacks=[listen])
        found[name] = folder, learned(trainer), listen
    return found


def policies(folder):
    best = read_checkpoint(folder / "checkpoints/best.ckpt")
    agent = {name: weight for name, weight in best["state_dict"].items() if name.startswith("agent.")}
    return {"policy": read_checkpoint(folder / "policy.ckpt"), "best": agent, "about": best["ralseg"]}


def files(folder):
    history = [{**record, "seconds": 0} for record in json.loads((folder / "history.json").read_text())]
    return {path.name: path.read_text() for path in (folder / "episodes").iterdir()} | {"history": history}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("blocks", 2), ("dqn", 1)])
def test_the_run_is_the_same_whoever_plays(tmp_path, here, played_here, name, count):
    folder, expected, listened = played_here[name]
    listen = Listen()
    trainer = play(tmp_path, RULES, AGENTS[name](), actors=count, callbacks=[listen])
    episodes = trainer.fit_loop.session.plan
    elsewhere = len(episodes) if name == "blocks" else sum(episode.kind == "validation" for episode in episodes)
    assert trainer.fit_loop.session.elsewhere._pool.done == elsewhere
    assert_same(expected, learned(trainer))
    assert_same(listened.told(), listen.told())
    assert listen.starts == listened.starts
    assert all(result.seconds > 0 for result in listen.results)
    assert_same(policies(folder), policies(tmp_path))
    assert files(folder) == files(tmp_path)


@pytest.mark.slow
def test_a_closed_form_on_other_scenes_is_the_same_whoever_plays(tmp_path, here):
    rules = game(episodes=6, validation_every=3, reward_on="other_scenes")
    found = {}
    for count in (0, 2):
        trainer = play(tmp_path / str(count), rules, three(), data=towns(flip=False), model=closed_form(), actors=count)
        found[count] = learned(trainer)
    assert len({record["scene"] for record in found[0]["session"]["history"]}) > 1
    assert_same(found[0], found[2])
    assert files(tmp_path / "0") == files(tmp_path / "2")


class Kill(pl.Callback):
    """Kills an actor when the first step has been taken, while the next games are played."""

    def on_train_epoch_end(self, trainer, module):
        self.pool = trainer.fit_loop.session.elsewhere._pool
        if trainer.current_epoch == 0:
            self.pool._living[0].process.kill()


@pytest.mark.slow
def test_an_actor_that_is_killed_is_replaced(tmp_path, played_here, caplog, forge, monkeypatch):
    monkeypatch.setattr(workers, "LocalWorker", forged_worker(forge))
    _, expected, _ = played_here["blocks"]
    kill = Kill()
    assert_same(expected, learned(play(tmp_path, RULES, three(), actors=1, callbacks=[kill])))
    assert caplog.text.count("a worker has died (exit code -9)") == 1
    assert len(kill.pool._living) == 2
    assert all(worker.process.poll() is not None for worker in kill.pool._living)  # none outlives the run
    assert not (tmp_path / "lightning_logs").exists()


@pytest.mark.slow
def test_actors_on_ray(tmp_path, played_here):
    pytest.importorskip("ray")
    _, expected, _ = played_here["dqn"]
    options = {"address": None, "init": {"num_cpus": 1, "object_store_memory": 80_000_000}}
    trainer = play(tmp_path, RULES, dqn(), actors=1, actor_engine="ray", actor_options=options)
    assert_same(expected, learned(trainer))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "before", "stop"),
    [
        ("dqn", 1, 4),  # amid a game of validation
        ("dqn", 1, 20),  # amid a game of training, which this process plays
        ("blocks", 1, 4),
        ("blocks", 1, 11),  # amid the second game of a block
        ("blocks", 0, 14),  # of which this process has played the first steps
    ],
)
def test_a_run_that_was_cut_off_amid_games_ends_like_one_that_was_not(tmp_path, here, played_here, name, before, stop):
    _, expected, _ = played_here[name]
    play(tmp_path, RULES, AGENTS[name](), max_epochs=stop, checkpoint_every=stop, actors=before)
    trainer = play(tmp_path, RULES, AGENTS[name](), ckpt="last", actors=1)
    assert_same(expected, learned(trainer))


@pytest.mark.slow
def test_without_actors_a_run_goes_on_between_games_only(tmp_path, here, played_here):
    _, expected, _ = played_here["blocks"]
    play(tmp_path, RULES, three(), max_epochs=8, checkpoint_every=8, actors=2)
    with pytest.raises(ConfigError, match=r"trainer\.actors=0, but .* go on with trainer\.actors=1"):
        play(tmp_path, RULES, three(), ckpt="last")
    play(tmp_path, RULES, three(), max_epochs=9, checkpoint_every=9, actors=2, ckpt="last")
    assert_same(expected, learned(play(tmp_path, RULES, three(), ckpt="last")))


def test_what_an_actor_raises_is_raised_here(tmp_path, here):
    model = segmenter(optimizer=lambda p: torch.optim.SGD(p, lr=float("inf")))
    with pytest.raises(NotFiniteError, match=r"not finite.*episode 0, step") as raised:
        play(tmp_path, RULES, three(), model=model, actors=1)
    problem = json.loads((tmp_path / "problem.json").read_text())
    assert problem["episode"]["role"] == "uniform"
    assert problem["updates"] == 0
    assert str(tmp_path / "problem.json") in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"actors": -1}, r"trainer\.actors=-1 must be 0"),
        ({"actors": 2, "devices": 2, "strategy": "ddp"}, r"trainer\.actors=2 play for a run on one device"),
    ],
)
def test_numbers_of_actors_that_cannot_work(options, message):
    with pytest.raises(ConfigError, match=message):
        FitTrainer(game(), accelerator="cpu", logger=False, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"actor_options": {"num_cpus": 2}}, r"trainer\.actor_options=.* local processes have no options"),
        ({"actor_engine": "ray", "actor_options": {"cpus": 2}}, r"trainer\.actor_options=.*cpus"),
    ],
)
def test_options_that_actors_do_not_have(tmp_path, options, message):
    with pytest.raises(RalsegError, match=message):
        play(tmp_path, RULES, three(), actors=1, **options)


def test_data_travel_as_they_were_configured():
    data = small_data(seed=3)
    data.setup()
    data.val_dataloader()
    data.regions("train_set")
    data.mask_oracle("train_set").label(torch.arange(3))
    data.score_on(data.splits.reward_set[:2])
    copy = pickle.loads(pickle.dumps(data))
    assert not hasattr(copy, "images")
    assert len(pickle.dumps(data)) < 10_000
    copy.setup()
    assert copy.splits == data.splits
    assert copy.seed == 3
    assert torch.equal(copy.images[0], data.images[0])
    assert not copy.masks._open.intersection(copy.splits.train_set)  # labels that were opened here are hidden there
    data.score_on(None)
    assert len(copy.val_dataloader()) == len(data.val_dataloader())


def test_cached_features_stay_behind(data):
    from ralseg.models.feature_cache import FeatureCache

    cache = FeatureCache(4, 10**6)
    images, index = torch.zeros(1, 3, 4, 4), torch.tensor([2])
    cache(lambda image: [image + 1], images, index, None)
    asked = []
    copy = pickle.loads(pickle.dumps(cache))
    copy(lambda image: asked.append(1) or [image + 1], images, index, None)
    assert asked
