"""The data that all rungs share, its metric, and the settings that depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from saccade.config.schema import Corpus
from saccade.data.sources.pairs import read_pairs
from saccade.data.synthetic.embedded import MAX_LETTERS
from saccade.errors import SaccadeError
from saccade.ladder.rungs import get_settings

DEFAULT_LETTERS = 20  # default maximum length of a row
MAX_FILE_TOKENS = 256  # maximum length of a sequence from files
TRAIN_ROWS, VALID_ROWS, TEST_ROWS = 20_000, 200, 1_000  # generated rows of letters


@dataclass(frozen=True)
class LadderData:
    """Training, validation and test data of all rungs."""

    size: str
    about: str  # description for the report
    train: tuple[Corpus, ...]
    valid: tuple[Corpus, ...] | float
    test: tuple[tuple[str, str], ...]
    metric: str  # "letters" or "bleu"
    max_length: int  # tokens of source or target, with <end>
    settings: tuple[str, ...]

    @property
    def unit(self) -> str:
        """The unit of lengths."""
        return "letters" if self.metric == "letters" else "words"

    def count_lengths(self) -> list[int]:
        """Return the lengths of the test sources."""
        return [len(source if self.unit == "letters" else source.split()) for source, _ in self.test]


def build_letters_data(max_letters: int = DEFAULT_LETTERS, *, size: str = "class") -> LadderData:
    """Build data of the task to reverse rows of 1 to `max_letters` random letters."""
    if not 1 <= max_letters <= MAX_LETTERS:
        raise SaccadeError(
            f"--length is the maximum row length in letters, from 1 to {MAX_LETTERS:,}, got {max_letters}"
        )
    if size == "full":
        raise SaccadeError("--size full is for your own text: give --data SRC TGT, --valid SRC TGT, --test SRC TGT")
    name = f"embedded:reverse-{max_letters}"
    return LadderData(
        size=size,
        about=f"rows of 1 to {max_letters} random letters, to be reversed",
        train=(Corpus(files=(name,), examples=TRAIN_ROWS),),
        valid=(Corpus(files=(f"{name}-heldout",), examples=VALID_ROWS),),
        test=tuple(read_pairs(Corpus(files=(f"{name}-test",), examples=TEST_ROWS))),
        metric="letters",
        max_length=max_letters + 1,
        settings=tuple(get_settings(size, "letters")),
    )


def build_files_data(
    data: Sequence[Sequence[str]],
    valid: Sequence[Sequence[str]] | float | None,
    test: Sequence[Sequence[str]],
    *,
    size: str = "full",
) -> LadderData:
    """Build data from the user's files, scored with BLEU."""
    if not data or not valid or not test:
        raise SaccadeError("a ladder on your own text needs --data SRC TGT, --valid SRC TGT and --test SRC TGT")
    pairs = tuple(pair for corpus in _build_corpora(test) for pair in read_pairs(corpus))
    return LadderData(
        size=size,
        about=f"trained on {_format_names(data)}, tested on {_format_names(test)}",
        train=_build_corpora(data),
        valid=valid if isinstance(valid, float) else _build_corpora(valid),
        test=pairs,
        metric="bleu",
        max_length=MAX_FILE_TOKENS,
        settings=tuple(get_settings(size, "files")),
    )


def _build_corpora(given: Sequence[Sequence[str]]) -> tuple[Corpus, ...]:
    return tuple(Corpus(files=tuple(files)) for files in given)


def _format_names(given: Sequence[Sequence[str]]) -> str:
    return " and ".join(" ".join(files) for files in given)
