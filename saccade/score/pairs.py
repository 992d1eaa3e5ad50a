"""Read the data that runs are evaluated on: documents, text pairs, and texts with labels."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from saccade.config.load import load
from saccade.config.schema import Corpus, Recipe
from saccade.data.sources import labelled, table
from saccade.data.sources.columns import UnclearColumnsError
from saccade.data.sources.documents import read_documents
from saccade.data.sources.labelled import read_labelled
from saccade.data.sources.overview import format_columns_read
from saccade.data.sources.own_format import inherit_format
from saccade.data.sources.pairs import limit_embedded_examples, read_pairs
from saccade.data.tokenization.text_pairs import join_texts
from saccade.errors import SaccadeError
from saccade.runs import RECIPE

Pairs = list[tuple[str, str]]


def choose_corpora(run: Path, given: Sequence[Corpus], kinds: Mapping[str, Any] | None) -> list[Corpus]:
    """Choose the corpora to evaluate: the given ones, or the validation files of the run's recipe."""
    chosen, recipe = list(given), load_recipe_of_run(run, kinds=kinds)
    if not chosen and recipe is not None:
        chosen = list(recipe.data.valid_corpora)
    if recipe is not None and recipe.data.train:
        inherit_columns = labelled.inherit_columns if recipe.task.predicts_labels else table.inherit_columns
        first = recipe.data.train[0]
        found = () if recipe.reader.medium else recipe.task.build_split(recipe, first).find_unnamed_columns()
        chosen = [inherit_columns(inherit_format(corpus, first), first, found=found) for corpus in chosen]
    if not chosen:
        files = "FOLDER" if recipe is not None and recipe.reader.medium else "SRC REF"
        raise SaccadeError(f"'{run}' has no validation files of its own; give --data {files}")
    return chosen


def describe_columns(run: Path, corpora: Sequence[Corpus], kinds: Mapping[str, Any] | None) -> list[str]:
    """Say which columns of each table are read; raise with the option that names them where that is not clear."""
    recipe = load_recipe_of_run(run, kinds=kinds)
    try:
        return [] if recipe is None else format_columns_read([recipe.task.build_split(recipe, one) for one in corpora])
    except UnclearColumnsError as error:
        raise error.for_scoring() from None


def load_recipe_of_run(run: str | Path, *, kinds: Mapping[str, Any] | None = None) -> Recipe | None:
    """Load the recipe of a run; None if the folder is not a run, which is reported when its weights are loaded."""
    path = Path(run) / RECIPE
    return load(path, kinds=kinds) if path.is_file() else None


def iterate_documents(
    recipe: Recipe, corpora: Sequence[Corpus], *, synthetic_count: int | None = None
) -> Iterator[str]:
    """Yield the texts of all documents."""
    kind = recipe.data.documents
    return (
        text
        for corpus in limit_embedded_examples(corpora, synthetic_count)
        for _, text in read_documents(corpus, unit=kind)
    )


def read_text_pairs(corpora: Sequence[Corpus], *, synthetic_count: int | None = None) -> Pairs:
    """Return all pairs of source and target."""
    return [pair for corpus in limit_embedded_examples(corpora, synthetic_count) for pair in read_pairs(corpus)]


def read_labelled_pairs(corpora: Sequence[Corpus], *, kind: str, synthetic_count: int | None = None) -> Pairs:
    """Return texts, a pair of texts joined in one line, with their labels; incomplete rows are skipped and reported."""
    pairs, incomplete = Pairs(), list[str]()
    for corpus in limit_embedded_examples(corpora, synthetic_count):
        for number, *texts, label in read_labelled(corpus, kind=kind):
            if label and all(text.strip() for text in texts):
                pairs.append((join_texts(texts), label))
            else:
                incomplete.append(f"{corpus.files[0]}:{number}")
    if incomplete:
        rows = "1 row" if len(incomplete) == 1 else f"{len(incomplete):,} rows"
        print(f"note: {rows} without a text or a label left out; the first one is {incomplete[0]}", file=sys.stderr)
    return pairs
