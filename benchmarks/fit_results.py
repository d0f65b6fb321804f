"""Prints the table of docs/fit.md from the raw data in docs/results: `python benchmarks/fit_results.py`."""

import json
from pathlib import Path

from ralseg.engine.learning_curves import area, compare, episodes_before, final_gain, finished_rounds, validation_games

RESULTS = Path(__file__).parent.parent / "docs" / "results"

for path in sorted(RESULTS.glob("*_history.json")):
    history = json.loads(path.read_text())
    uniform, entropy = (validation_games(history, role) for role in ("uniform", "entropy"))
    print(f"{path.name}: {len(uniform)} games; area - uniform, area - entropy, end - uniform, end - entropy")
    print("  entropy itself:", compare(entropy, uniform), "|", compare(entropy, uniform, final_gain))
    for number in finished_rounds(history, len(uniform)):
        policy = validation_games(history, "policy", number)
        cells = [str(compare(policy, other, measure)) for measure in (area, final_gain) for other in (uniform, entropy)]
        print(f"  after {episodes_before(history, number)} episodes:", " | ".join(cells))
    entropies: dict[str, list[float]] = {}
    for game in history:
        if game["kind"] == "validation":
            who = game["role"] if game["role"] != "policy" else f"policy in round {game['round']}"
            entropies.setdefault(who, []).append(game["class_entropy"])
    shown = ", ".join(f"{who} {sum(values) / len(values):.2f}" for who, values in entropies.items())
    print(f"  entropy of the selected classes, nats: {shown}")
