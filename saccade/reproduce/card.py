"""The outcome of a reproduction, pass or fail against the recorded number, as one card in Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from saccade.files import atomic_write
from saccade.reproduce.environment import get_versions
from saccade.reproduce.seeds import HELD_OUT, TRIAL, Seeds
from saccade.reproduce.spec import PARAMETER_TOLERANCE, Spec

PASS, FAIL, UNJUDGED = "pass", "fail", "not compared"
ROUNDING = 1e-9


@dataclass(frozen=True)
class Verdict:
    state: str  # pass, fail, or not compared
    reasons: tuple[str, ...]


def judge(seeds: Seeds) -> Verdict:
    """Compare mean and number of parameters with the recorded ones; every seed must have been trained to its end."""
    spec, recorded, values = seeds.spec, seeds.spec.recorded, seeds.values
    failures = [f"seed {item.seed} diverged: {item.diverged}" for item in seeds.finished if item.diverged]
    if not seeds.finished:
        return Verdict(FAIL, ("no seed was trained",))
    unjudged = {HELD_OUT: "held-out data has no recorded number", TRIAL: "a trial shows that everything runs, no more"}
    reason = unjudged.get(seeds.finished[0].data, "")
    if reason or recorded is None:
        return Verdict(FAIL if failures else UNJUDGED, (*failures, reason or spec.rule))
    if spec.compared == "seeds":
        pairs = [(f"seed {item.seed}", item.scores[spec.metric], item.seed) for item in seeds.finished if item.scores]
        compared = [(what, value, recorded.values[seed]) for what, value, seed in pairs if seed in recorded.values]
        tolerance = spec.floor
    else:
        compared, tolerance = [("the mean", fmean(values), recorded.mean)] if values else [], spec.tolerance
    if not compared and not failures:
        return Verdict(UNJUDGED, ("no seed of these is recorded",))
    for what, value, expected in compared:
        if abs(value - expected) > tolerance + ROUNDING:
            failures.append(
                f"{what} is {value:#.4g} {spec.unit}, {abs(value - expected):.3g} "
                f"{'above' if value > expected else 'below'} the recorded {expected:#.4g}; a pass is at most "
                f"{tolerance:.3g} apart"
            )
    for item in seeds.finished:
        if recorded.parameters and not item.diverged:
            apart = abs(item.parameters - recorded.parameters) / recorded.parameters
            if apart > PARAMETER_TOLERANCE:
                failures.append(
                    f"seed {item.seed} has {item.parameters:,} parameters, recorded were {recorded.parameters:,}"
                )
    return Verdict(FAIL, tuple(failures)) if failures else Verdict(PASS, (spec.rule,))


def build_card(seeds: Seeds, command: str) -> dict[str, Any]:
    """Return everything about the outcome, with the keys of a file of benchmarks/results."""
    spec, verdict, values = seeds.spec, judge(seeds), seeds.values
    first = seeds.finished[0] if seeds.finished else None
    return {
        "name": spec.name,
        "title": spec.title,
        "command": command,
        "commit": first.commit if first else "",
        "date": date.today().isoformat(),
        "hardware": "; ".join(dict.fromkeys(item.hardware for item in seeds.finished)),
        "versions": get_versions(),
        "minutes": round(sum(item.minutes for item in seeds.finished), 2),
        "notes": " ".join(filter(None, (spec.caveat, spec.tuned))),
        "rows": [*list_seed_rows(seeds), *list_mean_rows(seeds)],
        "verdict": verdict.state,
        "reasons": list(verdict.reasons),
        "rule": spec.rule,
        "scored": first.data if first else "",
        "metric": spec.metric,
        "unit": spec.unit,
        "mean": fmean(values) if values else None,
        "spread": stdev(values) if len(values) > 1 else None,
        "recorded": describe_recorded(spec),
        "seeds": [asdict(item) for item in seeds.finished],
        "skipped": seeds.skipped,
        "kept": {str(seed): spec.recorded_values[seed] for seed in seeds.kept},
        "spec": spec.model_dump(mode="json", exclude={"recorded"}, exclude_defaults=True),
    }


def describe_recorded(spec: Spec) -> dict[str, Any]:
    """What is recorded, with mean and spread; empty where nothing is."""
    recorded = spec.recorded
    if recorded is None:
        return {}
    return {**recorded.model_dump(mode="json"), "mean": recorded.mean, "spread": recorded.spread}


def list_seed_rows(seeds: Seeds) -> Iterable[dict[str, Any]]:
    """Rows of a results file: scores, minutes, steps and parameters of each seed."""
    name = seeds.spec.name
    for item in seeds.finished:
        for metric, value in item.scores.items():
            unit = seeds.spec.unit if metric == seeds.spec.metric else ""
            yield {
                "what": f"{name}: {metric}", "value": round(value, 4), "unit": unit, "seed": item.seed,
                "signature": item.signatures[metric],
            }  # fmt: skip
        yield {"what": f"{name}: minutes of training", "value": item.minutes, "unit": "min", "seed": item.seed}
        yield {"what": f"{name}: steps", "value": item.steps, "unit": "", "seed": item.seed}
        yield {"what": f"{name}: parameters", "value": item.parameters / 1e6, "unit": "M", "seed": item.seed}


def list_mean_rows(seeds: Seeds) -> Iterable[dict[str, Any]]:
    values, spec = seeds.values, seeds.spec
    if len(values) > 1:
        what = f"{spec.name}: {spec.metric}, mean of {len(values)} seeds"
        yield {"what": what, "value": round(fmean(values), 4), "unit": spec.unit, "spread": round(stdev(values), 4)}


def format_card(card: dict[str, Any], spec: Spec) -> str:
    """Return the card as Markdown."""
    recorded: dict[str, Any] = card["recorded"]
    overrides = [word for item in card["seeds"][:1] for word in item["settings"].get("overrides", ())]
    others = {HELD_OUT: "held-out training data, in place of the test", TRIAL: "a few examples, scores are not kept"}
    test = others.get(card["scored"], f"{spec.scored} data")
    lines = [
        f"# {spec.name}: {card['verdict']}", "", f"{spec.title}.", "",
        f"{card['verdict'].capitalize()}: {'; '.join(card['reasons'])}.", "",
        "| | measured | recorded |", "|---|--:|--:|",
        f"| {spec.metric}, {spec.unit} | {format_mean(card['mean'], card['spread'])} "
        f"| {format_mean(recorded.get('mean'), recorded.get('spread'))} |",
        f"| seeds | {len(card['seeds'])} | {len(spec.recorded_values)} |",
        f"| parameters | {format_parameters(card['seeds'])} | {format_count(recorded.get('parameters'))} |",
        f"| minutes of training, each seed | {format_minutes(card)} | {format_optional(recorded.get('minutes'))} |",
        f"| hardware | {card['hardware']} | {recorded.get('hardware', '-')} |",
        f"| date | {card['date']} | {recorded.get('date', '-')} |", "",
        f"Scored: {test}; decoding {' '.join(spec.decoding) or 'as in the recipe'}; settings fixed before. "
        + " ".join(format_scoring(item) for item in card["seeds"]), "",
        *(f"Recorded and left out: seed {seed}, {value:g}." for seed, value in card["kept"].items()),
        *(f"Not started for lack of time: seed {seed}." for seed in card["skipped"]),
        f"Rule: {spec.rule}.", f"Chosen on: {spec.tuned}", *([f"Caveat: {spec.caveat}"] if spec.caveat else []), "",
        "| seed | " + " | ".join([spec.metric, *spec.metrics]) + " | minutes | steps | parameters |",
        "|--:|" + "--:|" * (4 + len(spec.metrics)),
        *(format_seed(item, [spec.metric, *spec.metrics]) for item in card["seeds"]), "",
        f"Recipe `{spec.recipe}`{' (tiny)' if spec.tiny else ''}, settings: "
        + (" ".join(f"`{word}`" for word in (*spec.settings, *overrides)) or "none") + ".", "",
        *(f"* `{name}` SHA-256 `{digest}`" for name, digest in spec.files.items()), "",
        f"    {card['command']}", "",
    ]  # fmt: skip
    return "\n".join(lines)


def format_scoring(item: dict[str, Any]) -> str:
    if item["diverged"]:
        return f"Seed {item['seed']} diverged."
    times = "once" if item["times_scored"] == 1 else f"{item['times_scored']} times"
    return f"Seed {item['seed']}: scored {times}, on {item['date']}."


def format_seed(item: dict[str, Any], metrics: Iterable[str]) -> str:
    scores = (f"{item['scores'][name]:#.4g}" if name in item["scores"] else "-" for name in metrics)
    cells = [str(item["seed"]), *scores, f"{item['minutes']:.2f}", f"{item['steps']:,}", f"{item['parameters']:,}"]
    return f"| {' | '.join(cells)} |"


def format_mean(mean: float | None, spread: float | None) -> str:
    if mean is None:
        return "-"
    return f"{mean:#.4g}" if spread is None else f"{mean:#.4g} ± {spread:.2g}"


def format_parameters(seeds: Iterable[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(format_count(item["parameters"]) for item in seeds if item["parameters"])) or "-"


def format_minutes(card: dict[str, Any]) -> str:
    return format_optional(fmean(item["minutes"] for item in card["seeds"])) if card["seeds"] else "-"


def format_count(count: int | None) -> str:
    if not count:
        return "not recorded"
    return f"{count / 1e6:.2f} M" if count >= 1e5 else f"{count:,}"


def format_optional(minutes: float | None) -> str:
    return "not recorded" if minutes is None else f"{minutes:.1f}" if minutes >= 0.1 else f"{minutes:.2f}"


def write_card(card: dict[str, Any], spec: Spec, folder: Path) -> Path:
    """Write card.md and card.json, or heldout.md and heldout.json; return the path of the Markdown."""
    name = "heldout" if card["scored"] == HELD_OUT else "card"
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / f"{name}.json", (json.dumps(card, indent=1, ensure_ascii=False) + "\n").encode())
    atomic_write(folder / f"{name}.md", format_card(card, spec).encode())
    return folder / f"{name}.md"
