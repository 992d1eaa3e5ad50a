"""Lexically constrained beam search: outputs contain given phrases (Hokamp and Liu 2017; Post and Vilar 2018).

An automaton for each sentence follows which phrases an output contains, and how much of another one its last tokens
are. A rule forbids END before all of them are there, and from the step on at which the length limit leaves space for
nothing else, all other tokens too. The candidates of a step are chosen by dynamic beam allocation: they are divided
into banks by the number of tokens of phrases that they have, and all banks get an equal share of the beam.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.data.tokenization.tokenizers import END, START
from saccade.kernels.cpu.search_steps import TopCandidates

# Token sequences, any of which is the phrase; one that begins with START is the phrase at the start of an output.
Phrase = tuple[tuple[int, ...], ...]


class Progress(NamedTuple):
    """What an output has of the phrases: those that it contains, and the node of its last tokens."""

    found: frozenset[int]
    node: int


class Candidate(NamedTuple):
    """A row of the beam and its next token; ordered by negative log-probability, then row, then token."""

    cost: float
    row: int
    token: int


class PhraseAutomaton:
    """Finds several phrases in an output, token by token (Aho and Corasick 1975).

    A node stands for the beginning of one or several phrases; node 0 for none. Every phrase has a token sequence that
    does not begin with START, so that it can be output at any position.
    """

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        self.phrases = phrases
        self.lengths = [min(len(ids) for ids in phrase if ids[0] != START) for phrase in phrases]
        self.children: list[dict[int, int]] = [{}]
        self.completes: list[set[int]] = [set()]  # phrases that end at each node
        self.remaining: list[dict[int, int]] = [{}]  # by phrase, the number of tokens that are missing at each node
        for number, phrase in enumerate(phrases):
            for ids in phrase:
                self._insert(number, ids)
        self.suffixes = [0] * len(self.children)  # the node of the longest proper suffix
        self._link_suffixes()
        # the progress of outputs that were followed
        self.known: dict[tuple[int, ...], Progress] = {(): self.advance(Progress(frozenset(), 0), START)}

    def _insert(self, number: int, ids: Sequence[int]) -> None:
        node = 0
        for depth, token in enumerate(ids, 1):
            if token not in self.children[node]:
                self.children[node][token] = len(self.children)
                self.children.append({})
                self.completes.append(set())
                self.remaining.append({})
            node = self.children[node][token]
            missing = len(ids) - depth
            self.remaining[node][number] = min(missing, self.remaining[node].get(number, missing))
        self.completes[node].add(number)

    def _link_suffixes(self) -> None:
        """Find the suffix of each node, shorter nodes first, and let it inherit what its suffix is the beginning of."""
        queue = list(self.children[0].values())
        for node in queue:
            for token, child in self.children[node].items():
                self.suffixes[child] = self._step(self.suffixes[node], token)
                queue.append(child)
            suffix = self.suffixes[node]
            self.completes[node] |= self.completes[suffix]
            for number, missing in self.remaining[suffix].items():
                self.remaining[node][number] = min(missing, self.remaining[node].get(number, missing))

    def _step(self, node: int, token: int) -> int:
        while node and token not in self.children[node]:
            node = self.suffixes[node]
        return self.children[node].get(token, 0)

    @property
    def start(self) -> Progress:
        """The progress of an empty output."""
        return self.known[()]

    def advance(self, progress: Progress, token: int) -> Progress:
        node = self._step(progress.node, token)
        completed = self.completes[node]
        return Progress(progress.found | completed if completed else progress.found, node)

    def follow(self, ids: Sequence[int]) -> Progress:
        """Return the progress of an output without START; a search asks for one token more at each step."""
        output = tuple(ids)
        if output not in self.known:
            before = self.known.get(output[:-1])
            progress, tokens = (self.start, output) if before is None else (before, output[-1:])
            for token in tokens:
                progress = self.advance(progress, token)
            self.known[output] = progress
        return self.known[output]

    def count_without_progress(self, progress: Progress) -> int:
        """Return how many tokens the missing phrases need if none of them has begun."""
        return sum(length for number, length in enumerate(self.lengths) if number not in progress.found)

    def count_missing(self, progress: Progress) -> int:
        """Return how many tokens are sufficient to complete all phrases: one may have begun, others follow it.

        Fewer may do where missing phrases overlap each other.
        """
        savings = (
            self.lengths[number] - missing
            for number, missing in self.remaining[progress.node].items()
            if number not in progress.found
        )
        return self.count_without_progress(progress) - max([0, *savings])

    def list_first_tokens(self) -> set[int]:
        """Return the tokens that begin a phrase at the start of an output, in its form for the start if it has one."""
        node = self.start.node
        others = {number for number in range(len(self.phrases)) if number not in self.remaining[node]}
        inside = {token for token, child in self.children[0].items() if self.remaining[child].keys() & others}
        return inside - {START} | ({*self.children[node]} if node else set())

    def list_next_tokens(self, progress: Progress) -> set[int]:
        """Return the tokens that begin or continue a missing phrase."""
        tokens, node = set[int](), progress.node
        while True:
            for token, child in self.children[node].items():
                if self.remaining[child].keys() - progress.found and token != START:
                    tokens.add(token)
            if not node:
                return tokens
            node = self.suffixes[node]


@dataclass(frozen=True)
class PhraseConstraints:
    """The phrases of each sentence: a rule on the next token, and the choice of candidates."""

    automata: Sequence[PhraseAutomaton]
    limits: Sequence[int]  # maximum number of tokens of each output, END not counted

    @classmethod
    def build(
        cls, phrases: Sequence[Sequence[Phrase]], limits: Sequence[int], prefix: Sequence[int]
    ) -> "PhraseConstraints":
        """Build the constraints; phrases for which the limit of a sentence has no space after others are left out."""
        automata = []
        for of_sentence, limit in zip(phrases, limits, strict=True):
            automaton = PhraseAutomaton(of_sentence)
            if automaton.count_missing(automaton.follow(prefix)) > limit - len(prefix):
                automaton = PhraseAutomaton([])
                for phrase in of_sentence:
                    longer = PhraseAutomaton([*automaton.phrases, phrase])
                    if longer.count_missing(longer.follow(prefix)) <= limit - len(prefix):
                        automaton = longer
            automata.append(automaton)
        return cls(automata, limits)

    def rule(self, allowed: Tensor, sequences: Tensor, sentence_ids: Tensor) -> Tensor:
        """Forbid END, and where the limit is near, everything but phrases: regardless of the rules before this one."""
        allowed = allowed.expand(sequences.shape[0], -1).clone()
        rows = zip(sentence_ids.tolist(), sequences[:, 1:].tolist(), strict=True)
        for row, (sentence, ids) in enumerate(rows):
            automaton, space = self.automata[sentence], self.limits[sentence] - len(ids)
            progress = automaton.follow(ids)
            needed = automaton.count_without_progress(progress)
            if needed:
                allowed[row, END] = False
            if space <= needed and needed:
                possible = [
                    token
                    for token in automaton.list_next_tokens(progress)
                    if automaton.count_missing(automaton.advance(progress, token)) < space
                ]
                if possible:
                    allowed[row] = False
                    allowed[row, possible] = True
        return allowed

    def select(
        self,
        log_probs: Float[Tensor, "R V"],
        scores: Float[Tensor, "N k"],
        sequences: Int[Tensor, "R t"],
        sentences: Int[Tensor, " N"],
        best: TopCandidates,
    ) -> TopCandidates:
        """Replace the best candidates of each sentence by as many from all banks.

        The candidates are the best ones, the best continuation of each row, and each row with all tokens that begin or
        continue one of its phrases (Post and Vilar 2018, section 3.1).
        """
        k, width, outputs = scores.shape[1], best[0].shape[1], sequences[:, 1:].tolist()
        is_live, greedy = (scores > -torch.inf).flatten().tolist(), log_probs.argmax(1).tolist()
        chosen: list[list[Candidate]] = []
        for n, sentence in enumerate(sentences.tolist()):
            automaton = self.automata[sentence]
            progress = {row: automaton.follow(outputs[row]) for row in range(n * k, (n + 1) * k) if is_live[row]}
            pairs = {
                (row, token)
                for row, at in progress.items()
                for token in (automaton.list_next_tokens(at) if outputs[row] else automaton.list_first_tokens())
            }
            pairs |= {(row, greedy[row]) for row in progress}
            pairs |= {pair for pair in zip(best[1][n].tolist(), best[2][n].tolist(), strict=True) if is_live[pair[0]]}
            rows, tokens = (list(column) for column in zip(*pairs, strict=True))
            values = (log_probs[rows, tokens] + scores.flatten()[rows]).tolist()
            banks = defaultdict[int, list[Candidate]](list)
            for value, row, token in zip(values, rows, tokens, strict=True):
                if value > -torch.inf:
                    missing = automaton.count_missing(automaton.advance(progress[row], token))
                    banks[missing].append(Candidate(-value, row, token))
            kept = allocate_beam(banks, width)
            # Rows without a finite score are never continued; they fill the places that remain.
            chosen.append(kept + [Candidate(torch.inf, n * k, END)] * (width - len(kept)))
        table = torch.tensor(chosen, dtype=torch.float64, device=log_probs.device)
        negative, parents, next_tokens = table.unbind(-1)
        return -negative.to(scores.dtype), parents.long(), next_tokens.long()


def allocate_beam(banks: Mapping[int, list[Candidate]], width: int) -> list[Candidate]:
    """Choose up to `width` candidates, best first, from banks by the number of missing tokens.

    They are the best one of all, then the best one of each bank, then the second of each, and so on. Where there are
    more banks than places, those with the fewest missing tokens are taken.
    """
    ranked = [(rank, missing, item) for missing, bank in banks.items() for rank, item in enumerate(sorted(bank))]
    ordered = [item for _, _, item in sorted(ranked)]
    distinct = dict.fromkeys([min(ordered), *ordered] if ordered else ())
    return sorted(list(distinct)[:width])
