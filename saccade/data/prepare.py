"""From a recipe to tokenised pairs: tokenizers learned, pairs tokenised once, both kept in a cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path

from saccade.config.schema import Corpus, Data, Recipe
from saccade.data import encode
from saccade.data.sources import Row, content_key, read_rows
from saccade.data.store import Store, discard, open_store, write_folder, write_store
from saccade.data.tokenizers import VERSION, Tokenizers, train_tokenizers
from saccade.errors import SaccadeError

Report = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """What training needs: tokenizers, tokenised pairs, and some validation pairs as text."""

    tokenizers: Tokenizers
    train: Store
    valid: Store | None
    valid_pairs: list[tuple[str, str]]
    notes: list[str]


@dataclass(frozen=True)
class Part:
    """A corpus, or the share of it that is (or is not) held out for validation."""

    corpus: Corpus
    share: float = 0.0
    heldout: bool = False

    @property
    def key(self) -> str:
        return f"{content_key(self.corpus)} {self.share if self.heldout else -self.share}"

    @property
    def name(self) -> str:
        return self.corpus.files[0]

    def rows(self) -> Iterator[Row]:
        """Held out is every n-th pair, spread evenly, so that a sorted corpus is represented too."""
        for index, row in enumerate(read_rows(self.corpus)):
            if (int((index + 1) * self.share) > int(index * self.share)) == self.heldout:
                yield row


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def prepare(
    recipe: Recipe, *, tokenizers: Tokenizers | None = None, cache: Path | None = None, report: Report = _say
) -> Prepared:
    """Everything of the recipe's data, tokenised; `tokenizers` of an earlier run are used as they are."""
    folder = cache or default_cache()
    train, valid = _parts(recipe.data)
    keys = {part: part.key for part in (*train, *valid)}  # reads every file once, to its end
    tokenizers = tokenizers or _tokenizers(recipe, train, [keys[part] for part in train], folder)
    settings = encode.Settings(recipe.data.max_length, recipe.tokenizer.dropout, recipe.tokenizer.variants)
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
    texts = (
        (source, target) for part in valid for _, source, target in part.rows() if source.strip() and target.strip()
    )
    return Prepared(tokenizers, stores[0], stores[1], list(islice(texts, recipe.train.valid_predictions)), notes)


def default_cache() -> Path:
    """$SACCADE_CACHE, or .cache/saccade in the home folder."""
    return Path(os.environ.get("SACCADE_CACHE") or Path.home() / ".cache" / "saccade")


def _parts(data: Data) -> tuple[list[Part], list[Part]]:
    if not data.train:
        raise SaccadeError("no training data: give --data SOURCE TARGET, set data.train, or try --tiny")
    if isinstance(data.valid, float):
        share = data.valid
        held = [Part(corpus, share, heldout=True) for corpus in data.train] if share else []
        return [Part(corpus, share) for corpus in data.train], held
    return [Part(corpus) for corpus in data.train], [Part(corpus) for corpus in data.valid]


def _tokenizers(recipe: Recipe, parts: list[Part], keys: list[str], cache: Path) -> Tokenizers:
    if recipe.tokenizer.kind == "file":
        return train_tokenizers(recipe.tokenizer, lambda: ())
    learned = recipe.tokenizer.model_copy(update={"dropout": 0.0, "variants": 1})  # what learning depends on
    folder = cache / f"tokenizer-{_digest(str(VERSION), *keys, learned.model_dump_json())}"
    try:
        return Tokenizers.load(folder)
    except SaccadeError:  # not there yet, or damaged
        discard(folder)
        made = train_tokenizers(recipe.tokenizer, lambda: _pairs(parts))
        write_folder(folder, made.save)
        return made


def training_pairs(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The pairs that the recipe trains on, as text."""
    return _pairs(_parts(recipe.data)[0])


def _pairs(parts: Iterable[Part]) -> Iterator[tuple[str, str]]:
    for part in parts:
        for _, source, target in part.rows():
            yield source, target


def _store(parts: list[Part], keys: list[str], tokenizers: Tokenizers, cache: Path, settings: encode.Settings) -> Store:
    prints = (tokenizers.source.fingerprint(), tokenizers.target.fingerprint())
    folder = cache / f"pairs-{_digest(*keys, *prints, repr(settings))}"
    weights = [part.corpus.weight for part in parts]
    store = open_store(folder, weights=weights)
    if store is None:
        discard(folder)
        corpora = [part.rows for part in parts]
        write_store(folder, lambda temporary: encode.encode_pairs(temporary, corpora, tokenizers, settings))
        store = Store(folder, weights=weights)
    if len(store):
        return store
    if notes := _notes(store, parts, settings.max_length):
        raise SaccadeError(f"no pair is left: {'; '.join(notes)}; raise data.max_length or look at the files")
    names = ", ".join(part.name for part in parts)
    if parts[0].heldout:
        raise SaccadeError(f"data.valid = {parts[0].share} holds out no pair; raise it (data: {names})")
    raise SaccadeError(f"there is no pair in {names}; expected at least one; is it the right data set and split?")


def _notes(store: Store, parts: list[Part], limit: int) -> list[str]:
    """What was dropped and why, with the place of the first one, under the names that the files have now."""
    total = f"{store.dropped.total:,} pair{'s' if store.dropped.total > 1 else ''}"
    reasons = {"with an empty side": store.dropped.empty, f"longer than {limit:,} tokens": store.dropped.long}
    return [
        f"dropped {found[0]:,} of {total} {reason}; first at {parts[found[1]].name} line {found[2]}"
        for reason, found in reasons.items()
        if found
    ]


def _digest(*texts: str) -> str:
    return sha256("\0".join(texts).encode()).hexdigest()[:32]
