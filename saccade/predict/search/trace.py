"""How an output was found: the candidates that a search kept and dropped at each step, and what was likely next.

Inside `with listening() as tree:` greedy search, beams and sampling leave their candidates with the tree. They are the
searches that predict, as they are.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.data.tokenization.tokenizers import Tokenizer

LIKELY = 8  # tokens that are shown with their probabilities
DROPPED = 4  # candidates that are shown beside those which were kept


class Candidate(NamedTuple):
    """One more token behind a hypothesis."""

    id: int
    parent: int  # the candidate that it goes on from; 0 is the beginning
    token: int
    score: float  # the log-probability of all its tokens
    kept: bool


@dataclass
class Tree:
    """The candidates of each step of the search for one output, best first."""

    steps: list[list[Candidate]] = field(default_factory=list)
    numbers: dict[tuple[int, ...], int] = field(default_factory=lambda: {(): 0})  # of what was kept, by its tokens
    count: int = 0

    def add(
        self,
        written: Int[Tensor, "R t"],
        scores: Float[Tensor, "R V"],
        parents: Int[Tensor, " C"],
        tokens: Int[Tensor, " C"],
    ) -> None:
        """One step: what stands in each row, what it would score with each token, and which of these were kept."""
        kept = dict.fromkeys(zip(parents.tolist(), tokens.tolist(), strict=True), True)
        best = scores.flatten().topk(min(len(kept) + DROPPED, scores.numel())).indices.tolist()
        every = {divmod(place, scores.shape[1]): False for place in best} | kept
        rows = [tuple(row[1:]) for row in written.tolist()]
        found = [(float(scores[place]), *place, stays) for place, stays in every.items()]
        step = []
        for score, row, token, stays in sorted(found, key=lambda item: -item[0]):
            if score == -torch.inf or rows[row] not in self.numbers:  # forbidden, or behind END
                continue
            self.count += 1
            step.append(Candidate(self.count, self.numbers[rows[row]], token, score, stays))
            if stays:
                self.numbers[(*rows[row], token)] = self.count
        self.steps.append(step)


# By thread, as a server answers several requests at once.
_trees: dict[int, Tree] = {}


@contextmanager
def listening() -> Iterator[Tree]:
    """Yields a tree that is filled by the next search in this thread, which must be for one text."""
    me, tree = threading.get_ident(), Tree()
    _trees[me] = tree
    try:
        yield tree
    finally:
        del _trees[me]


def listened() -> bool:
    """Whether somebody is listening in this thread."""
    return bool(_trees) and threading.get_ident() in _trees


def tell(written: Tensor, scores: Tensor, parents: Tensor, tokens: Tensor) -> None:
    """One step for whoever is listening, see `Tree.add`."""
    _trees[threading.get_ident()].add(written, scores, parents.flatten(), tokens.flatten())


def described(
    log_probs: Float[Tensor, "T V"], ids: Sequence[int], tokenizer: Tokenizer, tree: Tree | None, *, first: int = 0
) -> list[dict[str, Any]]:
    """Each token of an output, how likely it and others were, and the candidates of the search, where there was one.

    Probabilities are those of the model, whatever rules the search was under. The search began at token `first`; what
    it tried beyond the length of the output is left out.
    """
    searched = [] if tree is None else [[] for _ in range(first)] + tree.steps
    values, tokens = log_probs.topk(min(LIKELY, log_probs.shape[1]))
    steps = []
    for at, token in enumerate(ids):
        likely = zip(tokenizer.labels(tokens[at].tolist()), values[at].exp().tolist(), strict=True)
        steps.append(
            {
                "token": tokenizer.labels([token])[0],
                "log_prob": round(float(log_probs[at, token]), 6),
                "next": [{"token": label, "prob": round(prob, 6)} for label, prob in likely],
                "beam": [_named(item, tokenizer) for item in searched[at]] if at < len(searched) else [],
            }
        )
    return steps


def _named(item: Candidate, tokenizer: Tokenizer) -> dict[str, Any]:
    return {**item._asdict(), "token": tokenizer.labels([item.token])[0], "score": round(item.score, 6)}
