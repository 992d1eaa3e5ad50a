"""From a recipe to tokenised pairs, or documents: tokenizers learned, text tokenised once, both kept in a cache."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from saccade.config import schema
from saccade.config.schema import Corpus, Recipe
from saccade.data.batching.batches import Rows
from saccade.data.sources.corpus import WHAT, Part, notes_of, unanswerable
from saccade.data.sources.labelled import checked, like
from saccade.data.store.arrays import Store, discard, open_store, write_folder, write_store
from saccade.data.store.media import Library, MediaEncoder, MediaStore, decoded, skipped
from saccade.data.store.streaming import Streamed, check_stream, in_turn
from saccade.data.tokenization import encode
from saccade.data.tokenization.labels import Labels, learn_labels
from saccade.data.tokenization.text_pairs import joined
from saccade.data.tokenization.tokenizers import VERSION, Tokenizers, train_tokenizers
from saccade.data.worlds.episodes import Episodes
from saccade.data.worlds.route_store import SIDES as ROUTES
from saccade.data.worlds.route_store import Atlas, RouteEncoder, RouteStore, instructions
from saccade.errors import SaccadeError
from saccade.files import default_cache
from saccade.runs import find_run

Report = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """What training needs: tokenizers, tokenised pairs or documents, and some validation pairs as text."""

    tokenizers: Tokenizers
    train: Rows | Streamed | Episodes
    valid: Rows | Episodes | None
    valid_pairs: list[tuple[str, str]]
    notes: list[str]


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def prepare(
    recipe: Recipe, *, tokenizers: Tokenizers | None = None, cache: Path | None = None, report: Report = _say
) -> Prepared:
    """Everything of the recipe's data, tokenised; `tokenizers` of an earlier run are used as they are."""
    return recipe.task.prepare(recipe, tokenizers=tokenizers, cache=cache, report=report)


def prepare_rows(recipe: Recipe, *, tokenizers: Tokenizers | None, cache: Path | None, report: Report) -> Prepared:
    """The same for tasks whose data are corpora: each is tokenized once, and kept in the cache."""
    folder = cache or default_cache()
    train, valid = _parts(recipe)
    if recipe.data.stream:
        check_stream(recipe)
        train = [replace(part, stream=True) for part in train]
    stored = [] if recipe.data.stream else train
    keys = {part: part.key for part in (*stored, *valid)}  # reads every file once, to its end
    if tokenizers is None:
        learned = _tokenizers(recipe, train, [keys[part] for part in stored], folder)
        tokenizers = replace(learned, labels=_labels(train, learned.labels))
    settings = recipe.task.get_encoding(recipe)
    libraries = [_library(parts, keys, folder) for parts in (stored, valid)]
    stores = [
        _store(parts, [keys[part] for part in parts], tokenizers, folder, use, library) if parts else None
        for parts, use, (library, _) in zip(
            (stored, valid), (settings, settings.without_dropout()), libraries, strict=True
        )
    ]
    notes = list(dict.fromkeys(note for _, told in libraries for note in told))
    notes += [
        note
        for store, parts in zip(stores, (stored, valid), strict=True)
        if store
        for note in notes_of(store, parts, recipe.data.max_length)
    ]
    notes += [note for part in valid for note in unanswerable(part, tokenizers.labels)]
    for note in notes:
        report(note)
    wanted = recipe.train.valid_predictions if len(settings.sides) > 1 else 0  # a document alone has no right answer
    readable = None if libraries[1][0] is None else libraries[1][0].numbers()
    found = (pair for path, pair in _full_pairs(valid) if readable is None or path in readable)
    pairs = list(islice(found, wanted))
    rows = [store and recipe.task.build_rows(store, recipe, tokenizers) for store in stores]
    return Prepared(tokenizers, rows[0] or _streamed(recipe, train, tokenizers), rows[1], pairs, notes)


def _streamed(recipe: Recipe, parts: list[Part], tokenizers: Tokenizers) -> Streamed:
    settings, buffer = recipe.task.get_encoding(recipe), recipe.data.buffer
    names = (part.corpus.model_dump_json() for part in parts)
    return Streamed(
        documents=lambda: in_turn([part.rows for part in parts]), encoder=encode.Encoder(tokenizers, settings),
        in_rows=lambda store: recipe.task.build_rows(store, recipe, tokenizers), buffer=buffer,
        name=_digest(*names, tokenizers.target.fingerprint(), repr((settings, recipe.data.documents, buffer))),
    )  # fmt: skip


def _full_pairs(parts: Iterable[Part]) -> Iterator[tuple[str, tuple[str, str]]]:
    """The first text of each row, and a pair: its last one is what the others are to give; these stand in one line."""
    full = (texts for texts in _texts(parts) if all(text.strip() for text in texts))
    return ((texts[0], (joined(texts[:-1]), texts[-1])) for texts in full)


def _parts(recipe: Recipe) -> tuple[list[Part], list[Part]]:
    data = recipe.data

    def made(
        corpora: Iterable[Corpus], *, share: float = 0.0, heldout: bool = False, varied: bool = False
    ) -> list[Part]:
        part = partial(recipe.task.build_part, recipe, share=share, heldout=heldout, varied=varied)
        return [part(corpus) for corpus in corpora]

    if not data.train:
        raise SaccadeError("no training data: give --data SOURCE TARGET, set data.train, or try --tiny")
    if share := data.valid_share:
        return made(data.train, share=share, varied=True), made(data.train, share=share, heldout=True)
    train = made(data.train, varied=True)
    texts = train[0].labels and train[0].media is None
    valid = [like(corpus, data.train[0]) for corpus in data.valid_corpora] if texts else data.valid_corpora
    return train, made(valid)


def _labels(parts: list[Part], before: Labels | None) -> Labels | None:
    """The labels of the training data; those that a run to start from knew, where they are enough."""
    if not (kind := parts[0].labels):
        return None
    media = parts[0].media
    labelled = "texts" if media is None else "questions" if media.asks else f"{media.medium}s"
    found = learn_labels(kind, (row for part in parts for row in part.rows()), labelled=labelled)
    if before is not None and before.is_like(found) and set(found.names) <= set(before.names):
        return replace(before, texts=found.texts)
    return found


def _tokenizers(recipe: Recipe, parts: list[Part], keys: list[str], cache: Path) -> Tokenizers:
    # Pictures or sound alone: there is no text to learn from
    if parts[0].media is not None and not {"question", "target"} & set(recipe.task.get_encoding(recipe).sides):
        return train_tokenizers(schema.Tokenizer(kind="bytes"), lambda: ())
    if recipe.tokenizer.from_files:
        return train_tokenizers(recipe.tokenizer, lambda: ())
    if recipe.tokenizer.from_run:
        loaded = Tokenizers.load(_first_run(recipe))
        return replace(loaded, target=loaded.source) if parts[0].labels else loaded
    if recipe.data.stream:
        return train_tokenizers(recipe.tokenizer, lambda: islice(_first_texts(parts), recipe.data.buffer))
    learned = recipe.tokenizer.model_copy(update={"dropout": 0.0, "variants": 1})  # what learning depends on
    folder = cache / f"tokenizer-{_digest(str(VERSION), *keys, learned.model_dump_json())}"
    try:
        return Tokenizers.load(folder)
    except SaccadeError:  # not there yet, or damaged
        discard(folder)
        made = train_tokenizers(recipe.tokenizer, lambda: _texts_to_read(parts))
        write_folder(folder, made.save)
        return made


def _first_run(recipe: Recipe) -> Path:
    """The run to start from."""
    own = recipe.writer.text_init if recipe.reader.medium else recipe.reader.text_init  # whose texts they are
    if not (name := recipe.init or own):
        raise SaccadeError('tokenizer.kind = "init" is that of a run to start from; give init=RUN, or another kind')
    return find_run(name)


def _first_texts(parts: list[Part]) -> Iterator[Any]:
    return ((text,) for _, text in in_turn([part.rows for part in parts]))


def training_pairs(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The pairs that the recipe trains on, as text."""
    return _texts(_parts(recipe)[0])


def _texts(parts: Iterable[Part]) -> Iterator[Any]:
    """The texts of each row: source and target, or a document alone."""
    for part in parts:
        for _, *texts in part.rows():
            yield tuple(texts)


def _texts_to_read(parts: Iterable[Part]) -> Iterator[Any]:
    """The same without labels and without the names of files."""
    if any(part.walks for part in parts):
        return instructions(_texts(parts))
    return (texts[part.media is not None : -1 if part.labels else None] for part in parts for texts in _texts([part]))


def _library(parts: list[Part], keys: dict[Part, str], cache: Path) -> tuple[Library | None, list[str]]:
    """The decoded files of all parts, where they are pictures or sound, and what is told of broken ones."""
    if not parts or parts[0].media is None:
        return None, []
    sources = [part.source for part in parts]
    found = [decoded(source, keys[part].rpartition(" ")[0], cache) for source, part in zip(sources, parts, strict=True)]
    notes = [note for source, one in zip(sources, found, strict=True) for note in skipped(source, one)]
    return Library(sources, found), notes


def _store(
    parts: list[Part],
    keys: list[str],
    tokenizers: Tokenizers,
    cache: Path,
    settings: encode.Settings,
    library: Library | None = None,
) -> Store:
    prints = [side.fingerprint() for side in (tokenizers.source, tokenizers.target, tokenizers.labels) if side]
    if library is not None and library.broken:
        prints.append(repr(library.broken))  # other settings of the reader may make them readable
    folder = cache / f"{'pairs' if len(settings.sides) > 1 else 'texts'}-{_digest(*keys, *prints, repr(settings))}"
    weights = [part.corpus.weight for part in parts]
    store = open_store(folder, weights=weights)
    atlas = Atlas.of(parts, tokenizers.target) if settings.sides == ROUTES else None
    if store is None:
        discard(folder)
        labels = tokenizers.labels
        corpora = [
            part.rows if labels is None or part.asks else checked(part.rows, labels, part.name) for part in parts
        ]
        encoder: Any = library and MediaEncoder(
            library.numbers(), labels or (tokenizers.target if len(settings.sides) > 1 else None),
            limit=settings.max_length, files=library.size, question=tokenizers.source if parts[0].asks else None,
        )  # fmt: skip
        if atlas is not None:
            encoder = RouteEncoder(tokenizers, atlas, limit=settings.max_length)
        write_store(folder, lambda temporary: encode.encode_pairs(temporary, corpora, tokenizers, settings, encoder))
        store = Store(folder, weights=weights)
    if len(store) and atlas is not None:
        return RouteStore(folder, atlas, weights=weights)
    if len(store):
        return store if library is None else MediaStore(folder, library, weights=weights)
    what = WHAT[settings.sides]
    if notes := notes_of(store, parts, settings.max_length):
        raise SaccadeError(f"no {what} is left: {'; '.join(notes)}; raise data.max_length or look at the files")
    names = ", ".join(part.name for part in parts)
    if parts[0].heldout:
        raise SaccadeError(f"data.valid = {parts[0].share} holds out no {what}; raise it (data: {names})")
    raise SaccadeError(f"there is no {what} in {names}; expected at least one; is it the right data set and split?")


def _digest(*texts: str) -> str:
    return sha256("\0".join(texts).encode()).hexdigest()[:32]
