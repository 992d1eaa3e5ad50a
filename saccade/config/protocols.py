"""Interfaces between the parts of a model, as typing protocols, and the capabilities that a part declares.

A model is a reader and a writer, each usually an embedding and a stack. Users bring their own parts with `kinds=`; a
part needs no base class, only these methods. Nothing here imports torch when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from saccade.layers.auxiliary import Aux
    from saccade.layers.memory import Memory
    from saccade.layers.packing import Packing
    from saccade.model.writers.tokens import Step


@dataclass(frozen=True)
class Capabilities:
    """What a reader, writer or stack supports beyond the plain path; fast paths ask this and never the type.

    A part declares it as its attribute `capabilities`. A part that declares nothing gets the plain path.
    """

    packed_rows: bool = False  # takes a `Packing` in place of a padding mask: sequences one after the other in one row
    static_shapes: bool = False  # never synchronizes with the device on padded batches, so a CUDA graph can hold it
    fixed_inputs: bool = False  # of a reader: all inputs have the same size, so batches need no padding
    padded_targets: bool = False  # of a writer: trains on padded rows of tokens, which may be padded further
    static_step: bool = False  # decodes on preallocated buffers, so a CUDA graph can hold a decoding step
    fused_cpu_step: bool = False  # one decoding step is one call of C code on a CPU
    repeated_passes: bool = False  # many passes over one memory and mask, as mask-predict makes, share what is constant
    linear_head: bool = False  # of a writer: `head` is a product with `output`, so losses need not keep all logits
    aux: bool = False  # of a writer: `write` also returns what its layers report (expert load, attention weights)
    attaches: bool = False  # of a writer: `attach(memory, batch)` adds other fields of the batch to the memory
    tensor_parallel: bool = False  # its modules declare a `TensorPlan`, so that several processes can share each layer
    vocabulary_parallel: bool = False  # of an output layer: split by tokens, it has `compute_losses` of its own
    reasons: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)  # why not, by capability

    def __and__(self, other: Capabilities) -> Capabilities:
        """Capabilities that both parts have, with the reasons of both."""
        both: dict[str, Any] = {name: getattr(self, name) and getattr(other, name) for name in CAPABILITIES}
        return Capabilities(**both, reasons={**other.reasons, **self.reasons})

    def explain_missing(self, name: str) -> str:
        """The reason why a capability is missing; empty where it is not."""
        return "" if getattr(self, name) else self.reasons.get(name, f"nothing declares {name}")


CAPABILITIES = tuple(each.name for each in fields(Capabilities) if each.name != "reasons")


def get_capabilities(part: object, role: str = "the part") -> Capabilities:
    """The capabilities that a part declares; none for a user's own part without a declaration.

    `role` says what the part is in the reasons, as in "the writer's stack MyStack does not declare packed_rows".
    """
    declared = getattr(part, "capabilities", None)
    found = declared if isinstance(declared, Capabilities) else Capabilities()
    return add_reasons(found, f"{role} {type(part).__name__}", role, tuple(found.reasons.items()))


@cache
def add_reasons(found: Capabilities, name: str, role: str, inner: tuple[tuple[str, str], ...]) -> Capabilities:
    """The same capabilities with a reason for each one that is missing; asked for at every batch, so kept."""
    lacking = [each for each in CAPABILITIES if not getattr(found, each)]
    own = {each: f"{name} does not declare {each}" for each in lacking}
    return replace(found, reasons=own | {each: f"{role}'s {reason}" for each, reason in inner if each in lacking})


@dataclass(frozen=True)
class TensorPlan:
    """How a module is split over N processes (tensor parallelism); a module declares it as attribute `tensor_plan`.

    Paths are relative to the module. A module without a declaration is replicated: every process computes all of it.
    The hidden states between the sublayers of a stack are split by position (sequence parallelism) or replicated.
    """

    is_stack: bool = False  # takes hidden states and returns them first; inside, they are distributed tensors
    sublayers: tuple[str, ...] = ()  # modules whose first argument is all hidden states, so that they are gathered
    norms: tuple[str, ...] = ()  # norms of hidden states
    columns: tuple[str, ...] = ()  # `nn.Linear` split by output features
    rows: tuple[str, ...] = ()  # `nn.Linear` split by input features; their outputs are summed to hidden states
    heads: tuple[str, ...] = ()  # modules whose parameters have a first axis of heads, as their outputs have
    embeddings: tuple[str, ...] = ()  # `nn.Embedding` split by tokens
    outputs: tuple[str, ...] = ()  # `nn.Linear` to the vocabulary, split by tokens
    dropouts: tuple[str, ...] = ()  # modules that multiply hidden states or features with a random mask
    attends: bool = False  # its attribute `kernels` computes attention of its heads, with dropout
    head_axes: Mapping[str, int | None] = field(default_factory=dict)  # parameters and buffers: axis of heads, if any
    fused: tuple[str, ...] = ()  # attributes of the module that allow a fused kernel on whole tensors
    sizes: Mapping[str, int] = field(default_factory=dict)  # by key of a recipe; N must divide them


def get_tensor_plan(module: object) -> TensorPlan:
    """The plan that a module declares; empty without a declaration."""
    declared: TensorPlan = getattr(module, "tensor_plan", TensorPlan())
    return declared


@dataclass(frozen=True)
class ScoreCapabilities:
    """What an attention score supports beyond its plain call with queries and keys.

    A score declares it as its attribute `capabilities`. One that declares nothing is called with all keys at each step,
    and no fused kernel is used.
    """

    projected_keys: bool = False  # has `project_keys(key)` and `score_projected(query, projected)`: keys projected once
    dot_product: bool = False  # is the dot product of `project_query(query)` and `project_keys(key)`, of the same width
    static_shapes: bool = False  # only operations on tensors, no synchronization: torch.compile and CUDA graphs hold it


def get_score_capabilities(score: object) -> ScoreCapabilities:
    """The capabilities that an attention score declares; none where it declares nothing."""
    declared = getattr(score, "capabilities", None)
    return declared if isinstance(declared, ScoreCapabilities) else ScoreCapabilities()


@runtime_checkable
class State(Protocol):
    """State of a writer between decoding steps. A state that was passed to a step must not be used again."""

    def reorder(self, indices: Tensor) -> State:
        """Select rows, as beam search does after each step; fewer indices drop finished rows."""
        ...


@runtime_checkable
class PositionedState(State, Protocol):
    """A state with the number of positions of each row; the writer of tokens needs no more.

    A state that knows the positions (b, n) of the next n tokens without adding to `lengths` has `get_positions(n)`.
    """

    @property
    def lengths(self) -> Tensor: ...


@runtime_checkable
class Stack(Protocol):
    """Layers over a sequence: hidden states in, hidden states out, optionally attending to a memory."""

    dim: int  # width of the hidden states that come out

    def __call__(
        self, x: Tensor, mask: Tensor | Packing | None, memory: Memory | None = None, state: State | None = None
    ) -> tuple[Tensor, Any, Any, Aux]:
        """Return (hidden states, mask, state, aux); with a state, process only the next positions."""
        ...


class StepwiseStack(Stack, Protocol):
    """A stack that decodes token by token; training does not need `start`."""

    def start(self, memory: Memory | None, *, rows: int, capacity: int) -> State: ...


@runtime_checkable
class Reader(Protocol):
    """An encoder: X -> Memory."""

    dim: int  # width of the memory

    def __call__(self, content: Tensor, mask: Tensor | Packing) -> Memory: ...


@runtime_checkable
class Writer(Protocol):
    """A decoder or head: Memory -> Y, for all positions at once with teacher forcing."""

    def __call__(self, ids: Tensor, mask: Tensor | Packing | None, memory: Memory | None) -> Tensor: ...


@runtime_checkable
class HeadedWriter(Protocol):
    """A writer whose `head` maps hidden states to logits."""

    def head(self, hidden: Tensor) -> Tensor: ...


class LinearHead(HeadedWriter, Protocol):
    """A writer that declares `linear_head`: logits are output(output_scale * hidden)."""

    output: Any  # nn.Linear; one that declares `vocabulary_parallel` also has `compute_losses`
    output_scale: float


@runtime_checkable
class StepwiseWriter(Writer, Protocol):
    """A writer that also decodes token by token; greedy search, sampling and beam search use only this."""

    def start(self, memory: Memory | None, *, capacity: int, rows: int = 0) -> State: ...

    def step(self, inputs: Tensor, state: State, *, align: bool = False) -> Step: ...


@dataclass(frozen=True)
class Support:
    """Whether a fast path applies: yes, or the reason why not."""

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason
