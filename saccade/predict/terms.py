"""Terminology constraints: which phrases the output for an input must contain, as text and as tokens."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from saccade.config.decoding import DecodingSettings, Term
from saccade.config.load import change_decoding
from saccade.config.schema import Decoding, Recipe
from saccade.data.sources.lines import iter_lines, open_file
from saccade.data.tokenization.tokenizers import START, UNKNOWN, Tokenizer
from saccade.errors import SaccadeError
from saccade.predict.outputs import Hypothesis
from saccade.predict.search.constraints import Phrase, PhraseAutomaton

ANCHOR = "x"  # a word before a phrase, so that the phrase is tokenized as in the middle of a sentence
# Scripts that are written without spaces between words, by the beginning of the Unicode names of their characters.
SCRIPTS_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")


def read_terms(path: str | Path, tokenizer: Tokenizer | None = None) -> tuple[Term, ...]:
    """Read a file with a source phrase, a tab and a target phrase on each line; empty lines are skipped.

    With the tokenizer of the outputs, a phrase that it cannot encode is refused.
    """
    terms = []
    with open_file(Path(path)) as file:
        for number, line in iter_lines(file, str(path)):
            source, tab, target = line.partition("\t")
            if line.strip() and (not tab or not target.strip() or "\t" in target):
                raise SaccadeError(
                    f"{path}:{number}: expected a source phrase, one tab and a target phrase, got {line[:60]!r}"
                )
            if line.strip():
                terms.append((source.strip(), target.strip()))
                if tokenizer is not None:
                    _check_phrase(tokenizer, target.strip(), f"{path}:{number}")
    if not terms:
        raise SaccadeError(f"{path} has no terms; expected lines with a source phrase, a tab and a target phrase")
    return tuple(terms)


def _check_phrase(tokenizer: Tokenizer, phrase: str, place: str) -> None:
    try:
        encode_phrases(tokenizer, [phrase])
    except SaccadeError as error:
        raise SaccadeError(f"{place}: {error}; use other words or remove the term") from None


def choose_decoding(recipe: Recipe, decoding: Decoding | None, settings: DecodingSettings) -> Decoding:
    """Return the decoding settings of a recipe, or the given ones, with single settings changed and terms added."""
    chosen, terms = decoding or recipe.predict, settings.get("terms", ())
    others = {key: value for key, value in settings.items() if key != "terms"}
    if others:
        chosen = change_decoding(recipe.model_copy(update={"predict": chosen}), others)
    return add_terms(chosen, terms, recipe)


def add_terms(decoding: Decoding, terms: Sequence[Term], recipe: Recipe) -> Decoding:
    """Return the settings with these terms besides their own; refuse terms that the run cannot decode with."""
    if not terms:
        return decoding
    try:
        changed = Decoding.model_validate({**dict(decoding), "terms": [*decoding.terms, *terms]})
    except ValueError as error:  # of pydantic, with several lines
        message = "; ".join(str(item.get("ctx", {}).get("error", item["msg"])) for item in error.errors())  # type: ignore[attr-defined]
        raise SaccadeError(message) from None
    if conflict := changed.find_conflict(recipe):
        raise SaccadeError(conflict)
    return changed


def select_terms(terms: Sequence[Term], text: str) -> list[str]:
    """Return the target phrases of the terms that apply to an input, each once."""
    return list(dict.fromkeys(target for source, target in terms if contains_phrase(text, source)))


def contains_phrase(text: str, phrase: str) -> bool:
    """Whether a phrase occurs in a text as whole words, case-sensitive: "cat" does not occur in "concatenate"."""
    start = text.find(phrase)
    while start >= 0:
        end = start + len(phrase)
        if not _joins_word(text[start - 1 : start] + phrase[:1]) and not _joins_word(phrase[-1:] + text[end : end + 1]):
            return True
        start = text.find(phrase, start + 1)
    return False


def _joins_word(characters: str) -> bool:
    """Whether two adjacent characters belong to one word."""
    return len(characters) == 2 and all(one.isalnum() or one == "_" for one in characters)


def encode_phrases(tokenizer: Tokenizer, phrases: Sequence[str]) -> dict[str, Phrase]:
    """Return the token sequences of each phrase: after another word, and at the start of an output.

    A phrase that may follow a word without a space (punctuation, or a script without spaces) has a third form. In a
    vocabulary without a space, it has one form.
    """
    if not phrases:
        return {}
    [anchor] = tokenizer.encode_all([ANCHOR])
    first = tokenizer.encode_all(phrases)
    after = tokenizer.encode_all([f"{ANCHOR} {phrase}" for phrase in phrases])
    encoded = {}
    for phrase, start, inside in zip(phrases, first, after, strict=True):
        bare = tuple(start[len(tokenizer.prefix_ids) : -1])
        spaced = tuple(inside[len(anchor) - 1 : -1])
        if inside[: len(anchor) - 1] != anchor[:-1] or min(spaced, default=UNKNOWN) <= UNKNOWN:
            spaced = bare
        if min(bare, default=UNKNOWN) <= UNKNOWN:
            raise SaccadeError(f"the target phrase {phrase!r} has letters or words that the model does not know")
        variants = {spaced, (START, *tokenizer.prefix_ids, *bare), *([bare] if _needs_no_space(phrase) else [])}
        encoded[phrase] = tuple(sorted(variants))
    return encoded


def _needs_no_space(phrase: str) -> bool:
    character = phrase[0]
    return not character.isalnum() or unicodedata.name(character, "").startswith(SCRIPTS_WITHOUT_SPACES)


class PhraseCheck(NamedTuple):
    """The phrases that the output for one input must contain."""

    phrases: Sequence[str]
    encoded: Mapping[str, Phrase]

    @property
    def token_sequences(self) -> list[Phrase]:
        return [self.encoded[phrase] for phrase in self.phrases]

    def mark(self, output: Hypothesis) -> Hypothesis:
        """Return the output with the phrases that it contains neither as tokens nor as whole words."""
        found = PhraseAutomaton(self.token_sequences).follow(output.ids).found
        missing = [
            phrase
            for number, phrase in enumerate(self.phrases)
            if number not in found and not contains_phrase(output.text, phrase)
        ]
        return replace(output, missing_terms=tuple(missing))


def merge_hypotheses(outputs: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Return each output once: those with the fewest missing phrases first, then by score."""
    distinct = {tuple(item.ids): item for item in outputs}.values()
    return sorted(distinct, key=lambda item: (len(item.missing_terms), -item.score, len(item.ids), item.ids))
