"""What a model is given, and how that is named where it is shown: texts, unless a model of another kind says it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.config.schema import Decoding, Recipe
from saccade.data.tokenization.tokenizers import Tokenizer, Tokenizers
from saccade.errors import SaccadeError
from saccade.view.background import Background
from saccade.view.words import Groups

Tell = Callable[[str], None]  # says in one line what is wrong with a file that is left out


class Asked(NamedTuple):
    """How the outputs for some lines are wanted."""

    decoding: Decoding
    align: bool = False  # also what each token looked at
    scored: bool = True  # else 0 may stand in the place of scores
    generator: torch.Generator | None = None  # of samples
    first: int = 1  # the number of the first line, for messages


class Inputs:
    """From texts to rows of ids, and to the labels of what was read."""

    recipe: Recipe
    tokenizers: Tokenizers
    names_inputs = False  # whether outputs are shown with the name of what they are about: files

    fields: tuple[str, ...] = ()  # names of what is given together, where that is more than a text or a file

    def inputs(self, lines: Iterable[str], *, tell: Tell | None = None) -> Iterable[str]:
        """What is to be predicted, of what is given on a command line; `tell` is for files of folders."""
        return lines

    # ---- inside

    def _read(self, texts: Sequence[str], what: str, *, first: int = 1) -> list[Any]:
        """What a model reads of each text."""
        return self._encode(self.tokenizers.source, texts, what, first=first)

    def _source_labels(self, row: Sequence[int]) -> tuple[list[str], Groups]:
        """The names of what was read, one for each state, and which of them make up a word."""
        return self.tokenizers.source.labels(row), self.tokenizers.source.words(row)

    def _question_labels(self, row: Any) -> tuple[list[str], Groups]:
        """The same of a question that was read with it; none where there is none."""
        return [], []

    def _shown(self, address: str, weights: Tensor) -> Tensor:
        """What is shown of the weights (H, T, S) of a layer."""
        return weights

    def _called(self, source: str) -> str:
        """How what was read is called where it is shown: a text by itself."""
        return source

    def _background(self, row: Any) -> Background | None:
        """What lies behind the maps: a picture, where one was read."""
        return None

    def _encode(self, tokenizer: Tokenizer, texts: Sequence[str], what: str, *, first: int = 1) -> list[list[int]]:
        """Tokens and END; a text longer than what the model was trained on is refused by its number."""
        limit = self.recipe.data.max_length
        rows = tokenizer.encode_all(texts)
        for number, row in enumerate(rows, start=first):
            if len(row) > limit:
                raise SaccadeError(
                    f"{what} {number} has {len(row)} tokens, but the model was made for at most {limit} "
                    f"(data.max_length, <end> included); split or shorten it"
                )
        return rows
