"""`saccade demo NAME`: any system on the data that is made for it, from nothing to a page of what it looks at."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from saccade.config.load import load
from saccade.demo.listing import demonstration
from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor
from saccade.score.evaluate import evaluate_corpora
from saccade.train.api import train_run

SHOWN = 5  # inputs that are predicted
SCORED = 1000  # of embedded data that does not say how many there are
WIDEST = 60  # letters of a cell
OWN = {"sasrec": ("hit@10", "ndcg@10"), "smiles": ("valid",)}  # what tells more than the probability of texts
Given = tuple[str, str]  # what a model is given, and what it should say, where that is known


def show(name: str, *, run: str | None = None, seed: int = 1) -> Path:
    """Trains the small form of a recipe, scores it, predicts, and writes the attention page; gives the run."""
    chosen = demonstration(name)
    console, errors = Console(), Console(stderr=True)
    errors.print(f"[bold]1. Learn[/]: {chosen.about}; from embedded:{chosen.data}", highlight=False)
    begin = time.perf_counter()
    recipe = load(name, tiny=True, overrides=[f"train.seed={seed}", f"name={name}-demo"])
    folder = train_run(recipe, run, resumed=False, kinds=None)
    seconds = time.perf_counter() - begin
    predictor, corpora = Predictor.load(folder), recipe.data.valid
    assert isinstance(corpora, tuple), "small recipes name what they are tried on"
    console.print(f"[bold]2. Score[/]: on {corpora[0].files[0]}, after {seconds:.0f} seconds of training")
    found = evaluate_corpora(predictor, corpora, metrics=OWN.get(name), made=SCORED).rows()
    console.print(scores(found))
    verdict = chosen.target.verdict({metric: float(value) for metric, value, _ in found})
    console.print(f"   target: {verdict}", highlight=False)
    given = recipe.task.get_examples(predictor, corpora, count=SHOWN, made=SCORED)
    says = not (predictor.supports_embedding and predictor.medium)  # these give vectors alone
    if says:
        console.print("[bold]3. Predict[/]:")
        console.print(predictions(predictor, given))
    console.print(
        f"[bold]{3 + says}. Look[/]: {looked(predictor, given[0][0], folder)}", highlight=False, soft_wrap=True
    )
    next_step = recipe.task.get_next_step(predictor, folder, given[0][0])
    step = Text.assemble((f"{4 + says}. Try next", "bold"), f": saccade {next_step}")
    console.print(step, soft_wrap=True)
    return folder


def scores(found: Sequence[tuple[str, str, str]]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 3, 0, 2))
    for name, value, _ in found:
        table.add_row(name, value)
    return table


def predictions(predictor: Predictor, given: Sequence[Given]) -> Table:
    """What is said of each input beside what should be said."""
    table = Table("given", "said", "right", box=None, padding=(0, 3, 0, 2))
    for (source, right), said in zip(given, predictor.predict([source for source, _ in given]), strict=True):
        table.add_row(*(Text(short(text)) for text in (predictor.recipe.task.get_input_title(source), said, right)))
    return table


def looked(predictor: Predictor, source: str, folder: Path) -> str:
    """Where the page is that shows what was attended to, or why there is none."""
    try:
        return str(predictor.view(source, title=folder.name).save(folder / "attention.html"))
    except SaccadeError as error:
        return f"there is nothing to show: {error}"


def short(text: str) -> str:
    """In one line; of a long path or text, its end or its beginning."""
    line = " ".join(text.split())
    if line.startswith("/"):
        line = line.rpartition("/")[2]
    return line if len(line) <= WIDEST else line[: WIDEST - 1] + "…"
