"""Train tokenizers on pairs of texts; the same pairs always give the same tokenizer.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, cast

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from saccade.config import schema
from saccade.data.tokenization.special_tokens import (
    SENTINEL_TOKEN,
    add_extra_tokens,
    add_start_token,
    count_extra_tokens,
)
from saccade.data.tokenization.tokenizer import (
    END,
    PAD,
    SPECIAL_TOKENS,
    START,
    UNKNOWN,
    Tokenizer,
    Tokenizers,
    build_byte_alphabet,
    load_backend,
)
from saccade.data.tokenization.unigram import train_unigram
from saccade.errors import SaccadeError

__all__ = ["END", "PAD", "SPECIAL_TOKENS", "START", "UNKNOWN", "VERSION", "Tokenizer", "Tokenizers", "train_tokenizers"]

VERSION = 2  # part of keys of the cache; to be raised when the same data give another tokenizer than before
Pairs = Callable[[], Iterable[tuple[str, str]]]

# Words with the space before them, numbers, punctuation, spaces; at most 64 characters, since the time for merging
# grows faster than linearly with the length.
WORD_PATTERN = r" ?[\p{L}\p{M}]{1,64}| ?\p{N}{1,16}| ?[^\s\p{L}\p{M}\p{N}]{1,16}|\s{1,16}(?!\S)|\s{1,16}"
SPACED_WORD_PATTERN = r"▁?[\p{L}\p{M}\p{N}_]+|▁?[^\s▁\p{L}\p{M}\p{N}_]+|▁|\s"
MIN_BYTE_VOCABULARY = len(SPECIAL_TOKENS) + 256  # special tokens and all bytes, so that every text can be encoded
MAX_COUNTED_WORDS = 2_000_000  # if there are more, words with a count of 1 are dropped


def train_tokenizers(settings: schema.Tokenizer, pairs: Pairs) -> Tokenizers:
    """Train tokenizers on pairs, or load them from files, as the settings ask."""
    if settings.from_files:
        return _load_files(settings)
    if settings.shared:
        both = _train(settings, (text for pair in pairs() for text in pair))
        return Tokenizers(both, both)
    return Tokenizers(
        _train(settings, (source for source, _ in pairs())), _train(settings, (target for _, target in pairs()))
    )


def _load_files(settings: schema.Tokenizer) -> Tokenizers:
    if len(settings.files) not in (1, 2):
        raise SaccadeError(
            'tokenizer.kind = "file" needs tokenizer.files with one tokenizer.json, or one each for source and target, '
            f"got {len(settings.files)}"
        )
    backends = [load_backend(Path(file)) for file in settings.files]
    backends = [add_start_token(backend) for backend in backends] if settings.cls_token else backends
    loaded = [Tokenizer(backend, origin=file) for backend, file in zip(backends, settings.files, strict=True)]
    if settings.shared and loaded[0].backend.get_vocab() != loaded[-1].backend.get_vocab():
        raise SaccadeError(
            f"{settings.files[0]} and {settings.files[1]} number their tokens differently, but tokenizer.shared = true "
            "means one vocabulary; set tokenizer.shared=false"
        )
    if settings.lowercase:
        loaded = [_add_lowercase(tokenizer) for tokenizer in loaded]
    if not settings.shared and len(loaded) == 1:  # separate objects, so that the model has two embeddings
        loaded.append(Tokenizer(tokenizers.Tokenizer.from_str(loaded[0].to_json())))
    return Tokenizers(loaded[0], loaded[-1])


def _add_lowercase(tokenizer: Tokenizer) -> Tokenizer:
    backend = tokenizer.backend
    before = [backend.normalizer] if backend.normalizer else []
    backend.normalizer = normalizers.Sequence([*before, normalizers.Lowercase()])
    return Tokenizer(backend)


def _train(settings: schema.Tokenizer, texts: Iterable[str]) -> Tokenizer:
    kind = TOKENIZER_KINDS.get(settings.kind, OWN_KIND)
    sentinels, extra = settings.sentinels, settings.sentinels + count_extra_tokens(settings)
    if kind.has_byte_tokens and settings.size < MIN_BYTE_VOCABULARY + extra:
        raise SaccadeError(
            f"tokenizer.size must be at least {MIN_BYTE_VOCABULARY + extra} for {settings.kind} (bytes and special "
            f'tokens), got {settings.size}; for small vocabularies use kind = "characters"'
        )
    backend = kind.train(settings.model_copy(update={"size": settings.size - extra}), texts)
    backend.add_special_tokens(
        [tokenizers.AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    # A sentinel includes the space before the span that it replaces; word-level tokens have it from the normalizer.
    sentinel_tokens = map(SENTINEL_TOKEN.format, range(sentinels))
    backend.add_tokens(
        [
            tokenizers.AddedToken(token, lstrip=True, rstrip=kind.has_trailing_space, normalized=False)
            for token in sentinel_tokens
        ]
    )
    add_extra_tokens(backend, settings, lstrip=kind.has_leading_space, rstrip=kind.has_trailing_space)
    return Tokenizer(backend)


def _train_bpe(settings: schema.Tokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Byte-level BPE (Sennrich et al. 2016; Radford et al. 2019)."""
    backend = _build_byte_level(models.BPE(), settings, words=True)
    trainer = trainers.BpeTrainer(
        vocab_size=settings.size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=build_byte_alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(iter_blocks(texts, 1000), trainer)
    return backend


def _train_unigram(settings: schema.Tokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Unigram language model of subwords (Kudo 2018)."""
    backend = _build_byte_level(models.BPE(), settings, words=True)
    tokens = train_unigram(
        _count(_pre_tokenize(backend, texts)), alphabet=build_byte_alphabet(), size=settings.size - len(SPECIAL_TOKENS)
    )
    backend.model = models.Unigram([(token, 0.0) for token in SPECIAL_TOKENS] + tokens, unk_id=UNKNOWN)
    return backend


def _train_wordpiece(settings: schema.Tokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """WordPiece, with ## before tokens inside of a word (Schuster and Nakajima 2012; BERT)."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token=SPECIAL_TOKENS[UNKNOWN]))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.normalizer = _build_normalizer(settings)
    words = _count(_pre_tokenize(backend, texts))
    characters = Counter({character: 0 for word in words for character in word})
    for word, count in words.items():
        characters.update(dict.fromkeys(word, count))
    kept = _select_most_frequent(characters, max(1, (settings.size - len(SPECIAL_TOKENS)) // 2))
    # The library numbers tokens inside of words in the order of a hash map, which differs between runs, and breaks ties
    # by number. As "special" tokens they come first, in our order, and the result is deterministic.
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.size, initial_alphabet=kept, limit_alphabet=len(kept), show_progress=False,
        special_tokens=[*SPECIAL_TOKENS, *(f"##{character}" for character in kept)],
    )  # fmt: skip
    # The tokenizer gives longer words as <unk>; the trainer takes time by the square of their length.
    longest = backend.model.max_input_chars_per_word
    short = Counter({word: count for word, count in words.items() if len(word) <= longest})
    backend.train_from_iterator(iter_blocks(_repeat_words(short), 1000), trainer)
    model = models.WordPiece(backend.get_vocab(), unk_token=SPECIAL_TOKENS[UNKNOWN])
    fresh = tokenizers.Tokenizer(model)  # without those "special" tokens
    fresh.pre_tokenizer, fresh.decoder = backend.pre_tokenizer, backend.decoder
    if settings.lowercase:
        fresh.normalizer = backend.normalizer
    return fresh


def _train_characters(settings: schema.Tokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """One token for each character: BPE without merges."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = _build_normalizer(settings)
    backend.decoder = decoders.Fuse()
    counts = _count(character for text in _normalize(backend, texts) for character in text)
    backend.model = models.BPE(_build_vocabulary(counts, settings.size), [], unk_token=SPECIAL_TOKENS[UNKNOWN])
    return backend


def _build_bytes(settings: schema.Tokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """One token for each byte; nothing is trained."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *build_byte_alphabet()])}
    return _build_byte_level(models.BPE(vocabulary, []), settings, words=False)


def _train_words(settings: schema.Tokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """The most frequent words and punctuation marks, each with the space before it (as ▁)."""
    backend = tokenizers.Tokenizer(models.WordLevel({SPECIAL_TOKENS[UNKNOWN]: 0}, unk_token=SPECIAL_TOKENS[UNKNOWN]))
    spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    backend.normalizer = normalizers.Sequence([*([normalizers.Lowercase()] if settings.lowercase else []), *spaces])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(SPACED_WORD_PATTERN), "isolated")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    backend.model = models.WordLevel(
        _build_vocabulary(_count(_pre_tokenize(backend, texts)), settings.size), unk_token=SPECIAL_TOKENS[UNKNOWN]
    )
    return backend


def _build_byte_level(model: models.Model, settings: schema.Tokenizer, *, words: bool) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes]) if words else to_bytes
    backend.decoder = decoders.ByteLevel()
    backend.normalizer = _build_normalizer(settings)
    return backend


def _build_normalizer(settings: schema.Tokenizer) -> normalizers.Normalizer | None:
    return normalizers.Lowercase() if settings.lowercase else None


def _normalize(backend: tokenizers.Tokenizer, texts: Iterable[str]) -> Iterable[str]:
    return map(backend.normalizer.normalize_str, texts) if backend.normalizer else texts


def _pre_tokenize(backend: tokenizers.Tokenizer, texts: Iterable[str]) -> Iterator[str]:
    for text in _normalize(backend, texts):
        for token, _ in backend.pre_tokenizer.pre_tokenize_str(text):
            yield token


def _count(tokens: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for block in iter_blocks(tokens, 100_000):
        counts.update(block)
        if len(counts) > MAX_COUNTED_WORDS:
            counts = Counter({token: count for token, count in counts.items() if count > 1})
    return counts


def _select_most_frequent(counts: Counter[str], size: int) -> list[str]:
    """Return the most frequent tokens; ties are broken alphabetically, so the order of the data does not matter."""
    return sorted(counts, key=lambda token: (-counts[token], token))[:size]


def _build_vocabulary(counts: Counter[str], size: int) -> dict[str, int]:
    kept = _select_most_frequent(counts, size - len(SPECIAL_TOKENS))
    return {token: number for number, token in enumerate([*SPECIAL_TOKENS, *kept])}


def iter_blocks(items: Iterable[str], size: int) -> Iterator[Sequence[str]]:
    """Yield lists of at most `size` items."""
    iterator = iter(items)
    while block := list(islice(iterator, size)):
        yield block


def _repeat_words(words: Counter[str]) -> Iterator[str]:
    return (word for word, count in words.items() for _ in range(count))


class TokenizerKind(NamedTuple):
    """How a kind of tokenizer is trained, and whether its tokens include the spaces around a word."""

    train: Callable[[schema.Tokenizer, Iterable[str]], tokenizers.Tokenizer]
    has_byte_tokens: bool = False  # one for each byte
    has_leading_space: bool = False
    has_trailing_space: bool = False


def _train_own(settings: schema.Tokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Call the user's function with the texts and the maximal size; check and save what it returns as JSON."""
    own = cast(schema.OwnTokenizer, settings)
    built = own.make(texts, settings.size)
    if not isinstance(built, tokenizers.Tokenizer):
        raise SaccadeError(f"the tokenizer '{own.kind}' must return a tokenizers.Tokenizer, got {type(built).__name__}")
    for number, token in enumerate(SPECIAL_TOKENS):
        if built.token_to_id(token) != number:
            raise SaccadeError(
                f"the tokenizer '{own.kind}' must have the token {token} as number {number}, got "
                f"{built.token_to_id(token)}; train it with special_tokens={list(SPECIAL_TOKENS)}"
            )
    try:
        return tokenizers.Tokenizer.from_str(built.to_str())
    except Exception as error:  # the library raises a plain Exception for parts that are written in Python
        raise SaccadeError(
            f"the tokenizer '{own.kind}' cannot be saved as JSON ({error}); use only parts of the package tokenizers"
        ) from None


OWN_KIND = TokenizerKind(_train_own)
TOKENIZER_KINDS = {
    "bpe": TokenizerKind(_train_bpe, has_byte_tokens=True, has_leading_space=True),
    "unigram": TokenizerKind(_train_unigram, has_byte_tokens=True, has_leading_space=True),
    "wordpiece": TokenizerKind(_train_wordpiece),
    "characters": TokenizerKind(_train_characters),
    "bytes": TokenizerKind(_build_bytes),
    "words": TokenizerKind(_train_words, has_leading_space=True, has_trailing_space=True),
}
