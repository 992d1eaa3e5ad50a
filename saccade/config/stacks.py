"""Tables of a recipe: the stacks that read and write."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from saccade.config.kinds import ByKind, Custom
from saccade.config.table import Count, Share, StackTraits, Table


class Experts(Table):
    """A sparsely gated mixture (Shazeer et al. 2017): `count` networks, of which each position passes a few."""

    count: Count = 8
    chosen: Annotated[int, Field(ge=2)] = 2  # that each position passes; of one alone a gate learns nothing
    hidden: Count | None = None  # width inside of one; none: ff of a Transformer, dim of a recurrent stack
    every: Count = 1  # in every n-th block of a Transformer; between recurrent layers, above every n-th
    noise: bool = True  # in training, gates choose with noise that they learn
    balance: Annotated[float, Field(ge=0)] = 0.01  # weight of the loss that gives all of them work

    @model_validator(mode="after")
    def _some_are_left(self) -> Experts:
        if self.chosen >= self.count:
            raise ValueError(
                f"experts.chosen must be smaller than experts.count, got {self.chosen} of {self.count}; choose fewer"
            )
        return self


EPSILON = {"layer": 1e-5, "rms": 1e-6}  # of norms, where a stack says none


class Chunks(Table):
    """How far attention sees in a stack that is computed backwards: its own chunk and the one before it."""

    length: Count = 64  # positions of a chunk; of "lsh", after they were sorted by their buckets
    local: Count | None = None  # the same for "local"; none: as many
    hashes: Count = 2  # rounds of hashing
    buckets: tuple[Count, ...] = ()  # even numbers whose product counts the buckets; none: as the length asks
    seed: int | None = None  # of the rotations in training; none: others at each step
    feedforward: Count | None = None  # positions that pass the feed-forward network at a time; none: all


class TransformerStack(Table, StackTraits):
    is_transformer: ClassVar[bool] = True
    kind: Literal["transformer"] = "transformer"
    layers: Count = 6
    dim: Count = 512
    heads: Count = 8
    kv_heads: Count | None = None  # of keys and values, each shared by equally many of the heads; none: as many
    ff: Annotated[int, Field(ge=0)] = 2048  # width of the feed-forward network; 0: there is none
    norm: Literal["post", "pre", "none"] = "post"
    residual: bool | Literal["reversible"] = True  # what a sublayer gives is added to what it reads; or in two halves
    attention: tuple[Literal["full", "local", "lsh"], ...] = ("full",)  # by layer; the latter two if "reversible"
    chunks: Chunks = Chunks()  # of "local" and "lsh"
    norm_kind: Literal["layer", "rms"] = "layer"
    norm_epsilon: Annotated[float, Field(gt=0)] | None = None  # none: 1e-5 for layer, 1e-6 for rms
    activation: Literal["relu", "gelu", "gelu-tanh", "silu", "sigmoid"] = "relu"
    gated: bool = False  # feed-forward with a gate (GLU variants)
    dropout: Share = 0.1
    attention_dropout: Share = 0.0
    ff_dropout: Share = 0.0  # inside the feed-forward network
    drop_path: Share = 0.0  # of sublayers passed by, row by row; grows to this from 0 (Huang et al. 2016)
    heads_form: Literal["paper", "full", "split"] = "paper"  # three ways to make heads (lecture row 63)
    head_dim: Count | None = None  # width of a head; none: dim / heads
    scale: bool | Literal["first"] = True  # divide scores by sqrt(d_k); "first": only the first weights, as in T5
    bias: bool = True
    attention_bias: bool = True  # false: the projections of attention have none, whatever the others have
    window: tuple[Annotated[int, Field(ge=0)] | Literal["none"], ...] | None = None  # keys seen on each side; by layer
    experts: Experts | None = None  # in the place of the feed-forward network
    share: bool = False  # all layers have the weights of one (ALBERT, Lan et al. 2020)

    @property
    def transformer(self) -> TransformerStack:
        return self

    @property
    def is_reversible(self) -> bool:
        return self.residual == "reversible"

    @property
    def width(self) -> int:
        return self.dim

    @property
    def embedding_eps(self) -> float:
        return self.norm_epsilon or EPSILON["layer"]

    def trained_form(self) -> TransformerStack:
        """With what follows from other settings where it says none, and lists for all layers."""
        follow = {
            "norm_epsilon": EPSILON[self.norm_kind], "head_dim": self.dim // self.heads, "kv_heads": self.heads,
        }  # fmt: skip
        told: dict[str, Any] = {name: number for name, number in follow.items() if getattr(self, name) is None}
        lists = {name: getattr(self, name) for name in ("attention", "window") if getattr(self, name)}
        told |= {name: tuple(islice(cycle(items), self.layers)) for name, items in lists.items()}
        return self.model_copy(update={**told, "scale": self.scale is True})

    @field_validator("window", mode="before")
    @classmethod
    def _windows(cls, value: Any) -> Any:
        """`window = 128` is short for `window = [128]`; a list is gone through layer by layer, and then again."""
        given = value if isinstance(value, list | tuple) else (value,)
        if value is None:
            return None
        if not given or not all(reach == "none" or (type(reach) is int and reach >= 0) for reach in given):
            raise ValueError(
                f'window must be a number of keys, at least 0, or a list of such and of "none", got {value!r}'
            )
        return tuple(given)

    @field_validator("attention", mode="before")
    @classmethod
    def _attentions(cls, value: Any) -> Any:
        """`attention = "lsh"` is short for `attention = ["lsh"]`; a list is gone through layer by layer, and again."""
        return (value,) if isinstance(value, str) else value or ("full",)

    @model_validator(mode="after")
    def _consistent(self) -> TransformerStack:
        check_reversible(self)
        if self.kv_heads is not None and (self.heads % self.kv_heads or self.heads_form != "paper"):
            raise ValueError(
                f'kv_heads must divide heads = {self.heads}, with heads_form = "paper", got {self.kv_heads} and '
                f'"{self.heads_form}"'
            )
        if self.head_dim is not None and self.heads_form != "paper":
            raise ValueError(f'head_dim is for heads_form = "paper", got "{self.heads_form}"; leave one of them out')
        if self.head_dim is None and self.dim % self.heads:
            raise ValueError(f"dim must be a multiple of heads, got dim = {self.dim} and heads = {self.heads}")
        if self.experts is not None and self.share:
            raise ValueError("experts are different in every layer; set share = false, or leave experts out")
        if self.experts is not None and self.gated:
            raise ValueError("experts have no gate inside; set gated = false, or leave experts out")
        if self.experts is not None and not (self.experts.hidden or self.ff):
            raise ValueError("experts need a width inside; set experts.hidden, or ff above 0")
        if self.experts is not None and self.experts.every > self.layers:
            raise ValueError(
                f"experts.every must be at most layers = {self.layers}, or no block has any, got {self.experts.every}"
            )
        return self


def check_reversible(stack: TransformerStack) -> None:
    """What does not go with `residual = "reversible"`, and what goes with nothing else."""
    if stack.is_reversible:
        fixed = {
            "norm": "pre", "kv_heads": None, "window": None, "experts": None, "heads_form": "paper", "share": False,
            "drop_path": 0.0,
        }  # fmt: skip
        other = [name for name, value in fixed.items() if getattr(stack, name) != value]
        if other or not stack.ff:
            raise ValueError(
                'residual = "reversible" goes with norm = "pre", ff above 0, and without kv_heads, window, experts, '
                f"share, drop_path and other forms of heads; change {other[0] if other else 'ff'}"
            )
        return
    special = [kind for kind in stack.attention if kind != "full"]
    if special:
        raise ValueError(
            f'attention = "{special[0]}" is for residual = "reversible", got {stack.residual}; change one of them'
        )


class ConvolutionStack(Table, StackTraits):
    """Lists are gone through layer by layer, and then from their beginning again."""

    kind: Literal["convolution"] = "convolution"
    block: Literal["gated", "residual"] = "gated"  # that of ConvS2S or that of ByteNet
    layers: Count = 15
    dim: Count = 512
    hidden: Count | None = None  # features of a convolution; none: dim if gated, half of it if residual
    kernel: Count = 3  # positions that a convolution joins
    dilations: Annotated[tuple[Count, ...], Field(min_length=1)] = (1,)  # how far apart they are
    attention: Annotated[tuple[bool, ...], Field(min_length=1)] = (True,)  # of a writer; all false: memory is added
    unfold: tuple[float, float] = (1.0, 0.0)  # a, b: a reader makes a n + b states of n tokens
    weight_norm: bool = True  # matrices have a length and a direction for each output
    dropout: Share = 0.1

    @property
    def width(self) -> int:
        return self.dim

    @model_validator(mode="after")
    def _unfolds(self) -> ConvolutionStack:
        a, b = self.unfold
        if a < 1 or b < 0:
            raise ValueError(f"unfold must be at least [1, 0], a state for each token, got [{a:g}, {b:g}]")
        return self


def check_ways(*, residual: bool, fast_forward: bool) -> None:
    if residual and fast_forward:
        raise ValueError("residual and fast_forward are two ways past a layer; set one of them to false")


def check_between(experts: Experts | None, layers: int) -> None:
    if experts is not None and experts.every >= layers:
        raise ValueError(
            f"experts stand between layers: experts.every must be smaller than layers = {layers}, got {experts.every}"
        )


class RecurrentReading(Table, StackTraits):
    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["rnn", "gru", "lstm"] = "lstm"
    layers: Count = 1
    dim: Count = 512  # of the states; of both directions together
    bidirectional: bool | Literal["first", "alternate"] = False  # backwards: half of each layer, of the 1st; every 2nd
    reverse: bool = False  # read from the last token to the first
    residual: bool = False  # layers from the third on add their input to what they give
    fast_forward: bool = False  # linear maps of what each layer is given and gives lead past the recurrences
    experts: Experts | None = None  # between layers
    dropout: Share = 0.2  # of what each layer gives

    @property
    def width(self) -> int:
        return self.dim

    @property
    def recurrent_shape(self) -> tuple[str, int, int]:
        return self.cell, self.layers, self.dim

    @model_validator(mode="after")
    def _consistent(self) -> RecurrentReading:
        check_ways(residual=self.residual, fast_forward=self.fast_forward)
        check_between(self.experts, self.layers)
        if self.bidirectional and self.reverse:
            raise ValueError("bidirectional reads in both directions already; take out reverse = true")
        if self.bidirectional in (True, "first") and self.dim % 2:
            raise ValueError(f"bidirectional needs an even dim, half for each direction, got {self.dim}")
        return self


class RecurrentWriting(Table, StackTraits):
    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["rnn", "gru", "lstm"] = "lstm"
    layers: Count = 1
    dim: Count = 512
    attention: Literal["none", "additive", "dot", "general", "around"] = (
        "none"  # additive: Bahdanau's; dot, general: Luong's; around: of cells with those around them (Li et al. 2019)
    )
    hard: bool = False  # additive: one state is drawn by the weights, and nothing is mixed (Xu et al. 2015)
    gate: bool = False  # additive: how much of what was looked at is wanted, told by the state (Xu et al. 2015)
    input_feeding: bool = True  # what was looked at enters the recurrence; without attention: c at each step
    context: Literal["last", "mean"] = "last"  # c: the last state of the reader, or the mean of all
    residual: bool = False
    fast_forward: bool = False
    experts: Experts | None = None  # between layers
    first: Literal["predicted", "copied"] = "predicted"  # state: tanh(W c), or the last ones of the reader's layers
    dropout: Share = 0.2  # of what each layer gives

    @property
    def width(self) -> int:
        return self.dim

    @property
    def recurrent_writing(self) -> RecurrentWriting:
        return self

    @property
    def recurrent_shape(self) -> tuple[str, int, int]:
        return self.cell, self.layers, self.dim

    @property
    def copies_states(self) -> bool:
        return self.first == "copied"

    @model_validator(mode="after")
    def _consistent(self) -> RecurrentWriting:
        check_ways(residual=self.residual, fast_forward=self.fast_forward)
        check_between(self.experts, self.layers)
        if self.attention == "additive" and not self.input_feeding:
            raise ValueError(
                'attention = "additive" looks before each step, for that step; input_feeding = false is for "dot", '
                '"general" and "around"'
            )
        for name in ("gate", "hard"):
            if getattr(self, name) and self.attention != "additive":
                raise ValueError(f'{name} = true is for attention = "additive", got "{self.attention}"; leave it out')
        return self


ReaderStack = Annotated[TransformerStack | ConvolutionStack | RecurrentReading | Custom, ByKind()]
WriterStack = Annotated[TransformerStack | ConvolutionStack | RecurrentWriting | Custom, ByKind()]


def find_reversible_conflict(side: str, stack: StackTraits, positions: Any) -> str:
    """A reversible stack of text takes positions at its input alone."""
    if stack.is_reversible and positions.inside_attention:
        return (
            f'{side}.stack.residual = "reversible" takes positions at the input, got "{positions.kind}"; '
            f'try {side}.positions.kind = "axial"'
        )
    return ""
