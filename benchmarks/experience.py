"""Policies from the credit of other games: rows of the matrix, and settings that were tried.

    python benchmarks/experience.py play --sets camvid,dubai --games 64    # games in single real sets
    python benchmarks/experience.py solve --runs runs/worlds --out w.ckpt  # the policy that a run's credit makes
    python benchmarks/experience.py rows                                   # what the matrix has in its rows
    python benchmarks/experience.py lean --lean 4 --towards entropy=1 --out w.ckpt  # a policy nearer to entropy
    python benchmarks/experience.py forecast --policies entropy,ralseg,w.ckpt       # how well they foresee credit

Credit regression keeps sums over games (`gram`, `cross` in its checkpoints), and sums of several runs can be added. So
the games of each set are played once, and every row (worlds and all sets but one; one other set) is a ridge regression
on the sums of its parts. `solve` leaves out contexts (`--context none`), changes the shrinkage or adds randomness.

Needs `ralseg fit --config worlds.yaml` and data sets in `--data` (RALSEG_DATA); only their train and val images are
played on.
"""

import argparse
import json
import math
import os
import statistics
from pathlib import Path

import torch
from torch import Tensor

import ralseg
from benchmarks.matrix import SETS, read
from ralseg.acquisition.named_features import GENERAL
from ralseg.agents import CreditRegression, FeaturePolicy
from ralseg.agents.feature_agent import set_weights
from ralseg.agents.loading import load_policy_alone, policy_file, save_policy
from ralseg.commands import quiet_console
from ralseg.data import Mixture, SegmentationData, SplitSizes
from ralseg.engine import Game
from ralseg.labels import GridLayout
from ralseg.models import ClosedFormSegmenter
from ralseg.runtime.checkpoints import read_checkpoint

CONTEXT = ["confidence", "variety", "experience"]
EPISODES_PER_UPDATE = 16


def play(asked: argparse.Namespace) -> None:
    """Games in each set alone."""
    for name in asked.sets.split(","):
        data = SegmentationData(
            Mixture({name: read(name, Path(asked.data))}), SplitSizes(state=0, train=None, reward=0), size=(128, 192),
            layout=GridLayout(4, 6), eval_batch_size=128, flip=False, reward_images=20,
        )  # fmt: skip
        game = Game(
            80, 8, 10, episodes=asked.games, validation_plays=0, reward_on="own_world", known_images=(2, 8),
        )  # fmt: skip
        agent = CreditRegression(context=CONTEXT, episodes_per_update=EPISODES_PER_UPDATE)
        ralseg.fit(
            agent, ClosedFormSegmenter(data.class_names), data, game, f"{asked.folder}/{name}", "last",
            actors=asked.actors, accelerator="cpu", enable_progress_bar=False, checkpoint_every=160,
        )  # fmt: skip


def sums(run: str) -> tuple[Tensor, Tensor]:
    """What a run's games add up to: [P, P] and [P]."""
    state = read_checkpoint(Path(run) / "checkpoints" / "last.ckpt")["state_dict"]
    return state["agent.gram"], state["agent.cross"]


def solve(
    runs: list[str],
    out: str,
    shrinkage: float = 10.0,
    context: bool = True,
    randomness: float = 0.0,
    share: float = 0.0,
    towards: dict[str, float] | None = None,
) -> FeaturePolicy:
    """Write the policy that the games of several runs make.

    Args:
        runs: Folders of the runs.
        out: The file.
        shrinkage: Pull of the regression towards 0, worth so many steps of experience.
        context: Whether weights move with contexts.
        randomness: Of the policy.
        share: How far the policy leans, see ``lean_on``.
        towards: What it leans on, entropy unless told otherwise.
    """
    found = [sums(run) for run in runs]
    gram, cross = sum(one for one, _ in found), sum(other for _, other in found)
    assert isinstance(gram, Tensor)
    assert isinstance(cross, Tensor)
    policy = FeaturePolicy(context=CONTEXT if context else None, randomness=randomness)
    policy.build((), 0, seed=0)
    number = len(policy.names) * (2 + len(policy.context))
    gram, cross = gram[:number, :number], cross[:number]  # contexts stand last
    set_weights(policy.net, torch.linalg.solve(gram + shrinkage * torch.eye(number).to(gram), cross))
    lean_on(policy, towards or {"entropy": 1.0}, share)
    write(policy, out)
    return policy


def lean(asked: argparse.Namespace) -> None:
    """Write a policy that is nearer to a rule of thumb than the one it is made from."""
    policy = load_policy_alone(policy_file(asked.policy))
    assert isinstance(policy, FeaturePolicy)
    lean_on(policy, asked.towards, asked.lean)
    write(policy, asked.out)


def write(policy: FeaturePolicy, out: str) -> None:
    """Write a policy file, as `fit` does."""
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    about = {"version": ralseg.__version__, "policy": policy.description()}
    save_policy({"ralseg": about, "state_dict": policy.state_dict()}, Path(out))


@torch.no_grad()
def lean_on(policy: FeaturePolicy, towards: dict[str, float], share: float) -> None:
    """Add a rule of thumb to the weights, as a share of their length; then make them as long as they were.

    Their length says nothing about what is chosen. It does about forecasts, which `fit` goes on from.

    Args:
        policy: What leans.
        towards: The rule: weights of features; their length does not matter.
        share: The more, the nearer the policy is to choosing by the rule alone; infinity is the rule.
    """
    weight, drift = policy.net.weight, policy.net.drift
    length = weight.norm()
    rule = torch.zeros_like(weight)
    for name, value in towards.items():
        rule[policy.names.index(name)] = value
    rule *= length / rule.norm()
    if math.isinf(share):
        weight.copy_(rule)
        drift.zero_()
        return
    weight += share * rule
    shrunk = length / weight.norm()
    weight *= shrunk
    drift *= shrunk


def rule_of(text: str) -> dict[str, float]:
    """Features and their weights, as ``entropy=1,bald=0.5``."""
    pairs = (part.partition("=") for part in text.split(","))
    return {name: float(value or 1) for name, _, value in pairs}


def forecast(asked: argparse.Namespace) -> None:
    """Print how well policies foresee the credit of each set's games: correlation within a step, in the mean."""
    sets = asked.sets.split(",")
    found = {name: sums(f"{asked.folder}/{name}") for name in sets}
    steps = {name: count_steps(Path(asked.folder) / name) for name in sets}
    print("| forecast of credit |", " | ".join(sets), "| mean | least |\n|---|" + "---|" * (len(sets) + 2))
    for policy in asked.policies.split(","):
        weights = linear_weights(policy)
        cells = [correlation(weights, *found[name], steps[name]) for name in sets]
        shown = [*cells, statistics.mean(cells), min(cells)]
        print(f"| {policy} | {' | '.join(f'{cell:+.3f}' for cell in shown)} |")


def count_steps(run: Path) -> int:
    """Steps of training that a run has played."""
    history = json.loads((run / "history.json").read_text())
    return sum(len(record["miou"]) - 1 for record in history if record["kind"] == "train")


def linear_weights(policy: str) -> Tensor:
    """Weights of a policy without contexts, or of the heuristic `entropy`, in the order of the sums: [2 A]."""
    if policy == "entropy":
        weights = torch.zeros(2 * len(GENERAL), dtype=torch.float64)
        weights[GENERAL.index("entropy")] = 1.0
        return weights
    found = load_policy_alone(policy_file(policy))
    assert isinstance(found, FeaturePolicy)
    assert found.names == GENERAL, f"{policy} has other features"
    assert not found.context, f"{policy} has contexts"
    return torch.cat([found.net.weight, found.net.drift]).detach().double()


def correlation(weights: Tensor, gram: Tensor, cross: Tensor, steps: int) -> float:
    """Of forecasts and credit, both z-scored in each step, over all steps."""
    number = len(weights)
    gram, cross = gram[:number, :number], cross[:number]  # contexts stand last
    return float(weights @ cross / (weights @ gram @ weights * steps).sqrt())


def rows(asked: argparse.Namespace) -> None:
    """The policies of the matrix: worlds alone, worlds with all sets but the column's, and one other set alone."""
    options = {"context": asked.context == "all", "share": asked.lean, "towards": asked.towards}
    solve([asked.runs], f"{asked.folder}/worlds.ckpt", asked.shrinkage, **options)
    for name in SETS:
        others = [f"{asked.folder}/{other}" for other in SETS if other != name]
        foreign = "dubai" if name in ("camvid", "carla") else "camvid"  # not the column's own, nor its like
        # a tenth of the games: a tenth of the pull
        solve([f"{asked.folder}/{foreign}"], f"{asked.folder}/only_for_{name}.ckpt", asked.shrinkage / 10, **options)
        solve([asked.runs, *others], f"{asked.folder}/without_{name}.ckpt", asked.shrinkage, **options)


def main() -> None:
    """Play, solve, or make all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["play", "solve", "rows", "lean", "forecast"])
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--games", type=int, default=64)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--data", default=os.environ.get("RALSEG_DATA", "data"))
    parser.add_argument("--folder", default="runs/rows")
    parser.add_argument("--runs", default="runs/worlds", help="joined by +")
    parser.add_argument("--policy", default="ralseg", help="that leans")
    parser.add_argument("--policies", default="entropy,ralseg", help="that forecast")
    parser.add_argument("--out", default="policy.ckpt")
    parser.add_argument("--shrinkage", type=float, default=10.0)
    parser.add_argument("--context", choices=["all", "none"], default="all")
    parser.add_argument("--randomness", type=float, default=0.0)
    parser.add_argument("--lean", type=float, default=0.0, help="how far towards a rule of thumb, see lean_on")
    parser.add_argument("--towards", type=rule_of, default={"entropy": 1.0}, help="the rule, as entropy=1,bald=0.5")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    quiet_console()
    if asked.do == "play":
        play(asked)
    elif asked.do == "rows":
        rows(asked)
    elif asked.do == "lean":
        lean(asked)
    elif asked.do == "forecast":
        forecast(asked)
    else:
        solve(
            asked.runs.split("+"), asked.out, asked.shrinkage, asked.context == "all", asked.randomness, asked.lean,
            asked.towards,
        )  # fmt: skip


if __name__ == "__main__":
    main()
