"""Engines: implementations of decoding, each of which says whether it supports a request, or why not.

`decode` runs the first engine of its list that supports the request. The plain search, which supports every request, is
the reference: all other engines return its outputs. The engine that ran, and why those before it did not, is reported
with the outputs.
"""

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from subprocess import SubprocessError
from typing import NamedTuple, Protocol

from saccade.config.protocols import Support
from saccade.predict.search.greedy import DecodableModel, SearchHypothesis
from saccade.predict.search.request import Request
from saccade.predict.search.trace import is_tracing


def list_gpu_failures() -> tuple[type[Exception], ...]:
    """Return the exception types that a GPU, its driver, Triton or a C compiler may raise."""
    failures: tuple[type[Exception], ...] = (RuntimeError, OSError, SubprocessError)
    if "triton" not in sys.modules:  # importing it takes 0.1 s; what is not imported raises nothing
        return failures
    from triton.errors import TritonError

    return (*failures, TritonError)


class Engine(Protocol):
    """One implementation of decoding."""

    name: str  # identifier in reports and metrics
    title: str  # readable name for messages
    non_autoregressive: bool  # whether it is for writers that predict all tokens at once

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """Exceptions after which another engine takes over."""

    def supports(self, model: DecodableModel, request: Request) -> Support: ...

    def run(self, model: DecodableModel, request: Request) -> list[list[SearchHypothesis]]: ...


@dataclass(frozen=True)
class Decision:
    """Which engine decoded a batch, and why those before it did not."""

    engine: str
    declined: Mapping[str, str] = field(default_factory=dict)  # reason by engine name


class DecodingResult(NamedTuple):
    """The hypotheses of each row, best first, and which engine found them."""

    hypotheses: list[list[SearchHypothesis]]
    decision: Decision


@dataclass
class EngineTally:
    """Counts how many batches each engine decoded, and how often each engine declined for which reason."""

    decoded: Counter[str] = field(default_factory=Counter)
    declined: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, decision: Decision) -> None:
        self.decoded[decision.engine] += 1
        self.declined.update(decision.declined.items())

    def pop_counts(self) -> "EngineTally":
        """Return the counts and reset them to zero."""
        counts = EngineTally(self.decoded, self.declined)
        self.decoded, self.declined = Counter(), Counter()
        return counts

    def describe(self) -> list[str]:
        """Return one line per engine and reason."""
        declined = self.declined.items()
        lines = [f"engine {name}: not used for {format_batches(n)}: {reason}" for (name, reason), n in declined]
        return lines + [f"engine {name}: decoded {format_batches(n)}" for name, n in self.decoded.items()]


def format_batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count:,} batches"


def explain_inspection(request: Request) -> str:
    """Return why only the plain search can decode: attention, steps or tokens are inspected. Empty if none is."""
    if request.phrases:
        return "outputs must contain given phrases (terms)"
    if request.align:
        return "attention weights are requested (align)"
    return "the steps of the search are traced" if is_tracing() else ""


def explain_fused_scores(request: Request) -> str:
    """Return why only the plain search can decode: scores are not the writer's alone. Empty if they are."""
    if request.fusion is not None:
        return "scores are fused with a language model (lm)"
    return "scores are fused with a CTC head (ctc_weight)" if request.decoding.ctc_weight else ""
