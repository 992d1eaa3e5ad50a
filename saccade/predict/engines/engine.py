"""Engines: the ways in which a request can be decoded. Each says whether it can, or why not.

`decode` asks them in the order of its list and runs the first that can; the plain search, which always can, is the
reference whose outputs all others give. Which one ran, and why those before it did not, is kept beside the outputs.
"""

import importlib.util
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from subprocess import SubprocessError
from typing import NamedTuple, Protocol

from saccade.config.protocols import Support
from saccade.predict.search.greedy import DecodableModel, Found
from saccade.predict.search.request import Request
from saccade.predict.search.trace import listened


def list_gpu_failures() -> tuple[type[Exception], ...]:
    """What a GPU, its driver and its compilers raise: torch's RuntimeErrors, those of Triton and of a C compiler."""
    found: tuple[type[Exception], ...] = (RuntimeError, OSError, SubprocessError)
    if importlib.util.find_spec("triton") is None:
        return found
    from triton.errors import TritonError

    return (*found, TritonError)


GPU_FAILURES = list_gpu_failures()


class Engine(Protocol):
    """One way to decode."""

    name: str  # in reports and metrics
    title: str  # in sentences
    at_once: bool  # for writers that fill in all tokens at once, not one after the other
    failures: tuple[type[Exception], ...]  # what it may raise for a request that it supports

    def supports(self, model: DecodableModel, request: Request) -> Support: ...

    def run(self, model: DecodableModel, request: Request) -> list[list[Found]]: ...


@dataclass(frozen=True)
class Decision:
    """Which engine decoded a batch, and why those before it did not."""

    engine: str
    declined: Mapping[str, str] = field(default_factory=dict)  # the reason of each, by its name


class Decoded(NamedTuple):
    """The outputs of each row, best first, and how they were found."""

    found: list[list[Found]]
    decision: Decision


@dataclass
class EngineTally:
    """How many batches each engine decoded, and how often another declined for a reason."""

    decoded: Counter[str] = field(default_factory=Counter)
    declined: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, decision: Decision) -> None:
        self.decoded[decision.engine] += 1
        self.declined.update(decision.declined.items())

    def take(self) -> "EngineTally":
        """What was counted since it was last taken."""
        taken = EngineTally(self.decoded, self.declined)
        self.decoded, self.declined = Counter(), Counter()
        return taken

    def describe(self) -> list[str]:
        """One line for each engine."""
        lines = [f"engine {name}: not used for {n:,} batches: {reason}" for (name, reason), n in self.declined.items()]
        return lines + [f"engine {name}: decoded {count:,} batches" for name, count in self.decoded.items()]


def explain_watched(request: Request) -> str:
    """Why only the plain search can: somebody looks at its steps."""
    if request.align:
        return "the attention of each token is asked for"
    return "the steps of the search are traced" if listened() else ""


def explain_fused_scores(request: Request) -> str:
    """Why only the plain search can: scores are not the writer's alone."""
    if request.fusion is not None:
        return "a language model has a say (lm)"
    return "a CTC head has a say (ctc)" if request.decoding.ctc else ""
