"""The recipe: every setting of saccade, its type and its default, in one place.

Every table is frozen and rejects unknown keys. Where several kinds of a thing exist, the key `kind` chooses one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from saccade.config.kinds import MARK, ByKind, Custom

HIGHEST = 0.1  # learning rate that Adam is ever given; a larger one is the factor of another schedule
SCHEMA = 1  # raised when a recipe of an older version can no longer be read as it is

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]


class Table(BaseModel):
    """What every table shares: frozen, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _from_toml(cls, value: Any) -> Any:
        """TOML has lists and no null: lists become tuples, and "none" stands for None where a key may be None."""
        if not isinstance(value, dict):
            return value
        optional = {name for name, field in cls.model_fields.items() if type(None) in get_args(field.annotation)}
        value = {key: None if item == "none" and key in optional else item for key, item in value.items()}
        return {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}


# ---- data


class Corpus(Table):
    """Two line-aligned files, one file with columns, a Hub data set, or `embedded:NAME`."""

    files: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)]
    columns: tuple[str, str] | None = None  # of a file with columns: source, target
    split: str = "train"  # of a Hub data set
    weight: Annotated[float, Field(gt=0)] = 1.0  # passes over this corpus in one epoch
    examples: Count | None = None  # how many examples to take (or to make, for embedded data)


def _corpora_or_share(value: Any) -> str:
    return MARK + ("corpora" if isinstance(value, tuple) else "share")


Corpora = tuple[Corpus, ...]
Valid = Annotated[
    Annotated[Corpora, Tag(MARK + "corpora")] | Annotated[Share, Tag(MARK + "share")], Discriminator(_corpora_or_share)
]


class Data(Table):
    train: Corpora = ()
    valid: Valid = ()  # a number: this share of the training pairs is held out
    max_length: Count = 256  # tokens of either side, <end> included; longer pairs are dropped and counted

    @field_validator("train", "valid", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        """`["a.en", "a.de"]` is one corpus of two files, `"a.tsv"` one of one file; a list of these is several."""
        if isinstance(value, str):
            value = (value,)
        if not isinstance(value, list | tuple):
            return value
        if value and all(isinstance(item, str) for item in value):
            value = (tuple(value),)
        return tuple({"files": tuple(item)} if isinstance(item, list | tuple) else item for item in value)


class Tokenizer(Table):
    kind: Literal["bpe", "unigram", "wordpiece", "characters", "bytes", "words", "file"] = "bpe"
    size: Annotated[int, Field(ge=4)] = 8000  # at most; characters and words stop at what the data has
    shared: bool = True  # one vocabulary for source and target
    lowercase: bool = False
    dropout: Share = 0.0  # BPE dropout (Provilkov et al. 2020), training pairs only
    variants: Count = 8  # encodings of the training pairs that BPE dropout alternates between
    files: tuple[str, ...] = ()  # kind = "file": one tokenizer.json, or one each for source and target


# ---- positions


class Sinusoidal(Table):
    kind: Literal["sinusoidal"] = "sinusoidal"
    layout: Literal["interleaved", "concatenated"] = "interleaved"
    frequencies: Literal["paper", "tensor2tensor"] = "paper"
    how: Literal["add", "concat"] = "add"


class Learned(Table):
    kind: Literal["learned"] = "learned"
    length: Count = 1024
    how: Literal["add", "concat"] = "add"


class NoPositions(Table):
    kind: Literal["none"] = "none"


class Rotary(Table):
    kind: Literal["rotary"] = "rotary"
    base: float = 10000.0


class Shaw(Table):
    kind: Literal["shaw"] = "shaw"
    distance: Count = 16


class Bucketed(Table):
    """The relative position bias of T5."""

    kind: Literal["bucketed"] = "bucketed"
    buckets: Count = 32
    distance: Count = 128


class Alibi(Table):
    kind: Literal["alibi"] = "alibi"


Positions = Annotated[Sinusoidal | Learned | NoPositions | Rotary | Shaw | Bucketed | Alibi | Custom, ByKind()]


# ---- stacks, reader, writer


class TransformerStack(Table):
    kind: Literal["transformer"] = "transformer"
    layers: Count = 6
    dim: Count = 512
    heads: Count = 8
    ff: Count = 2048
    norm: Literal["post", "pre"] = "post"
    norm_kind: Literal["layer", "rms"] = "layer"
    activation: Literal["relu", "gelu", "gelu-tanh", "silu", "sigmoid"] = "relu"
    gated: bool = False  # feed-forward with a gate (GLU variants)
    dropout: Share = 0.1
    attention_dropout: Share = 0.0
    ff_dropout: Share = 0.0  # inside the feed-forward network
    heads_form: Literal["paper", "full", "split"] = "paper"  # three ways to make heads (lecture row 63)
    scale: bool = True  # divide scores by sqrt(d_k)
    bias: bool = True
    window: Annotated[int, Field(ge=0)] | None = None  # keys seen on each side in self-attention

    @model_validator(mode="after")
    def _heads_divide(self) -> TransformerStack:
        if self.dim % self.heads:
            raise ValueError(f"dim must be a multiple of heads, got dim = {self.dim} and heads = {self.heads}")
        return self


class ConvolutionStack(Table):
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

    @model_validator(mode="after")
    def _unfolds(self) -> ConvolutionStack:
        a, b = self.unfold
        if a < 1 or b < 0:
            raise ValueError(f"unfold must be at least [1, 0], a state for each token, got [{a:g}, {b:g}]")
        return self


class RecurrentReading(Table):
    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["rnn", "gru", "lstm"] = "lstm"
    layers: Count = 1
    dim: Count = 512  # of the states; of both directions together
    bidirectional: bool | Literal["first"] = False  # half of the width reads from right to left; first: of layer 1
    reverse: bool = False  # read from the last token to the first
    residual: bool = False  # layers from the third on add their input to what they give
    dropout: Share = 0.2  # of what each layer gives

    @model_validator(mode="after")
    def _directions(self) -> RecurrentReading:
        if self.bidirectional and self.reverse:
            raise ValueError("bidirectional reads in both directions already; take out reverse = true")
        if self.bidirectional and self.dim % 2:
            raise ValueError(f"bidirectional needs an even dim, half for each direction, got {self.dim}")
        return self


class RecurrentWriting(Table):
    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["rnn", "gru", "lstm"] = "lstm"
    layers: Count = 1
    dim: Count = 512
    attention: Literal["none", "additive", "dot", "general"] = "none"  # additive: Bahdanau's; dot, general: Luong's
    input_feeding: bool = True  # what was looked at enters the recurrence; without attention: c at each step
    context: Literal["last", "mean"] = "last"  # c: the last state of the reader, or the mean of all
    residual: bool = False
    first: Literal["predicted", "copied"] = "predicted"  # state: tanh(W c), or the last ones of the reader's layers
    dropout: Share = 0.2  # of what each layer gives

    @model_validator(mode="after")
    def _additive_feeds(self) -> RecurrentWriting:
        if self.attention == "additive" and not self.input_feeding:
            raise ValueError(
                'attention = "additive" looks before each step, for that step; input_feeding = false is for "dot" and '
                '"general"'
            )
        return self


ReaderStack = Annotated[TransformerStack | ConvolutionStack | RecurrentReading | Custom, ByKind()]
WriterStack = Annotated[TransformerStack | ConvolutionStack | RecurrentWriting | Custom, ByKind()]


class TokenReader(Table):
    kind: Literal["tokens"] = "tokens"
    stack: ReaderStack = TransformerStack()
    positions: Positions = Sinusoidal()
    scale: bool = True  # token vectors times sqrt(dim)
    dropout: Share = 0.1  # of the embedding
    init: str = ""  # a run whose reader's weights to start from


class TokenWriter(Table):
    kind: Literal["tokens"] = "tokens"
    stack: WriterStack = TransformerStack()
    positions: Positions = Sinusoidal()
    scale: bool = True
    dropout: Share = 0.1
    tie: Literal["none", "output", "all"] = "all"  # output: with the writer's embedding; all: also the reader's
    init: str = ""


Reader = Annotated[TokenReader | Custom, ByKind()]
Writer = Annotated[TokenWriter | Custom, ByKind()]


# ---- what is learned, and how


class NextToken(Table):
    kind: Literal["next-token"] = "next-token"
    smoothing: Share = 0.1
    weight: float = 1.0


class RDrop(Table):
    """Two passes with different dropout, drawn together (Liang et al. 2021)."""

    kind: Literal["r-drop"] = "r-drop"
    smoothing: Share = 0.1
    alpha: Annotated[float, Field(ge=0)] = 5.0
    weight: float = 1.0


Objective = Annotated[NextToken | RDrop | Custom, ByKind()]


class Optimizer(Table):
    kind: Literal["adam"] = "adam"
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    decay: Annotated[float, Field(ge=0)] = 0.0  # decoupled; not for biases, norms and embeddings


class Schedule(Table):
    """warmup: lr * D^-0.5 * min(step^-0.5, step * warmup^-1.5); the others rise to lr, then go down to `floor`."""

    kind: Literal["warmup", "linear", "cosine", "constant"] = "warmup"
    lr: Annotated[float, Field(gt=0)] = 1.0
    warmup: Annotated[int, Field(ge=0)] = 4000
    floor: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _lr_is_meant(self) -> Schedule:
        if self.kind != "warmup" and self.lr > HIGHEST:
            raise ValueError(
                f'lr of a "{self.kind}" schedule is the highest learning rate itself, at most {HIGHEST}, '
                f"got {self.lr:g}; try lr = 0.001"
            )
        return self


class Average(Table):
    """The weights to use: one checkpoint, or the mean of several."""

    kind: Literal["none", "last", "best"] = "none"
    n: Count = 5


class Train(Table):
    steps: Count | None = 100_000
    epochs: Count | None = None
    minutes: Annotated[float, Field(gt=0)] | None = None
    batch_tokens: Count = 4096  # padded tokens of the longer side in one micro-batch
    accumulate: Count = 1  # micro-batches in one optimizer step
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    clip: Annotated[float, Field(ge=0)] = 0.0  # largest norm of the gradient; 0: no clipping
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 on CUDA, fp32 elsewhere
    compile: bool = False
    pack: bool | None = None  # texts one behind the other, without padding; none: where that is possible and faster
    graphs: bool | None = None  # a step as one CUDA graph for each shape of batch; none: where that is possible
    recompute: bool = False  # activation checkpointing: less memory, one more forward pass
    device: str = "auto"  # auto: CUDA, Apple MPS, CPU, in this order
    seed: Annotated[int, Field(ge=0)] = 1
    deterministic: bool | None = None  # none: on for CPU, off for GPU
    report_every: Count = 50
    valid_every: Count = 1000
    valid_predictions: Annotated[int, Field(ge=0)] = 500  # validation pairs decoded for the score; 0: loss only
    metric: Literal["loss", "bleu", "accuracy"] = "loss"  # what the best checkpoint is best at
    patience: Count | None = None  # validations without a better one before an early stop
    save_every: Count = 1000
    keep: Count = 3  # newest checkpoints kept, beside those that `average` and `metric` need
    ema: Share = 0.0  # decay of the moving average of weights; 0: none
    average: Average = Average()
    tensorboard: bool = False
    profile: bool = False  # write where the time of a step goes: profile.md, profile.json, trace.json


class Decoding(Table):
    """How the writer's output is searched. beam = 1 is greedy; sample = true draws instead."""

    beam: Count = 4
    length_penalty: float = 0.6  # alpha of ((5 + length) / 6)^alpha (Wu et al. 2016)
    coverage: Annotated[float, Field(ge=0)] = 0.0  # beta of the same: beams pay for input that was not attended to
    n_best: Count = 1
    sample: bool = False
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0)] = 1
    min_length: Annotated[int, Field(ge=0)] = 0
    max_length: Count | None = None  # none: 2 x source + 20, at most data.max_length
    no_repeat: Annotated[int, Field(ge=0)] = 0  # no n-gram of this size twice
    prefix: str = ""  # every output begins with this text
    batch_tokens: Count = 4096

    @model_validator(mode="after")
    def _consistent(self) -> Decoding:
        if self.n_best > self.beam and not self.sample:
            raise ValueError(f"n_best must be at most beam, got n_best = {self.n_best} and beam = {self.beam}")
        return self


class Recipe(Table):
    schema_version: int = SCHEMA
    name: str = ""
    about: str = ""  # the system, its paper, the lecture rows
    task: Literal["translate"] = "translate"
    data: Data = Data()
    tokenizer: Tokenizer = Tokenizer()
    reader: Reader = TokenReader()
    writer: Writer = TokenWriter()
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1)] = (NextToken(),)
    train: Train = Train()
    predict: Decoding = Decoding()
    init: str = ""  # a run whose weights to start from
    freeze: tuple[Literal["reader", "writer"], ...] = ()

    @field_validator("freeze", mode="before")
    @classmethod
    def _one_part(cls, value: Any) -> Any:
        """`freeze = "reader"` is short for `freeze = ["reader"]`."""
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _tied_vocabularies_are_one(self) -> Recipe:
        if isinstance(self.writer, TokenWriter) and self.writer.tie == "all" and not self.tokenizer.shared:
            raise ValueError(
                'writer.tie = "all" needs one vocabulary for source and target; '
                'set tokenizer.shared = true or writer.tie = "output"'
            )
        return self
