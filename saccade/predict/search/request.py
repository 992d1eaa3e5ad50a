"""One batch to decode, with all decoding options."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch
from saccade.data.tokenization.tokenizers import PAD, START
from saccade.errors import SaccadeError
from saccade.model.model import Model
from saccade.predict.search import filters
from saccade.predict.search.constraints import Phrase, PhraseConstraints
from saccade.predict.search.filters import LogitsWarper, Rule
from saccade.predict.search.greedy import AutoregressiveWriter

DEFAULTS = Decoding()  # built once: each batch is compared with it
PROMPT_OPTIONS = ("stop", "truncate_prompt", "repetition_penalty", "frequency_penalty")


class FusionModel(NamedTuple):
    """The writer of a language model, and the weight of its log-probabilities in shallow fusion."""

    writer: AutoregressiveWriter
    weight: float


@dataclass(frozen=True)
class Request:
    """A batch to read, or prompts to continue, and how outputs are searched for."""

    limits: Sequence[int]  # maximum number of tokens of each output, END not counted
    decoding: Decoding
    batch: Batch | None = None
    prompts: Int[Tensor, "N n"] | None = None  # all of one length, each beginning with START
    prefix: Sequence[int] = ()  # tokens that every output begins with
    generator: torch.Generator | None = None  # for sampling
    align: bool = False  # also return the attention weights of each token
    scored: bool = True  # if False, scores may be 0
    stop_rule: Rule | None = None  # ends outputs at a stop string
    fusion: FusionModel | None = None
    teacher: Model | None = None  # autoregressive model that chooses among outputs of a non-autoregressive one
    phrases: Sequence[Sequence[Phrase]] = ()  # phrases that each output must contain; for beam search
    steps_before: int | None = None  # decoding steps requested of the model before; None: as many as repay preparation

    @property
    def device(self) -> torch.device:
        if self.prompts is not None:
            return self.prompts.device
        assert self.batch is not None, "a request has a batch or prompts"
        return self.batch["source"].content.device

    @property
    def source(self) -> Batch:
        """The batch to read; empty for prompts."""
        return Batch({}) if self.batch is None else self.batch

    def make_constraints(self) -> PhraseConstraints | None:
        """Build the constraints of lexically constrained beam search; None without phrases."""
        return PhraseConstraints.build(self.phrases, self.limits, self.prefix) if self.phrases else None

    def make_rules(self, limits: Int[Tensor, " N"], constraints: PhraseConstraints | None = None) -> list[Rule]:
        """Build the constraints on the next token. Later rules win: the length limit over the forced prefix."""
        decoding = self.decoding
        rules = [filters.forbid_tokens((PAD, START)) if decoding.replace_unknown else filters.forbid_tokens()]
        if decoding.min_length:
            rules.append(filters.require_min_length(decoding.min_length))
        if decoding.no_repeat_ngram:
            rules.append(filters.forbid_repeated_ngrams(decoding.no_repeat_ngram))
        if constraints is not None:
            rules.append(constraints.rule)
        if self.prefix:
            rules.append(filters.force_prefix([self.prefix] * len(limits), device=limits.device))
        return [*rules, filters.limit_length(limits), *([] if self.stop_rule is None else [self.stop_rule])]

    def make_warpers(self) -> list[LogitsWarper]:
        """Build the transformations of the distribution that tokens are sampled from."""
        decoding, warpers = self.decoding, []
        if decoding.temperature != 1.0:
            warpers.append(filters.scale_by_temperature(decoding.temperature))
        if decoding.top_k:
            warpers.append(filters.keep_top_k(decoding.top_k))
        if decoding.top_p < 1.0:
            warpers.append(filters.keep_top_p(decoding.top_p))
        return warpers

    def check_prompt_options(self) -> None:
        """Refuse options for continuing a prompt if the request has no prompts."""
        for name in PROMPT_OPTIONS if self.prompts is None else ():
            if (given := getattr(self.decoding, name)) != getattr(DEFAULTS, name):
                raise SaccadeError(
                    f'{name} is for models that continue a prompt (task = "language-model"), got {name} = {given!r}; '
                    "leave it out"
                )
