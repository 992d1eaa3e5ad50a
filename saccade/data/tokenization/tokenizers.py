"""Learning a tokenizer from pairs of texts: the same pairs give the same tokenizer.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from saccade.config import schema
from saccade.data.tokenization.special_tokens import SENTINEL, add_extra_pieces, extra_pieces, with_beginning
from saccade.data.tokenization.tokenizer import (
    END,
    PAD,
    PIECES,
    START,
    UNKNOWN,
    Tokenizer,
    Tokenizers,
    byte_letters,
    read_core,
)
from saccade.data.tokenization.unigram import learn_unigram
from saccade.errors import SaccadeError

__all__ = ["END", "PAD", "PIECES", "START", "UNKNOWN", "VERSION", "Tokenizer", "Tokenizers", "train_tokenizers"]

VERSION = 2  # raised when the same data gives another tokenizer than before; the cache holds them
Pairs = Callable[[], Iterable[tuple[str, str]]]

# Words with the space before them, numbers, punctuation, spaces; nothing longer than 64 characters, as the time that
# merging takes grows faster than the length of a word.
WORDS = r" ?[\p{L}\p{M}]{1,64}| ?\p{N}{1,16}| ?[^\s\p{L}\p{M}\p{N}]{1,16}|\s{1,16}(?!\S)|\s{1,16}"
SPACED_WORDS = r"▁?[\p{L}\p{M}\p{N}_]+|▁?[^\s▁\p{L}\p{M}\p{N}_]+|▁|\s"
LEAST = len(PIECES) + 256  # byte-level vocabularies hold every byte, so that every text has ids
ENTRIES = 2_000_000  # different words counted at once; beyond it those seen once are forgotten


def train_tokenizers(settings: schema.Tokenizer, pairs: Pairs) -> Tokenizers:
    """Tokenizers as the recipe asks, learned from the pairs or read from files."""
    if settings.from_files:
        return _from_files(settings)
    if settings.shared:
        both = _learn(settings, (text for pair in pairs() for text in pair))
        return Tokenizers(both, both)
    return Tokenizers(
        _learn(settings, (source for source, _ in pairs())), _learn(settings, (target for _, target in pairs()))
    )


def _from_files(settings: schema.Tokenizer) -> Tokenizers:
    if len(settings.files) not in (1, 2):
        raise SaccadeError(
            'tokenizer.kind = "file" needs tokenizer.files with one tokenizer.json, or one each for source and target, '
            f"got {len(settings.files)}"
        )
    cores = [read_core(Path(file)) for file in settings.files]
    cores = [with_beginning(core) for core in cores] if settings.begin else cores
    loaded = [Tokenizer(core, origin=file) for core, file in zip(cores, settings.files, strict=True)]
    if settings.shared and loaded[0].core.get_vocab() != loaded[-1].core.get_vocab():
        raise SaccadeError(
            f"{settings.files[0]} and {settings.files[1]} number their pieces differently, but tokenizer.shared = true "
            "means one vocabulary; set tokenizer.shared=false"
        )
    if settings.lowercase:
        loaded = [_lowercased(tokenizer) for tokenizer in loaded]
    if not settings.shared and len(loaded) == 1:  # the same pieces, but two objects: two embeddings
        loaded.append(Tokenizer(tokenizers.Tokenizer.from_str(loaded[0].to_json())))
    return Tokenizers(loaded[0], loaded[-1])


def _lowercased(tokenizer: Tokenizer) -> Tokenizer:
    core = tokenizer.core
    before = [core.normalizer] if core.normalizer else []
    core.normalizer = normalizers.Sequence([*before, normalizers.Lowercase()])
    return Tokenizer(core)


def _learn(settings: schema.Tokenizer, texts: Iterable[str]) -> Tokenizer:
    learner = LEARNERS[settings.kind]
    sentinels, extra = settings.sentinels, settings.sentinels + extra_pieces(settings)
    if learner.holds_bytes and settings.size < LEAST + extra:
        raise SaccadeError(
            f"tokenizer.size must be at least {LEAST + extra} for {settings.kind} (bytes and special pieces), got "
            f'{settings.size}; for small vocabularies take kind = "characters"'
        )
    core = learner.learn(settings.model_copy(update={"size": settings.size - extra}), texts)
    core.add_special_tokens([tokenizers.AddedToken(piece, special=True, normalized=False) for piece in PIECES])
    # The space before a hidden word is hidden with it; words have theirs from the normalizer, at every beginning.
    pieces = map(SENTINEL.format, range(sentinels))
    core.add_tokens(
        [
            tokenizers.AddedToken(piece, lstrip=True, rstrip=learner.ends_with_space, normalized=False)
            for piece in pieces
        ]
    )
    add_extra_pieces(core, settings, lstrip=learner.begins_with_space, rstrip=learner.ends_with_space)
    return Tokenizer(core)


def _bpe(settings: schema.Tokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Byte pairs merged by frequency (Sennrich et al. 2016; on bytes: Radford et al. 2019)."""
    core = _byte_level(models.BPE(), settings, words=True)
    trainer = trainers.BpeTrainer(
        vocab_size=settings.size, special_tokens=list(PIECES), initial_alphabet=byte_letters(), show_progress=False
    )
    core.train_from_iterator(blocks(texts, 1000), trainer)
    return core


def _unigram(settings: schema.Tokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """The most probable segmentation under a unigram model of pieces (Kudo 2018)."""
    core = _byte_level(models.BPE(), settings, words=True)
    pieces = learn_unigram(_count(_pieces(core, texts)), alphabet=byte_letters(), size=settings.size - len(PIECES))
    core.model = models.Unigram([(piece, 0.0) for piece in PIECES] + pieces, unk_id=UNKNOWN)
    return core


def _wordpiece(settings: schema.Tokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Pieces of words, ##inside marked (Schuster and Nakajima 2012; BERT)."""
    core = tokenizers.Tokenizer(models.WordPiece(unk_token=PIECES[UNKNOWN]))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    core.normalizer = _lowercase(settings)
    words = _count(_pieces(core, texts))
    letters = Counter({letter: 0 for word in words for letter in word})
    for word, count in words.items():
        letters.update(dict.fromkeys(word, count))
    kept = _most_frequent(letters, max(1, (settings.size - len(PIECES)) // 2))
    # The library numbers pieces inside words in the order of a hash map that differs from run to run, and breaks ties
    # by number; as "special" pieces they come first, in our order, and the result is always the same.
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.size, initial_alphabet=kept, limit_alphabet=len(kept), show_progress=False,
        special_tokens=[*PIECES, *(f"##{letter}" for letter in kept)],
    )  # fmt: skip
    core.train_from_iterator(blocks(_repeated(words), 1000), trainer)
    model = models.WordPiece(core.get_vocab(), unk_token=PIECES[UNKNOWN])
    fresh = tokenizers.Tokenizer(model)  # without those "special" pieces
    fresh.pre_tokenizer, fresh.decoder = core.pre_tokenizer, core.decoder
    if settings.lowercase:
        fresh.normalizer = core.normalizer
    return fresh


def _characters(settings: schema.Tokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Every character is a piece: byte pairs that are never merged."""
    core = tokenizers.Tokenizer(models.BPE())
    core.normalizer = _lowercase(settings)
    core.decoder = decoders.Fuse()
    counts = _count(letter for text in _normalised(core, texts) for letter in text)
    core.model = models.BPE(_numbered(counts, settings.size), [], unk_token=PIECES[UNKNOWN])
    return core


def _bytes(settings: schema.Tokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Every byte is a piece: nothing to learn."""
    vocabulary = {piece: number for number, piece in enumerate([*PIECES, *byte_letters()])}
    return _byte_level(models.BPE(vocabulary, []), settings, words=False)


def _words(settings: schema.Tokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Words and punctuation, each with the space before it (as ▁), the most frequent ones."""
    core = tokenizers.Tokenizer(models.WordLevel({PIECES[UNKNOWN]: 0}, unk_token=PIECES[UNKNOWN]))
    spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    core.normalizer = normalizers.Sequence([*([normalizers.Lowercase()] if settings.lowercase else []), *spaces])
    core.pre_tokenizer = pre_tokenizers.Split(Regex(SPACED_WORDS), "isolated")
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    core.model = models.WordLevel(_numbered(_count(_pieces(core, texts)), settings.size), unk_token=PIECES[UNKNOWN])
    return core


def _byte_level(model: models.Model, settings: schema.Tokenizer, *, words: bool) -> tokenizers.Tokenizer:
    core = tokenizers.Tokenizer(model)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    core.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes]) if words else to_bytes
    core.decoder = decoders.ByteLevel()
    core.normalizer = _lowercase(settings)
    return core


def _lowercase(settings: schema.Tokenizer) -> normalizers.Normalizer | None:
    return normalizers.Lowercase() if settings.lowercase else None


def _normalised(core: tokenizers.Tokenizer, texts: Iterable[str]) -> Iterable[str]:
    return map(core.normalizer.normalize_str, texts) if core.normalizer else texts


def _pieces(core: tokenizers.Tokenizer, texts: Iterable[str]) -> Iterator[str]:
    for text in _normalised(core, texts):
        for piece, _ in core.pre_tokenizer.pre_tokenize_str(text):
            yield piece


def _count(pieces: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for block in blocks(pieces, 100_000):
        counts.update(block)
        if len(counts) > ENTRIES:
            counts = Counter({piece: count for piece, count in counts.items() if count > 1})
    return counts


def _most_frequent(counts: Counter[str], size: int) -> list[str]:
    """The order among equals is that of the alphabet, so it does not depend on the order of the data."""
    return sorted(counts, key=lambda piece: (-counts[piece], piece))[:size]


def _numbered(counts: Counter[str], size: int) -> dict[str, int]:
    kept = _most_frequent(counts, size - len(PIECES))
    return {piece: number for number, piece in enumerate([*PIECES, *kept])}


def blocks(items: Iterable[str], size: int) -> Iterator[Sequence[str]]:
    """Lists of at most `size` items, one after the other."""
    iterator = iter(items)
    while block := list(islice(iterator, size)):
        yield block


def _repeated(words: Counter[str]) -> Iterator[str]:
    return (word for word, count in words.items() for _ in range(count))


class Learner(NamedTuple):
    """How a kind of tokenizer is learned, and where its pieces hold the spaces around a word."""

    learn: Callable[[schema.Tokenizer, Iterable[str]], tokenizers.Tokenizer]
    holds_bytes: bool = False  # whether every byte has a piece
    begins_with_space: bool = False
    ends_with_space: bool = False


LEARNERS = {
    "bpe": Learner(_bpe, holds_bytes=True, begins_with_space=True),
    "unigram": Learner(_unigram, holds_bytes=True, begins_with_space=True),
    "wordpiece": Learner(_wordpiece),
    "characters": Learner(_characters),
    "bytes": Learner(_bytes),
    "words": Learner(_words, begins_with_space=True, ends_with_space=True),
}
