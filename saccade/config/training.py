"""Tables of a recipe: what is learned, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from saccade.config.kinds import ByKind, Custom
from saccade.config.playing import TemporalDifference
from saccade.config.table import Count, ObjectiveTraits, Share, Table

if TYPE_CHECKING:
    from saccade.config.schema import Recipe

HIGHEST = 0.1  # learning rate that Adam is ever given; a larger one is the factor of another schedule


Metric = Literal["loss", "bleu", "gleu", "accuracy", "f1", "matthews", "pearson", "spearman", "wer", "cer", "success"]
LOWER = ("loss", "wer", "cer")  # metrics of which less is better


def tell_hard_attention(objective: Any, *, hard: bool) -> str:
    return (
        'writer.stack.hard = true draws where to look, which the objective "reinforce" learns, and nothing '
        f'else does; got hard = {str(hard).lower()} and "{objective.kind}"'
    )


class NextToken(Table, ObjectiveTraits):
    kind: Literal["next-token"] = "next-token"
    smoothing: Share = 0.1
    coverage: Annotated[float, Field(ge=0)] = 0.0  # what each cell gets of all looks is drawn to 1 (Xu et al. 2015)
    weight: float = 1.0

    def without_coverage(self) -> NextToken:
        return self.model_copy(update={"coverage": 0.0})

    def find_conflict(self, recipe: Recipe) -> str:
        attention = recipe.writer.attention
        if self.coverage and (attention is None or attention.attention != "additive"):
            return 'coverage of the objective "next-token" needs writer.stack.attention = "additive"; set it to 0'
        return ""


class Scheduled(Table, ObjectiveTraits):
    """The next token, where some of those before it are the model's own (scheduled sampling, Bengio et al. 2015)."""

    kind: Literal["scheduled"] = "scheduled"
    sampled: Share = 0.1  # of what is read, drawn from the model
    ctc: Share = 0.0  # share of the head of writer.ctc in the loss; the rest is the next token's
    smoothing: Share = 0.1
    weight: float = 1.0

    @property
    def learns_ctc(self) -> bool:
        return self.ctc > 0

    def find_conflict(self, recipe: Recipe) -> str:
        if self.learns_ctc and not (recipe.writer.tokens and recipe.writer.tokens.ctc):
            return 'ctc of the objective "scheduled" needs its head; set writer.ctc = true, or ctc = 0'
        return ""


class Reinforce(Table, ObjectiveTraits):
    """The next token where looks are drawn: those after which a text is likelier than usual are drawn more often."""

    learns_hard_attention: ClassVar[bool] = True
    kind: Literal["reinforce"] = "reinforce"
    reward: Annotated[float, Field(ge=0)] = 0.1  # weight of what is learned of looks beside the tokens (Xu et al. 2015)
    entropy: Annotated[float, Field(ge=0)] = 0.01  # and of how spread their weights are, so that all places are tried
    decay: Share = 0.9  # of the moving average of log-likelihoods, which says what is usual
    smoothing: Share = 0.0
    weight: float = 1.0

    def find_conflict(self, recipe: Recipe) -> str:
        return "" if recipe.writer.tokens is not None else tell_hard_attention(self, hard=False)


class RDrop(Table, ObjectiveTraits):
    """Two passes with different dropout, drawn together (Liang et al. 2021)."""

    kind: Literal["r-drop"] = "r-drop"
    smoothing: Share = 0.1
    alpha: Annotated[float, Field(ge=0)] = 5.0
    weight: float = 1.0

    @property
    def forward_passes(self) -> int:
        return 2


class Fill(Table, ObjectiveTraits):
    """Masked target tokens given the others (Ghazvininejad et al. 2019), by glancing too (Qian et al. 2021)."""

    kind: Literal["fill"] = "fill"
    smoothing: Share = 0.1
    glancing: Annotated[float, Field(ge=0, le=1)] = 0.5  # share of texts shown more where a first look is bad
    shown: Share = 0.5  # so many tokens are shown for each one that the first look had wrong
    alpha: Annotated[float, Field(ge=0)] = 0.0  # two passes with different dropout must agree, as in r-drop
    weight: float = 1.0

    @property
    def forward_passes(self) -> int:
        return 2 if self.alpha > 0 else 1


class Reward(Table, ObjectiveTraits):
    """The reward of outputs that the model draws (Wu et al. 2016), for models that were trained by likelihood."""

    needs_pairs: ClassVar[bool] = True
    kind: Literal["reward"] = "reward"
    samples: Annotated[int, Field(ge=2)] = 8  # outputs drawn for each pair; what is better than their mean is learned
    alpha: Annotated[float, Field(ge=0)] = 0.017  # of the likelihood of the reference beside it
    smoothing: Share = 0.0  # of that likelihood
    weight: float = 1.0


class Label(Table, ObjectiveTraits):
    """The class of each text or picture."""

    kind: Literal["label"] = "label"
    smoothing: Share = 0.0
    mixup: Annotated[float, Field(ge=0)] = 0.0  # pictures: two are mixed, by shares of Beta(a, a) (Zhang et al. 2018)
    cutmix: Annotated[float, Field(ge=0)] = 0.0  # a rectangle comes from another one (Yun et al. 2019), else mixup
    weight: float = 1.0

    def find_conflict(self, recipe: Recipe) -> str:
        if not (self.mixup or self.cutmix):
            return ""
        if recipe.reader.asks:
            return "a picture made of two has no one question, so that mixup and cutmix must be 0 here; set them to 0"
        if not (recipe.reader.is_picture or recipe.reader.is_custom):
            return 'mixup and cutmix of the objective "label" mix pictures, but none are read; set them to 0'
        return ""


class Regress(Table, ObjectiveTraits):
    """The square of how far the number of each text is missed."""

    kind: Literal["regress"] = "regress"
    weight: float = 1.0


class Tag(Table, ObjectiveTraits):
    """The class of each word."""

    kind: Literal["tag"] = "tag"
    smoothing: Share = 0.0
    weight: float = 1.0


class Masked(Table, ObjectiveTraits):
    """Hidden tokens given all others (Devlin et al. 2019), and whether one part of a text follows another."""

    kind: Literal["masked"] = "masked"
    rate: Annotated[float, Field(gt=0, lt=1)] = 0.15  # of the tokens, special ones never among them
    masked: Annotated[float, Field(ge=0, le=1)] = 0.8  # of those, shown as the piece for hidden text
    replaced: Annotated[float, Field(ge=0, le=1)] = 0.1  # of those, shown as any piece; what is left stays as it is
    dynamic: bool = True  # drawn anew each time (RoBERTa, Liu et al. 2019); else the same tokens of a text always
    pairs: Literal["none", "next", "order"] = "none"  # half of the second parts are others' (BERT), or first (ALBERT)
    pair_weight: Annotated[float, Field(ge=0)] = 1.0  # of that beside the tokens
    smoothing: Share = 0.0
    weight: float = 1.0

    def find_conflict(self, recipe: Recipe) -> str:
        tokenizer = recipe.tokenizer
        if self.pairs == "none":
            return ""
        if recipe.data.cross:
            return "parts of a text that follow each other are of one document; set data.cross = false"
        if tokenizer.dropout:
            return "documents are cut into sentences once, so that tokenizer.dropout must be 0 with objectives.0.pairs"
        if tokenizer.is_learned and not tokenizer.begin:
            return "whether parts follow each other is told by the first state; set tokenizer.begin = true"
        return ""

    @property
    def sentence_pairs(self) -> str:
        return self.pairs

    @property
    def redraws(self) -> bool:
        return self.dynamic

    @property
    def predicted_share(self) -> float:
        return self.rate

    @model_validator(mode="after")
    def _shares_of_one_whole(self) -> Masked:
        if self.masked + self.replaced > 1:
            raise ValueError(
                f"masked and replaced are shares of the hidden tokens, together at most 1, got {self.masked:g} and "
                f"{self.replaced:g}"
            )
        return self


class Permuted(Table, ObjectiveTraits):
    """Tokens given those before them in an order that is drawn for each text (Yang et al. 2019)."""

    kind: Literal["permuted"] = "permuted"
    one_in: Count = 6  # of so many tokens, one is predicted: the last ones of the order
    span: Count = 1  # so many tokens that stand together come one after the other in the order
    piece: Count | None = None  # texts are gone through in pieces of so many tokens; none: in one
    memory: Annotated[int, Field(ge=0)] = 0  # states before a piece that it sees, without a gradient
    weight: float = 1.0

    @property
    def predicted_share(self) -> float:
        return 1 / self.one_in

    @model_validator(mode="after")
    def _something_to_remember(self) -> Permuted:
        if self.memory and self.piece is None:
            raise ValueError(f"memory = {self.memory} is of the pieces before, but there is one; set piece too")
        return self


class Patches(Table, ObjectiveTraits):
    """The pixels of hidden patches given the others (He et al. 2022; Xie et al. 2022)."""

    kind: Literal["patches"] = "patches"
    hidden: Annotated[float, Field(gt=0, lt=1)] = 0.6  # the share of patches, others each time
    normalised: bool = True  # of each patch, how its pixels differ from their mean, in their standard deviation
    weight: float = 1.0


Written = NextToken | Scheduled | Reinforce | RDrop | Fill | Reward
Labelled = Label | Regress | Tag
Objective = Annotated[Written | Labelled | Masked | Permuted | Patches | TemporalDifference | Custom, ByKind()]


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

    @property
    def is_by_width(self) -> bool:
        """Whether `lr` is a factor of a rate that follows from the width of the model."""
        return self.kind == "warmup"

    @property
    def ends(self) -> bool:
        """Whether the rate arrives at its floor with the last step, which must then be known."""
        return self.kind in ("linear", "cosine")

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

    @property
    def takes_any(self) -> bool:
        return self.kind != "none"

    @property
    def takes_best(self) -> bool:
        """Whether the checkpoints are chosen by the validation metric, not by their age."""
        return self.kind == "best"


class Start(Table):
    """How first weights are drawn. xavier: as Glorot and Bengio (2010), tables of vectors by their width^-0.5."""

    kind: Literal["xavier", "normal"] = "xavier"
    std: Annotated[float, Field(gt=0)] = 0.02  # normal: of all matrices and tables, as of BERT and GPT-2
    deep: bool = False  # normal: matrices that end a sublayer are smaller, by the root of the number of sublayers

    @property
    def is_drawn_anew(self) -> bool:
        """Whether the weights with which layers are built are replaced."""
        return self.kind != "xavier"


class Lora(Table):
    """Low-rank additions beside frozen matrices (Hu et al. 2022): W + alpha / rank * up down."""

    rank: Count = 8
    alpha: Annotated[float, Field(gt=0)] = 16.0
    on: Annotated[tuple[Literal["attention", "feedforward"], ...], Field(min_length=1)] = ("attention", "feedforward")


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
    residual: Literal["fp32", "bf16"] = "fp32"  # what sums along the layers are kept in where precision is bf16
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
    metric: Metric = "loss"  # what the best checkpoint is best at
    patience: Count | None = None  # validations without a better one before an early stop
    save_every: Count = 1000
    keep: Count = 3  # newest checkpoints kept, beside those that `average` and `metric` need
    ema: Share = 0.0  # decay of the moving average of weights; 0: none
    average: Average = Average()
    start: Start = Start()
    lora: Lora | None = None  # only low-rank additions, and heads, are trained; at the end they join the weights
    tensorboard: bool = False
    watch: bool = False  # keep what fixed validation texts are attended to while the model learns (saccade watch)
    profile: bool = False  # write where the time of a step goes: profile.md, profile.json, trace.json
