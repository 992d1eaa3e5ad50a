"""Small filters of what may be written next.

A rule says which tokens are allowed: it narrows `allowed` and never touches scores, so that the log-probability of an
output is the model's own. A shaper changes the distribution that a sample is drawn from.
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

# (allowed (r, V) with r = 1 or R, written (R, 1 + t) beginning with START, sentence of each row (R,)) -> allowed
Rule = Callable[[Tensor, Tensor, Tensor], Tensor]
Shaper = Callable[[Tensor], Tensor]


def apply_rules(
    log_probs: Float[Tensor, "R V"], rules: Sequence[Rule], written: Int[Tensor, "R t"], rows: Int[Tensor, " R"]
) -> Float[Tensor, "R V"]:
    """Puts -inf, in place, for every token that some rule forbids; a row with nothing left may end."""
    known = plain(rules) if log_probs.device.type == "cpu" else None
    few = None if known is None else known.forbidden(written.shape[1] - 1)
    if few is not None and len(few) < log_probs.shape[1]:
        return log_probs.index_fill_(1, numbers(few), -torch.inf)
    allowed = torch.ones(1, log_probs.shape[1], dtype=torch.bool, device=log_probs.device)
    for rule in rules:
        allowed = rule(allowed, written, rows)
    stuck = ~allowed.any(-1, keepdim=True)
    if allowed.shape[0] > 1 or log_probs.device.type != "cpu":
        allowed = allowed | stuck & one_token(END, log_probs)
        return log_probs.masked_fill_(~allowed, -torch.inf)
    # A few tokens, the same in all rows: found and filled one by one, where that need not wait for the device.
    if stuck:
        allowed = one_token(END, log_probs)
    return log_probs.index_fill_(1, (~allowed[0]).nonzero()[:, 0], -torch.inf)


class Plain(NamedTuple):
    """Rules as numbers."""

    never: tuple[int, ...]
    least: int  # tokens before END
    most: float  # tokens that nobody's limit is below

    def forbidden(self, length: int) -> tuple[int, ...] | None:
        """After so many tokens, what no row may write; None where rows differ."""
        if length >= self.most:
            return None
        return (*self.never, END) if length < self.least else self.never


class PlainRule:
    """A rule that numbers may express, so that kernels know it too."""

    def __call__(self, allowed: Tensor, written: Tensor, rows: Tensor) -> Tensor:
        raise NotImplementedError

    def narrow(self, found: Plain) -> Plain | None:
        """The numbers of the rules before it, and its own; None where it has none."""
        raise NotImplementedError


@dataclass(frozen=True)
class Never(PlainRule):
    """These tokens are forbidden in all rows, while fewer than `until` are written."""

    tokens: tuple[int, ...]
    until: float = math.inf

    def __call__(self, allowed: Tensor, written: Tensor, rows: Tensor) -> Tensor:
        if written.shape[1] - 1 >= self.until:
            return allowed
        allowed = allowed.clone()
        for token in self.tokens:  # a write by number each: an index list would be copied to the device at every step
            allowed[:, token] = False
        return allowed

    def narrow(self, found: Plain) -> Plain | None:
        if self.until == math.inf:
            return found._replace(never=found.never + self.tokens)
        return found._replace(least=max(found.least, int(self.until))) if self.tokens == (END,) else None


@dataclass(frozen=True)
class MaxLength(PlainRule):
    """Only END after limits[sentence] tokens."""

    limits: Int[Tensor, " N"]
    shortest: int  # until then no row can be at its limit

    def __call__(self, allowed: Tensor, written: Tensor, rows: Tensor) -> Tensor:
        length = written.shape[1] - 1
        if length < self.shortest:
            return allowed
        full = (self.limits[rows] <= length)[:, None]
        return torch.where(full, one_token(END, allowed), allowed)

    def narrow(self, found: Plain) -> Plain:
        return found._replace(most=min(found.most, self.shortest))


def plain(rules: Sequence[Rule]) -> Plain | None:
    """The rules, where they are about single tokens and lengths and nothing else."""
    found: Plain | None = Plain((), 0, math.inf)
    for rule in rules:
        if found is None or not isinstance(rule, PlainRule):
            return None
        found = rule.narrow(found)
    return found


@lru_cache(16)
def numbers(tokens: tuple[int, ...]) -> Int[Tensor, " n"]:
    with torch.inference_mode(False):  # whoever asks later may want gradients
        return torch.tensor(tokens, dtype=torch.long)


def never(tokens: Sequence[int] = (PAD, START, UNKNOWN)) -> Rule:
    """Tokens that are no text of a translation."""
    return Never(tuple(tokens))


def min_length(length: int) -> Rule:
    """No END before `length` tokens are written."""
    return Never((END,), until=length)


def max_length(limits: Int[Tensor, " N"]) -> Rule:
    return MaxLength(limits, int(limits.min()))


def no_repeat(n: int) -> Rule:
    """No sequence of n tokens twice (Paulus et al. 2018, section 2.5)."""

    def rule(allowed: Tensor, written: Tensor, rows: Tensor) -> Tensor:
        if written.shape[1] < n:
            return allowed
        runs = written.unfold(1, n, 1)  # (R, t, n): every sequence of n tokens so far
        last = written[:, written.shape[1] - n + 1 :]
        again = (runs[..., :-1] == last[:, None]).all(-1)
        # What followed the same n - 1 tokens before; PAD, which is never written, stands for "nothing".
        followed = torch.where(again, runs[..., -1], PAD)
        return allowed.expand(written.shape[0], -1).scatter(1, followed, False)

    return rule


def forced_prefix(prefixes: Sequence[Sequence[int]], *, device: torch.device | str = "cpu") -> Rule:
    """Sentence i begins with the tokens prefixes[i], whatever other rules say before this one."""
    longest = max(len(prefix) for prefix in prefixes)
    table = torch.tensor([[*prefix, *[-1] * (longest - len(prefix))] for prefix in prefixes], device=device)

    def rule(allowed: Tensor, written: Tensor, rows: Tensor) -> Tensor:
        at = written.shape[1] - 1
        if at >= longest:
            return allowed
        token = table[rows, at][:, None]
        return torch.where(token >= 0, torch.arange(allowed.shape[1], device=allowed.device) == token, allowed)

    return rule


def one_token(token: int, like: Tensor) -> Bool[Tensor, "1 V"]:
    """True at `token` only."""
    return (torch.arange(like.shape[-1], device=like.device) == token)[None]


# ---- shapers


def temperature(value: float) -> Shaper:
    """Logits divided by the temperature: sharper below 1, flatter above."""
    return lambda logits: logits / value


def top_k(k: int) -> Shaper:
    """Only the k best tokens (Fan et al. 2018)."""

    def shape(logits: Tensor) -> Tensor:
        best = logits.topk(min(k, logits.shape[-1]), -1).indices
        return torch.full_like(logits, -torch.inf).scatter(-1, best, logits.gather(-1, best))

    return shape


def top_p(p: float) -> Shaper:
    """The smallest set of best tokens whose probability is at least p (Holtzman et al. 2020)."""

    def shape(logits: Tensor) -> Tensor:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probs = ordered.softmax(-1)
        before = probs.cumsum(-1) - probs  # what the better tokens have; the best one always stays
        return logits.masked_fill((before >= p).scatter(-1, order, before >= p), -torch.inf)

    return shape
