"""Tables of a recipe: what is learned, and how."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from saccade.config.kinds import ByKind, Custom
from saccade.config.table import Count, Share, Table

HIGHEST = 0.1  # learning rate that Adam is ever given; a larger one is the factor of another schedule


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


class Fill(Table):
    """Masked target tokens given the others (Ghazvininejad et al. 2019), by glancing too (Qian et al. 2021)."""

    kind: Literal["fill"] = "fill"
    smoothing: Share = 0.1
    glancing: Annotated[float, Field(ge=0, le=1)] = 0.5  # share of texts shown more where a first look is bad
    shown: Share = 0.5  # so many tokens are shown for each one that the first look had wrong
    alpha: Annotated[float, Field(ge=0)] = 0.0  # two passes with different dropout must agree, as in r-drop
    weight: float = 1.0


class Reward(Table):
    """The reward of outputs that the model draws (Wu et al. 2016), for models that were trained by likelihood."""

    kind: Literal["reward"] = "reward"
    samples: Annotated[int, Field(ge=2)] = 8  # outputs drawn for each pair; what is better than their mean is learned
    alpha: Annotated[float, Field(ge=0)] = 0.017  # of the likelihood of the reference beside it
    smoothing: Share = 0.0  # of that likelihood
    weight: float = 1.0


Objective = Annotated[NextToken | RDrop | Fill | Reward | Custom, ByKind()]


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
    metric: Literal["loss", "bleu", "gleu", "accuracy"] = "loss"  # what the best checkpoint is best at
    patience: Count | None = None  # validations without a better one before an early stop
    save_every: Count = 1000
    keep: Count = 3  # newest checkpoints kept, beside those that `average` and `metric` need
    ema: Share = 0.0  # decay of the moving average of weights; 0: none
    average: Average = Average()
    tensorboard: bool = False
    profile: bool = False  # write where the time of a step goes: profile.md, profile.json, trace.json
