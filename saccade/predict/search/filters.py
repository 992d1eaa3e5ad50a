"""Constraints on the next token, and transformations of the sampling distribution.

A rule restricts which tokens are allowed and never changes scores, so that the log-probability of an output is the
model's own. A logits warper changes the distribution that tokens are sampled from.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.data.tokenization.tokenizers import END, PAD, START, UNKNOWN

# (allowed (r, V) with r = 1 or R, sequences (R, 1 + t) beginning with START, sentence ids (R,)) -> allowed
Rule = Callable[[Tensor, Tensor, Tensor], Tensor]
LogitsWarper = Callable[[Tensor], Tensor]


def apply_rules(
    log_probs: Float[Tensor, "R V"],
    rules: Sequence[Rule],
    sequences: Int[Tensor, "R t"],
    sentence_ids: Int[Tensor, " R"],
) -> Float[Tensor, "R V"]:
    """Set the log-probabilities of forbidden tokens to -inf, in place; a row without any allowed token may end."""
    summary = summarize_rules(rules) if log_probs.device.type == "cpu" else None
    forbidden = None if summary is None else summary.get_forbidden(sequences.shape[1] - 1)
    if forbidden is not None and len(forbidden) < log_probs.shape[1]:
        return log_probs.index_fill_(1, to_index_tensor(forbidden), -torch.inf)
    allowed = torch.ones(1, log_probs.shape[1], dtype=torch.bool, device=log_probs.device)
    for rule in rules:
        allowed = rule(allowed, sequences, sentence_ids)
    has_none = ~allowed.any(-1, keepdim=True)
    if allowed.shape[0] > 1 or log_probs.device.type != "cpu":
        allowed = allowed | has_none & one_hot_mask(END, log_probs)
        return log_probs.masked_fill_(~allowed, -torch.inf)
    # On a CPU, the same few tokens in all rows: filling them by index is faster than a mask.
    if has_none:
        allowed = one_hot_mask(END, log_probs)
    return log_probs.index_fill_(1, (~allowed[0]).nonzero()[:, 0], -torch.inf)


class RuleSummary(NamedTuple):
    """The effect of several rules on all rows, as a few integers that kernels understand."""

    forbidden_tokens: tuple[int, ...]
    min_length: int  # no END before this many tokens
    max_length: float  # lowest length limit of all rows

    def get_forbidden(self, length: int) -> tuple[int, ...] | None:
        """Return the tokens that no row may choose after `length` tokens; None if rows differ."""
        if length >= self.max_length:
            return None
        return (*self.forbidden_tokens, END) if length < self.min_length else self.forbidden_tokens


class SummarizableRule:
    """A rule whose effect a `RuleSummary` can express, so that kernels can apply it."""

    def __call__(self, allowed: Tensor, sequences: Tensor, sentence_ids: Tensor) -> Tensor:
        raise NotImplementedError

    def extend_summary(self, summary: RuleSummary) -> RuleSummary | None:
        """Add this rule to the summary of those before it; None if it cannot be expressed."""
        raise NotImplementedError


@dataclass(frozen=True)
class ForbiddenTokens(SummarizableRule):
    """Forbids these tokens in all rows while sequences have fewer than `until_length` tokens."""

    tokens: tuple[int, ...]
    until_length: float = math.inf

    def __call__(self, allowed: Tensor, sequences: Tensor, sentence_ids: Tensor) -> Tensor:
        if sequences.shape[1] - 1 >= self.until_length:
            return allowed
        allowed = allowed.clone()
        for token in self.tokens:  # one by one: an index list would be copied to the device at every step
            allowed[:, token] = False
        return allowed

    def extend_summary(self, summary: RuleSummary) -> RuleSummary | None:
        if self.until_length == math.inf:
            return summary._replace(forbidden_tokens=summary.forbidden_tokens + self.tokens)
        return (
            summary._replace(min_length=max(summary.min_length, int(self.until_length)))
            if self.tokens == (END,)
            else None
        )


@dataclass(frozen=True)
class MaxLength(SummarizableRule):
    """Allows only END after limits[sentence] tokens."""

    limits: Int[Tensor, " N"]
    min_limit: int  # lowest of the limits: no row reaches its limit before

    def __call__(self, allowed: Tensor, sequences: Tensor, sentence_ids: Tensor) -> Tensor:
        length = sequences.shape[1] - 1
        if length < self.min_limit:
            return allowed
        at_limit = (self.limits[sentence_ids] <= length)[:, None]
        return torch.where(at_limit, one_hot_mask(END, allowed), allowed)

    def extend_summary(self, summary: RuleSummary) -> RuleSummary:
        return summary._replace(max_length=min(summary.max_length, self.min_limit))


def summarize_rules(rules: Sequence[Rule]) -> RuleSummary | None:
    """Summarize the rules if all of them are about single tokens and lengths; None otherwise."""
    summary: RuleSummary | None = RuleSummary((), 0, math.inf)
    for rule in rules:
        if summary is None or not isinstance(rule, SummarizableRule):
            return None
        summary = rule.extend_summary(summary)
    return summary


@lru_cache(16)
def to_index_tensor(tokens: tuple[int, ...]) -> Int[Tensor, " n"]:
    with torch.inference_mode(False):  # the cached tensor may be used with gradients later
        return torch.tensor(tokens, dtype=torch.long)


def forbid_tokens(tokens: Sequence[int] = (PAD, START, UNKNOWN)) -> Rule:
    """Forbid special tokens, which are no text."""
    return ForbiddenTokens(tuple(tokens))


def require_min_length(length: int) -> Rule:
    """Forbid END before `length` tokens."""
    return ForbiddenTokens((END,), until_length=length)


def limit_length(limits: Int[Tensor, " N"]) -> Rule:
    """Allow only END after limits[sentence] tokens."""
    return MaxLength(limits, int(limits.min()))


def forbid_repeated_ngrams(n: int) -> Rule:
    """Forbid n-grams that occurred before (Paulus et al. 2018, section 2.5)."""

    def rule(allowed: Tensor, sequences: Tensor, sentence_ids: Tensor) -> Tensor:
        if sequences.shape[1] < n:
            return allowed
        ngrams = sequences.unfold(1, n, 1)  # (R, t, n): all n-grams so far
        last = sequences[:, sequences.shape[1] - n + 1 :]
        matches = (ngrams[..., :-1] == last[:, None]).all(-1)
        # Tokens that followed the same n - 1 tokens before; PAD, which is never output, where there is no match.
        followed = torch.where(matches, ngrams[..., -1], PAD)
        return allowed.expand(sequences.shape[0], -1).scatter(1, followed, False)

    return rule


def force_prefix(prefixes: Sequence[Sequence[int]], *, device: torch.device | str = "cpu") -> Rule:
    """Sentence i begins with the tokens prefixes[i], regardless of the rules before this one."""
    longest = max(len(prefix) for prefix in prefixes)
    table = torch.tensor([[*prefix, *[-1] * (longest - len(prefix))] for prefix in prefixes], device=device)

    def rule(allowed: Tensor, sequences: Tensor, sentence_ids: Tensor) -> Tensor:
        length = sequences.shape[1] - 1
        if length >= longest:
            return allowed
        token = table[sentence_ids, length][:, None]
        return torch.where(token >= 0, torch.arange(allowed.shape[1], device=allowed.device) == token, allowed)

    return rule


def one_hot_mask(token: int, like: Tensor) -> Bool[Tensor, "1 V"]:
    """Return a mask that is True at `token` only."""
    return (torch.arange(like.shape[-1], device=like.device) == token)[None]


# ---- logits warpers


def scale_by_temperature(value: float) -> LogitsWarper:
    """Divide logits by the temperature: below 1 sharpens the distribution, above 1 flattens it."""
    return lambda logits: logits / value


def keep_top_k(k: int) -> LogitsWarper:
    """Keep the k most probable tokens (Fan et al. 2018)."""

    def warp(logits: Tensor) -> Tensor:
        best = logits.topk(min(k, logits.shape[-1]), -1).indices
        return torch.full_like(logits, -torch.inf).scatter(-1, best, logits.gather(-1, best))

    return warp


def keep_top_p(p: float) -> LogitsWarper:
    """Keep the smallest set of most probable tokens whose probability is at least p (Holtzman et al. 2020)."""

    def warp(logits: Tensor) -> Tensor:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probs = ordered.softmax(-1)
        # cumulative probability of the more probable tokens; the best token is always kept
        before = probs.cumsum(-1) - probs
        return logits.masked_fill((before >= p).scatter(-1, order, before >= p), -torch.inf)

    return warp
