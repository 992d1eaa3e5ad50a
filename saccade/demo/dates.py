"""`saccade demo`: train on embedded dates, evaluate, predict, and draw the attention weights."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from saccade.config.load import load
from saccade.config.schema import Corpus
from saccade.data.sources.pairs import read_pairs
from saccade.demo.listing import get_demonstration
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import list_runs
from saccade.score.metrics.accuracy import exact_match
from saccade.train.api import train_run
from saccade.view.picture import Panel, draw_panels

RECIPE, NAME = "dates", "demo"
TEST = Corpus(files=("embedded:dates-heldout",), examples=1000)
EXAMPLES = (  # ten languages and six scripts; one date has a spelling mistake
    "Tuesday, 5 March 1024",
    "den 17. Aguust 2083",
    "14 juillet 1789",
    "31 de diciembre de 1999",
    "9 września 2145",
    "3 сентября 1812 г.",
    "25 Μαρτίου 1821",
    "6 בדצמבר 1532",
    "28 فبراير 2076",
    "21 սեպտեմբերի, 1991 թ.",
)
DRAWN_EXAMPLES = (0, 5, 7, 8)


@dataclass(frozen=True)
class DemoResult:
    """The result of a demonstration."""

    folder: Path
    correct: float  # exact match on dates of held-out years, in percent
    seconds: float  # training time, from loading the recipe to the saved weights


def run_demo(*, run: str | None = None, seed: int = 1) -> DemoResult:
    """Train the demo recipe, evaluate it on held-out years, predict, draw attention, and suggest next steps."""
    console, errors = Console(), Console(stderr=True)
    errors.print("[bold]1. Train[/]: dates in 31 languages, character by character, to ISO dates; 60,000 examples")
    begin = time.perf_counter()
    folder = train_demo(run, seed=seed)
    seconds = time.perf_counter() - begin
    predictor = Predictor.load(folder)
    pairs = list(read_pairs(TEST))
    correct = exact_match(predictor.predict([source for source, _ in pairs]), [target for _, target in pairs])
    console.print(
        f"[bold]2. Evaluate[/]: {correct.value:.1f}% of {len(pairs):,} dates exactly right, all of held-out years"
    )
    console.print(
        f"   target: {get_demonstration(RECIPE).target.format_verdict({'accuracy': correct.value})}", highlight=False
    )
    console.print(f"   trained in {seconds:.0f} seconds", highlight=False)
    console.print("[bold]3. Predict[/]:")
    console.print(build_prediction_table(predictor, EXAMPLES))
    picture = draw_attention(predictor, [EXAMPLES[i] for i in DRAWN_EXAMPLES], folder / "attention.png")
    console.print(f"[bold]4. View[/]: attention weights of each output character: {picture}")
    console.print(format_next_steps(folder), highlight=False, soft_wrap=True)
    return DemoResult(folder, correct.value, seconds)


def train_demo(run: str | None, *, seed: int) -> Path:
    """Train the demo recipe and return the folder of its run."""
    return train_run(load(RECIPE, overrides=[f"train.seed={seed}", f"name={NAME}"]), run, resumed=False)


def find_or_train_demo() -> Path:
    """Return the newest finished run of the demonstration; train one if there is none."""
    finished = [run.path for run in list_runs() if run.state == "finished" and run.name.startswith(NAME)]
    return Path(finished[-1]) if finished else train_demo(None, seed=1)


def build_prediction_table(predictor: Predictor, texts: Sequence[str]) -> Table:
    table = Table("input", "output", box=None, padding=(0, 3, 0, 2))
    for text, answer in zip(texts, predictor.predict(texts), strict=True):
        table.add_row(text, answer)
    return table


def draw_attention(predictor: Predictor, texts: Sequence[str], path: Path) -> Path:
    """Draw the writer's cross-attention, averaged over heads, with one panel for each text."""
    panels = []
    for text in texts:
        attention = predictor.attention(text)
        weights = [maps for address, maps in attention.maps.items() if address.endswith("cross")][-1].mean(0)
        panels.append(Panel(weights.numpy(), rows=attention.target_labels, columns=attention.source_labels, name=text))
    return draw_panels(panels, path=path, title="Attention weights of each output character")


def format_next_steps(folder: Path) -> str:
    return f"""[bold]5. Try next[/]:
   saccade predict {folder} "zondag 3 mei 1456"        your own dates
   saccade view {folder} "4 juin 1932"                 attention in the terminal
   saccade serve {folder}                              a page to try the model
   saccade recipes                                     the other systems
   saccade train small-data --data pairs.tsv --valid 0.05  your own pairs, one a line with a tab between its sides"""
