"""The rules of the game: budget, pools, theta_0s, and which episode is played when."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ralseg.agents.base import POLICY, REFERENCES, Episode
from ralseg.engine.short_training import ShortTraining
from ralseg.errors import ConfigError

RewardOn = Literal["reward_set", "other_scenes", "own_world"]
REWARD_ON: tuple[str, ...] = get_args(RewardOn)
"""What an episode may be rewarded on."""
_NO_TRAINING = ShortTraining()


@dataclass(frozen=True)
class Game:
    """The rules that every agent plays by. Defaults are the paper's for CamVid.

    Args:
        budget: B, regions labelled in an episode.
        regions_per_step: K, regions labelled at a step, one from each of K pools.
        pool_size: N, regions in a pool (paper: 20 while the policy is trained).
        episodes: Episodes that the policy is trained on.
        initial_weights: theta_0: checkpoints of ``ralseg pretrain`` (patterns such as ``runs/w/*/best.ckpt``
            too), taken in turn. None: the segmenter as it is built.
        validation_weights: theta_0s for greedy validation; none of them may be trained on.
        validation_every: Training episodes between greedy validations.
        validation_plays: Games in a validation; the same for every round and every method. 0: none.
        reward_on: ``reward_set``: play on the train set, and reward the gain on the reward set (paper).
            ``other_scenes``: each episode draws one scene of both sets, and is rewarded for the gain on its images;
            it plays on the images of all other scenes. What theta_0 was trained on is left out.
            ``own_world``: each episode draws a world; theta_0 learns from ``known_images`` of its images, some others
            pay, and the rest is played on. Needs a segmenter that learns in closed form.
        known_images: Fewest and most images that theta_0 sees where ``reward_on`` is ``own_world``.
        weight_average: Score an exponential moving average of the segmenter's weights that takes this share of
            the new weights each step; 1 scores the weights themselves (paper).
        short_training: Score each step after a short training on everything labelled, instead of as it is.
        credit_pixels: Labelled pixels of the images that pay by which the credit of one region is measured, where an
            agent is taught by it.

    Examples:
        >>> Game(budget=50, regions_per_step=24).steps_per_episode
        3
    """

    budget: int = 480
    regions_per_step: int = 24
    pool_size: int = 20
    episodes: int = 100
    initial_weights: list[str] | None = None
    validation_weights: list[str] | None = None
    validation_every: int = 20
    validation_plays: int = 4
    weight_average: float = 1.0
    reward_on: RewardOn = "reward_set"
    known_images: tuple[int, int] = (2, 8)
    short_training: ShortTraining = _NO_TRAINING
    credit_pixels: int = 5000

    def __post_init__(self) -> None:
        at_least_one = ("budget", "regions_per_step", "pool_size", "episodes", "validation_every", "credit_pixels")
        for key in at_least_one:
            if getattr(self, key) < 1:
                raise ConfigError(f"trainer.game.{key}={getattr(self, key)} must be at least 1")
        if self.short_training.iterations and self.weight_average < 1:
            raise ConfigError(
                "trainer.game.short_training scores other weights than those that weight_average averages; set "
                "weight_average to 1"
            )
        if not 0 < self.weight_average <= 1:
            raise ConfigError(f"trainer.game.weight_average={self.weight_average} must lie in (0, 1]")
        few, many = self.known_images
        if not 1 <= few <= many:
            raise ConfigError(f"trainer.game.known_images={[few, many]} must be the fewest and the most, 1 or more")
        if self.reward_on not in REWARD_ON:
            raise ConfigError(f"trainer.game.reward_on={self.reward_on!r} must be one of {', '.join(REWARD_ON)}")

    @property
    def steps_per_episode(self) -> int:
        """T: steps until the budget is spent; the last one may be short."""
        return -(-self.budget // self.regions_per_step)


def plan_episodes(game: Game, block: Sequence[str], references: Sequence[str] = REFERENCES) -> list[Episode]:
    """All episodes of a run in their order: blocks of training with rounds of validation between.

    References never change, so they play the validation games once, in round 0; the policy plays them in every later
    round.

    Args:
        game: The rules.
        block: Who plays the episodes of a block.
        references: Who plays the validation games beside the policy.
    """
    if not block or game.episodes % len(block):
        raise ConfigError(
            f"trainer.game.episodes={game.episodes} must be a multiple of {len(block)}, the number of episodes in the "
            f"agent's block {list(block)}"
        )
    plan: list[Episode] = []
    rounds = 0

    def validate() -> None:
        nonlocal rounds
        roles = references if rounds == 0 else (POLICY,)
        plan.extend(
            Episode("validation", role, draw, round=rounds) for role in roles for draw in range(game.validation_plays)
        )
        rounds += 1

    since = game.validation_every
    for number in range(game.episodes // len(block)):
        if game.validation_plays and since >= game.validation_every:
            validate()
            since = 0
        plan.extend(Episode("train", role, number, member) for member, role in enumerate(block))
        since += len(block)
    if game.validation_plays:
        validate()
    return plan


def independent_until(plan: Sequence[Episode], number: int, learns_after_blocks: int) -> int:
    """The first episode from ``number`` on that depends on one between: all before it may be played at the same time.

    Episodes depend on earlier ones only through what the agent has learned. Nothing is learned in validation and, by
    some agents, before the end of a block or of several.

    Args:
        plan: All episodes.
        number: The episode to begin with; it is the answer itself where the agent learns at every step of it.
        learns_after_blocks: The number of blocks after which the agent learns; 0: at every step.

    Examples:
        >>> plan = plan_episodes(Game(episodes=4, validation_plays=2, validation_every=2), ["entropy", "policy"])
        >>> [episode.kind[0] for episode in plan]
        ['v', 'v', 'v', 'v', 't', 't', 'v', 'v', 't', 't', 'v', 'v']
        >>> [independent_until(plan, number, learns_after_blocks=1) for number in (0, 5, 6, 10)]
        [6, 6, 10, 12]
        >>> [independent_until(plan, number, learns_after_blocks=2) for number in (0, 5, 6, 10)]
        [10, 10, 10, 12]
        >>> [independent_until(plan, number, learns_after_blocks=0) for number in (0, 5, 6, 10)]
        [4, 5, 8, 12]
    """
    for position in range(number, len(plan)):
        if plan[position].kind == "train":
            if not learns_after_blocks:
                return position
            following = next((episode for episode in plan[position + 1 :] if episode.kind == "train"), None)
            ends_block = following is None or following.draw != plan[position].draw
            if ends_block and (plan[position].draw + 1) % learns_after_blocks == 0:
                return position + 1
    return len(plan)


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
