"""The tables [objectives] and [train] of a recipe."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from saccade.config.kinds import ByKind, Custom, OwnKind, get_user_kinds
from saccade.config.metric import get_metric
from saccade.config.table import Count, ObjectiveTraits, PartTraits, Share, ShortList, Table
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.config.schema import Recipe

MAX_LEARNING_RATE = 0.1  # a larger one is meant as the factor of the schedule "warmup"


def format_hard_attention_message(objective: Any, *, hard: bool) -> str:
    return (
        'writer.stack.hard_attention = true samples attention, which only the objective "reinforce" trains; '
        f'got hard_attention = {str(hard).lower()} and "{objective.kind}"'
    )


class NextToken(Table, ObjectiveTraits):
    """Cross-entropy of the next token, with teacher forcing."""

    kind: Literal["next-token"] = "next-token"
    """Chooses this objective: cross-entropy of the next token."""
    label_smoothing: Share = 0.1
    """Label smoothing: probability mass spread over all tokens instead of the reference (Szegedy et al. 2016). 0
    disables it; 0.1 is usual for translation, 0 for language models."""
    coverage: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the doubly stochastic penalty, which draws the attention that each memory state receives over all steps
    to 1 (Xu et al. 2015, equation 14). Needs additive attention; 0 disables it."""
    weight: float = 1.0
    """Weight of this objective in the sum of all objectives."""

    def without_coverage(self) -> NextToken:
        return self.model_copy(update={"coverage": 0.0})

    def find_conflict(self, recipe: Recipe) -> str:
        attention = recipe.writer.attention
        if self.coverage and (attention is None or not attention.attends_before_step):
            return 'coverage of the objective "next-token" needs writer.stack.attention = "additive"; set it to 0'
        return ""


class Scheduled(Table, ObjectiveTraits):
    """Cross-entropy of the next token with scheduled sampling (Bengio et al. 2015), optionally with a CTC loss."""

    kind: Literal["scheduled"] = "scheduled"
    """Chooses this objective: next token with scheduled sampling."""
    sampling_probability: Share = 0.1
    """Probability that an input token is sampled from the model instead of taken from the reference. 0 is plain teacher
    forcing; larger values make the model robust against its own errors."""
    ctc_weight: Share = 0.0
    """Share of the CTC loss of the head writer.ctc in the loss; the cross-entropy has the rest (Kim et al. 2017). 0
    disables it; 0.3 is usual for speech."""
    label_smoothing: Share = 0.1
    """Label smoothing: probability mass spread over all tokens instead of the reference (Szegedy et al. 2016). 0
    disables it; 0.1 is usual for translation, 0 for language models."""
    weight: float = 1.0
    """Weight of this objective in the sum of all objectives."""

    @property
    def learns_ctc(self) -> bool:
        return self.ctc_weight > 0

    def find_conflict(self, recipe: Recipe) -> str:
        if self.learns_ctc and not (recipe.writer.tokens and recipe.writer.tokens.ctc):
            return 'ctc_weight of the objective "scheduled" needs a CTC head; set writer.ctc = true, or ctc_weight = 0'
        return ""


class Reinforce(Table, ObjectiveTraits):
    """Cross-entropy of the next token with hard attention, which is trained by REINFORCE (Xu et al. 2015)."""

    learns_hard_attention: ClassVar[bool] = True
    kind: Literal["reinforce"] = "reinforce"
    """Chooses this objective: the next token with sampled hard attention."""
    samples: Count = 1
    """Sequences of positions that are sampled for each example. From 2 on the baseline of the reward of each is the
    mean of the others (leave-one-out baseline, RLOO, Kool et al. 2019), which reduces the variance of the gradient so
    much that hard attention learns as soft attention does; 4 suit, with reward_weight = 1. The writer costs that many
    times more, the reader does not."""
    reward_weight: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the REINFORCE term of the sampled attention, beside the cross-entropy of the tokens."""
    entropy_weight: Annotated[float, Field(ge=0)] = 0.01
    """Weight of the entropy of attention weights, which keeps exploration up. 0 lets attention become deterministic
    early."""
    baseline_decay: Share = 0.9
    """Decay of the moving average of log-likelihoods that is the baseline of the reward. Closer to 1 is smoother and
    slower. Only for samples = 1."""
    soft_rate: Share = 0.5
    """Share of soft attention in training (Xu et al. 2015, section 4.1): the probability that an example uses it in
    place of a sample; with several samples, its weight in the loss. 0 learns from samples alone."""
    label_smoothing: Share = 0.0
    """Label smoothing: probability mass spread over all tokens instead of the reference (Szegedy et al. 2016). 0
    disables it; 0.1 is usual for translation, 0 for language models."""
    weight: float = 1.0
    """Weight of this objective in the sum of all objectives."""

    def find_conflict(self, recipe: Recipe) -> str:
        return "" if recipe.writer.tokens is not None else format_hard_attention_message(self, hard=False)


class RDrop(Table, ObjectiveTraits):
    """R-Drop: two forward passes with different dropout must agree (Liang et al. 2021)."""

    kind: Literal["r-drop"] = "r-drop"
    """Chooses this objective: the next token with R-Drop."""
    label_smoothing: Share = 0.1
    """Label smoothing: probability mass spread over all tokens instead of the reference (Szegedy et al. 2016). 0
    disables it; 0.1 is usual for translation, 0 for language models."""
    alpha: Annotated[float, Field(ge=0)] = 5.0
    """Weight of the symmetric Kullback-Leibler divergence of the two passes. 0 is plain training at twice the cost; 5
    is usual for translation."""
    weight: float = 1.0
    """Weight of this objective in the sum of all objectives."""

    @property
    def forward_passes(self) -> int:
        return 2


class Fill(Table, ObjectiveTraits):
    """Masked target tokens given the others (CMLM, Ghazvininejad et al. 2019; GLAT, Qian et al. 2021)."""

    kind: Literal["fill"] = "fill"
    """Chooses this objective, for non-autoregressive writers."""
    label_smoothing: Share = 0.1
    """Label smoothing: probability mass spread over all tokens instead of the reference (Szegedy et al. 2016). 0
    disables it; 0.1 is usual for translation, 0 for language models."""
    glancing: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of sequences trained by glancing: a first pass without target tokens determines how many of them are
    revealed. The others are masked at random; 0 disables it."""
    reveal_ratio: Share = 0.5
    """Glancing: number of target tokens that are revealed for each error of the first pass."""
    alpha: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the divergence of two passes with different dropout, as in R-Drop. 0 disables the second pass."""
    weight: float = 1.0
    """Weight of this objective in the sum of all objectives."""

    @property
    def forward_passes(self) -> int:
        return 2 if self.alpha > 0 else 1


class Fertility(Table, ObjectiveTraits):
    """Target tokens given aligned copies of the source tokens, and their fertilities (Gu et al. 2018).

    Before training starts, an aligner is estimated from the training pairs; it gives the fertilities.
    """

    needs_pairs: ClassVar[bool] = True
    kind: Literal["fertility"] = "fertility"
    """Chooses this objective, for writers of kind "fertility"."""
    label_smoothing: Share = 0.1
    """Label smoothing: probability mass spread over all tokens instead of the reference (Szegedy et al. 2016). 0
    disables it; 0.1 is usual for translation, 0 for language models."""
    fertility_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the cross-entropy of the fertilities beside that of the tokens. 0 leaves them untrained, so that
    lengths are arbitrary; 1 in Gu et al. 2018."""
    alpha: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the divergence of two passes with different dropout, as in R-Drop. 0 disables the second pass."""
    weight: float = 1.0
    """Weight of this objective in the sum of all objectives."""

    @property
    def forward_passes(self) -> int:
        return 2 if self.alpha > 0 else 1


class Reward(Table, ObjectiveTraits):
    """Expected reward of sampled outputs (Wu et al. 2016), to fine-tune a model that was trained by likelihood."""

    needs_pairs: ClassVar[bool] = True
    kind: Literal["reward"] = "reward"
    """Chooses this objective: the expected GLEU of sampled outputs."""
    samples: Annotated[int, Field(ge=2)] = 8
    """Outputs sampled for each pair; their mean reward is the baseline. More reduce the variance and cost more."""
    alpha: Annotated[float, Field(ge=0)] = 0.017
    """Weight of the likelihood of the reference beside the expected reward. 0 may lose fluency."""
    label_smoothing: Share = 0.0
    """Label smoothing of the likelihood of the reference. 0 disables it."""
    weight: float = 1.0
    """Weight of this objective in the sum of all objectives."""


class Label(Table, ObjectiveTraits):
    """Cross-entropy of the class of each text or image."""

    kind: Literal["label"] = "label"
    """Chooses this objective: cross-entropy of classes."""
    label_smoothing: Share = 0.0
    """Label smoothing: probability mass spread over all classes instead of the right one (Szegedy et al. 2016). 0
    disables it."""
    mixup: Annotated[float, Field(ge=0)] = 0.0
    """Mixup of images: parameter a of Beta(a, a), from which the shares of two mixed images are sampled (Zhang et al.
    2018). 0 disables it; 0.2 to 0.8 are usual."""
    cutmix: Annotated[float, Field(ge=0)] = 0.0
    """CutMix of images: parameter a of Beta(a, a), from which the area of a rectangle of another image is sampled (Yun
    et al. 2019). With `mixup` too, each batch takes one of both. 0 disables it."""
    weight: float = 1.0
    """Weight of this objective in the sum of all objectives."""

    def find_conflict(self, recipe: Recipe) -> str:
        if not (self.mixup or self.cutmix):
            return ""
        if recipe.reader.has_question:
            return "a mixed picture has no question of its own, so that mixup and cutmix must be 0 here; set them to 0"
        if not (recipe.reader.is_picture or recipe.reader.is_custom):
            return 'mixup and cutmix of the objective "label" mix pictures, but none are read; set them to 0'
        return ""


class Regress(Table, ObjectiveTraits):
    """Mean squared error of the number of each text."""

    kind: Literal["regress"] = "regress"
    """Chooses this objective: mean squared error."""
    weight: float = 1.0
    """Weight of this objective in the sum of all objectives."""


class Tag(Table, ObjectiveTraits):
    """Cross-entropy of the class of each word."""

    kind: Literal["tag"] = "tag"
    """Chooses this objective: cross-entropy of tags."""
    label_smoothing: Share = 0.0
    """Label smoothing: probability mass spread over all classes instead of the right one (Szegedy et al. 2016). 0
    disables it."""
    weight: float = 1.0
    """Weight of this objective in the sum of all objectives."""


class Masked(Table, ObjectiveTraits):
    """Masked language modelling (BERT, Devlin et al. 2019), optionally with a loss on sentence pairs."""

    kind: Literal["masked"] = "masked"
    """Chooses this objective: masked language modelling."""
    mask_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of tokens that are selected for prediction, special tokens excluded. 0.15 in BERT; more make the task
    harder and the signal denser."""
    mask_replace_prob: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Share of the selected tokens that are replaced by the mask token."""
    random_replace_prob: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the selected tokens that are replaced by random tokens; the rest stays unchanged."""
    max_ngram: Count = 1
    """Largest number of adjacent tokens that are selected together; n tokens with a probability in proportion to 1 / n.
    3 in ALBERT (Lan et al. 2020, section 4.1), 1 in BERT."""
    dynamic_masking: bool = True
    """Select other tokens in each epoch (RoBERTa, Liu et al. 2019). False: always the same tokens of a text, as in
    BERT."""
    pairs: Literal["none", "next", "order"] = "none"
    """Second loss on pairs of sentences: "next", whether the second follows the first (BERT), "order", whether they are
    in order (ALBERT), or none."""
    pair_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the loss of sentence pairs beside that of the masked tokens."""
    label_smoothing: Share = 0.0
    """Label smoothing: probability mass spread over all tokens instead of the reference (Szegedy et al. 2016). 0
    disables it; 0.1 is usual for translation, 0 for language models."""
    weight: float = 1.0
    """Weight of this objective in the sum of all objectives."""

    def find_conflict(self, recipe: Recipe) -> str:
        tokenizer = recipe.tokenizer
        if self.pairs == "none":
            return ""
        if recipe.data.cross_document:
            return "sentence pairs are taken from one document; set data.cross_document = false"
        if tokenizer.dropout:
            return (
                "documents are split into sentences once, so that tokenizer.dropout must be 0 with objectives.0.pairs"
            )
        if tokenizer.is_learned and not tokenizer.cls_token:
            return "sentence pairs are classified by the first state; set tokenizer.cls_token = true"
        return ""

    @property
    def sentence_pairs(self) -> str:
        return self.pairs

    @property
    def remasks_each_epoch(self) -> bool:
        return self.dynamic_masking

    @property
    def prediction_rate(self) -> float:
        return self.mask_rate

    @model_validator(mode="after")
    def _shares_of_one_whole(self) -> Masked:
        if self.mask_replace_prob + self.random_replace_prob > 1:
            raise ValueError(
                "mask_replace_prob and random_replace_prob are shares of the selected tokens, together at most 1, got "
                f"{self.mask_replace_prob:g} and {self.random_replace_prob:g}"
            )
        return self


class Permuted(Table, ObjectiveTraits):
    """Permutation language modelling: tokens given those before them in a random order (XLNet, Yang et al. 2019)."""

    kind: Literal["permuted"] = "permuted"
    """Chooses this objective: permutation language modelling."""
    tokens_per_prediction: Count = 6
    """One of this many tokens is predicted, the last ones of the random order (K of the paper). Smaller predicts more
    tokens from less context."""
    span_length: Count = 1
    """Adjacent tokens that follow each other in the random order. 1 permutes single tokens."""
    segment_length: Count | None = None
    """Tokens of a segment; longer sequences are processed segment by segment. None: as a whole."""
    memory_length: Annotated[int, Field(ge=0)] = 0
    """States of earlier segments that a segment attends to, without gradient (Transformer-XL). 0: none."""
    weight: float = 1.0
    """Weight of this objective in the sum of all objectives."""

    @property
    def prediction_rate(self) -> float:
        return 1 / self.tokens_per_prediction

    @model_validator(mode="after")
    def _something_to_remember(self) -> Permuted:
        if self.memory_length and self.segment_length is None:
            raise ValueError(f"memory_length = {self.memory_length} needs several segments; set segment_length too")
        return self


class Patches(Table, ObjectiveTraits):
    """Masked image modelling: pixels of masked patches given the others (He et al. 2022; Xie et al. 2022)."""

    kind: Literal["patches"] = "patches"
    """Chooses this objective: reconstruction of masked patches."""
    mask_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.6
    """Share of patches that are masked, others at each step. 0.6 to 0.75 are usual; small values are too easy."""
    normalize_pixels: bool = True
    """Reconstruct pixels that are normalized by the mean and standard deviation of their patch."""
    weight: float = 1.0
    """Weight of this objective in the sum of all objectives."""


Written = NextToken | Scheduled | Reinforce | RDrop | Fill | Fertility | Reward
Labelled = Label | Regress | Tag
Objective = Annotated[Written | Labelled | Masked | Permuted | Patches | Custom, ByKind()]


class Optimizer(Table):
    """Adam with decoupled weight decay (Kingma and Ba 2015; AdamW, Loshchilov and Hutter 2019), or LAMB."""

    kind: Literal["adam", "lamb"] = "adam"
    """Chooses the optimizer: Adam, LAMB (You et al. 2020), which scales the update of each matrix to its norm and is
    for batches of thousands of sequences, or one of your own."""
    betas: tuple[Share, Share] = (0.9, 0.98)
    """Decay rates of the moving averages of gradients and of squared gradients. (0.9, 0.98) suits Transformers, (0.9,
    0.999) is the usual default."""
    eps: Annotated[float, Field(ge=0)] = 1e-9
    """Epsilon added to the denominator of the update, for numerical stability. Larger values damp updates of rarely
    used weights."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled weight decay, not applied to biases, norms and embeddings. 0 disables it; 0.01 to 0.1 are usual for
    pretraining and ViTs."""


class Schedule(Table):
    """Learning rate schedule.

    "warmup" is that of Vaswani et al. 2017: lr * D^-0.5 * min(step^-0.5, step * warmup_steps^-1.5). The others rise
    linearly to `lr` over `warmup_steps`; "linear" and "cosine" then decay to `min_lr` at the last step.
    """

    kind: Literal["warmup", "linear", "cosine", "constant"] = "warmup"
    """Shape of the schedule; see above. A schedule of your own has the key `lr` too."""
    lr: Annotated[float, Field(gt=0)] = 1.0
    """Peak learning rate. With "warmup" a factor of the rate that follows from the width of the model, so that 1 is
    usual."""
    warmup_steps: Annotated[int, Field(ge=0)] = 4000
    """Optimizer steps of linear warmup. More are safer for deep post-norm Transformers."""
    min_lr: Annotated[float, Field(ge=0)] = 0.0
    """Learning rate at the end of "linear" and "cosine"."""

    @property
    def scales_with_width(self) -> bool:
        """Whether `lr` is multiplied by the inverse square root of the width of the model."""
        return self.kind == "warmup"

    @property
    def decays_to_end(self) -> bool:
        """Whether the rate reaches `min_lr` at the last step, whose number must then be known."""
        return self.kind in ("linear", "cosine")

    @model_validator(mode="after")
    def _lr_is_meant(self) -> Schedule:
        if self.kind != "warmup" and self.lr > MAX_LEARNING_RATE:
            raise ValueError(
                f'lr of a "{self.kind}" schedule is the highest learning rate itself, at most {MAX_LEARNING_RATE}, '
                f"got {self.lr:g}; try lr = 0.001"
            )
        return self


class OwnSchedule(OwnKind):
    """A schedule of the user's own: a function of the step and the number of steps, whose value is a factor of `lr`."""

    lr: Annotated[float, Field(gt=0, le=MAX_LEARNING_RATE)] = 0.001
    """Learning rate that the function's value is multiplied by."""
    scales_with_width: ClassVar[bool] = False
    decays_to_end: ClassVar[bool] = True


class TokenDropout(Table, PartTraits):
    """Word dropout (Iyyer et al. 2015): source tokens are replaced by the unknown token at random."""

    kind: Literal["token-dropout"] = "token-dropout"
    """Chooses this augmentation: dropout of whole source tokens."""
    prob: Share = 0.1
    """Probability that a source token is replaced; special tokens stay. 0 disables it, 0.1 is usual; large values hide
    too much of the input."""

    def find_conflict(self, recipe: Recipe) -> str:
        tokenizer = recipe.tokenizer
        if recipe.reader.text is None:
            return f'train.augment: "token-dropout" is for source tokens, got reader.kind = "{recipe.reader.kind}"'
        if tokenizer.cls_token or tokenizer.mask_token or tokenizer.sentinels:
            return (
                'train.augment: "token-dropout" would replace special tokens; set tokenizer.cls_token, mask_token and '
                "sentinels to none, or leave it out"
            )
        return ""


Augmentation = Annotated[TokenDropout | Custom, ByKind()]


class Average(Table):
    """Which weights a finished run uses: one checkpoint, or the mean of several (Vaswani et al. 2017)."""

    kind: Literal["none", "last", "best"] = "none"
    """Checkpoints that are averaged: the "last" ones, the "best" ones by train.metric, or none: the best checkpoint
    alone."""
    n: Count = 5
    """Number of checkpoints that are averaged; 5 to 10 are usual, 1 averages nothing."""

    @property
    def is_enabled(self) -> bool:
        return self.kind != "none"

    @property
    def uses_best(self) -> bool:
        """Whether checkpoints are chosen by the validation metric, not by their age."""
        return self.kind == "best"


class WeightInit(Table):
    """Initialization of weights."""

    kind: Literal["xavier", "normal"] = "xavier"
    """"xavier": uniform matrices after Glorot and Bengio (2010), embeddings with standard deviation width^-0.5.
    "normal": all matrices and embeddings with standard deviation `init_std`, as BERT and GPT-2."""
    init_std: Annotated[float, Field(gt=0)] = 0.02
    """Standard deviation of "normal". 0.02 in BERT and GPT-2; large models use less."""
    scale_by_depth: bool = False
    """With "normal": divide the output matrix of each sublayer by the square root of the number of sublayers, as GPT-2
    does."""

    @property
    def overrides_layer_init(self) -> bool:
        """Whether it replaces the weights that the layers initialize themselves."""
        return self.kind != "xavier"


class Lora(Table):
    """Low-rank adaptation (LoRA, Hu et al. 2022): train W + alpha / rank * up down with W frozen.

    Heads are trained too; at the end the additions are merged into the weights.
    """

    rank: Count = 8
    """Rank of the additions. 4 to 16 are usual; more have more trainable parameters."""
    alpha: Annotated[float, Field(gt=0)] = 16.0
    """Scale of the additions, which are multiplied by alpha / rank."""
    target_modules: Annotated[tuple[Literal["attention", "feedforward"], ...], Field(min_length=1)] = (
        "attention",
        "feedforward",
    )
    """Modules that get additions: the projections of attention, of the feed-forward network, or both."""


class Parallel(Table):
    """How the processes of torchrun or --processes share the model and the micro-batches of a step.

    data x shard x tensor is the number of processes; data x shard must divide train.accumulate. A run that is resumed
    with another number of processes or another layout goes on with the same batches and random numbers.
    """

    data: Count | None = None
    """Replicas of the model, each with its share of the micro-batches (DistributedDataParallel). None: what `shard` and
    `tensor` leave."""
    shard: Count | None = None
    """Processes that share one replica: each keeps its part of parameters, gradients and optimizer state, and gathers
    one block at a time (FSDP2, ZeRO 3). None: 1, or as few as let parameters, gradients and optimizer fit into memory.
    """
    tensor: Count = 1
    """Processes that split every matrix product of a block (tensor parallelism, Shoeybi et al. 2019); they get the same
    micro-batches. 1 disables it; useful inside a machine with a fast interconnect."""
    timeout: Annotated[float, Field(gt=0)] = 600.0
    """Seconds that a process waits for the others in a collective operation; then the run ends and names the processes
    that are missing. Raise it where a step or a validation takes longer."""


class Train(Table):
    """How a model is trained."""

    steps: Count | None = 100_000
    """Optimizer steps. None: until `epochs`, `minutes` or `patience` end the training."""
    epochs: Count | None = None
    """Passes over the training data after which training ends. None: no such limit."""
    minutes: Annotated[float, Field(gt=0)] | None = None
    """Time for training in minutes, validation and checkpoints not counted. It becomes a number of steps: the speed of
    the first steps is measured once, schedules end with that step, and a resumed run ends with it too. None: no such
    limit."""
    batch_tokens: Count = 4096
    """Size of a micro-batch in padded tokens of the longer side. Larger ones use a GPU better, until memory runs out
    (see `on_out_of_memory`)."""
    accumulate: Count = 1
    """Gradient accumulation: micro-batches per optimizer step, those of all processes together. The effective batch is
    batch_tokens x accumulate, on any number of processes that divides it, so that a run can go on with another number.
    Under torchrun and --processes, 1 means 8."""
    parallel: Parallel = Parallel()
    """How several processes share the model and its micro-batches."""
    on_out_of_memory: Literal["auto", "split", "stop"] = "auto"
    """What happens when memory runs out in a training step. "split": the step is taken again with twice as many
    micro-batches of half as many examples, down to one example each, and so are all later ones; loss and update stay
    those of the whole batch. "stop": training ends and suggests settings that fit. "auto": "split" in one process; in
    several "stop", since "split" must exchange gradients after the backward pass instead of during it."""
    optimizer: Annotated[Optimizer | Custom, ByKind()] = Optimizer()
    """The optimizer and its settings."""
    schedule: Annotated[Schedule | OwnSchedule, ByKind()] = Schedule()
    """The learning rate schedule."""
    augment: tuple[Augmentation, ...] = ()
    """Augmentations of training batches, applied in this order after those of a reader of images or audio. Empty: none.
    """
    clip: Annotated[float, Field(ge=0)] = 0.0
    """Maximal norm of the gradient; larger gradients are scaled down. 0 disables clipping; 1 is usual."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Number format of matrix products: automatic (bf16 mixed precision on CUDA, fp32 elsewhere), fp32 or bf16."""
    residual_precision: Literal["fp32", "bf16"] = "fp32"
    """Number format of the residual stream where precision is bf16. bf16 is faster and less exact."""
    compile: bool = False
    """Compile the model with torch.compile: faster steps after a start of minutes."""
    pack: bool | None = None
    """Pack sequences into rows without padding. None: where the model supports it and it is faster."""
    cuda_graphs: bool | None = None
    """Run training steps as CUDA graphs, one for each batch shape, which saves the launch time of small models. Several
    processes then exchange gradients after the backward pass, not during it. With shards, a graph holds the exchange of
    parameters and gradients, and is used where all processes have batches of one shape. None: where possible, but not
    with shards over several processes. Tensor parallelism has none."""
    recompute: bool = False
    """Activation checkpointing: recompute activations in the backward pass. Saves memory, costs one more forward pass.
    """
    device: str = "auto"
    """Device to train on, such as cpu, cuda, cuda:1 or mps. auto takes the device that the environment
    variable SACCADE_DEVICE names, or CUDA, Apple MPS or the CPU, in this order."""
    seed: Annotated[int, Field(ge=0)] = 1
    """Seed of initialization, data order and dropout. The same seed repeats a training on the same machine."""
    deterministic: bool | None = None
    """Use deterministic algorithms only, which may be slower. None: on CPUs yes, on GPUs no."""
    report_every: Count = 50
    """Optimizer steps between two reports of the loss."""
    valid_every: Count = 1000
    """Optimizer steps between two validations."""
    valid_predictions: Annotated[int, Field(ge=0)] = 500
    """Number of validation examples that are decoded for scores such as BLEU. 0: only the loss is measured."""
    metric: str = "loss"
    """Validation metric by which the best checkpoint is chosen: "loss", or a metric of the task's outputs, such as
    "bleu", "gleu", "accuracy", "wer", "f1" or "pearson"; or a metric of your own."""
    patience: Count | None = None
    """Early stopping: validations without improvement of `metric` after which training ends. None: no early stopping.
    """
    save_every: Count = 1000
    """Optimizer steps between two checkpoints."""
    keep_checkpoints: Count = 3
    """Number of newest checkpoints on disk, beside those that `average` and `metric` need."""
    ema: Share = 0.0
    """Decay of an exponential moving average of the weights, which is then validated and used. 0 disables it; 0.999
    suits long trainings."""
    average: Average = Average()
    """Checkpoint averaging at the end."""
    weight_init: WeightInit = WeightInit()
    """Initialization of weights."""
    lora: Lora | None = None
    """Fine-tune low-rank additions instead of all weights. None: all weights are trained."""
    loggers: Annotated[tuple[Literal["tensorboard", "wandb", "mlflow"], ...], ShortList] = ()
    """Programs that get the recipe, losses, validation scores and learning rates, beside metrics.jsonl of the run:
    TensorBoard, Weights & Biases (wandb) and MLflow. Each needs its package and writes to the folder of the run;
    nothing leaves the machine unless WANDB_MODE=online or MLFLOW_TRACKING_URI is set. Several as "tensorboard,wandb".
    """
    watch: bool = False
    """Record the attention of fixed validation examples during training, for `saccade watch`."""
    keep_examples: bool = True
    """Keep some validation examples in the run: samples.jsonl with the outputs of each validation and, at the end,
    examples.json for the page of `saccade serve`; of images and audio, one file of at most 1 MB. false where validation
    data must not leave its place."""
    profile: bool = False
    """Write a profile of the training step to the run: profile.md, profile.json and trace.json."""

    def check_loggers(self) -> None:
        """Raise a SaccadeError if the package of a logger, which has the name of the logger, is missing."""
        for name in self.loggers:
            if importlib.util.find_spec(name) is None:
                raise SaccadeError(f"train.loggers={name} needs the package {name}: pip install 'saccade[{name}]'")

    @field_validator("metric")
    @classmethod
    def _check_metric(cls, value: str, info: ValidationInfo) -> str:
        get_metric(value, get_user_kinds(info))  # refuses an unknown one, and notes the plugin of the user's own
        return value
