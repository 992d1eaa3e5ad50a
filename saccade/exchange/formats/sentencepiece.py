"""SentencePiece models (Kudo and Richardson 2018) as tokenizers of the `tokenizers` library, with the same ids.

The files are protocol buffers. Of their many fields a handful decide how a text is cut, and these are read here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers

from saccade.errors import SaccadeError

UNIGRAM, BPE = 1, 2  # trainer_spec.model_type
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)  # SentencePiece.type
FAR_BELOW = 1e5  # what pieces that only the other side uses score less than all others


@dataclass(frozen=True)
class SentencePiece:
    pieces: list[tuple[str, float, int]]  # text, score, type
    model_type: int  # UNIGRAM or BPE
    charsmap: bytes  # rules of normalisation, compiled
    prefix: bool  # a space before every text
    tidy: bool  # spaces around a text and double ones inside are taken out

    @property
    def unknown(self) -> int:
        return next(number for number, (_, _, kind) in enumerate(self.pieces) if kind == UNKNOWN)

    def scores(self) -> dict[str, float]:
        """Of each piece; those of a user always win, by the library's own rule."""
        best = max((score for _, score, kind in self.pieces if kind == NORMAL), default=0.0)
        return {piece: len(piece) * best - 0.1 if kind == USER else score for piece, score, kind in self.pieces}


def read_sentencepiece(path: Path) -> SentencePiece:
    """What a .model or .spm file says."""
    try:
        top = _fields(path.read_bytes())
        pieces = [_piece(content) for content in top.get(1, [])]
        trainer, rules = (_fields(top[number][0]) if number in top else {} for number in (2, 3))
        if not any(kind == UNKNOWN for _, _, kind in pieces):
            raise ValueError("no piece for unknown text")
    except (ValueError, IndexError, TypeError, struct.error) as error:
        raise SaccadeError(f"{path} is not a whole SentencePiece model ({error}); download it again") from None
    kind = _last(trainer, 3, UNIGRAM)
    plain = kind == UNIGRAM or (kind == BPE and all(of != USER for *_, of in pieces))
    if not plain or _last(trainer, 24, 0) or not _last(rules, 5, 1):
        raise SaccadeError(
            f"{path}: expected a SentencePiece model of type unigram, or bpe without pieces of a user, with spaces as "
            "▁ before words; take a tokenizer.json of it"
        )
    return SentencePiece(
        pieces, kind, _last(rules, 2, b""), prefix=bool(_last(rules, 3, 1)), tidy=bool(_last(rules, 4, 1))
    )


def to_tokenizer(read: SentencePiece, numbers: Mapping[str, int] | None = None) -> tokenizers.Tokenizer:
    """The same as a tokenizer, with the model's own numbers or with those given for every piece (of Marian)."""
    core = tokenizers.Tokenizer(_bpe(read) if read.model_type == BPE else _unigram(read, numbers))
    steps: list[Any] = [normalizers.Precompiled(read.charsmap)] if read.charsmap else []
    if read.tidy:
        steps += [normalizers.Replace(Regex(" +"), " "), normalizers.Strip()]
    if read.prefix:
        steps.append(normalizers.Prepend("▁"))
    core.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    ends = [decoders.Strip(" ", 1, 0)] if read.prefix else []
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ends])
    control = [piece for piece, _, kind in read.pieces if kind in (UNKNOWN, CONTROL)]
    known = control if numbers is None else [piece for piece in control if piece in numbers]
    core.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in known])
    return core


def _unigram(read: SentencePiece, numbers: Mapping[str, int] | None) -> models.Unigram:
    fallback = any(kind == BYTE for _, _, kind in read.pieces)
    unknown = read.pieces[read.unknown][0]
    own = read.scores()
    if numbers is None:
        return models.Unigram(list(own.items()), unk_id=read.unknown, byte_fallback=fallback)
    # No piece holds a letter that is not a piece itself, so that the score of unknown text, which the library derives
    # from the lowest one, decides nothing, and neither do pieces that are far below.
    low = min(own.values()) - FAR_BELOW
    ordered = sorted(numbers, key=numbers.__getitem__)
    return models.Unigram(
        [(piece, own.get(piece, low)) for piece in ordered], unk_id=numbers[unknown], byte_fallback=fallback
    )


def _bpe(read: SentencePiece) -> models.BPE:
    """Merges follow from the scores: the sooner a piece was made, the higher its score."""
    vocabulary = {piece: number for number, (piece, _, _) in enumerate(read.pieces)}
    found = []
    for number, (piece, score, kind) in enumerate(read.pieces):
        if kind == NORMAL:
            halves = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
            pairs = [(a, b) for a, b in halves if a in vocabulary and b in vocabulary]
            pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
            found += [(-score, number, pair) for pair in pairs]
    merges = [pair for *_, pair in sorted(found, key=lambda item: item[:2])]
    fallback = any(kind == BYTE for _, _, kind in read.pieces)
    unknown = read.pieces[read.unknown][0]
    return models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=fallback)


# ---- protocol buffers


def _piece(content: bytes) -> tuple[str, float, int]:
    fields = _fields(content)
    return fields[1][-1].decode(), struct.unpack("<f", _last(fields, 2, bytes(4)))[0], _last(fields, 3, NORMAL)


def _last(fields: Mapping[int, list[Any]], number: int, default: Any) -> Any:
    return fields[number][-1] if number in fields else default


def _fields(content: bytes) -> dict[int, list[Any]]:
    """The fields of a message by number: integers, or bytes for all else."""
    fields: dict[int, list[Any]] = {}
    for number, value in _walk(content):
        fields.setdefault(number, []).append(value)
    return fields


def _walk(content: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(content):
        tag, at = _integer(content, at)
        wire = tag & 7
        if wire == 0:
            value, at = _integer(content, at)
            yield tag >> 3, value
            continue
        if wire == 2:
            size, at = _integer(content, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"unknown kind of field at byte {at}")
        if at + size > len(content):
            raise ValueError(f"it ends inside a field, at byte {at}")
        yield tag >> 3, content[at : at + size]
        at += size


def _integer(content: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits in each byte, the lowest first."""
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
