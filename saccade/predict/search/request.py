"""One batch that is to be decoded, with all that is asked of it."""

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
from saccade.predict.search import filters
from saccade.predict.search.filters import Rule, Shaper
from saccade.predict.search.greedy import Decoder


class LanguageModel(NamedTuple):
    """The writer of a language model, and the weight of its log-probabilities in shallow fusion."""

    writer: Decoder
    weight: float


@dataclass(frozen=True)
class Request:
    """What is read, or the prompts from which outputs go on; and how outputs are searched for."""

    limits: Sequence[int]  # how many tokens each output may have, END not counted
    decoding: Decoding
    batch: Batch | None = None
    prompts: Int[Tensor, "N n"] | None = None  # of one length, each beginning with START
    prefix: Sequence[int] = ()  # tokens that every output begins with
    generator: torch.Generator | None = None  # for sampling
    align: bool = False  # also return the attention weights of each token
    scored: bool = True  # without it, scores may be 0
    stops: Rule | None = None  # ends outputs early
    fusion: LanguageModel | None = None

    @property
    def device(self) -> torch.device:
        if self.prompts is not None:
            return self.prompts.device
        assert self.batch is not None, "a request has a batch or prompts"
        return self.batch["source"].content.device

    @property
    def source(self) -> Batch:
        """What is read; nothing, where outputs go on from prompts."""
        return Batch({}) if self.batch is None else self.batch

    def make_rules(self, limits: Int[Tensor, " N"]) -> list[Rule]:
        """Later rules win: what must begin so does, and what must end does."""
        decoding = self.decoding
        rules = [filters.never((PAD, START)) if decoding.replace_unknown else filters.never()]
        if decoding.min_length:
            rules.append(filters.min_length(decoding.min_length))
        if decoding.no_repeat:
            rules.append(filters.no_repeat(decoding.no_repeat))
        if self.prefix:
            rules.append(filters.forced_prefix([self.prefix] * len(limits), device=limits.device))
        return [*rules, filters.max_length(limits), *([] if self.stops is None else [self.stops])]

    def make_shapers(self) -> list[Shaper]:
        """How the distribution that samples are drawn from is shaped."""
        decoding, shapers = self.decoding, []
        if decoding.temperature != 1.0:
            shapers.append(filters.temperature(decoding.temperature))
        if decoding.top_k:
            shapers.append(filters.top_k(decoding.top_k))
        if decoding.top_p < 1.0:
            shapers.append(filters.top_p(decoding.top_p))
        return shapers

    def check_prompted(self) -> None:
        """Refuses what is said of an output after a prompt, where there is none."""
        plain = Decoding()
        for name in ("stop", "slide", "repetition", "frequency"):
            if self.prompts is None and (given := getattr(self.decoding, name)) != getattr(plain, name):
                raise SaccadeError(
                    f'{name} is for models that go on from a prompt (task = "write"), got {name} = {given!r}; '
                    "leave it out"
                )
