"""Pieces that an encoder needs beside those of text: one begins every text, and one stands for hidden text."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, processors

from saccade.config import schema
from saccade.data.tokenization.tokenizer import END, PIECES, START, UNKNOWN, Tokenizer
from saccade.errors import SaccadeError

BEGIN, MASK = "[CLS]", "[MASK]"  # of tokenizers that are learned here
SENTINEL = "<extra_id_{}>"  # as T5's vocabularies call them
MASKS = (MASK, "<mask>")  # what others call it


def extra_pieces(settings: schema.Tokenizer) -> int:
    """How many pieces of a vocabulary these take."""
    return settings.begin + settings.mask


def add_extra_pieces(core: tokenizers.Tokenizer, settings: schema.Tokenizer, *, lstrip: bool, rstrip: bool) -> None:
    """Adds them to a tokenizer that has all others; the mask takes the spaces before and behind it with it."""
    if settings.mask:
        core.add_tokens([AddedToken(MASK, lstrip=lstrip, rstrip=rstrip, normalized=False)])
    if settings.begin:
        core.add_special_tokens([AddedToken(BEGIN, special=True, normalized=False)])
        end = PIECES[END]
        core.post_processor = processors.TemplateProcessing(
            single=[BEGIN, "$A", end], pair=[BEGIN, "$A", end, "$B", end],
            special_tokens=[(piece, core.token_to_id(piece)) for piece in (BEGIN, end)],
        )  # fmt: skip


def with_beginning(core: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A tokenizer of others whose [CLS] or <s> begins every text, and is not the START of what is written."""
    core.add_special_tokens([AddedToken(PIECES[START], special=True, normalized=False)])
    return core


def mask_of(tokenizer: Tokenizer) -> int:
    """The id of the piece that stands for hidden text."""
    found = find_mask(tokenizer)
    if found is None:
        raise SaccadeError(
            f"the tokenizer has no piece that stands for hidden text ({' or '.join(MASKS)}); take one that has, or "
            "learn one with tokenizer.mask = true"
        )
    return found


def find_mask(tokenizer: Tokenizer) -> int | None:
    vocabulary = tokenizer.core.get_vocab()
    return next((tokenizer.order.index(vocabulary[name]) for name in MASKS if name in vocabulary), None)


def special_runs(tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """The ids above UNKNOWN that are no text, as runs: the first of each, and how many there are."""
    added = {piece["id"] for piece in tokenizer.settings["added_tokens"] if piece["special"]}
    mask = find_mask(tokenizer)
    ids = [ours for ours, theirs in enumerate(tokenizer.order) if ours > UNKNOWN and (theirs in added or ours == mask)]
    runs: list[tuple[int, int]] = []
    for number in ids:
        first, count = runs[-1] if runs else (-1, 0)
        if first + count == number:
            runs[-1] = (first, count + 1)
        else:
            runs.append((number, 1))
    return runs
