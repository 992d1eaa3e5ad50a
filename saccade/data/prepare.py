"""From a recipe to tokenised pairs, or documents: tokenizers learned, text tokenised once, both kept in a cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from saccade.config.schema import OF_TEXTS, Corpus, Recipe
from saccade.data import encode
from saccade.data.batches import Rows
from saccade.data.documents import documents_key, read_documents
from saccade.data.pieces import Pieces
from saccade.data.sources import content_key, read_rows
from saccade.data.store import Store, discard, open_store, write_folder, write_store
from saccade.data.tokenizers import VERSION, Tokenizers, train_tokenizers
from saccade.errors import SaccadeError

Report = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """What training needs: tokenizers, tokenised pairs or documents, and some validation pairs as text."""

    tokenizers: Tokenizers
    train: Rows
    valid: Rows | None
    valid_pairs: list[tuple[str, str]]
    notes: list[str]


@dataclass(frozen=True)
class Part:
    """A corpus, or the share of it that is (or is not) held out for validation."""

    corpus: Corpus
    share: float = 0.0
    heldout: bool = False
    documents: str = ""  # what one is in a text file, where texts are wanted and not pairs

    @property
    def key(self) -> str:
        """A hash of everything that decides which rows there are."""
        if self.documents:
            key = documents_key(self.corpus, documents=self.documents)
        else:
            key = content_key(self.corpus)
        return f"{key} {self.share if self.heldout else -self.share}"

    @property
    def name(self) -> str:
        return self.corpus.files[0]

    def rows(self) -> Iterator[Any]:
        """Line number and texts; held out is every n-th row, spread evenly: a sorted corpus is represented too."""
        found: Iterator[Any]
        if self.documents:
            found = read_documents(self.corpus, documents=self.documents)
        else:
            found = read_rows(self.corpus)
        for index, row in enumerate(found):
            if (int((index + 1) * self.share) > int(index * self.share)) == self.heldout:
                yield row


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def prepare(
    recipe: Recipe, *, tokenizers: Tokenizers | None = None, cache: Path | None = None, report: Report = _say
) -> Prepared:
    """Everything of the recipe's data, tokenised; `tokenizers` of an earlier run are used as they are."""
    folder = cache or default_cache()
    train, valid = _parts(recipe)
    keys = {part: part.key for part in (*train, *valid)}  # reads every file once, to its end
    tokenizers = tokenizers or _tokenizers(recipe, train, [keys[part] for part in train], folder)
    settings = _encoding(recipe)
    stores = [
        _store(parts, [keys[part] for part in parts], tokenizers, folder, use) if parts else None
        for parts, use in ((train, settings), (valid, settings.without_dropout()))
    ]
    assert stores[0] is not None
    notes = [
        note
        for store, parts in zip(stores, (train, valid), strict=True)
        if store
        for note in _notes(store, parts, recipe.data.max_length)
    ]
    for note in notes:
        report(note)
    pairs = list(islice(_full_pairs(valid), recipe.train.valid_predictions)) if recipe.task == "translate" else []
    rows = [store and _in_rows(store, recipe) for store in stores]
    assert rows[0] is not None
    return Prepared(tokenizers, rows[0], rows[1], pairs, notes)


def _encoding(recipe: Recipe) -> encode.Settings:
    """Pairs that are too long are left out; documents are cut, later on."""
    dropout, variants = recipe.tokenizer.dropout, recipe.tokenizer.variants
    if recipe.task in OF_TEXTS:
        return encode.Settings(None, dropout, variants, sides=("target",))
    return encode.Settings(recipe.data.max_length, dropout, variants)


def _in_rows(store: Store, recipe: Recipe) -> Rows:
    if recipe.task in OF_TEXTS:
        return Pieces(store, length=recipe.data.max_length, cross=recipe.data.cross)
    return store


def _full_pairs(parts: Iterable[Part]) -> Iterator[tuple[str, str]]:
    return ((source, target) for source, target in _texts(parts) if source.strip() and target.strip())


def default_cache() -> Path:
    """$SACCADE_CACHE, or .cache/saccade in the home folder."""
    return Path(os.environ.get("SACCADE_CACHE") or Path.home() / ".cache" / "saccade")


def _parts(recipe: Recipe) -> tuple[list[Part], list[Part]]:
    data, kind = recipe.data, recipe.data.documents if recipe.task in OF_TEXTS else ""
    if not data.train:
        raise SaccadeError("no training data: give --data SOURCE TARGET, set data.train, or try --tiny")
    if isinstance(data.valid, float):
        share = data.valid
        held = [Part(corpus, share, heldout=True, documents=kind) for corpus in data.train] if share else []
        return [Part(corpus, share, documents=kind) for corpus in data.train], held
    train, valid = ([Part(corpus, documents=kind) for corpus in corpora] for corpora in (data.train, data.valid))
    return train, valid


def _tokenizers(recipe: Recipe, parts: list[Part], keys: list[str], cache: Path) -> Tokenizers:
    if recipe.tokenizer.kind == "file":
        return train_tokenizers(recipe.tokenizer, lambda: ())
    learned = recipe.tokenizer.model_copy(update={"dropout": 0.0, "variants": 1})  # what learning depends on
    folder = cache / f"tokenizer-{_digest(str(VERSION), *keys, learned.model_dump_json())}"
    try:
        return Tokenizers.load(folder)
    except SaccadeError:  # not there yet, or damaged
        discard(folder)
        made = train_tokenizers(recipe.tokenizer, lambda: _texts(parts))
        write_folder(folder, made.save)
        return made


def training_pairs(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The pairs that the recipe trains on, as text."""
    return _texts(_parts(recipe)[0])


def _texts(parts: Iterable[Part]) -> Iterator[Any]:
    """The texts of each row: source and target, or a document alone."""
    for part in parts:
        for _, *texts in part.rows():
            yield tuple(texts)


def _store(parts: list[Part], keys: list[str], tokenizers: Tokenizers, cache: Path, settings: encode.Settings) -> Store:
    prints = (tokenizers.source.fingerprint(), tokenizers.target.fingerprint())
    folder = cache / f"{'pairs' if len(settings.sides) > 1 else 'texts'}-{_digest(*keys, *prints, repr(settings))}"
    weights = [part.corpus.weight for part in parts]
    store = open_store(folder, weights=weights)
    if store is None:
        discard(folder)
        corpora = [part.rows for part in parts]
        write_store(folder, lambda temporary: encode.encode_pairs(temporary, corpora, tokenizers, settings))
        store = Store(folder, weights=weights)
    if len(store):
        return store
    what = "pair" if len(settings.sides) > 1 else "document"
    if notes := _notes(store, parts, settings.max_length):
        raise SaccadeError(f"no {what} is left: {'; '.join(notes)}; raise data.max_length or look at the files")
    names = ", ".join(part.name for part in parts)
    if parts[0].heldout:
        raise SaccadeError(f"data.valid = {parts[0].share} holds out no {what}; raise it (data: {names})")
    raise SaccadeError(f"there is no {what} in {names}; expected at least one; is it the right data set and split?")


def _notes(store: Store, parts: list[Part], limit: int | None) -> list[str]:
    """What was dropped and why, with the place of the first one, under the names that the files have now."""
    what = "pair" if len(store.sides) > 1 else "document"
    total = f"{store.dropped.total:,} {what}{'s' if store.dropped.total > 1 else ''}"
    empty = "with an empty side" if len(store.sides) > 1 else "without a text"
    reasons = {empty: store.dropped.empty, f"longer than {limit or 0:,} tokens": store.dropped.long}
    return [
        f"dropped {found[0]:,} of {total} {reason}; first at {parts[found[1]].name} line {found[2]}"
        for reason, found in reasons.items()
        if found
    ]


def _digest(*texts: str) -> str:
    return sha256("\0".join(texts).encode()).hexdigest()[:32]
