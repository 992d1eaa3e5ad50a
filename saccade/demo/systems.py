"""`saccade demo NAME`: any system on the data that is made for it, from nothing to a page of what it looks at."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from saccade.config.load import load
from saccade.config.schema import Corpus
from saccade.data.batching.spans import SENTINEL
from saccade.data.tokenization.special_tokens import MASK
from saccade.demo.listing import demonstration
from saccade.errors import SaccadeError
from saccade.predict.predictors.encoder import Encoder
from saccade.predict.predictors.language import LanguageModel
from saccade.predict.predictors.media_encoder import MediaEncoder
from saccade.predict.predictors.player import SUCCESS, Player
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.restoring import Restorer
from saccade.predict.predictors.walking import Walker
from saccade.score.evaluate import evaluate_corpora
from saccade.score.media import media_pairs
from saccade.score.pairs import documents_of, pairs_for
from saccade.train.api import train_run

SHOWN = 5  # inputs that are predicted
SCORED = 1000  # of embedded data that does not say how many there are
WIDEST = 60  # letters of a cell
FIRST = 3  # words that a language model goes on from
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
    given = list(islice(examples(predictor, corpora), SHOWN))
    says = not isinstance(predictor, MediaEncoder)
    if says:
        console.print("[bold]3. Predict[/]:")
        console.print(predictions(predictor, given))
    console.print(
        f"[bold]{3 + says}. Look[/]: {looked(predictor, given[0][0], folder)}", highlight=False, soft_wrap=True
    )
    step = Text.assemble((f"{4 + says}. Try next", "bold"), f": saccade {next_step(predictor, folder, given[0][0])}")
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
        table.add_row(*(Text(short(text)) for text in (called(predictor, source), said, right)))
    return table


def called(predictor: Predictor, source: str) -> str:
    """What a person would call an input: of a route, what was told."""
    return str(json.loads(source)["instruction"]) if isinstance(predictor, Walker) else source


def looked(predictor: Predictor, source: str, folder: Path) -> str:
    """Where the page is that shows what was attended to, or why there is none."""
    try:
        return str(predictor.view(source, title=folder.name).save(folder / "attention.html"))
    except SaccadeError as error:
        return f"there is nothing to show: {error}"


def next_step(predictor: Predictor, folder: Path, source: str) -> str:
    """What to try with the run: a page, unless its inputs cannot be sent to one or nothing would be said there."""
    if isinstance(predictor, MediaEncoder):
        return f"predict {folder} {shlex.quote(source)} --embed mean"
    return f"view {folder} {shlex.quote(source)}" if isinstance(predictor, Walker) else f"serve {folder}"


def examples(predictor: Predictor, corpora: Sequence[Corpus]) -> list[Given]:
    """What a model may be asked, from the data that it was tried on."""
    if isinstance(predictor, Player):
        return [(str(number), SUCCESS) for number in range(1, SHOWN + 1)]  # episodes
    if isinstance(predictor, MediaEncoder):
        return media_pairs(corpora, predictor.media, wanted="label", made=SCORED)
    if isinstance(predictor, LanguageModel | Encoder | Restorer):
        return [asked(predictor, text) for text in islice(documents_of(predictor.recipe, corpora, made=SCORED), SHOWN)]
    return pairs_for(predictor.recipe, corpora, made=SCORED)


def asked(predictor: Predictor, text: str) -> Given:
    """A text that is to be gone on with, or whose last word but one is to be found."""
    words = text.split()
    if isinstance(predictor, LanguageModel) and len(words) <= FIRST:  # letters, as molecules are
        return text[: (len(text) + 1) // 2], text[(len(text) + 1) // 2 :]
    if isinstance(predictor, LanguageModel):
        return " ".join(words[:FIRST]), " ".join(words[FIRST:])
    gap = SENTINEL.format(0) if isinstance(predictor, Restorer) else MASK
    place = max(0, len(words) - 2)
    return " ".join([*words[:place], gap, *words[place + 1 :]]), words[place]


def short(text: str) -> str:
    """In one line; of a long path or text, its end or its beginning."""
    line = " ".join(text.split())
    if line.startswith("/"):
        line = line.rpartition("/")[2]
    return line if len(line) <= WIDEST else line[: WIDEST - 1] + "…"
