"""Convert SentencePiece models (Kudo and Richardson 2018) to tokenizers of the `tokenizers` library, with the same ids.

The files are protocol buffers; only the fields that affect tokenization are read.
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
UNUSED_PENALTY = 1e5  # how far the score of tokens that only the other language uses lies below all others


@dataclass(frozen=True)
class SentencePiece:
    pieces: list[tuple[str, float, int]]  # token, score, type
    model_type: int  # UNIGRAM or BPE
    charsmap: bytes  # compiled normalization rules (normalizer_spec.precompiled_charsmap)
    add_dummy_prefix: bool  # prepend a space to every text
    remove_extra_whitespaces: bool  # strip a text and collapse repeated spaces

    @property
    def unknown_id(self) -> int:
        return next(index for index, (_, _, kind) in enumerate(self.pieces) if kind == UNKNOWN)

    def compute_scores(self) -> dict[str, float]:
        """Return the score of each token; the library's formula makes user-defined tokens always win."""
        best = max((score for _, score, kind in self.pieces if kind == NORMAL), default=0.0)
        return {piece: len(piece) * best - 0.1 if kind == USER else score for piece, score, kind in self.pieces}


def read_sentencepiece(path: Path) -> SentencePiece:
    """Read a .model or .spm file."""
    try:
        top = _parse_fields(path.read_bytes())
        pieces = [_parse_piece(content) for content in top.get(1, [])]
        trainer, rules = (_parse_fields(top[number][0]) if number in top else {} for number in (2, 3))
        if not any(kind == UNKNOWN for _, _, kind in pieces):
            raise ValueError("no unknown token")
    except (ValueError, IndexError, TypeError, struct.error) as error:
        raise SaccadeError(f"{path} is not a complete SentencePiece model ({error}); download it again") from None
    kind = _get_last(trainer, 3, UNIGRAM)
    is_supported = kind == UNIGRAM or (kind == BPE and all(piece_type != USER for *_, piece_type in pieces))
    if not is_supported or _get_last(trainer, 24, 0) or not _get_last(rules, 5, 1):
        raise SaccadeError(
            f"{path}: expected a SentencePiece model of type unigram, or bpe without user-defined tokens, with spaces "
            "as ▁ before words; use the tokenizer.json of the model"
        )
    return SentencePiece(
        pieces,
        kind,
        _get_last(rules, 2, b""),
        add_dummy_prefix=bool(_get_last(rules, 3, 1)),
        remove_extra_whitespaces=bool(_get_last(rules, 4, 1)),
    )


def to_tokenizer(model: SentencePiece, ids: Mapping[str, int] | None = None) -> tokenizers.Tokenizer:
    """Build the tokenizer, with the model's own ids, or with the ids given for every token (Marian's vocab.json)."""
    core = tokenizers.Tokenizer(_build_bpe(model) if model.model_type == BPE else _build_unigram(model, ids))
    steps: list[Any] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(" +"), " "), normalizers.Strip()]
    if model.add_dummy_prefix:
        steps.append(normalizers.Prepend("▁"))
    core.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    ends = [decoders.Strip(" ", 1, 0)] if model.add_dummy_prefix else []
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ends])
    control = [piece for piece, _, kind in model.pieces if kind in (UNKNOWN, CONTROL)]
    known = control if ids is None else [piece for piece in control if piece in ids]
    core.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in known])
    return core


def _build_unigram(model: SentencePiece, ids: Mapping[str, int] | None) -> models.Unigram:
    fallback = any(kind == BYTE for _, _, kind in model.pieces)
    unknown = model.pieces[model.unknown_id][0]
    own = model.compute_scores()
    if ids is None:
        return models.Unigram(list(own.items()), unk_id=model.unknown_id, byte_fallback=fallback)
    # Every character of a token is a token itself. Therefore the score of unknown text, which the library derives from
    # the lowest score, never changes a segmentation, and neither do tokens with a far lower score.
    low = min(own.values()) - UNUSED_PENALTY
    ordered = sorted(ids, key=ids.__getitem__)
    return models.Unigram(
        [(piece, own.get(piece, low)) for piece in ordered], unk_id=ids[unknown], byte_fallback=fallback
    )


def _build_bpe(model: SentencePiece) -> models.BPE:
    """Reconstruct the merges from the scores: the earlier a token was merged, the higher its score."""
    vocabulary = {piece: index for index, (piece, _, _) in enumerate(model.pieces)}
    found = []
    for index, (piece, score, kind) in enumerate(model.pieces):
        if kind == NORMAL:
            halves = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
            pairs = [(a, b) for a, b in halves if a in vocabulary and b in vocabulary]
            pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
            found += [(-score, index, pair) for pair in pairs]
    merges = [pair for *_, pair in sorted(found, key=lambda item: item[:2])]
    fallback = any(kind == BYTE for _, _, kind in model.pieces)
    unknown = model.pieces[model.unknown_id][0]
    return models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=fallback)


# ---- protocol buffers


def _parse_piece(content: bytes) -> tuple[str, float, int]:
    fields = _parse_fields(content)
    return fields[1][-1].decode(), struct.unpack("<f", _get_last(fields, 2, bytes(4)))[0], _get_last(fields, 3, NORMAL)


def _get_last(fields: Mapping[int, list[Any]], number: int, default: Any) -> Any:
    return fields[number][-1] if number in fields else default


def _parse_fields(content: bytes) -> dict[int, list[Any]]:
    """Return the values of each field number of a message: integers for varints, bytes for all other types."""
    fields: dict[int, list[Any]] = {}
    for number, value in _iterate_fields(content):
        fields.setdefault(number, []).append(value)
    return fields


def _iterate_fields(content: bytes) -> Iterator[tuple[int, Any]]:
    offset = 0
    while offset < len(content):
        tag, offset = _parse_varint(content, offset)
        wire = tag & 7
        if wire == 0:
            value, offset = _parse_varint(content, offset)
            yield tag >> 3, value
            continue
        if wire == 2:
            size, offset = _parse_varint(content, offset)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"unknown field type at byte {offset}")
        if offset + size > len(content):
            raise ValueError(f"it ends inside a field, at byte {offset}")
        yield tag >> 3, content[offset : offset + size]
        offset += size


def _parse_varint(content: bytes, offset: int) -> tuple[int, int]:
    """Decode a varint (seven bits per byte, lowest first); return it and the offset behind it."""
    value = shift = 0
    while True:
        byte = content[offset]
        value |= (byte & 127) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 128:
            return value, offset
