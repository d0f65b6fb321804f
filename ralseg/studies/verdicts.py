"""What a study says in words: one headline, and one verdict against each baseline.

All of it rests on one measure, the paired difference in the area under the budget curve of test mean IoU; labels saved
are said only where they agree with it. docs/compare.md has the rules.
"""

from typing import Any

from ralseg.studies.statistics import FEWEST_FOR_BOOTSTRAP, MOST_MORE, Difference
from ralseg.studies.tables import Verdict

_MEASURE = "points of mean IoU over the budget curve"
_USUAL = "uniform"  # the baseline that everybody has in mind


def headline(ours: str, verdicts: list[Verdict], is_named: bool = True) -> str:
    """The one sentence that a study ends with.

    Args:
        ours: The method that is compared with the others.
        verdicts: How it stands against each of them.
        is_named: Whether the study names it; if not, it is the best by the mean, and the sentence says so.
    """
    if not verdicts:
        return f"Nothing can be said yet: {ours} has no finished seed beside another method."
    who = ours if is_named else f"{ours}, the best of {len(verdicts) + 1} by the mean,"
    if verdicts[0].area.count < 2:
        others = _listed([verdict.baseline for verdict in verdicts], "or")
        return f"Undecided between {who} and {others}: one seed says nothing about chance; run at least 3."
    by_standing: dict[str, list[Verdict]] = {"ahead": [], "behind": [], "undecided": []}
    for verdict in verdicts:
        by_standing[verdict.area.standing].append(verdict)
    if by_standing["behind"]:
        return _better(max(by_standing["behind"], key=lambda verdict: -verdict.area.mean))
    if by_standing["undecided"]:
        return _undecided(who, by_standing["undecided"], by_standing["ahead"])
    return _use(who.removesuffix(","), verdicts)


def caveat(is_named: bool) -> str:
    """What stands under the headline of a study that names no method as its own."""
    if is_named:
        return ""
    return (
        "No method was named as ours before the runs, so the best by the mean is compared with the others. The best "
        "of several looks better than it is: name it as ours and confirm it on new seeds."
    )


def _better(verdict: Verdict) -> str:
    return (
        f"Use {verdict.baseline} rather than {verdict.method}: {verdict.baseline} is ahead by "
        f"{lead(verdict.area)}, {verdict.area.count} seeds."
    )


def _undecided(who: str, undecided: list[Verdict], ahead: list[Verdict]) -> str:
    others = _listed([verdict.baseline for verdict in undecided], "or")
    though = ""
    if ahead:
        though = f", though {ahead[0].method} is ahead of {_listed([verdict.baseline for verdict in ahead])}"
    seeds = undecided[0].area.count
    return (
        f"Undecided between {who} and {others} after {seeds} seeds{though}; "
        f"{settled([verdict.area for verdict in undecided])}."
    )


def _use(who: str, verdicts: list[Verdict]) -> str:
    closest = min(verdicts, key=lambda verdict: verdict.area.mean)
    usual = next((verdict for verdict in verdicts if verdict.baseline == _USUAL), closest)
    seeds = f"{closest.area.count} seeds"
    saving = usual.saving
    if saving is not None and saving.standing == "ahead":
        alone = f" and is ahead of all {len(verdicts)} others" if len(verdicts) > 1 else ""
        return (
            f"Use {who}: it reached {usual.baseline}'s best score with {saving.percent:.0f} % fewer labels "
            f"({saving.low:.0f} to {saving.high:.0f} %){alone}, {seeds}."
        )
    whom = closest.baseline
    if len(verdicts) > 1:
        whom = f"all {len(verdicts)} others, of the closest, {whom},"
    return f"Use {who}: it is ahead of {whom} by {lead(closest.area)}, {seeds}."


def _listed(names: list[str], last: str = "and") -> str:
    """Names as in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"


def lead(found: Difference) -> str:
    """Size of a clear difference, whichever way it points."""
    low, high = sorted((abs(found.low), abs(found.high)))
    return f"{abs(found.mean):.2f} {_MEASURE} ({low:.2f} to {high:.2f})"


def settled(found: list[Difference]) -> str:
    """How many more seeds would settle all of some undecided comparisons, in one number."""
    more = [difference.more for difference in found]
    if None in more:
        return f"more than {MOST_MORE} more seeds would be needed"
    most = max(number for number in more if number is not None)
    return f"about {most} more {'seed' if most == 1 else 'seeds'} would settle it"


def said(verdict: Verdict) -> str:
    """How a method stands against one baseline."""
    found = verdict.area
    if found.count < 2:
        return f"{verdict.method} against {verdict.baseline}: undecided, one seed says nothing about chance."
    if found.is_clear:
        place = "ahead of" if found.standing == "ahead" else "behind"
        return f"{verdict.method} is {place} {verdict.baseline} by {lead(found)}."
    return (
        f"{verdict.method} against {verdict.baseline}: undecided, {found.mean:+.2f} {_MEASURE} "
        f"({found.low:+.2f} to {found.high:+.2f}); {settled([found])}."
    )


def labels_said(verdict: Verdict) -> str:
    """Labels saved at the baseline's best mean score, if there is something to say that agrees with the verdict."""
    unknown, found, saving = "Labels saved: cannot be told", verdict.area, verdict.saving
    if found.standing == "undecided":
        return f"{unknown} while the verdict is undecided."
    if saving is None:
        return f"{unknown} from one budget."
    score = f"{verdict.baseline}'s best score, {saving.target:.1f} points"
    if found.standing == "behind" and not saving.is_reached:
        return f"Labels saved: none; {score}, was not reached within the budgets."
    if found.count < FEWEST_FOR_BOOTSTRAP:
        return f"{unknown} from fewer than {FEWEST_FOR_BOOTSTRAP} seeds."
    if saving.is_reached and saving.standing == "undecided":
        return f"{unknown}: it may be none."
    if saving.standing != found.standing:
        return f"{unknown} from one score: the budget curves cross."
    low, high = sorted((abs(saving.low), abs(saving.high)))
    much = f"{abs(saving.percent):.0f} % ({low:.0f} to {high:.0f} %)"
    if found.standing == "behind":
        return f"Labels saved: none; {much} more were needed for {score}."
    return f"Labels saved: {much} for {score}."


def in_words(ours: str, verdicts: list[Verdict], is_named: bool) -> dict[str, Any]:
    """Plain values for a file: the headline, and every verdict."""
    return {
        "headline": headline(ours, verdicts, is_named),
        "ours_was_named": is_named,
        "verdicts": [
            {
                "method": verdict.method,
                "baseline": verdict.baseline,
                "standing": verdict.area.standing,
                "more_seeds": None if verdict.area.is_clear else verdict.area.more,
                "sentence": said(verdict),
                "labels": labels_said(verdict),
            }
            for verdict in verdicts
        ],
    }
