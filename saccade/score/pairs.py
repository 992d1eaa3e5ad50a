"""What runs are measured on: documents, and pairs of an input with what is right for it, whatever the task."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from saccade.config.load import load
from saccade.config.schema import Corpus, MediaReader, Recipe
from saccade.data.sources.documents import read_documents
from saccade.data.sources.labelled import read_labelled
from saccade.data.sources.pairs import read_pairs, taken
from saccade.data.tokenization.text_pairs import joined
from saccade.runs import RECIPE
from saccade.score.media import media_pairs
from saccade.score.playing import played_pairs
from saccade.score.routes import route_pairs

Pairs = list[tuple[str, str]]


def recipe_of(run: str | Path, *, kinds: Mapping[str, Any] | None = None) -> Recipe | None:
    """That of a run; none where the folder is no run, which is told when its weights are wanted."""
    path = Path(run) / RECIPE
    return load(path, kinds=kinds) if path.is_file() else None


def pairs_for(recipe: Recipe | None, corpora: Sequence[Corpus], *, made: int | None = None) -> Pairs:
    """Inputs of a task, and what is right for them; `made` is how much is taken of embedded data."""
    if recipe is None:
        return pairs_of(corpora, made=made)
    labels = recipe.task.name == "label"
    if recipe.task.name == "interact":
        return played_pairs(corpora)
    if isinstance(recipe.reader, MediaReader):
        return media_pairs(corpora, recipe.reader, wanted="label" if labels else "text", made=made)
    if recipe.task.name == "walk":
        return route_pairs(corpora, made=made)
    return labelled_pairs(corpora, kind=recipe.writer.kind, made=made) if labels else pairs_of(corpora, made=made)


def documents_of(recipe: Recipe, corpora: Sequence[Corpus], *, made: int | None = None) -> Iterator[str]:
    kind = recipe.data.documents
    return (text for corpus in taken(corpora, made) for _, text in read_documents(corpus, documents=kind))


def pairs_of(corpora: Sequence[Corpus], *, made: int | None = None) -> Pairs:
    return [pair for corpus in taken(corpora, made) for pair in read_pairs(corpus)]


def labelled_pairs(corpora: Sequence[Corpus], *, kind: str, made: int | None = None) -> Pairs:
    """Texts, of a pair both in one line, and their labels; those without one or the other are left out."""
    rows = (row for corpus in taken(corpora, made) for row in read_labelled(corpus, kind=kind))
    return [(joined(texts), label) for _, *texts, label in rows if label and all(text.strip() for text in texts)]
