"""Replace unknown words of an output by the source word with the largest attention weight (Luong et al. 2015).

A lexicon may give a translation of that word. Weights are multiplied by the probability of the lexicon entry: next to a
rare word, which has a reliable entry, common words are rarely meant.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from saccade.config.schema import Decoding
from saccade.data.tokenization.lexicon import LexiconEntry
from saccade.data.tokenization.tokenizers import UNKNOWN, Tokenizer, Tokenizers


def disable_if_complete(decoding: Decoding, target: Tokenizer) -> Decoding:
    """Return the settings with replace_unknown off if the target tokenizer can encode every text."""
    return decoding.model_copy(update={"replace_unknown": decoding.replace_unknown and not target.covers_all_text})


def replace_unknown_words(
    ids: Sequence[int],
    alignment: Sequence[Sequence[float]],
    *,
    source: str,
    tokenizers: Tokenizers,
    lexicon: Mapping[str, LexiconEntry],
) -> str:
    """Decode the ids of an output, with each unknown token replaced according to its attention weights."""
    if UNKNOWN not in ids:
        return tokenizers.target.decode(ids)
    encoding = tokenizers.source.backend.encode(source, add_special_tokens=False)
    merge_subwords = tokenizers.source.backend.pre_tokenizer is not None
    spans = [find_word_span(source, encoding, i, merge_subwords=merge_subwords) for i in range(len(encoding))]  # no END
    words = [source[begin:end] for begin, end in spans]
    entries = [lexicon.get(word.lower(), LexiconEntry(word)) for word in words]
    starts_word = [begin == 0 or source[begin - 1].isspace() for begin, _ in spans]
    replacements, first = [], len(tokenizers.source.prefix_ids)
    for token, weights in zip(ids, alignment, strict=True):
        if token == UNKNOWN:
            scores = [weight * entry.probability for weight, entry in zip(weights[first:], entries, strict=False)]
            best = scores.index(max(scores))
            replacements.append(" " * starts_word[best] + entries[best].word)
    return tokenizers.target.decode(ids, unknown=replacements)


def find_word_span(text: str, encoding: Any, index: int, *, merge_subwords: bool) -> tuple[int, int]:
    """Return the start and end in `text` of the word that token `index` belongs to.

    With `merge_subwords`, all tokens of the word are joined. A tokenizer without words, such as one of characters,
    gives the token alone.
    """
    first, last = encoding.offsets[index]
    letter = first + len(text[first:last]) - len(text[first:last].lstrip())
    if merge_subwords:
        parts = [
            offsets
            for offsets, word in zip(encoding.offsets, encoding.word_ids, strict=True)
            if word == encoding.word_ids[index]
        ]
        first, last = parts[0][0], parts[-1][1]
    if letter >= last:  # only spaces
        return first, last
    begin = next((i + 1 for i in range(letter, first - 1, -1) if text[i].isspace()), first)
    end = next((i for i in range(letter, last) if text[i].isspace()), last)
    return begin, end
