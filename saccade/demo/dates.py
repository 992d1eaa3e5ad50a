"""`saccade demo`: the whole way on embedded data, from nothing to a picture of what the model looks at."""

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
from saccade.demo.listing import demonstration
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import list_runs
from saccade.score.accuracy import exact_match
from saccade.train.api import train_run
from saccade.view.picture import Panel, draw_panels

RECIPE, NAME = "dates", "demo"
TEST = Corpus(files=("embedded:dates-heldout",), examples=1000)
SHOWN = (  # ten languages and six scripts, one with a spelling mistake
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
PICTURED = (0, 5, 7, 8)


@dataclass(frozen=True)
class Outcome:
    """What a demonstration came to."""

    folder: Path
    correct: float  # per cent of dates of held-out years, exactly right
    seconds: float  # of training, from reading the recipe to the weights


def run_demo(*, run: str | None = None, seed: int = 1) -> Outcome:
    """Trains the embedded default, scores it on years it never saw, predicts, draws, and says what to try next."""
    console, errors = Console(), Console(stderr=True)
    errors.print("[bold]1. Learn[/]: dates in 31 languages, letter by letter, to ISO dates, from 60,000 examples")
    begin = time.perf_counter()
    folder = train_demo(run, seed=seed)
    seconds = time.perf_counter() - begin
    predictor = Predictor.load(folder)
    pairs = list(read_pairs(TEST))
    correct = exact_match(predictor.predict([source for source, _ in pairs]), [target for _, target in pairs])
    console.print(
        f"[bold]2. Score[/]: {correct.value:.1f}% of {len(pairs):,} dates exactly right, all of years it never saw"
    )
    console.print(f"   target: {demonstration(RECIPE).target.verdict({'accuracy': correct.value})}", highlight=False)
    console.print(f"   trained in {seconds:.0f} seconds", highlight=False)
    console.print("[bold]3. Predict[/]:")
    console.print(predictions(predictor, SHOWN))
    picture = draw_attention(predictor, [SHOWN[i] for i in PICTURED], folder / "attention.png")
    console.print(f"[bold]4. Look[/]: what each written digit looked at: {picture}")
    console.print(next_steps(folder), highlight=False, soft_wrap=True)
    return Outcome(folder, correct.value, seconds)


def train_demo(run: str | None, *, seed: int) -> Path:
    """Trains the embedded default and gives the folder of its run."""
    return train_run(load(RECIPE, overrides=[f"train.seed={seed}", f"name={NAME}"]), run, resumed=False, kinds=None)


def ready_demo() -> Path:
    """The newest finished run of the demonstration; where there is none, one that is trained now."""
    finished = [run.path for run in list_runs() if run.state == "finished" and run.name.startswith(NAME)]
    return Path(finished[-1]) if finished else train_demo(None, seed=1)


def predictions(predictor: Predictor, texts: Sequence[str]) -> Table:
    table = Table("written", "read as", box=None, padding=(0, 3, 0, 2))
    for text, answer in zip(texts, predictor.predict(texts), strict=True):
        table.add_row(text, answer)
    return table


def draw_attention(predictor: Predictor, texts: Sequence[str], path: Path) -> Path:
    """The writer's attention to what was read, as the mean of its heads, one panel for each text."""
    panels = []
    for text in texts:
        seen = predictor.attention(text)
        weights = [maps for address, maps in seen.maps.items() if address.endswith("cross")][-1].mean(0)
        panels.append(Panel(weights.numpy(), rows=seen.target_labels, columns=seen.source_labels, name=text))
    return draw_panels(panels, path=path, title="What each written character looked at")


def next_steps(folder: Path) -> str:
    return f"""[bold]5. Try next[/]:
   saccade predict {folder} "zondag 3 mei 1456"        your own dates
   saccade view {folder} "4 juin 1932"                 attention in the terminal
   saccade recipes                                     the other systems
   saccade train transformer --data train.en train.de --valid valid.en valid.de      your own text"""
