"""A game being played: what is labelled, what the agent sees, what it remembers."""

import logging
import math
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ralseg import ranks
from ralseg.baselines import BASELINES
from ralseg.curves import finished_rounds, validation_metrics
from ralseg.data.module import SegmentationData
from ralseg.errors import ConfigError, NotFiniteError, PoolExhausted
from ralseg.features import standardised
from ralseg.game import Episode, GameConfig, PlayedStep, RewardStatistics, pay, plan_episodes, remember
from ralseg.labelling import Labelling
from ralseg.policies import Learned, Perturbed, Policy, choose
from ralseg.query import TAUGHT
from ralseg.ralis import Ralis
from ralseg.randomness import stream
from ralseg.replay import ReplayBuffer, StepMemory

log = logging.getLogger(__name__)
SET = "train_set"
_DRIFT = 10.0
"""How many times the largest possible return a Q must be to be told of."""


class Play(Labelling):
    """All episodes of a run, step by step. The loop says when, this class says what.

    Args:
        config: The rules.
        data: The data; the policy plays on its train set.
        ralis: The two players.
    """

    def __init__(self, config: GameConfig, data: SegmentationData, ralis: Ralis) -> None:
        self.config, self.ralis, self.seed = config, ralis, data.seed
        self.plan = plan_episodes(config)
        self.episode_number = 0
        super().__init__(data, SET, ralis, data.oracle(SET))
        self.replay = ReplayBuffer(ralis.query.replay_size)
        self.statistics = RewardStatistics(config.steps_per_episode)
        ralis.average.share = config.reward.average
        self.initial_weights = find_weights(config.initial_weights, "initial_weights")
        self.validation_weights = find_weights(config.validation_weights, "validation_weights") or self.initial_weights
        self._check_rules()

        self.training_steps, self.updates = 0, 0
        self.block_steps: list[PlayedStep] = []
        self.history: list[dict[str, Any]] = []
        self.query_loss: float | None = None
        self._has_warned = False

    def _check_rules(self) -> None:
        trained_on = set(self.initial_weights) & set(find_weights(self.config.validation_weights, "validation_weights"))
        if trained_on:
            raise ConfigError(
                f"trainer.game.validation_weights: {min(trained_on)} is among initial_weights too; "
                "greedy validation must start from weights that the policy was not trained on"
            )
        available = len(self.data.splits[SET]) * self.data.grid.cells
        if self.config.budget > available:
            raise PoolExhausted(
                f"trainer.game.budget={self.config.budget} exceeds the {available} regions of the {SET}; "
                "lower it or give the set more images (data.splits)"
            )

    # -- the course of an episode ----------------------------------------------------------------

    @property
    def episode(self) -> Episode:
        """The episode being played."""
        return self.plan[self.episode_number]

    @property
    def weights_name(self) -> str:
        """The file of the episode's theta_0; empty for the segmenter as it was built."""
        files = self.initial_weights if self.episode.kind == "train" else self.validation_weights
        return str(files[self.episode.draw % len(files)]) if files else ""

    def counters(self) -> tuple[str, int, int]:
        """Kind and number of the episode's draws, and the step; members of a block share them."""
        return self.episode.kind, self.episode.draw, self.step

    def where(self) -> str:
        """Where the game stands, for error messages."""
        return f"episode {self.episode_number}, step {self.step}"

    def context(self) -> dict[str, Any]:
        """What is known of this step, with who played and how far learning is."""
        learning = {"updates": self.updates, "query_loss": self.query_loss, "epsilon": self.epsilon}
        return super().context() | {"episode": asdict(self.episode)} | learning

    def observe(self) -> None:
        """Steps 1 and 2: look at the state set, draw the pools, describe their regions."""
        num_pools = min(self.config.regions_per_step, self.config.budget - len(self.ledger))
        pools = self.ledger.draw_pools(num_pools, self.config.pool_size, self.stream("pools"))
        # all that is played in training is learned from, whoever plays; in validation each sees what it needs
        is_training = self.episode.kind == "train"
        needs, labels = (Learned(self.ralis.query) if is_training else self.policy()).needs, None
        if self._is_taught:  # the train set's labels are known: what each candidate is worth can be told
            needs = replace(needs, measures=(*needs.measures, self._teacher))
            labels = self.oracle.label(pools.flatten())  # every rank has these masks: no need to send them
        self.observation = self.look_at(pools, needs, labels=labels)

    @property
    def _is_taught(self) -> bool:
        """Whether candidates' worth is told instead of being learned from rewards."""
        return self.ralis.query.credit in TAUGHT and self.episode.kind == "train"

    @property
    def _teacher(self) -> str:
        """The measure that tells it."""
        return f"true_{self.ralis.query.credit}"

    def policy(self) -> Policy:
        """Who plays this episode."""
        role = self.episode.role
        if role in BASELINES:
            return BASELINES[role]()
        learned = Learned(self.ralis.query)
        if role == "policy":
            return learned
        earlier = self.config.block[: self.episode.member].count("perturbed")
        direction = stream(self.seed, "perturbation", self.episode.draw, earlier // 2)
        return Perturbed(learned, self.config.perturbation, direction, 1 if earlier % 2 == 0 else -1)

    @property
    def epsilon(self) -> float:
        """Share of random sub-actions now: none in validation, none for fixed baselines."""
        if self.episode.kind == "validation" or self.episode.role in ("uniform", "entropy"):
            return 0.0
        return self.config.epsilon(self.training_steps)

    def choose(self) -> Tensor:
        """Step 3: one sub-action in each pool: [K] positions in the pools."""
        with self.timed("query"):
            self.action_values = self.score(self.policy())
            return choose(self.action_values, self.epsilon, self.stream("exploration"))

    def reveal(self, decision: tuple[Tensor, Tensor]) -> None:
        """Step 4: the oracle labels the regions, and the sets are updated."""
        assert self.observation is not None
        self.picked, self.action_values = decision
        self.have_labelled(self.observation.pools[torch.arange(len(self.picked)), self.picked])

    def receive(self, miou: float) -> None:
        """Step 6: note the gain of mean IoU."""
        assert self.observation is not None
        gain = miou - self.scores[-1]
        if self.episode.kind == "train":
            seen, rows = self.observation, torch.arange(len(self.picked))
            actions, picked = seen.actions, self.picked
            if not self.ralis.query.bootstrap:  # nobody will ask what else was in the pools
                actions, picked = actions[rows, picked][:, None], torch.zeros_like(picked)
            played = PlayedStep(self.episode.member, self.step, gain, seen.state, actions, picked)
            if self._is_taught:
                worth = standardised(seen.measures[self._teacher].flatten()[:, None])[:, 0]
                self.lesson = StepMemory(seen.state, seen.actions.flatten(0, 1), worth, 0.0)
            else:
                self.block_steps.append(played)
            self.training_steps += 1
        super().receive(miou)

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent."""
        return len(self.ledger) >= self.config.budget

    # -- learning --------------------------------------------------------------------------------

    def learn(self) -> None:
        """Step 7: transitions into the replay, then updates of the query network."""
        if self.episode.kind == "validation":
            return
        with self.timed("learn"):
            for memory in self._new_memories():
                self.replay.add(memory)
                for _ in range(self.ralis.query.updates_per_step):
                    self._update()
        if self.is_over:
            self._warn_of_drift()

    def _warn_of_drift(self) -> None:
        """Say once that bootstrapped values have lost touch with what can be earned."""
        if self._has_warned or not self.ralis.query.bootstrap or not self.replay.steps or ranks.rank():
            return
        rewards = [abs(memory.value_of(0)) for memory in self.replay.steps]
        possible, largest = self.config.steps_per_episode * max(rewards), float(self.action_values.abs().max())
        if largest > _DRIFT * max(possible, 1.0):  # a fresh network's own values are of order 1
            self._has_warned = True
            log.warning(
                "%s: the query network's values have drifted: |Q| is up to %.3g, and no return of these rewards can "
                "exceed %.3g. Regress returns instead of bootstrapping them (model.query returns: monte_carlo, "
                "bootstrap: false), or try model.query batch_norm: false or a smaller gamma",
                *(self.where(), largest, possible),
            )

    @property
    def _pays_at_once(self) -> bool:
        return self.ralis.query.returns == "one_step" and self.config.reward.baseline in ("none", "step_mean")

    def _new_memories(self) -> list[StepMemory]:
        """What can be remembered now: the step, or at the end of a block all of its steps."""
        query, config = self.ralis.query, self.config
        if self._is_taught:
            return [self.lesson]
        if self._pays_at_once:
            played = [self.block_steps.pop()]
            rewards = pay(played, config.reward, config.block, self.statistics)
            memories = remember(played, rewards, 1, query.gamma, bootstrap=False)
            if query.bootstrap and not self.is_over:
                assert self.observation is not None
                state, actions = self.observation.state, self.observation.actions
                memories = [replace(memory, next_state=state, next_actions=actions) for memory in memories]
        else:
            if not (self.is_over and self.episode.member == len(config.block) - 1):
                return []
            rewards = pay(self.block_steps, config.reward, config.block, self.statistics)
            horizon = {"one_step": 1, "n_step": query.n_steps, "monte_carlo": config.steps_per_episode}[query.returns]
            memories = []
            for member in range(len(config.block)):
                mine = [i for i, s in enumerate(self.block_steps) if s.member == member]
                steps, paid = [self.block_steps[i] for i in mine], [rewards[i] for i in mine]
                memories += remember(steps, paid, horizon, query.gamma, query.bootstrap)
            self.block_steps = []
        if config.reward.normalise:
            memories = [replace(m, value=m.value_of(0) / self.statistics.deviation(m.value_of(0))) for m in memories]
        return memories

    def _update(self) -> None:
        query = self.ralis.query
        if len(self.replay) < query.batch_size:
            return
        batch = query.draw_minibatch(self.replay, stream(self.seed, "replay", self.updates))
        self.query_loss = self.ralis.update_query(batch)
        if not math.isfinite(self.query_loss):
            message = f"the query network's loss is not finite after {self.updates} updates ({self.where()})"
            raise NotFiniteError(message, self.context())
        self.updates += 1
        if self.updates % query.target_every == 0:
            ranks.share(query.net.state_dict().values())  # rounding may differ between devices
            query.copy_to_target()

    # -- what is told of it ----------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """The figures of the step just played."""
        kind, labelled = self.episode.kind, len(self.ledger)
        metrics = {
            f"{kind}/miou": self.scores[-1],
            f"{kind}/gain": self.scores[-1] - self.scores[-2],
            f"{kind}/labelled": float(labelled),
            f"{kind}/labelled_percent": 100 * labelled / self.ledger.num_regions,
            "segmenter/loss": self.ralis.loss,
            "query/mean": float(self.action_values.mean()),
            "query/deviation": float(self.action_values.std(correction=0)),
            "query/epsilon": self.epsilon,
        }
        if kind == "train" and self.query_loss is not None:
            metrics["query/loss"] = self.query_loss
        return metrics

    def describe(self) -> str:
        """The step just played, in a line."""
        if not self.scores:  # an episode has just ended
            return self.summarise()
        return (
            f"{self.episode.kind} {self.episode_number + 1}/{len(self.plan)} ({self.episode.role}) step {self.step} "
            f"labelled {len(self.ledger)}/{self.config.budget} mIoU {100 * self.scores[-1]:.2f} "
            f"epsilon {self.epsilon:.2f} loss {_short(self.query_loss)}"
        )

    def summarise(self) -> str:
        """The episode just ended, in a line."""
        record = self.history[-1]
        first, last = 100 * record["miou"][0], 100 * record["miou"][-1]
        return (
            f"episode {record['number'] + 1}/{len(self.plan)} {record['kind']:10} {record['role']:9} "
            f"labelled {record['labelled']} mIoU {first:.2f} -> {last:.2f} ({last - first:+.2f}) "
            f"epsilon {record['epsilon']:.2f} loss {_short(record['query_loss'])} {record['seconds']:.1f} s"
        )

    @property
    def has_news(self) -> bool:
        """Whether an episode has just ended."""
        return bool(self.history) and not self.scores

    # -- bookkeeping -----------------------------------------------------------------------------

    def finish_episode(self) -> dict[str, Any]:
        """Enter the episode into the history."""
        shares = self.labelled_histograms().mean(0)
        record = {
            "number": self.episode_number,
            **{f.name: getattr(self.episode, f.name) for f in fields(self.episode)},
            "weights": self.weights_name,
            "miou": list(self.scores),
            "labelled": len(self.ledger),
            "class_entropy": float(torch.special.entr(shares / shares.sum().clamp(min=1e-9)).sum()),
            "epsilon": self.epsilon,
            "query_loss": self.query_loss,
            "seconds": sum(self.seconds.values()),
        }
        self.history.append(record)
        self.episode_number += 1
        self.observation, self.step, self.scores = None, 0, []
        return record

    @property
    def rounds(self) -> list[float]:
        """Area under the curve of each finished round of validation."""
        plays, history = self.config.validation_plays, self.history
        numbers = finished_rounds(history, plays)
        return [validation_metrics(history, number)["validation/auc"] for number in numbers]

    def _rules(self) -> dict[str, Any]:
        """What may not change when a run goes on; more episodes may follow."""
        played = self.plan[: self.episode_number + (self.step > 0)]
        return {
            "steps_per_episode": self.config.steps_per_episode,
            "budget": self.config.budget,
            "regions_per_step": self.config.regions_per_step,
            "pool_size": self.config.pool_size,
            "block": list(self.config.block),
            "prior": [self.ralis.query.representation.prior, self.ralis.query.prior_weight],
            "initial_weights": [str(path) for path in self.initial_weights],
            "validation_weights": [str(path) for path in self.validation_weights],
            "episodes so far": [[getattr(e, f.name) for f in fields(e)] for e in played],
        }

    _COUNTERS = ("episode_number", "step", "training_steps", "updates", "query_loss")

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, as plain values and tensors.

        Random state is not among it: every draw follows from the seed and these counters.
        """
        return {
            **{name: getattr(self, name) for name in self._COUNTERS},
            "rules": self._rules(),
            "block_steps": [{f.name: getattr(s, f.name) for f in fields(s)} for s in self.block_steps],
            "initial_scores": dict(self.initial_scores),
            "history": self.history,
            "scores": self.scores,
            "seconds": dict(self.seconds),
            "ledger": self.ledger.state_dict(),
            "replay": self.replay.state_dict(),
            "statistics": self.statistics.state_dict(),
            "average": self.ralis.average.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a checkpoint left off."""
        for name in self._COUNTERS:
            setattr(self, name, state[name])
        # runs of before the prior could be chosen do not name it
        differing = [name for name, value in self._rules().items() if state["rules"].get(name, value) != value]
        if differing:
            raise ConfigError(
                "the checkpoint is of a game with other rules: " + ", ".join(differing) + " differ; "
                "go on with the configuration in the run's folder, or start anew"
            )
        self.block_steps = [PlayedStep(**step) for step in state["block_steps"]]
        self.initial_scores, self.history = state["initial_scores"], state["history"]
        self.scores, self.seconds = state["scores"], state["seconds"]
        self._load_ledger(state["ledger"])
        self.replay.load_state_dict(state["replay"])
        self.statistics.load_state_dict(state["statistics"])
        self.ralis.average.load_state_dict(state["average"])
        self.observation = None


def _short(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.3g}"


def find_weights(patterns: list[str] | None, key: str) -> list[Path]:
    """The checkpoint files that paths or patterns name; a pattern that names none is an error."""
    files: list[Path] = []
    for pattern in patterns or []:
        path = Path(pattern).expanduser()
        found = [path] if path.is_file() else sorted(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))
        if not found:
            raise ConfigError(f"trainer.game.{key}: no checkpoint at {pattern!r}; `ralseg pretrain` makes them")
        files += found
    return files
