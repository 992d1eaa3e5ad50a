"""What all rungs stand on: the data, how it is scored, and the settings that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from saccade.config.schema import Corpus
from saccade.data.sources.pairs import read_pairs
from saccade.data.synthetic.embedded import LONGEST
from saccade.errors import SaccadeError
from saccade.ladder.rungs import settings_of

LETTERS = 20  # of the longest row, where nobody asks for another length
WORDS = 256  # tokens of the longest text of files
EXAMPLES, VALID, TEST = 20_000, 200, 1_000  # rows of letters


@dataclass(frozen=True)
class Ground:
    """The same for every rung."""

    size: str
    about: str  # the data, in words
    train: tuple[Corpus, ...]
    valid: tuple[Corpus, ...] | float
    test: tuple[tuple[str, str], ...]
    metric: str  # "letters" or "bleu"
    longest: int  # tokens of either side, <end> included
    settings: tuple[str, ...]

    @property
    def unit(self) -> str:
        """What lengths are counted in."""
        return "letters" if self.metric == "letters" else "words"

    def lengths(self) -> list[int]:
        """Of the sources of the test pairs."""
        return [len(source if self.unit == "letters" else source.split()) for source, _ in self.test]


def letters_ground(longest: int = LETTERS, *, size: str = "class") -> Ground:
    """Rows of 1 to `longest` letters to write backwards."""
    if not 1 <= longest <= LONGEST:
        raise SaccadeError(f"--length is the longest row of letters, from 1 to {LONGEST:,}, got {longest}")
    if size == "full":
        raise SaccadeError(
            "--size full is made for your own text: give --data SRC TGT, --valid SRC TGT, --test SRC TGT"
        )
    name = f"embedded:reverse-{longest}"
    return Ground(
        size=size,
        about=f"rows of 1 to {longest} random letters, to be written backwards",
        train=(Corpus(files=(name,), examples=EXAMPLES),),
        valid=(Corpus(files=(f"{name}-heldout",), examples=VALID),),
        test=tuple(read_pairs(Corpus(files=(f"{name}-test",), examples=TEST))),
        metric="letters",
        longest=longest + 1,
        settings=tuple(settings_of(size, "letters")),
    )


def files_ground(
    data: Sequence[Sequence[str]],
    valid: Sequence[Sequence[str]] | float | None,
    test: Sequence[Sequence[str]],
    *,
    size: str = "full",
) -> Ground:
    """The user's own text, scored by BLEU."""
    if not data or not valid or not test:
        raise SaccadeError("a ladder on your own text needs --data SRC TGT, --valid SRC TGT and --test SRC TGT")
    pairs = tuple(pair for corpus in _corpora(test) for pair in read_pairs(corpus))
    return Ground(
        size=size,
        about=f"trained on {_names(data)}, tested on {_names(test)}",
        train=_corpora(data),
        valid=valid if isinstance(valid, float) else _corpora(valid),
        test=pairs,
        metric="bleu",
        longest=WORDS,
        settings=tuple(settings_of(size, "files")),
    )


def _corpora(given: Sequence[Sequence[str]]) -> tuple[Corpus, ...]:
    return tuple(Corpus(files=tuple(files)) for files in given)


def _names(given: Sequence[Sequence[str]]) -> str:
    return " and ".join(" ".join(files) for files in given)
