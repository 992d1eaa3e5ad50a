"""Special tokens of encoders: [CLS] before every text, [MASK] in place of masked text, and the sentinels of T5."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, processors

from saccade.config import schema
from saccade.data.tokenization.tokenizer import END, SPECIAL_TOKENS, START, UNKNOWN, Tokenizer
from saccade.errors import SaccadeError

CLS_TOKEN, MASK_TOKEN = "[CLS]", "[MASK]"  # of tokenizers that are trained here
SENTINEL_TOKEN = "<extra_id_{}>"  # as in the vocabularies of T5
MASK_TOKENS = (MASK_TOKEN, "<mask>")  # also of other tokenizers


def count_extra_tokens(settings: schema.Tokenizer) -> int:
    """Count the tokens that `add_extra_tokens` adds to a vocabulary."""
    return settings.cls_token + settings.mask_token


def add_extra_tokens(backend: tokenizers.Tokenizer, settings: schema.Tokenizer, *, lstrip: bool, rstrip: bool) -> None:
    """Add [MASK] and [CLS] to a tokenizer, if the settings ask for them; `lstrip`, `rstrip`: [MASK] includes spaces."""
    if settings.mask_token:
        backend.add_tokens([AddedToken(MASK_TOKEN, lstrip=lstrip, rstrip=rstrip, normalized=False)])
    if settings.cls_token:
        backend.add_special_tokens([AddedToken(CLS_TOKEN, special=True, normalized=False)])
        end = SPECIAL_TOKENS[END]
        backend.post_processor = processors.TemplateProcessing(
            single=[CLS_TOKEN, "$A", end], pair=[CLS_TOKEN, "$A", end, "$B", end],
            special_tokens=[(piece, backend.token_to_id(piece)) for piece in (CLS_TOKEN, end)],
        )  # fmt: skip


def add_start_token(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Add our START token to a foreign tokenizer, whose [CLS] or <s> is then the prefix of every text instead."""
    backend.add_special_tokens([AddedToken(SPECIAL_TOKENS[START], special=True, normalized=False)])
    return backend


def get_mask_id(tokenizer: Tokenizer) -> int:
    """Return the id of the mask token."""
    found = find_mask_id(tokenizer)
    if found is None:
        raise SaccadeError(
            f"the tokenizer has no mask token ({' or '.join(MASK_TOKENS)}); use one that has, or "
            "train one with tokenizer.mask_token = true"
        )
    return found


def find_mask_id(tokenizer: Tokenizer) -> int | None:
    vocabulary = tokenizer.backend.get_vocab()
    return next((tokenizer.library_ids.index(vocabulary[name]) for name in MASK_TOKENS if name in vocabulary), None)


def find_special_ranges(tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """Return the ids above UNKNOWN that are special tokens, as ranges (first, count)."""
    special = {token["id"] for token in tokenizer.settings["added_tokens"] if token["special"]}
    mask = find_mask_id(tokenizer)
    ids = [
        model_id
        for model_id, library_id in enumerate(tokenizer.library_ids)
        if model_id > UNKNOWN and (library_id in special or model_id == mask)
    ]
    ranges: list[tuple[int, int]] = []
    for token in ids:
        first, count = ranges[-1] if ranges else (-1, 0)
        if first + count == token:
            ranges[-1] = (first, count + 1)
        else:
            ranges.append((token, 1))
    return ranges
