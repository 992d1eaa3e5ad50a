"""What runs are measured on: documents, pairs of texts, and texts with their labels."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from saccade.config.load import load
from saccade.config.schema import Corpus, Recipe
from saccade.data.sources.documents import read_documents
from saccade.data.sources.labelled import read_labelled
from saccade.data.sources.pairs import read_pairs, taken
from saccade.data.tokenization.text_pairs import joined
from saccade.runs import RECIPE

Pairs = list[tuple[str, str]]


def recipe_of(run: str | Path, *, kinds: Mapping[str, Any] | None = None) -> Recipe | None:
    """That of a run; none where the folder is no run, which is told when its weights are wanted."""
    path = Path(run) / RECIPE
    return load(path, kinds=kinds) if path.is_file() else None


def documents_of(recipe: Recipe, corpora: Sequence[Corpus], *, made: int | None = None) -> Iterator[str]:
    kind = recipe.data.documents
    return (text for corpus in taken(corpora, made) for _, text in read_documents(corpus, documents=kind))


def pairs_of(corpora: Sequence[Corpus], *, made: int | None = None) -> Pairs:
    return [pair for corpus in taken(corpora, made) for pair in read_pairs(corpus)]


def labelled_pairs(corpora: Sequence[Corpus], *, kind: str, made: int | None = None) -> Pairs:
    """Texts, of a pair both in one line, and their labels; those without one or the other are left out."""
    rows = (row for corpus in taken(corpora, made) for row in read_labelled(corpus, kind=kind))
    return [(joined(texts), label) for _, *texts, label in rows if label and all(text.strip() for text in texts)]
