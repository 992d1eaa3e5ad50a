"""`saccade demo NAME`: train any recipe on its embedded data, evaluate, predict, and write the attention page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from saccade.config.load import load
from saccade.demo.listing import get_demonstration
from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor
from saccade.score.evaluate import evaluate_corpora
from saccade.train.api import train_run

SHOWN_EXAMPLES = 5  # inputs to predict
SCORED_EXAMPLES = 1000  # of embedded data without a fixed number of examples
MAX_CELL_CHARACTERS = 60  # of a table cell
RECIPE_METRICS = {
    "sasrec": ("hit@10", "ndcg@10"),
    "smiles": ("valid",),
}  # more meaningful than perplexity
Example = tuple[str, str]  # input, and the expected output where it is known


def run_demonstration(name: str, *, run: str | None = None, seed: int = 1) -> Path:
    """Train the tiny version of a recipe, evaluate it, predict, and write the attention page; return the run."""
    chosen = get_demonstration(name)
    console, errors = Console(), Console(stderr=True)
    errors.print(f"[bold]1. Train[/]: {chosen.about}; on embedded:{chosen.data}", highlight=False)
    begin = time.perf_counter()
    recipe = load(name, tiny=True, overrides=[f"train.seed={seed}", f"name={name}-demo"])
    folder = train_run(recipe, run, resumed=False)
    seconds = time.perf_counter() - begin
    predictor, corpora = Predictor.load(folder), recipe.data.valid
    assert isinstance(corpora, tuple), "tiny recipes have validation data"
    console.print(f"[bold]2. Evaluate[/]: on {corpora[0].files[0]}, after {seconds:.0f} seconds of training")
    found = evaluate_corpora(
        predictor, corpora, metrics=RECIPE_METRICS.get(name), synthetic_count=SCORED_EXAMPLES
    ).rows()
    console.print(build_score_table(found))
    verdict = chosen.target.format_verdict({metric: float(value) for metric, value, _ in found})
    console.print(f"   target: {verdict}", highlight=False)
    given = recipe.task.get_examples(predictor, corpora, count=SHOWN_EXAMPLES, synthetic_count=SCORED_EXAMPLES)
    has_outputs = not (predictor.supports_embedding and predictor.medium)  # encoders of media return vectors only
    if has_outputs:
        console.print("[bold]3. Predict[/]:")
        console.print(build_prediction_table(predictor, given))
    console.print(
        f"[bold]{3 + has_outputs}. View[/]: {save_attention_page(predictor, given[0][0], folder)}",
        highlight=False,
        soft_wrap=True,
    )
    next_step = recipe.task.get_next_step(predictor, folder, given[0][0])
    step = Text.assemble((f"{4 + has_outputs}. Try next", "bold"), f": saccade {next_step}")
    console.print(step, soft_wrap=True)
    return folder


def build_score_table(found: Sequence[tuple[str, str, str]]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 3, 0, 2))
    for name, value, _ in found:
        table.add_row(name, value)
    return table


def build_prediction_table(predictor: Predictor, given: Sequence[Example]) -> Table:
    """Build a table of inputs, outputs and expected outputs."""
    table = Table("input", "output", "expected", box=None, padding=(0, 3, 0, 2))
    for (source, right), said in zip(given, predictor.predict([source for source, _ in given]), strict=True):
        table.add_row(*(Text(shorten(text)) for text in (predictor.recipe.task.get_input_title(source), said, right)))
    return table


def save_attention_page(predictor: Predictor, source: str, folder: Path) -> str:
    """Write the attention page; return its path, or why there is none."""
    try:
        return str(predictor.view(source, title=folder.name).save(folder / "attention.html"))
    except SaccadeError as error:
        return f"no attention to show: {error}"


def shorten(text: str) -> str:
    """Shorten to one line of a table cell: the file name of a path, the beginning of a long text."""
    line = " ".join(text.split())
    if line.startswith("/"):
        line = line.rpartition("/")[2]
    return line if len(line) <= MAX_CELL_CHARACTERS else line[: MAX_CELL_CHARACTERS - 1] + "…"
