"""Prepare the data of a recipe: train the tokenizers and tokenize the corpora, once each, in a cache folder."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import Any

from saccade.config import schema
from saccade.config.schema import Corpus, Recipe
from saccade.data.sources import labelled, table
from saccade.data.sources.bad_rows import BadRows
from saccade.data.sources.corpus import (
    CorpusSplit,
    format_dropped_notes,
    format_filter_notes,
    format_unanswerable_notes,
)
from saccade.data.sources.documents import hash_file_sizes, is_hub_name
from saccade.data.sources.filtering import FilterReport, build_filter_key
from saccade.data.sources.labelled import validate_labels
from saccade.data.sources.overview import describe_corpora, describe_labels, format_sizes
from saccade.data.sources.own_format import inherit_format
from saccade.data.sources.ranges import WHOLE, Share
from saccade.data.store.arrays import Store, discard, open_store, write_folder, write_store
from saccade.data.store.media import (
    MediaEncoder,
    MediaLibrary,
    MediaStore,
    find_unreadable,
    format_too_long_note,
    open_or_decode,
)
from saccade.data.store.streaming import DocumentStream, InterleavedDocuments, validate_stream
from saccade.data.tokenization import encode
from saccade.data.tokenization.labels import Labels, collect_labels
from saccade.data.tokenization.text_pairs import join_texts
from saccade.data.tokenization.tokenizers import VERSION, Tokenizers, train_tokenizers
from saccade.errors import SaccadeError
from saccade.files import get_cache_folder
from saccade.runs import find_run

Report = Callable[[str], None]


@dataclass(frozen=True)
class PreparedData:
    """The data that a training run needs."""

    tokenizers: Tokenizers
    train: Any  # Rows, a DocumentStream, or what `open_stream` of the task expects
    valid: Any  # Rows, what `measure_validation` of the task expects, or None
    valid_pairs: list[tuple[str, str]]  # text of some validation examples, to decode and score during training
    notes: list[str]  # messages about dropped rows and skipped files
    filtered: dict[str, list[FilterReport]] = field(default_factory=dict)  # of "train" and "valid"; grows in a stream
    bad_rows: list[BadRows] = field(default_factory=list)  # of each corpus; grows in a stream


def _print_note(text: str) -> None:
    print(text, file=sys.stderr)


def prepare(
    recipe: Recipe, *, tokenizers: Tokenizers | None = None, cache: Path | None = None, report: Report = _print_note
) -> PreparedData:
    """Tokenize the data of a recipe; `tokenizers` of an earlier run are used instead of training new ones."""
    return recipe.task.prepare(recipe, tokenizers=tokenizers, cache=cache, report=report)


def prepare_rows(recipe: Recipe, *, tokenizers: Tokenizers | None, cache: Path | None, report: Report) -> PreparedData:
    """`prepare` for tasks that learn from corpora: look each one up in the cache, or tokenize it and store it there."""
    folder = cache or get_cache_folder()
    train, valid = _build_splits(recipe)
    if recipe.data.stream:
        _check_stream(recipe)
        train = [replace(split, stream=True) for split in train]
    overview = describe_corpora(train, title="data", key="data.train")
    if not recipe.data.valid_share:
        overview += describe_corpora(valid, title="validation data", key="data.valid")
    for line in overview:
        report(line)
    stored = [] if recipe.data.stream else train
    keys = {split: f"{recipe.task_code}{split.key}" for split in (*stored, *valid)}  # hashes the content of all files
    if tokenizers is None:
        trained = _train_or_load_tokenizers(recipe, train, [keys[split] for split in stored], folder)
        tokenizers = replace(trained, labels=_collect_labels(train, trained.labels, report))
    settings = recipe.task.get_encoding(recipe)
    libraries = [_build_library(splits, keys, folder, report) for splits in (stored, valid)]
    stores = [
        _open_or_write_store(splits, [keys[split] for split in splits], tokenizers, folder, encoding, library)
        if splits
        else None
        for splits, encoding, library in zip(
            (stored, valid), (settings, settings.without_dropout()), libraries, strict=True
        )
    ]
    bad_rows = [split.bad_rows for split in (*train, *valid)]
    notes = [note for note in dict.fromkeys(each.format_note() for each in bad_rows) if note]
    notes += [
        note
        for store, splits in zip(stores, (stored, valid), strict=True)
        if store
        for note in (*format_filter_notes(store), *format_dropped_notes(store, splits, recipe.data.max_length))
    ]
    filtered = {name: store.filtered for name, store in zip(("train", "valid"), stores, strict=True) if store}
    notes += [note for split in valid for note in format_unanswerable_notes(split, tokenizers.labels)]
    sizes = [
        line
        for store, splits, title in zip(stores, (stored, valid), ("data", "validation data"), strict=True)
        if store
        for line in format_sizes(store, splits, title=title)
    ]
    for note in (*sizes, *notes):
        report(note)
    count = recipe.train.valid_predictions if len(settings.sides) > 1 else 0  # a document has no reference output
    readable = None if libraries[1] is None else libraries[1].get_file_numbers()
    decodable = (pair for path, pair in _iter_complete_pairs(valid) if readable is None or path in readable)
    pairs = list(islice(decodable, count))
    rows = [store and recipe.task.build_rows(store, recipe, tokenizers) for store in stores]
    if recipe.data.stream:
        filtered["train"] = [FilterReport(split.name) for split in train if split.filter]
    training = rows[0] or _build_stream(recipe, train, tokenizers, filtered["train"])
    return PreparedData(tokenizers, training, rows[1], pairs, notes, filtered, bad_rows)


def _build_stream(
    recipe: Recipe, splits: list[CorpusSplit], tokenizers: Tokenizers, reports: list[FilterReport]
) -> DocumentStream:
    """Build the stream of documents; `reports` count those that the filter drops in the current pass."""
    settings, buffer = recipe.task.get_encoding(recipe), recipe.data.buffer
    names = (split.corpus.dump_key() for split in splits)
    key = f"({settings.cache_key}, {recipe.data.documents!r}, {buffer!r})"  # as in 0.8, so that its runs resume
    if reports:
        key += build_filter_key(recipe.data.filter)

    def open_documents(share: Share = WHOLE, place: Any = None) -> InterleavedDocuments:
        places = place["corpora"] if place else [None] * len(splits)
        corpora = [split.open_documents(share, at) for split, at in zip(splits, places, strict=True)]
        for report, documents in zip(reports, corpora, strict=False):
            report.parts[share] = documents.report
        return InterleavedDocuments(corpora, place["turn"] if place else 0)

    return DocumentStream(
        open_documents=open_documents,
        encoder=encode.TextEncoder(tokenizers, settings),
        build_rows=lambda store: recipe.task.build_rows(store, recipe, tokenizers), buffer=buffer,
        name=_hash_texts(*names, tokenizers.target.fingerprint(), key),
        hash_files=lambda: _hash_texts(*(hash_file_sizes(split.corpus) for split in splits)),
    )  # fmt: skip


def _iter_complete_pairs(splits: Iterable[CorpusSplit]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield (first cell, (input, reference)) of each row without empty cells; several inputs are joined by tabs.

    The first cell of a picture or recording is its path.
    """
    complete = (texts for texts in _iter_texts(splits) if all(text.strip() for text in texts))
    return ((texts[0], (join_texts(texts[:-1]), texts[-1])) for texts in complete)


def _build_splits(recipe: Recipe) -> tuple[list[CorpusSplit], list[CorpusSplit]]:
    data = recipe.data

    def build(
        corpora: Iterable[Corpus], *, share: float = 0.0, heldout: bool = False, training: bool = False
    ) -> list[CorpusSplit]:
        build_split = partial(recipe.task.build_split, recipe, share=share, heldout=heldout, augment=training)
        filtered = data.filter.is_enabled and (training or data.filter.validation)
        return [
            replace(
                build_split(corpus),
                filter=data.filter if filtered else None,
                bad_rows=BadRows(corpus.files[0], skips=data.on_error == "skip"),
            )
            for corpus in corpora
        ]

    if not data.train:
        raise SaccadeError("no training data: give --data SOURCE TARGET, set data.train, or try --tiny")
    if share := data.valid_share:
        return build(data.train, share=share, training=True), build(data.train, share=share, heldout=True)
    train = build(data.train, training=True)
    valid = [inherit_format(corpus, data.train[0]) for corpus in data.valid_corpora]
    if train[0].media_reader is None:
        inherit_columns = labelled.inherit_columns if train[0].label_kind else table.inherit_columns
        found = train[0].find_unnamed_columns() if valid else ()
        valid = [inherit_columns(corpus, data.train[0], found=found) for corpus in valid]
    return train, build(valid)


def _collect_labels(splits: list[CorpusSplit], earlier: Labels | None, report: Report) -> Labels | None:
    """Collect the labels of the training data; keep `earlier`, those of the run to start from, if they contain them."""
    if not (kind := splits[0].label_kind):
        return None
    media = splits[0].media_reader
    noun = "texts" if media is None else media.unit
    counts = Counter[str]()

    def count_labels() -> Iterator[Any]:
        for row in (row for split in splits for row in split.iter_kept_rows()):
            counts[row[-1]] += 1
            yield row

    found = collect_labels(kind, count_labels(), noun=noun)
    if media is None and kind == "label":
        for number, split in enumerate(splits):
            labelled.check_first_line(split.corpus, counts, key=f"data.train.{number}")
    for line in describe_labels(splits, counts) if kind == "label" else ():
        report(line)
    if earlier is not None and earlier.has_same_kind(found) and set(found.names) <= set(earlier.names):
        return replace(earlier, num_texts=found.num_texts)
    return found


def _train_or_load_tokenizers(recipe: Recipe, splits: list[CorpusSplit], keys: list[str], cache: Path) -> Tokenizers:
    if splits[0].media_reader is not None and not {"question", "target"} & set(recipe.task.get_encoding(recipe).sides):
        return train_tokenizers(schema.Tokenizer(kind="bytes"), lambda: ())  # there is no text; it is not used
    if recipe.tokenizer.from_files:
        return train_tokenizers(recipe.tokenizer, lambda: ())
    if recipe.tokenizer.from_run:
        loaded = Tokenizers.load(_find_init_run(recipe))
        return replace(loaded, target=loaded.source) if splits[0].label_kind else loaded
    if recipe.data.stream:
        return train_tokenizers(recipe.tokenizer, lambda: islice(_iter_documents(splits), recipe.data.buffer))
    folder = cache / f"tokenizer-{_hash_texts(str(VERSION), *keys, _get_training_key(recipe.tokenizer))}"
    try:
        return Tokenizers.load(folder)
    except SaccadeError:  # not cached, or damaged
        discard(folder)
        trained = train_tokenizers(
            recipe.tokenizer, lambda: chain.from_iterable(split.iter_texts() for split in splits)
        )
        write_folder(folder, trained.save)
        return trained


def _get_training_key(settings: schema.Tokenizer) -> str:
    """Return the settings that training a tokenizer depends on, as JSON with the names of 0.8, which the cache has."""
    values = settings.model_copy(update={"dropout": 0.0, "variants": 1}).model_dump_json()
    return values.replace('"cls_token":', '"begin":').replace('"mask_token":', '"mask":') + settings.code_version


def _find_init_run(recipe: Recipe) -> Path:
    """Find the run whose tokenizers are used: `init`, or that of the text half of the model."""
    own = recipe.writer.text_init if recipe.reader.medium else recipe.reader.text_init
    if not (name := recipe.init or own):
        raise SaccadeError(
            'tokenizer.kind = "init" takes the tokenizer of the run to start from; give init=RUN, or another kind'
        )
    return find_run(name)


def _iter_documents(splits: list[CorpusSplit]) -> Iterator[Any]:
    return ((text,) for _, text in InterleavedDocuments([split.open_documents() for split in splits]))


def iter_training_pairs(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield the training pairs of a recipe as text."""
    return _iter_texts(_build_splits(recipe)[0])


def _iter_texts(splits: Iterable[CorpusSplit]) -> Iterator[Any]:
    """Yield the cells of each row: source and target, or a document alone; a path for a picture or recording."""
    for split in splits:
        for _, *texts in split.iter_kept_rows():
            yield tuple(texts)


def _build_library(
    splits: list[CorpusSplit], keys: dict[CorpusSplit, str], cache: Path, report: Report
) -> MediaLibrary | None:
    """Decode the pictures or recordings of all splits; files that cannot be read are bad rows."""
    if not splits or splits[0].media_reader is None:
        return None
    sources = [split.media_source for split in splits]
    decoded = [
        open_or_decode(source, keys[split].rpartition(" ")[0], cache)
        for source, split in zip(sources, splits, strict=True)
    ]
    for split, source, media in zip(splits, sources, decoded, strict=True):
        for error in find_unreadable(source, media):
            split.bad_rows(error)
        split.bad_rows.check_share(len(media) - len(media.broken))
        if note := format_too_long_note(source, media):
            report(note)
    return MediaLibrary(sources, decoded)


def _open_or_write_store(
    splits: list[CorpusSplit],
    keys: list[str],
    tokenizers: Tokenizers,
    cache: Path,
    settings: encode.EncodingSettings,
    library: MediaLibrary | None = None,
) -> Store:
    fingerprints = [side.fingerprint() for side in (tokenizers.source, tokenizers.target, tokenizers.labels) if side]
    if library is not None and library.broken_numbers:
        fingerprints.append(repr(library.broken_numbers))  # depends on the settings of the reader
    folder = (
        cache
        / f"{'pairs' if len(settings.sides) > 1 else 'texts'}-{_hash_texts(*keys, *fingerprints, settings.cache_key)}"
    )
    weights = [split.corpus.weight for split in splits]
    store = open_store(folder, weights=weights)
    codec = splits[0].build_row_codec(splits, tokenizers, max_length=settings.max_length)
    if store is not None:
        for split, values in zip(splits, store.bad_rows, strict=False):
            split.bad_rows.adopt(values)
    else:
        discard(folder)
        labels = tokenizers.labels
        reports = [FilterReport(split.name) for split in splits]
        opened = [partial(split.iter_kept_rows, report) for split, report in zip(splits, reports, strict=True)]
        corpora = [
            rows
            if labels is None or split.has_questions
            else validate_labels(rows, labels, split.name, heldout=split.heldout)
            for split, rows in zip(splits, opened, strict=True)
        ]
        encoder: Any = codec or (library and MediaEncoder(
            library.get_file_numbers(), labels or (tokenizers.target if len(settings.sides) > 1 else None),
            max_length=settings.max_length, num_files=library.size,
            question=tokenizers.source if splits[0].has_questions else None,
        ))  # fmt: skip

        def fill(temporary: Path) -> dict[str, Any]:
            meta = encode.encode_rows(temporary, corpora, tokenizers, settings, encoder)
            filtered = [report.to_json() for report, split in zip(reports, splits, strict=True) if split.filter]
            bad_rows = [split.bad_rows.to_json() for split in splits]
            return {**meta, "bad_rows": bad_rows, **({"filtered": filtered} if filtered else {})}

        write_store(folder, fill)
        store = Store(folder, weights=weights)
    for found, split in zip(store.filtered, splits, strict=False):
        found.corpus = split.name  # the cache knows files by their content
    if len(store) and codec is not None:
        return codec.open_store(folder, weights=weights)
    if len(store):
        return store if library is None else MediaStore(folder, library, weights=weights)
    raise _explain_no_rows(store, splits, settings)


def _explain_no_rows(store: Store, splits: list[CorpusSplit], settings: encode.EncodingSettings) -> SaccadeError:
    """Return the error of a store without rows, with the reason why none is left."""
    noun = splits[0].get_row_noun(settings.sides)
    if store.filtered:
        return SaccadeError(f"no {noun} is left: {'; '.join(format_filter_notes(store))}; loosen data.filter")
    if notes := format_dropped_notes(store, splits, settings.max_length):
        return SaccadeError(f"no {noun} is left: {'; '.join(notes)}; raise data.max_length or look at the files")
    names = ", ".join(split.name for split in splits)
    if splits[0].heldout:
        return SaccadeError(
            f"data.valid = {splits[0].share} holds out no {noun}; raise it, or give files: --valid (data: {names})"
        )
    return SaccadeError(f"there is no {noun} in {names}; expected at least one; is it the right data set and split?")


def _check_stream(recipe: Recipe) -> None:
    """Refuse what a stream does not support."""
    validate_stream(recipe)
    names = [name for corpus in recipe.data.train for name in corpus.files if corpus.format or is_hub_name(name)]
    if names and recipe.data.on_error == "skip":  # its place is a number of rows that were read
        raise SaccadeError(
            f'data.stream = true of {names[0]} does not go with data.on_error = "skip"; expected files of text, '
            f"{', '.join(table.TABLE_SUFFIXES)}; change one of them"
        )


def _hash_texts(*texts: str) -> str:
    return sha256("\0".join(texts).encode()).hexdigest()[:32]
