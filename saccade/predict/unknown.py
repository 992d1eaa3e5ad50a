"""Unknown words of an output, each replaced by what the writer looked at when it wrote them (Luong et al. 2015).

That is the word of the source with the largest weight, or what a lexicon has for it. Weights are multiplied by how
likely an entry of the lexicon is: next to a rare word, of which it knows much, common ones are not meant.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from saccade.config.schema import Decoding
from saccade.data.tokenization.lexicon import Entry
from saccade.data.tokenization.tokenizers import UNKNOWN, Tokenizer, Tokenizers


def replacing(decoding: Decoding, target: Tokenizer) -> Decoding:
    """The same settings; a vocabulary that has pieces for every text leaves nothing to replace."""
    return decoding.model_copy(update={"replace_unknown": decoding.replace_unknown and not target.complete})


def replaced(
    ids: Sequence[int],
    alignment: Sequence[Sequence[float]],
    *,
    source: str,
    tokenizers: Tokenizers,
    lexicon: Mapping[str, Entry],
) -> str:
    """The text of an output, given what each of its tokens looked at."""
    if UNKNOWN not in ids:
        return tokenizers.target.decode(ids)
    read = tokenizers.source.core.encode(source, add_special_tokens=False)
    whole = tokenizers.source.core.pre_tokenizer is not None
    places = [place_of_word(source, read, at, whole=whole) for at in range(len(read))]  # END is none of them
    words = [source[begin:end] for begin, end in places]
    entries = [lexicon.get(word.lower(), Entry(word)) for word in words]
    apart = [begin == 0 or source[begin - 1].isspace() for begin, _ in places]
    chosen, first = [], len(tokenizers.source.begin)
    for token, weights in zip(ids, alignment, strict=True):
        if token == UNKNOWN:
            worth = [weight * entry.likely for weight, entry in zip(weights[first:], entries, strict=False)]
            most = worth.index(max(worth))
            chosen.append(" " * apart[most] + entries[most].word)
    return tokenizers.target.decode(ids, unknown=chosen)


def place_of_word(text: str, read: Any, at: int, *, whole: bool) -> tuple[int, int]:
    """Where the word of a token begins and ends in its text: all tokens of the word, if words are `whole` somewhere.

    A tokenizer without words, such as one of characters, has the token alone.
    """
    first, last = read.offsets[at]
    letter = first + len(text[first:last]) - len(text[first:last].lstrip())
    if whole:
        parts = [
            offsets for offsets, word in zip(read.offsets, read.word_ids, strict=True) if word == read.word_ids[at]
        ]
        first, last = parts[0][0], parts[-1][1]
    if letter >= last:  # nothing but spaces
        return first, last
    begin = next((i + 1 for i in range(letter, first - 1, -1) if text[i].isspace()), first)
    end = next((i for i in range(letter, last) if text[i].isspace()), last)
    return begin, end
