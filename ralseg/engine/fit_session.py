"""The session of `ralseg fit`: episodes on labelled images, and an agent that learns from them."""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ralseg.acquisition.heuristics import HEURISTICS
from ralseg.acquisition.measures import LESSONS
from ralseg.acquisition.observation import Observation
from ralseg.acquisition.policy import Needs, Policy, epsilon_greedy
from ralseg.agents.base import Episode, PlayedStep
from ralseg.data.datamodule import SegmentationData
from ralseg.data.samples import Batch, JoinedSamples
from ralseg.engine.final_training import RoundSampler
from ralseg.engine.game import Game, find_weights, independent_until, plan_episodes
from ralseg.engine.games_elsewhere import GameJob, GamesElsewhere
from ralseg.engine.learning_curves import finished_rounds, validation_metrics
from ralseg.engine.modules import FitModule, Trained
from ralseg.engine.scenes import Cast, Casting
from ralseg.engine.selection import by_image
from ralseg.engine.session import Choice, EndedEpisode, Session, StepResult, TakenStep
from ralseg.engine.short_training import ShortTraining
from ralseg.engine.worlds import WorldCasting
from ralseg.errors import ConfigError, NotFiniteError, PoolExhausted
from ralseg.runtime import distributed
from ralseg.runtime.checkpoints import CheckpointCache
from ralseg.runtime.seeding import stream

SET = "train_set"


class FitSession(Session):
    """All episodes of a run, step by step.

    Args:
        game: The rules.
        data: The data; the policy plays on its train set or, by ``reward_on``, on other images with labels.
        module: Segmenter and agent.
        elsewhere: Other processes that play the games which do not depend on each other. None: all are played here.
        checkpoints: theta_0s that have been read already.
    """

    module: FitModule

    def __init__(
        self,
        game: Game,
        data: SegmentationData,
        module: FitModule,
        elsewhere: GamesElsewhere | None = None,
        checkpoints: CheckpointCache | None = None,
    ) -> None:
        super().__init__(data, SET, module, data.mask_oracle(SET))
        self.game, self.agent, self.elsewhere = game, module.agent, elsewhere
        self.plan = plan_episodes(game, self.agent.block, self.agent.references)
        self.episode_number = 0
        self.training_steps = 0
        self.history: list[dict[str, Any]] = []
        self._judging: Any = None
        module.average.share = game.weight_average
        module.converged.config = game.short_training
        self.initial_weights = find_weights(game.initial_weights, "initial_weights")
        self.validation_weights = find_weights(game.validation_weights, "validation_weights") or self.initial_weights
        self._check_rules()
        self._checkpoints = checkpoints or CheckpointCache()
        self.cast: Cast | None = None  # None: the train set is played on, the reward set pays
        self._seen = {"": frozenset[str]()}  # images that theta_0s were trained on, by their files
        self._casting: Casting | WorldCasting | None = None
        if game.reward_on != "reward_set":
            self._casting = (
                Casting(data, game.budget)
                if game.reward_on == "other_scenes"
                else WorldCasting(data, game.budget, game.known_images)
            )
            for name in map(str, (*self.initial_weights, *self.validation_weights)):
                self._seen[name] = frozenset(self.trained_on(name))
            for name, seen in self._seen.items():
                self._casting.check(seen, name)
            self._enter(self.plan[0])

    def _check_rules(self) -> None:
        trained_on = set(self.initial_weights) & set(find_weights(self.game.validation_weights, "validation_weights"))
        if trained_on:
            raise ConfigError(
                f"trainer.game.validation_weights: {min(trained_on)} is among initial_weights too; "
                "greedy validation must start from weights that the policy was not trained on"
            )
        if self.game.reward_on == "reward_set" and self.game.budget > len(self.regions):
            raise PoolExhausted(
                f"trainer.game.budget={self.game.budget} exceeds the {len(self.regions)} regions of the {SET}; "
                "lower it or give the set more images (data.splits)"
            )
        blocks, group = self.game.episodes // len(self.agent.block), self.agent.learns_after_blocks
        if group and blocks % group:
            raise ConfigError(
                f"trainer.game.episodes={self.game.episodes} are {blocks} blocks, and {type(self.agent).__name__} "
                f"learns after every {group} of them; set episodes to a multiple of {group * len(self.agent.block)}"
            )
        if self.game.short_training.iterations and distributed.size() > 1:
            raise ConfigError("trainer.game.short_training needs a run on one device; set trainer.devices to 1")
        if self.game.reward_on == "own_world" and self.segmenter.trained_tensors():
            raise ConfigError(
                "trainer.game.reward_on=own_world makes a theta_0 for each episode, and "
                f"{type(self.segmenter).__name__} takes long to learn one; set model.class_path to "
                "ralseg.ClosedFormSegmenter"
            )
        scores_others = self.game.short_training.iterations or self.game.weight_average < 1
        if scores_others and not self.segmenter.trained_tensors():
            raise ConfigError(
                f"{type(self.segmenter).__name__} is converged at every step: set trainer.game.weight_average to 1, "
                "and leave short_training out"
            )

    # -- what is played on, and what pays ---------------------------------------------------------

    def _cast_of(self, episode: Episode) -> Cast | None:
        """What an episode is played on and what pays for it; None: train set and reward set."""
        if self._casting is None:
            return None
        return self._casting.draw(episode.kind, episode.draw, self._seen[self._weights_of(episode)])

    def _enter(self, episode: Episode) -> None:
        """Take the regions of an episode, and score on what pays for it."""
        self.cast = self._cast_of(episode)
        if self.cast is not None:
            self.play_on(self.data.regions(self.cast.played), self.data.mask_oracle(self.cast.played))
            self.data.score_on(self.cast.paying)

    def read_weights(self, path: Path) -> dict[str, Any]:
        """The checkpoint of theta_0, read once for many episodes."""
        return self._checkpoints.read(path)

    def start(self) -> None:
        """Begin the episode: its images, its theta_0, and no labels."""
        self._enter(self.episode)
        super().start()
        self._learn_theta_0()
        self.module.converged.show({}, ())
        self._judging = None

    def _learn_theta_0(self) -> None:
        """Show the segmenter the images that the episode's theta_0 knows, where no file has it."""
        known = list(self.cast.known) if self.cast is not None else []
        if known:
            for batch in self.data.eval_loader(known, "images of theta_0"):
                self.segmenter.loss(Batch(*(part.to(self.segmenter.device) for part in batch)))
            self.data.masks.close(known)

    def _theta_0_name(self) -> str:
        """The images that theta_0 learned from, where no file has it."""
        names = [self.data.dataset.names[image] for image in self.known_images()]
        return f"learned from {', '.join(names)}"

    def known_images(self) -> list[int]:
        """The images that theta_0 has seen: the episode's own, or those that its file names."""
        return list(self.cast.known) if self.cast is not None and self.cast.known else super().known_images()

    @property
    def scored_as(self) -> str:
        """What the score of theta_0 is kept under: its file and, where an episode draws what pays, those images."""
        if self.cast is None:
            return self.weights_name
        images = " ".join(map(str, self.cast.paying)) + "".join(f" knows {image}" for image in self.cast.known)
        digest = hashlib.sha256(images.encode()).hexdigest()[:16]
        return f"{self.weights_name} on {len(self.cast.paying)} images of {self.cast.scene} ({digest})"

    # -- the course of an episode -----------------------------------------------------------------

    @property
    def episode(self) -> Episode:
        """The episode being played."""
        return self.plan[self.episode_number]

    @property
    def is_training(self) -> bool:
        """Whether the agent learns from this episode."""
        return self.episode.kind == "train"

    @property
    def weights_name(self) -> str:
        """The file of the episode's theta_0; empty for the segmenter as it was built."""
        return self._weights_of(self.episode)

    def _weights_of(self, episode: Episode) -> str:
        files = self.initial_weights if episode.kind == "train" else self.validation_weights
        return str(files[episode.draw % len(files)]) if files else ""

    @property
    def steps_left(self) -> int:
        """Steps of all episodes that are not played yet."""
        return (len(self.plan) - self.episode_number) * self.game.steps_per_episode - self.step

    @property
    def spent(self) -> float:
        """Share of the episode's budget that is spent."""
        return len(self.ledger) / self.game.budget

    def counters(self) -> tuple[str, int, int]:
        """Kind and number of the episode's draws, and the step; members of a block share them."""
        return self.episode.kind, self.episode.draw, self.step

    def where(self) -> str:
        """Where the game stands, for error messages."""
        return f"episode {self.episode_number}, step {self.step}"

    def context(self) -> dict[str, Any]:
        """What is known of this step, with who played, what paid, and how far learning is."""
        known = {"episode": asdict(self.episode), "scene": self._scene(), "epsilon": self.epsilon}
        return super().context() | known | self.agent.context()

    def _scene(self) -> str | None:
        """The scene that pays; None where the reward set does."""
        return None if self.cast is None else self.cast.scene

    def player(self) -> Policy:
        """Who plays this episode."""
        return self.agent.player(self.episode, self.data.seed)

    @property
    def epsilon(self) -> float:
        """Share of random sub-actions now: none in validation, none where a heuristic plays."""
        if not self.is_training or self.episode.role in HEURISTICS:
            return 0.0
        return self.agent.epsilon(self.training_steps)

    def label(self, regions: Tensor) -> Tensor:
        """Step 4; where a short training scores the step, it is shown everything labelled so far."""
        labelled = super().label(regions)
        if self.game.short_training.iterations:
            self.module.converged.show(self.theta_0(), self._everything_labelled())
        return labelled

    def _everything_labelled(self) -> DataLoader[Batch]:
        """As many batches of labelled regions, and of the images that theta_0 knows, as the short training has."""
        data, batch_size = self.data, self.data.batch_size
        samples = data.region_samples(list(by_image(self).values()), self.labels)
        names = self.trained_on(self.weights_name)
        known = [index for index in data.labelled_images(SET, "state_set") if data.dataset.names[index] in names]
        if known:
            data.masks.open(known)
            samples = JoinedSamples(samples, data.image_samples(known, augment=True))
        draws = self.game.short_training.iterations * batch_size
        return data.loader(samples, RoundSampler(len(samples), draws, self.stream_seed("short training")), batch_size)

    def candidates(self) -> tuple[Tensor, int, Needs]:
        """K pools of N unlabelled regions, of which one each is taken."""
        num_pools = min(self.game.regions_per_step, self.game.budget - len(self.ledger))
        pools = self.ledger.draw_pools(num_pools, self.game.pool_size, self.stream("pools"))
        return pools, 1, self._needs()

    def _needs(self) -> Needs:
        """What must be seen: what the player asks for and, in training, what the agent learns from, whoever plays."""
        played, learned = self.player().needs, self.agent.needs
        told = LESSONS & {*played.measures, *learned.measures, *played.labelled_measures, *learned.labelled_measures}
        if told:
            raise ConfigError(
                f"{type(self.player()).__name__} asks for the measure {min(told)!r}, which reads labels that a policy "
                "does not have; only an agent's teacher may be one"
            )
        if not self.is_training:
            return played
        return replace(
            learned,
            measures=tuple(dict.fromkeys((*learned.measures, *played.measures))),
            labelled_measures=tuple(dict.fromkeys((*learned.labelled_measures, *played.labelled_measures))),
        )

    def look_at(
        self,
        pools: Tensor,
        picks: int,
        needs: Needs,
        labels: Tensor | None = None,
        judge: Callable[[], Any] | None = None,
    ) -> Observation:
        """What the agent asks to see; where it is taught, its teacher sees the labels of what is played on."""
        if self.is_training and self.agent.teacher is not None:
            needs = replace(needs, measures=(*needs.measures, self.agent.teacher))
            labels = self.oracle.label(pools.flatten())  # every process has these masks: no need to send them
            judge = self._judge
        return super().look_at(pools, picks, needs, labels, judge)

    def _judge(self) -> Any:
        """A sample of the pixels that pay, the same for a whole episode."""
        if self._judging is None:
            kind, draw, _ = self.counters()
            drawn = stream(self.data.seed, f"{kind} judge", draw)
            with self.segmenter.in_precision():
                batches = self.data.val_dataloader()
                self._judging = self.segmenter.reward_pixels(batches, self.game.credit_pixels, drawn)
        return self._judging

    def decide(self, observation: Observation) -> Choice:
        """Step 3: one sub-action in each pool, epsilon-greedily."""
        seen = {name: values for name, values in observation.measures.items() if name != self.agent.teacher}
        values = self.score(self.player(), replace(observation, measures=seen))
        return Choice(epsilon_greedy(values, self.epsilon, self.stream("exploration"))[:, None], values)

    # -- learning ---------------------------------------------------------------------------------

    def learn(self, observation: Observation, choice: Choice, trained: Trained) -> StepResult:
        """Steps 6 and 7: the gain of mean IoU, and what the agent learns from it."""
        gain, kind, epsilon = trained.miou - self.scores[-1], self.episode.kind, self.epsilon
        step = self.step
        if self.is_training:
            self.training_steps += 1
        self.receive(trained, trained.miou)
        is_over = len(self.ledger) >= self.game.budget
        following = None if is_over else self.observe()
        if kind == "train":
            self._teach(self._played(step, gain, observation, choice), following)
        metrics = self._metrics(gain, choice, trained, epsilon)
        line, ended = self._line(), self._finish_episode() if is_over else None
        if ended is not None:
            metrics |= self._episode_metrics(ended)
        return StepResult(
            kind,
            axis=self.steps_played() - 1,
            labelled=len(self.ledger),
            metrics=metrics,
            line=line if ended is None else self._summary(ended),
            news=None if ended is None else self._summary(ended),
            episode=ended,
            rounds=self.rounds() if ended is not None else [],
        )

    def _played(self, step: int, gain: float, seen: Observation, choice: Choice) -> PlayedStep:
        """The step as the agent remembers it."""
        lesson = seen.measures[self.agent.teacher] if self.agent.teacher is not None else None
        largest = float(choice.values.abs().max())
        return PlayedStep(
            self.episode.member,
            step,
            gain,
            seen.state,
            seen.actions,
            choice.picked[:, 0],
            largest,
            lesson,
            self.scores[-1],
        )

    def _teach(self, step: PlayedStep, following: Observation | None) -> None:
        with self.timed("learn"):
            try:
                self.agent.remember(step, following)
                self.agent.learn(self.module.agent_optimizer)
            except NotFiniteError as error:
                raise NotFiniteError(f"{error} ({self.where()})", self.context() | error.context) from error

    # -- games that other processes play ----------------------------------------------------------

    @property
    def is_played_elsewhere(self) -> bool:
        """Whether the present game is one that others may play at the same time as the next ones."""
        return self.elsewhere is not None and self._independent_until() > self.episode_number

    def _independent_until(self) -> int:
        return independent_until(self.plan, self.episode_number, self.agent.learns_after_blocks)

    def fetch_step(self) -> TakenStep:
        """The next step of the present game; with its first one, the games that may be played now are asked for.

        In a resumed run that may be in the middle of a game: it is played again, with the weights that it began with.
        """
        assert self.elsewhere is not None
        if self.episode_number not in self.elsewhere:
            numbers = range(self.episode_number, self._independent_until())
            trained = self.training_steps - (self.step if self.is_training else 0)
            weights = {name: tensor.cpu() for name, tensor in self.agent.state_dict().items()}
            for number in numbers:
                self.elsewhere.ask(GameJob(number, trained, weights, self.initial_scores))
                trained += self.game.steps_per_episode if self.plan[number].kind == "train" else 0
        try:
            return self.elsewhere.steps(self.episode_number)[self.step]
        except NotFiniteError as error:
            raise NotFiniteError(str(error), error.context | self.agent.context()) from error

    def take_step(self, step: TakenStep) -> StepResult:
        """Go on as if the step had been played here, but for the segmenter, which the next game resets anyway."""
        assert self.elsewhere is not None
        if self.step == 0:
            self._enter(self.episode)
            self.hide_labels()
            self.scores = [self.initial_scores.setdefault(self.scored_as, step.score_before)]
        self.ledger.add(step.regions, self.step)
        self._histograms = torch.cat([self._histograms, step.histograms])
        self._checksums += step.checksums
        for part, seconds in step.seconds.items():
            self.spend(part, seconds)
        following = self.elsewhere.steps(self.episode_number)[self.step + 1 : self.step + 2]
        self._observation = following[0].observation if following else None
        return self.learn(step.observation, step.choice, step.trained)

    # -- what is told of it -----------------------------------------------------------------------

    def steps_played(self) -> int:
        """Steps of the whole run so far."""
        return self.episode_number * self.game.steps_per_episode + self.step

    def _metrics(self, gain: float, choice: Choice, trained: Trained, epsilon: float) -> dict[str, float]:
        kind, labelled = self.episode.kind, len(self.ledger)
        metrics = {
            f"{kind}/miou": self.scores[-1],
            f"{kind}/gain": gain,
            f"{kind}/labelled": float(labelled),
            f"{kind}/labelled_percent": 100 * labelled / self.ledger.num_regions,
            "segmenter/loss": trained.loss,
            "query/mean": float(choice.values.mean()),
            "query/deviation": float(choice.values.std(correction=0)),
            "query/epsilon": epsilon,
        }
        return metrics | self.agent.metrics() if kind == "train" else metrics

    @staticmethod
    def _episode_metrics(ended: EndedEpisode) -> dict[str, float]:
        kind, record = ended.record["kind"], ended.record
        return {
            f"{kind}/return": record["miou"][-1] - record["miou"][0],
            f"{kind}/class_entropy": record["class_entropy"],
            **{f"seconds/{part.replace(' ', '_')}": value for part, value in ended.seconds.items()},
            **ended.round_metrics,
        }

    def _line(self) -> str:
        """The step just played, in a line."""
        return (
            f"{self.episode.kind} {self.episode_number + 1}/{len(self.plan)} ({self.episode.role}) step {self.step} "
            f"labelled {len(self.ledger)}/{self.game.budget} mIoU {100 * self.scores[-1]:.2f} "
            f"epsilon {self.epsilon:.2f} loss {_short(self.agent.metrics().get('query/loss'))}"
        )

    def _summary(self, ended: EndedEpisode) -> str:
        """The episode just ended, in a line."""
        record = ended.record
        first, last = 100 * record["miou"][0], 100 * record["miou"][-1]
        paid = "" if record["scene"] is None else f" on {record['scene']}"
        return (
            f"episode {record['number'] + 1}/{len(self.plan)} {record['kind']:10} {record['role']:9} "
            f"labelled {record['labelled']} mIoU{paid} {first:.2f} -> {last:.2f} ({last - first:+.2f}) "
            f"epsilon {record['epsilon']:.2f} loss {_short(record['query_loss'])} {record['seconds']:.1f} s"
        )

    def _finish_episode(self) -> EndedEpisode:
        """Enter the episode into the history, and go on to the next."""
        shares = self._histograms.mean(0)
        record = {
            "number": self.episode_number,
            **asdict(self.episode),
            "weights": self.weights_name if self.cast is None or not self.cast.known else self._theta_0_name(),
            "scene": self._scene(),
            "played": len(self.regions.images),
            "miou": list(self.scores),
            "labelled": len(self.ledger),
            "class_entropy": float(torch.special.entr(shares / shares.sum().clamp(min=1e-9)).sum()),
            "epsilon": self.epsilon,
            "query_loss": self.agent.metrics().get("query/loss"),
            "seconds": sum(self.seconds.values()),
        }
        self.history.append(record)
        ends_round = (
            record["kind"] == "validation"
            and record["role"] == "policy"
            and record["round"] in finished_rounds(self.history, self.game.validation_plays)
        )
        metrics = validation_metrics(self.history, record["round"]) if ends_round else {}
        ended = EndedEpisode(
            record, self.ledger.labelled.clone(), self.ledger.steps.clone(), dict(self.seconds), metrics
        )
        self.episode_number += 1
        self.step, self.scores, self._observation = 0, [], None
        return ended

    def rounds(self) -> list[float]:
        """Area under the curve of each finished round of validation."""
        numbers = finished_rounds(self.history, self.game.validation_plays)
        return [validation_metrics(self.history, number)["validation/auc"] for number in numbers]

    # -- resuming ---------------------------------------------------------------------------------

    def _rules(self) -> dict[str, Any]:
        """What may not change when a run goes on; more episodes may follow."""
        played = self.plan[: self.episode_number + (self.step > 0)]
        return {
            "steps_per_episode": self.game.steps_per_episode,
            "budget": self.game.budget,
            "regions_per_step": self.game.regions_per_step,
            "pool_size": self.game.pool_size,
            "reward_on": self.game.reward_on,
            "known_images": list(self.game.known_images),
            "credit_pixels": self.game.credit_pixels,
            "short_training": asdict(self.game.short_training),
            **self.agent.rules(),
            "initial_weights": [str(path) for path in self.initial_weights],
            "validation_weights": [str(path) for path in self.validation_weights],
            "layout": self.data.regions(SET).description(),
            "episodes so far": [[getattr(e, f.name) for f in fields(e)] for e in played],
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, as plain values and tensors.

        Random state is not among it: every draw follows from the seed and these counters.
        """
        return {
            **self.progress_state(),
            "episode_number": self.episode_number,
            "training_steps": self.training_steps,
            "history": self.history,
            "rules": self._rules(),
            "agent": self.agent.memory(),
            # then the segmenter is not that of the game
            "is_amid_game_elsewhere": self.step > 0 and self.is_played_elsewhere,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a checkpoint left off."""
        self.episode_number, self.step = state["episode_number"], state["step"]
        self.training_steps, self.history = state["training_steps"], state["history"]
        # checkpoints from before there was a choice
        rules = {"reward_on": "reward_set", "short_training": asdict(ShortTraining())} | state["rules"]
        rules = {"credit_pixels": Game().credit_pixels, "known_images": list(Game().known_images)} | rules
        differing = [name for name, value in self._rules().items() if rules.get(name) != value]
        if differing:
            raise ConfigError(
                "the checkpoint is of a game with other rules: " + ", ".join(differing) + " differ; "
                "go on with the configuration in the run's folder, or start anew"
            )
        if state.get("is_amid_game_elsewhere", False) and not self.is_played_elsewhere:
            raise ConfigError(
                "trainer.actors=0, but the checkpoint is in the middle of a game that another process has played, and "
                "does not have its segmenter; go on with trainer.actors=1 or more, with the same results"
            )
        # between two episodes, the ledger is still that of the one before
        self._enter(self.plan[max(self.episode_number - (self.step == 0), 0)])
        self.load_progress(state)
        self.agent.load_memory(state["agent"])
        following = self._cast_of(self.episode) if self.step == 0 and self.steps_left else None
        if following is not None:
            self.data.score_on(following.paying)  # Lightning takes its loader before the episode starts


def _short(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.3g}"
