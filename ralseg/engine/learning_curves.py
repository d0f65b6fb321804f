"""Whether the policy is better than chance: what greedy validation says, as numbers and as a picture."""

import math
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from ralseg.agents.base import POLICY, REFERENCES, START

Record = dict[str, Any]


class Comparison(NamedTuple):
    """Mean of paired differences, in points of mean IoU, and its standard error."""

    mean: float
    error: float
    plays: int

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.error:.2f}"


def area(record: Record) -> float:
    """Area under an episode's curve: mean gain of mIoU over its steps, in points."""
    start, *rest = record["miou"]
    return 100 * float(sum(rest) / len(rest) - start)


def final_gain(record: Record) -> float:
    """Gain of mIoU at the end of an episode, in points."""
    return 100 * float(record["miou"][-1] - record["miou"][0])


def validation_games(history: list[Record], role: str, round_number: int = 0) -> dict[int, Record]:
    """Validation episodes of a role in a round, by the number of their draws."""
    chosen = (r for r in history if r["kind"] == "validation" and r["role"] == role and r["round"] == round_number)
    return {record["draw"]: record for record in chosen}


def compare(first: dict[int, Record], second: dict[int, Record], measure: Any = area) -> Comparison:
    """Paired difference first - second over the games that both played."""
    both = sorted(set(first) & set(second))
    differences = [measure(first[draw]) - measure(second[draw]) for draw in both]
    error = statistics.stdev(differences) / math.sqrt(len(both)) if len(both) > 1 else math.nan
    return Comparison(statistics.mean(differences), error, len(both))


def finished_rounds(history: list[Record], plays: int) -> list[int]:
    """Validation rounds whose games have all been played."""
    rounds = sorted({r["round"] for r in history if r["kind"] == "validation" and r["role"] == "policy"})
    return [number for number in rounds if len(validation_games(history, "policy", number)) == plays]


def validation_metrics(history: list[Record], round_number: int) -> dict[str, float]:
    """What is logged after a round: areas and final gains, and paired differences from U and H."""
    policy = validation_games(history, "policy", round_number)
    metrics = {
        "validation/auc": statistics.mean(map(area, policy.values())),
        "validation/final_gain": statistics.mean(map(final_gain, policy.values())),
    }
    for role in (*REFERENCES, START):
        games = validation_games(history, role)
        if games:
            metrics[f"validation/auc_minus_{role}"] = compare(policy, games).mean
    return metrics


def validation_table(history: list[Record], plays: int) -> Table:
    """The greedy policy after each round beside U and H on the same games."""
    trained_on = {r.get("weights") for r in history if r["kind"] == "train"}
    known = trained_on & {r.get("weights") for r in history if r["kind"] == "validation"}
    seen = ", from theta_0s that were TRAINED ON" if known else " on theta_0s not trained on"
    table = Table(title=f"greedy validation: {plays} games with common random numbers{seen}")
    table.add_column("who plays")
    roles = [*REFERENCES, *([START] if validation_games(history, START) else [])]
    for name in ("final mIoU", "gain at the end", "area", *(f"area - {role}" for role in roles)):
        table.add_column(name, justify="right")
    baselines = {role: validation_games(history, role) for role in roles}
    for role, games in baselines.items():
        if games:
            table.add_row(role, *_scores(games))
    table.add_section()
    for number in finished_rounds(history, plays):
        policy = validation_games(history, "policy", number)
        versus = [str(compare(policy, games)) if games else "-" for games in baselines.values()]
        table.add_row(f"policy after {episodes_before(history, number)} episodes", *_scores(policy), *versus)
    table.caption = "points of mean IoU: mean ± standard deviation over games; differences: mean ± standard error"
    return table


def best_round(history: list[Record], plays: int) -> int | None:
    """The round of validation in which the policy had the largest area; None where there was none."""
    areas = {number: _area_of_round(history, POLICY, number) for number in finished_rounds(history, plays)}
    return max(areas, key=lambda number: areas[number]) if areas else None


def _area_of_round(history: list[Record], role: str, number: int = 0) -> float:
    return statistics.mean(map(area, validation_games(history, role, number).values()))


def against_start(history: list[Record], plays: int) -> Comparison | None:
    """How much better the best policy is than the one that learning went on from; None where it began anew."""
    best, start = best_round(history, plays), validation_games(history, START)
    return None if best is None or not start else compare(validation_games(history, POLICY, best), start)


def _scores(games: dict[int, Record]) -> list[str]:
    """Final mIoU, gain at the end, and area of some games, each as mean and deviation."""
    columns = (lambda r: 100 * r["miou"][-1], final_gain, area)
    return [_spread([measure(record) for record in games.values()]) for measure in columns]


def _spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


def episodes_before(history: list[Record], round_number: int) -> int:
    """Training episodes played before a validation round."""
    first = min(validation_games(history, "policy", round_number).values(), key=lambda r: r["number"])
    return sum(1 for r in history if r["kind"] == "train" and r["number"] < first["number"])


def draw_learning_curve(history: list[Record], plays: int, path: Path) -> None:
    """Left: area under the curve of each validation round against U and H. Right: mIoU during the games."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    colours = {"uniform": "#888888", "entropy": "#e08214", "policy": "#2166ac"}
    rounds = finished_rounds(history, plays)
    for role in ("uniform", "entropy"):
        games = validation_games(history, role)
        if games:
            left.axhline(statistics.mean(map(area, games.values())), color=colours[role], label=role)
    if rounds:
        x = [episodes_before(history, number) for number in rounds]
        policies = [validation_games(history, "policy", number) for number in rounds]
        y = [statistics.mean(map(area, games.values())) for games in policies]
        paired = [compare(games, validation_games(history, "uniform")) for games in policies]
        errors = [0.0 if math.isnan(p.error) else p.error for p in paired]
        left.errorbar(
            x,
            y,
            errors,
            color=colours["policy"],
            marker="o",
            capsize=3,
            label="policy, greedy (± s.e. of policy - uniform)",
        )
        last = {"uniform": 0, "entropy": 0, "policy": rounds[-1]}
        for role, number in last.items():
            records = validation_games(history, role, number).values()
            curves = [[100 * (m - r["miou"][0]) for m in r["miou"]] for r in records]
            mean = [statistics.mean(column) for column in zip(*curves, strict=True)]
            right.plot(range(len(mean)), mean, color=colours[role], label=role)
    left.set(xlabel="training episodes", ylabel="mean gain of mIoU over a game, points", title="Learning curve")
    right.set(xlabel="steps", ylabel="gain of mIoU, points", title=f"Validation games (mean of {plays})")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
