"""Trace a search: the candidates kept and pruned at each step, and the most probable next tokens.

Inside `with trace_search() as tree:`, greedy search, beam search and sampling add their candidates to the tree.
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

MAX_LIKELY_TOKENS = 8  # next tokens listed with their probabilities at each step
MAX_PRUNED_CANDIDATES = 4  # pruned candidates recorded at each step


class Candidate(NamedTuple):
    """A hypothesis extended by one token."""

    id: int
    parent: int  # id of the candidate that it extends; 0 is the empty hypothesis
    token: int
    score: float  # log-probability of the whole hypothesis
    kept: bool


@dataclass
class SearchTree:
    """The candidates of each step of the search for one output, best first."""

    steps: list[list[Candidate]] = field(default_factory=list)
    # id of each kept hypothesis, by its tokens
    kept_ids: dict[tuple[int, ...], int] = field(default_factory=lambda: {(): 0})
    count: int = 0

    def add(
        self,
        sequences: Int[Tensor, "R t"],
        scores: Float[Tensor, "R V"],
        parents: Int[Tensor, " C"],
        tokens: Int[Tensor, " C"],
    ) -> None:
        """Add one step: sequences beginning with START, their scores with each next token, and the kept candidates."""
        kept = dict.fromkeys(zip(parents.tolist(), tokens.tolist(), strict=True), True)
        best = scores.flatten().topk(min(len(kept) + MAX_PRUNED_CANDIDATES, scores.numel())).indices.tolist()
        candidates = {divmod(position, scores.shape[1]): False for position in best} | kept
        rows = [tuple(row[1:]) for row in sequences.tolist()]
        scored = [(float(scores[position]), *position, is_kept) for position, is_kept in candidates.items()]
        step = []
        for score, row, token, is_kept in sorted(scored, key=lambda item: -item[0]):
            if score == -torch.inf or rows[row] not in self.kept_ids:  # forbidden, or after END
                continue
            self.count += 1
            step.append(Candidate(self.count, self.kept_ids[rows[row]], token, score, is_kept))
            if is_kept:
                self.kept_ids[(*rows[row], token)] = self.count
        self.steps.append(step)


# By thread, because a server answers several requests concurrently.
_trees: dict[int, SearchTree] = {}


@contextmanager
def trace_search() -> Iterator[SearchTree]:
    """Yield a tree that the next search in this thread fills; the search must be for one input."""
    thread, tree = threading.get_ident(), SearchTree()
    _trees[thread] = tree
    try:
        yield tree
    finally:
        del _trees[thread]


def is_tracing() -> bool:
    """Return whether a search in this thread is traced."""
    return bool(_trees) and threading.get_ident() in _trees


def restart_trace() -> None:
    """Forget the steps of the search so far: its output is replaced by that of another search."""
    if is_tracing():
        tree, empty = _trees[threading.get_ident()], SearchTree()
        tree.steps, tree.kept_ids, tree.count = empty.steps, empty.kept_ids, empty.count


def record_step(sequences: Tensor, scores: Tensor, parents: Tensor, tokens: Tensor) -> None:
    """Add one step to the tree of this thread, see `SearchTree.add`."""
    _trees[threading.get_ident()].add(sequences, scores, parents.flatten(), tokens.flatten())


def describe_steps(
    log_probs: Float[Tensor, "T V"],
    ids: Sequence[int],
    tokenizer: Tokenizer,
    tree: SearchTree | None,
    *,
    search_start: int = 0,
) -> list[dict[str, Any]]:
    """Describe each token of an output for JSON: its probability, likely alternatives, candidates of the search.

    Probabilities are the model's own, regardless of rules. The search began at token `search_start`; candidates beyond
    the end of the output are omitted.
    """
    searched = [] if tree is None else [[] for _ in range(search_start)] + tree.steps
    values, tokens = log_probs.topk(min(MAX_LIKELY_TOKENS, log_probs.shape[1]))
    steps = []
    for index, token in enumerate(ids):
        likely = zip(tokenizer.convert_ids_to_tokens(tokens[index].tolist()), values[index].exp().tolist(), strict=True)
        steps.append(
            {
                "token": tokenizer.convert_ids_to_tokens([token])[0],
                "log_prob": round(float(log_probs[index, token]), 6),
                "next": [{"token": label, "prob": round(prob, 6)} for label, prob in likely],
                "beam": [_describe_candidate(item, tokenizer) for item in searched[index]]
                if index < len(searched)
                else [],
            }
        )
    return steps


def _describe_candidate(item: Candidate, tokenizer: Tokenizer) -> dict[str, Any]:
    return {**item._asdict(), "token": tokenizer.convert_ids_to_tokens([item.token])[0], "score": round(item.score, 6)}
