"""The tables `stack` of a recipe: Transformer, convolutional and recurrent layers of readers and writers."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from saccade.config.kinds import ByKind, Custom
from saccade.config.scores import Dot, LocalWindow, ScaledDot, Score
from saccade.config.table import Count, Repeats, Share, StackTraits, Table


class Experts(Table):
    """A sparsely gated mixture of experts (Shazeer et al. 2017): each position is processed by `top_k` of `count`."""

    count: Count = 8
    """Number of expert networks. More experts add parameters, but hardly any computation per token."""
    top_k: Annotated[int, Field(ge=2)] = 2
    """Number of experts that process each position; at least 2, since the gate learns from comparing them. More cost
    more computation."""
    hidden_dim: Count | None = None
    """Width of the hidden layer of one expert. None: `ff` of a Transformer, `dim` of a recurrent stack."""
    every_n_layers: Count = 1
    """Every n-th Transformer block has experts in place of its feed-forward network; in recurrent stacks they follow
    every n-th layer."""
    groups: Count = 1
    """Hierarchical gating (Shazeer et al. 2017, appendix B): a first gate chooses `top_k` of this many groups of
    experts, and a gate of each group `top_k` of its experts. 1: one gate for all."""
    noise: bool = True
    """Add learned noise to the gates during training, so that all experts are tried (noisy top-k gating)."""
    balance_weight: Annotated[float, Field(ge=0)] = 0.01
    """Weight of the loss that balances the load of the experts. 0 lets a few experts get all positions; too large
    values hurt the main loss."""

    @model_validator(mode="after")
    def _some_are_left(self) -> Experts:
        if self.top_k >= self.count:
            raise ValueError(
                f"experts.top_k must be smaller than experts.count, got {self.top_k} of {self.count}; choose fewer"
            )
        if self.groups > 1 and (self.count % self.groups or self.top_k >= min(self.groups, self.count // self.groups)):
            raise ValueError(
                f"experts.groups must divide experts.count = {self.count} into more than experts.top_k = {self.top_k} "
                f"groups of more than {self.top_k} experts each, got {self.groups}"
            )
        return self


DEFAULT_NORM_EPSILON = {"layer": 1e-5, "rms": 1e-6}  # by norm_kind, where norm_epsilon is None


class Chunks(Table):
    """Chunked attention of a reversible stack (Reformer): a position attends to its own chunk and the one before."""

    length: Count = 64
    """Positions of a chunk. For "lsh" attention positions are sorted by their hash buckets first."""
    local: Count | None = None
    """Positions of a chunk of "local" attention. None: the same as `length`."""
    hashes: Repeats = 2
    """Rounds of hashing of "lsh" attention. More rounds come closer to full attention and cost proportionally more."""
    buckets: tuple[Count, ...] = ()
    """Number of hash buckets, given as even factors: [64] is 64 buckets, [32, 64] is 2048 from two hashes. Fewer
    buckets hold more candidates each. Empty: about twice as many as the sequence has chunks."""
    seed: int | None = None
    """Seed of the random hash rotations during training. None: new rotations at each step."""
    feedforward: Count | None = None
    """Positions that pass the feed-forward network at a time; fewer save memory. None: all at once."""


class TransformerStack(Table, StackTraits):
    """Transformer layers: self-attention, cross-attention in writers, and a feed-forward network (Vaswani et al. 2017).

    Lists such as `window` and `attention` are repeated over the layers.
    """

    is_transformer: ClassVar[bool] = True
    kind: Literal["transformer"] = "transformer"
    """Chooses this stack: Transformer layers."""
    layers: Repeats = 6
    """Number of Transformer blocks. Parameters, computation and memory grow in proportion."""
    dim: Count = 512
    """Width of hidden states (d_model); a multiple of `heads`, unless `head_dim` is given."""
    heads: Count = 8
    """Number of attention heads; each has width `dim / heads`."""
    kv_heads: Count | None = None
    """Heads of keys and values, each shared by equally many query heads: grouped-query attention (Ainslie et al.
    2023), multi-query with 1. Fewer save memory of the decoding cache. None: as many as `heads`."""
    ff: Annotated[int, Field(ge=0)] = 2048
    """Width of the hidden layer of the feed-forward network (d_ff); usually 4 x `dim`. 0: blocks without one."""
    norm: Literal["post", "pre", "none"] = "post"
    """Where normalization is: after each residual sum (the paper), before each sublayer (stable in deep stacks and
    without warmup), or nowhere."""
    residual: bool | Literal["reversible"] = True
    """Residual connections. "reversible" recomputes activations backwards from two streams instead of keeping them,
    which saves memory (Reformer, Kitaev et al. 2020)."""
    attention: tuple[Literal["full", "local", "lsh"], ...] = ("full",)
    """Kind of self-attention by layer. "local" and "lsh" are chunked attention, see `chunks`, and need
    residual = "reversible"."""
    chunks: Chunks = Chunks()
    """Settings of "local" and "lsh" attention."""
    score: Score = ScaledDot()
    """Score of query and key, in self-attention and cross-attention: "scaled-dot", "dot", "general", "additive",
    "concat" or one of your own."""
    cross_score: Score | None = None
    """Writers only: score of cross-attention, where it is another one. None: the same as `score`."""
    norm_kind: Literal["layer", "rms"] = "layer"
    """LayerNorm (Ba et al. 2016), or RMSNorm (Zhang and Sennrich 2019), which is faster and used by Llama and T5."""
    norm_epsilon: Annotated[float, Field(gt=0)] | None = None
    """Epsilon added to the variance in norms. None: 1e-5 for LayerNorm, 1e-6 for RMSNorm. Matters for imported
    weights."""
    activation: Literal["relu", "gelu", "gelu-tanh", "silu", "sigmoid"] = "relu"
    """Activation function of the feed-forward network. "gelu-tanh" is the approximation that GPT-2 uses."""
    gated: bool = False
    """Gated feed-forward network: the activation is multiplied by a second projection (GLU variants, Shazeer 2020;
    SwiGLU with activation = "silu")."""
    dropout: Share = 0.1
    """Dropout probability of the output of each sublayer, before the residual sum. 0.3 suits small data, 0 large."""
    attention_dropout: Share = 0.0
    """Dropout probability of attention weights. 0 allows the fastest attention kernels."""
    ff_dropout: Share = 0.0
    """Dropout probability inside the feed-forward network, after the activation."""
    drop_path: Share = 0.0
    """Stochastic depth: probability that a sublayer is skipped for an example during training, rising linearly from 0
    in the first block to this value in the last (Huang et al. 2016). 0 disables it; 0.1 suits small ViTs."""
    head_projection: Literal["paper", "full", "split"] = "paper"
    """How heads are made: "paper" projects the input to dim / heads per head, "full" to dim per head, "split" gives
    each head its own slice of the input (`saccade lectures run 63` compares them)."""
    head_dim: Count | None = None
    """Width of one attention head. None: `dim / heads`. Set it where they differ, as in some T5 models."""
    value_dim: Count | None = None
    """Width of the values of one attention head (d_v), in self-attention and cross-attention; queries and keys have
    `head_dim` (d_k). None: the same width. A smaller one saves parameters and cache, and engines that need equal widths
    are not used."""
    scale_attention: bool | Literal["first"] = True
    """Divide the scores of "scaled-dot" by sqrt(d_k). "first" divides only the initial query weights instead, as in T5;
    false does neither."""
    bias: bool = True
    """Bias terms in the linear projections of attention and feed-forward network. Llama and T5 have none."""
    attention_bias: bool = True
    """Bias terms in the projections of attention, where `bias` is true. False leaves only those out (GPT-Neo)."""
    window: tuple[Annotated[int, Field(ge=0)] | Literal["none"], ...] | None = None
    """Sliding-window attention: keys on each side of a query that it can attend to, by layer. "none" in the list:
    full attention in that layer; None: in all layers."""
    experts: Experts | None = None
    """Mixture of experts in place of the feed-forward network. None: a plain feed-forward network."""
    share_layers: bool = False
    """All layers share the weights of one (ALBERT, Lan et al. 2020): fewer parameters, the same computation."""

    @property
    def transformer(self) -> TransformerStack:
        return self

    @property
    def score_kinds(self) -> tuple[str, str]:
        """Kinds of the scores of self-attention and of cross-attention."""
        return self.score.kind, (self.cross_score or self.score).kind

    @property
    def is_reversible(self) -> bool:
        return self.residual == "reversible"

    @property
    def width(self) -> int:
        return self.dim

    @property
    def embedding_eps(self) -> float:
        return self.norm_epsilon or DEFAULT_NORM_EPSILON["layer"]

    def to_trained_form(self) -> TransformerStack:
        """Fill in settings that follow from others, and repeat lists over all layers."""
        follow = {
            "norm_epsilon": DEFAULT_NORM_EPSILON[self.norm_kind], "head_dim": self.dim // self.heads,
            "kv_heads": self.heads, "value_dim": self.head_dim or self.dim // self.heads,
        }  # fmt: skip
        derived: dict[str, Any] = {name: number for name, number in follow.items() if getattr(self, name) is None}
        lists = {name: getattr(self, name) for name in ("attention", "window") if getattr(self, name)}
        derived |= {name: tuple(islice(cycle(items), self.layers)) for name, items in lists.items()}
        cross = None if self.cross_score == self.score else self.cross_score
        return self.model_copy(
            update={**derived, "scale_attention": self.scale_attention is True, "cross_score": cross}
        )

    @field_validator("window", mode="before")
    @classmethod
    def _windows(cls, value: Any) -> Any:
        """`window = 128` is short for `window = [128]`; a list is repeated over the layers."""
        given = value if isinstance(value, list | tuple) else (value,)
        if value is None:
            return None
        if not given or not all(size == "none" or (type(size) is int and size >= 0) for size in given):
            raise ValueError(
                f'window must be a number of keys, at least 0, or a list of such and of "none", got {value!r}'
            )
        return tuple(given)

    @field_validator("attention", mode="before")
    @classmethod
    def _attentions(cls, value: Any) -> Any:
        """`attention = "lsh"` is short for `attention = ["lsh"]`; a list is repeated over the layers."""
        return (value,) if isinstance(value, str) else value or ("full",)

    @model_validator(mode="after")
    def _consistent(self) -> TransformerStack:
        check_reversible(self)
        if (others := set(self.score_kinds) - {"scaled-dot"}) and self.scale_attention is not True:
            raise ValueError(
                f'scale_attention is for score = "scaled-dot", got "{others.pop()}"; leave scale_attention out'
            )
        if self.kv_heads is not None and (self.heads % self.kv_heads or self.head_projection != "paper"):
            raise ValueError(
                f'kv_heads must divide heads = {self.heads}, with head_projection = "paper", got {self.kv_heads} and '
                f'"{self.head_projection}"'
            )
        if self.head_dim is not None and self.head_projection != "paper":
            raise ValueError(
                f'head_dim is for head_projection = "paper", got "{self.head_projection}"; leave one of them out'
            )
        if self.value_dim is not None and self.head_projection != "paper":
            raise ValueError(
                f'value_dim is for head_projection = "paper", got "{self.head_projection}"; leave one of them out'
            )
        if self.head_dim is None and self.dim % self.heads:
            raise ValueError(f"dim must be a multiple of heads, got dim = {self.dim} and heads = {self.heads}")
        if self.experts is not None and self.share_layers:
            raise ValueError("experts are different in every layer; set share_layers = false, or leave experts out")
        if self.experts is not None and self.gated:
            raise ValueError("experts are not gated networks; set gated = false, or leave experts out")
        if self.experts is not None and not (self.experts.hidden_dim or self.ff):
            raise ValueError("experts need a hidden width; set experts.hidden_dim, or ff above 0")
        if self.experts is not None and self.experts.every_n_layers > self.layers:
            raise ValueError(
                f"experts.every_n_layers must be at most layers = {self.layers}, or no block has any, got "
                f"{self.experts.every_n_layers}"
            )
        return self


def check_reversible(stack: TransformerStack) -> None:
    """Refuse settings that a reversible stack cannot have, and those that need one."""
    if stack.is_reversible:
        if scores := set(stack.score_kinds) - {"scaled-dot"}:
            raise ValueError(
                f'residual = "reversible" computes scaled dot products, also in "local" and "lsh" attention; leave '
                f'score = "{scores.pop()}" out'
            )
        fixed = {
            "norm": "pre", "kv_heads": None, "window": None, "experts": None, "head_projection": "paper",
            "share_layers": False, "drop_path": 0.0, "value_dim": None,
        }  # fmt: skip
        other = [name for name, value in fixed.items() if getattr(stack, name) != value]
        if other or not stack.ff:
            raise ValueError(
                'residual = "reversible" goes with norm = "pre", ff above 0, and without kv_heads, window, experts, '
                f"share_layers, drop_path, value_dim and other head projections; change {other[0] if other else 'ff'}"
            )
        return
    special = [kind for kind in stack.attention if kind != "full"]
    if special:
        raise ValueError(
            f'attention = "{special[0]}" is for residual = "reversible", got {stack.residual}; change one of them'
        )


class ConvolutionStack(Table, StackTraits):
    """Convolutional layers of ConvS2S (Gehring et al. 2017) or ByteNet (Kalchbrenner et al. 2016).

    Lists such as `dilations` are repeated over the layers.
    """

    kind: Literal["convolution"] = "convolution"
    """Chooses this stack: convolutional layers."""
    block: Literal["gated", "residual"] = "gated"
    """The block of ConvS2S (convolution with a gated linear unit), or the residual block of ByteNet."""
    layers: Repeats = 15
    """Number of convolutional blocks; each widens the receptive field by (kernel - 1) x dilation."""
    dim: Count = 512
    """Width of the hidden states between blocks."""
    hidden_dim: Annotated[tuple[Count, ...], Field(min_length=1)] | None = None
    """Channels of the convolution inside a block, one number or a list by layer. None: `dim` in gated blocks, half of
    it in residual blocks."""
    kernel: Annotated[tuple[Count, ...], Field(min_length=1)] = (3,)
    """Kernel size in positions, one number or a list by layer. Larger kernels see more context and cost more."""
    dilations: Annotated[tuple[Count, ...], Field(min_length=1)] = (1,)
    """Dilation of the kernel by layer: the distance of neighbouring taps. ByteNet uses 1, 2, 4, 8, 16."""
    attention: Annotated[tuple[bool, ...], Field(min_length=1)] = (True,)
    """Writers only: which layers attend to the memory. All false: memory states are added position by position, as in
    ByteNet."""
    score: Score = Dot()
    """Writers only: score of query and key in the attention to the memory: "dot" (the paper), "scaled-dot", "general",
    "additive", "concat" or one of your own."""
    unfold: tuple[float, float] = (1.0, 0.0)
    """Dynamic unfolding of ByteNet, as [a, b]: a reader gives a n + b states for n tokens. [1, 0] disables it."""
    weight_norm: bool = True
    """Weight normalization (Salimans and Kingma 2016): length and direction of each filter are separate parameters."""
    dropout: Share = 0.1
    """Dropout probability of the input of each block."""

    def find_dilation_conflict(self, side: str, max_length: int) -> str:
        if (largest := max(self.dilations)) > max_length:
            return (
                f"{side}.stack.dilations: {largest} is more than data.max_length = {max_length}, so that every "
                "neighbour is padding; lower it"
            )
        return ""

    @property
    def width(self) -> int:
        return self.dim

    @property
    def hidden_dims(self) -> list[int]:
        """Channels of the convolution of each layer."""
        default = self.dim if self.block == "gated" else -(-self.dim // 2)
        return list(islice(cycle(self.hidden_dim or (default,)), self.layers))

    @property
    def kernels(self) -> list[int]:
        """Kernel size of each layer."""
        return list(islice(cycle(self.kernel), self.layers))

    @field_validator("kernel", "hidden_dim", mode="before")
    @classmethod
    def _by_layer(cls, value: Any) -> Any:
        """`kernel = 3` is short for `kernel = [3]`; a list is repeated over the layers."""
        return value if value is None or isinstance(value, list | tuple) else (value,)

    @model_validator(mode="after")
    def _consistent(self) -> ConvolutionStack:
        a, b = self.unfold
        if self.score.kind != "dot" and not any(self.attention):
            raise ValueError(
                f'score = "{self.score.kind}" is for attention to the memory, but no layer attends; set attention = '
                "[true], or leave score out"
            )
        if a < 1 or b < 0:
            raise ValueError(f"unfold must be at least [1, 0], a state for each token, got [{a:g}, {b:g}]")
        return self


def format_value(value: bool | int | str) -> str:
    """A value as TOML."""
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def check_shortcuts(*, residual: bool, fast_forward: bool) -> None:
    if residual and fast_forward:
        raise ValueError("residual and fast_forward are both shortcuts past a layer; set one of them to false")


def check_cell_dim(cell: str, dim: int, cell_dim: int | None) -> None:
    if cell_dim is not None and (cell != "lstm" or cell_dim <= dim):
        got = f'cell = "{cell}"' if cell != "lstm" else f"cell_dim = {cell_dim} and dim = {dim}"
        raise ValueError(f'cell_dim is for cell = "lstm" and larger than dim, got {got}; leave it out')


def check_expert_interval(experts: Experts | None, layers: int) -> None:
    if experts is not None and experts.every_n_layers >= layers:
        raise ValueError(
            f"experts are between layers: experts.every_n_layers must be smaller than layers = {layers}, got "
            f"{experts.every_n_layers}"
        )


class RecurrentReaderStack(Table, StackTraits):
    """Recurrent layers of a reader: RNN, GRU or LSTM."""

    kind: Literal["recurrent"] = "recurrent"
    """Chooses this stack: recurrent layers."""
    cell: Literal["rnn", "gru", "lstm"] = "lstm"
    """Recurrent cell: Elman RNN, GRU (Cho et al. 2014) or LSTM (Hochreiter and Schmidhuber 1997)."""
    layers: Repeats = 1
    """Number of recurrent layers. From 4 on, `residual` or `fast_forward` helps."""
    dim: Count = 512
    """Width of the hidden states; both directions, or both columns, together."""
    cell_dim: Count | None = None
    """Width of the cell states of an LSTM, from which hidden states are projected to `dim` (LSTMP, Sak et al. 2014);
    both directions, or both columns, together. It must be larger than `dim`. None: `dim`, without a projection."""
    input_dim: Count | None = None
    """Width of the token embedding, which the first layer takes as it is. None: `dim`."""
    bidirectional: bool | Literal["first", "alternate"] = False
    """Read backwards too: true gives half of every layer to each direction, "first" only of the first layer (GNMT),
    "alternate" lets every second layer read backwards (Deep-Att)."""
    full_directions: bool = False
    """For bidirectional = "first": each direction of the first layer has the whole width `dim`, and the second layer
    takes both, as in GNMT (Wu et al. 2016, section 3.2). It needs at least two layers."""
    columns: Literal[1, 2] = 1
    """For bidirectional = "alternate": 2 gives half of the width to a second column of layers, which begins from the
    right (Deep-Att, Zhou et al. 2016)."""
    reverse: bool = False
    """Read the tokens from last to first, which shortens the distance to the output (Sutskever et al. 2014)."""
    residual: bool = False
    """Layers from the third on add their input to their output (GNMT, Wu et al. 2016)."""
    fast_forward: bool = False
    """Fast-forward connections past the recurrences of each layer (Deep-Att, Zhou et al. 2016)."""
    experts: Experts | None = None
    """Mixture of experts between layers. None: no experts."""
    dropout: Share = 0.2
    """Dropout probability of the output of each layer."""

    @property
    def width(self) -> int:
        return self.dim

    @property
    def recurrent_shape(self) -> tuple[str, int, int, int]:
        return self.cell, self.layers, self.dim, self.cell_dim or self.dim

    @model_validator(mode="after")
    def _consistent(self) -> RecurrentReaderStack:
        check_shortcuts(residual=self.residual, fast_forward=self.fast_forward)
        check_expert_interval(self.experts, self.layers)
        check_cell_dim(self.cell, self.dim, self.cell_dim)
        if self.bidirectional and self.reverse:
            raise ValueError("bidirectional reads in both directions already; take out reverse = true")
        for name, width in (("dim", self.dim), ("cell_dim", self.cell_dim or 0)):
            if (self.bidirectional in (True, "first") or self.columns == 2) and width % 2:
                raise ValueError(f"bidirectional needs an even {name}, half for each direction, got {width}")
        if self.full_directions and (self.bidirectional != "first" or self.layers == 1):
            raise ValueError(
                'full_directions = true is for bidirectional = "first" and at least two layers, got '
                f"bidirectional = {format_value(self.bidirectional)} and layers = {self.layers}; leave it out"
            )
        if self.columns == 2 and (self.bidirectional != "alternate" or self.experts is not None):
            got = f"bidirectional = {format_value(self.bidirectional)}"
            raise ValueError(
                f'columns = 2 is for bidirectional = "alternate", without experts, got '
                f"{got if self.experts is None else 'experts'}; leave one of them out"
            )
        return self


class RecurrentWriterStack(Table, StackTraits):
    """Recurrent layers of a writer, with or without attention to the memory of the reader."""

    kind: Literal["recurrent"] = "recurrent"
    """Chooses this stack: recurrent layers."""
    cell: Literal["rnn", "gru", "lstm"] = "lstm"
    """Recurrent cell: Elman RNN, GRU (Cho et al. 2014) or LSTM (Hochreiter and Schmidhuber 1997)."""
    layers: Repeats = 1
    """Number of recurrent layers. From 4 on, `residual` or `fast_forward` helps."""
    dim: Count = 512
    """Width of the hidden states."""
    cell_dim: Count | None = None
    """Width of the cell states of an LSTM, from which hidden states are projected to `dim` (LSTMP, Sak et al. 2014). It
    must be larger than `dim`. None: `dim`, without a projection."""
    input_dim: Count | None = None
    """Width of the token embedding, which the first layer takes as it is. None: `dim`."""
    attention: Literal["none", "additive", "dot", "general", "concat", "around", "score"] = "none"
    """Attention to the memory: "additive" (Bahdanau et al. 2015), "dot", "general" or "concat" (Luong et al. 2015),
    "around" over the cells of an image and their neighbours (Li et al. 2019), "score" for that of the key `score`, or
    none. "additive" attends before each step, with the last state as its query; the others attend after it, with the
    new state."""
    score: Score | None = None
    """Score of query and key, for attention = "score": a table with settings, or one of your own. Your own attends
    after each step, unless it declares `attends_before_step`."""
    local: LocalWindow | None = None
    """Local attention (Luong et al. 2015, section 3.2), with any score: only to memory states around one position per
    step. None: global attention, to all of them."""
    hard_attention: bool = False
    """Additive attention: sample one memory state instead of their weighted mean (Xu et al. 2015). Needs the objective
    "reinforce"."""
    maxout_dim: Count | None = None
    """Additive attention: compute the output from state, context and token by a layer of this many maxout units, the
    larger of two linear maps each (Bahdanau et al. 2015, appendix A.2.2). None: by tanh, as wide as `dim`."""
    context_gate: bool = False
    """Additive attention: multiply the context by a sigmoid gate of the hidden state (Xu et al. 2015)."""
    input_feeding: bool = True
    """Feed the attentional state tanh(W [context; state]) into the next step (Luong et al. 2015, section 3.3). Without
    attention: feed the fixed context vector c at every step."""
    context: Literal["last", "mean"] = "last"
    """Fixed context vector c of the memory: its last state or the mean of all; it makes the initial state."""
    residual: bool = False
    """Layers from the third on add their input to their output (GNMT, Wu et al. 2016)."""
    fast_forward: bool = False
    """Fast-forward connections past the recurrences of each layer (Deep-Att, Zhou et al. 2016)."""
    experts: Experts | None = None
    """Mixture of experts between layers. None: no experts."""
    initial_state: Literal["predicted", "copied", "zero"] = "predicted"
    """Initial hidden state: tanh(W c) of the fixed context vector, a copy of the final states of the reader's layers,
    which must then have the same shape (Sutskever et al. 2014), or zero."""
    dropout: Share = 0.2
    """Dropout probability of the output of each layer."""

    @property
    def width(self) -> int:
        return self.maxout_dim or self.dim

    @property
    def recurrent_writer(self) -> RecurrentWriterStack:
        return self

    @property
    def recurrent_shape(self) -> tuple[str, int, int, int]:
        return self.cell, self.layers, self.dim, self.cell_dim or self.dim

    @property
    def copies_states(self) -> bool:
        return self.initial_state == "copied"

    @property
    def attends_before_step(self) -> bool:
        """Whether attention is computed before each step, with the last state as its query."""
        return self.attention == "additive" or (self.score is not None and self.score.attends_before_step)

    @model_validator(mode="after")
    def _consistent(self) -> RecurrentWriterStack:
        check_shortcuts(residual=self.residual, fast_forward=self.fast_forward)
        check_expert_interval(self.experts, self.layers)
        check_cell_dim(self.cell, self.dim, self.cell_dim)
        if self.score is not None and self.attention != "score":
            raise ValueError(
                f'score = "{self.score.kind}" is for attention = "score", got "{self.attention}"; set attention = '
                '"score", or leave score out'
            )
        if self.score is None and self.attention == "score":
            raise ValueError('attention = "score" needs the key score, such as score = "concat"; set it')
        named = self.attention if self.score is None else self.score.kind
        if self.attends_before_step and not self.input_feeding:
            raise ValueError(
                f'attention = "{named}" is computed before each step, for that step; input_feeding = false is for '
                '"dot", "general", "concat" and "around"'
            )
        for name in ("context_gate", "hard_attention", "maxout_dim"):
            if getattr(self, name) and not self.attends_before_step:
                got = format_value(getattr(self, name))
                raise ValueError(f'{name} = {got} is for attention = "additive", got "{named}"; leave it out')
        if self.local is not None and (self.attention in ("none", "around") or self.hard_attention):
            got = "hard_attention = true" if self.hard_attention else f'attention = "{self.attention}"'
            raise ValueError(f"local attention has soft weights over a sequence, got {got}; leave local out")
        return self


ReaderStack = Annotated[TransformerStack | ConvolutionStack | RecurrentReaderStack | Custom, ByKind()]
WriterStack = Annotated[TransformerStack | ConvolutionStack | RecurrentWriterStack | Custom, ByKind()]


def find_reversible_conflict(side: str, stack: StackTraits, positions: Any) -> str:
    """Why these positions are incompatible with a reversible stack, which takes positions at its input only."""
    if stack.is_reversible and positions.inside_attention:
        return (
            f'{side}.stack.residual = "reversible" takes positions at the input, got "{positions.kind}"; '
            f'try {side}.positions.kind = "axial"'
        )
    return ""
