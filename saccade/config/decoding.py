"""The table [predict] of a recipe: how outputs are decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from pydantic import Field, field_validator, model_validator

from saccade.config.table import BeamSize, Count, Repeats, Share, Table

if TYPE_CHECKING:
    from saccade.config.schema import Recipe


# A source phrase and the target phrase that an output must contain
MAX_WEIGHT = 1e6  # of a penalty; float32 would overflow with much larger ones
Term = tuple[str, Annotated[str, Field(pattern=r"\S")]]


class DecodingSettings(TypedDict, total=False):
    """Keywords of `predict` and other functions that decode: single keys of `Decoding`, described there."""

    beam: int
    length_penalty: float
    coverage_penalty: float
    n_best: int
    sample: bool
    temperature: float
    top_k: int
    top_p: float
    seed: int
    min_length: int
    max_length: int | None
    no_repeat_ngram: int
    prefix: str
    terms: Sequence[Term]
    stop: str | Sequence[str]
    truncate_prompt: bool
    repetition_penalty: float
    frequency_penalty: float
    replace_unknown: bool
    iterations: int
    length_candidates: int
    fertilities: Literal["argmax", "average"]
    npd: int
    teacher: str
    collapse: bool
    ctc_weight: float
    lm: str
    lm_weight: float
    batch_tokens: int


class Decoding(Table):
    """How outputs are decoded: beam search, greedy search with beam = 1, or sampling with sample = true.

    A non-autoregressive writer (kind = "fill" or "fertility") ignores `beam`; `length_penalty` is for its `teacher`.
    """

    beam: BeamSize = 4
    """Width of the beam search. 1 is greedy search; 4 to 10 are usual for translation, and the cost grows with it."""
    length_penalty: Annotated[float, Field(ge=-50, le=50)] = 0.6
    """Exponent alpha of the length normalization ((5 + length) / 6)^alpha by which scores of beam search are divided
    (Wu et al. 2016), and those of a `teacher`. 0 prefers short outputs, 1 compares means per token."""
    coverage_penalty: Annotated[float, Field(ge=0, le=MAX_WEIGHT)] = 0.0
    """Weight beta of the coverage penalty of beam search, which punishes hypotheses that did not attend to all of the
    source (Wu et al. 2016). 0 disables it; try 0.2 where outputs leave parts of the source out."""
    n_best: BeamSize = 1
    """Number of hypotheses returned for each input, best first; at most `beam`, unless outputs are sampled."""
    sample: bool = False
    """Sample tokens from the model instead of searching for likely ones; see `temperature`, `top_k` and `top_p`."""
    temperature: Annotated[float, Field(ge=1e-10, le=MAX_WEIGHT)] = 1.0
    """Sampling: logits are divided by this. Below 1 sampling is closer to greedy search, above 1 more random."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Sampling: only the k most likely tokens can be sampled (Fan et al. 2018). 0 allows all of them."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling: only the most likely tokens that together have this probability can be sampled
    (Holtzman et al. 2020). 1 allows all of them; 0.9 is usual for language models."""
    seed: Annotated[int, Field(ge=0)] = 1
    """Seed of the random numbers of sampling; the same seed gives the same outputs."""
    min_length: Annotated[int, Field(ge=0)] = 0
    """Minimal number of tokens of an output; the end token is forbidden before it."""
    max_length: Count | None = None
    """Maximal number of tokens of an output. None allows 2 x source length + 20, at least 50, or as much as fits after
    a prompt; data.max_length of the run is the limit in any case."""
    no_repeat_ngram: Annotated[int, Field(ge=0)] = 0
    """Forbid any n-gram of this size to occur twice in an output. 0 disables it; 3 stops models that loop."""
    prefix: str = ""
    """Text with which every output is forced to begin; its tokens are not chosen by the model."""
    terms: tuple[Term, ...] = ()
    """Terminology constraints of beam search: pairs of a source phrase and a target phrase. An output contains the
    target phrase if its input contains the source phrase as whole words, case-sensitive; an empty source phrase applies
    to every input. `saccade predict --terms FILE` reads them from a file. Needs beam >= 2."""
    stop: tuple[str, ...] = ()
    """Language models: an output ends before the first occurrence of any of these texts."""
    truncate_prompt: bool = False
    """Language models: keep only the last tokens of a prompt that is too long for the model, instead of an error."""
    repetition_penalty: Annotated[float, Field(ge=1, le=MAX_WEIGHT)] = 1.0
    """Language models: log-probabilities of tokens that occurred already are multiplied by this (Keskar et al. 2019).
    1 disables it; 1.2 is a usual value. Only for greedy search and sampling."""
    frequency_penalty: Annotated[float, Field(ge=0, le=MAX_WEIGHT)] = 0.0
    """Language models: subtracted from the log-probability of a token for each time that it occurred already.
    0 disables it. Only for greedy search and sampling."""
    replace_unknown: bool = False
    """Replace each unknown token of an output by the source word with the most attention, or by its entry in the
    lexicon that training learns (Luong et al. 2015). For word vocabularies with unknown words."""
    iterations: Repeats = 1
    """Writers of kind "fill": number of mask-predict passes; each pass masks the least certain tokens and predicts
    them again (Ghazvininejad et al. 2019). 1 is fastest, 4 to 10 are better."""
    length_candidates: BeamSize = 1
    """Writers of kind "fill": how many of the most likely output lengths are decoded in parallel; the most likely
    output wins. 1 is fastest, 3 to 5 are better."""
    fertilities: Literal["argmax", "average"] = "argmax"
    """Writers of kind "fertility": the number of copies of each source token is its most probable fertility, or the
    expected one, rounded (Gu et al. 2018, section 3.3)."""
    npd: BeamSize = 1
    """Writers of kind "fertility": number of candidates of noisy parallel decoding (Gu et al. 2018). The first has the
    fertilities that `fertilities` chooses, the others sample them; all are decoded in parallel, and `teacher` chooses
    the best one. 1 disables it; 10 and 100 in the paper."""
    teacher: str = ""
    """Non-autoregressive writers: run of an autoregressive model with the same vocabularies, usually the teacher of
    this one, whose log-probability, divided by the length normalization of `length_penalty`, chooses among the
    candidates. Empty: the model's own mean log-probability."""
    collapse: bool = False
    """Non-autoregressive writers: merge equal adjacent tokens of an output, a frequent error of such models."""
    ctc_weight: Share = 0.0
    """Weight of the log-probabilities of the CTC head (writer.ctc) in the scores of beam search; the writer has the
    rest (Watanabe et al. 2017). 0 ignores the head; 0.3 is usual for speech."""
    lm: str = ""
    """Run of a language model with the same tokenizer whose log-probabilities are added during search (shallow
    fusion, Gulcehre et al. 2015). Empty: none."""
    lm_weight: Annotated[float, Field(ge=0, le=MAX_WEIGHT)] = 0.3
    """Weight of the log-probabilities of `lm`. 0 ignores it; too large values make outputs fluent but unfaithful."""
    batch_tokens: Count = 4096
    """Padded source tokens in one batch of prediction, beams not counted. Lower it where memory runs out."""

    def find_conflict(self, recipe: Recipe) -> str:
        """One line about a setting of the recipe that is incompatible with this table; empty where there is none."""
        if self.ctc_weight and not (recipe.writer.tokens and recipe.writer.tokens.ctc):
            return (
                f"predict.ctc_weight = {self.ctc_weight:g} needs writer.ctc = true; set it, or predict.ctc_weight = 0"
            )
        if self.lm and (recipe.writer.is_non_autoregressive or not recipe.task.supports_fusion):
            return "predict.lm is for models that write token by token about an input that they read; leave it out"
        if self.terms and (recipe.writer.is_non_autoregressive or not recipe.task.supports_fusion):
            return "predict.terms is for models that write token by token about an input that they read; leave it out"
        return ""

    @field_validator("terms", mode="before")
    @classmethod
    def _terms_from_lists(cls, value: Any) -> Any:
        """Accept lists, as in TOML and JSON, and refuse what is no pair of texts."""
        terms = value if isinstance(value, list | tuple) else [value]
        for term in terms:
            is_pair = isinstance(term, list | tuple) and len(term) == 2 and all(isinstance(one, str) for one in term)
            if not is_pair or not term[1].strip():
                raise ValueError(
                    f'expected pairs of a source and a target phrase, such as [["Hund", "dog"]], got {str(term)[:60]!r}'
                )
        return tuple((source, target) for source, target in terms)

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop(cls, value: Any) -> Any:
        """`stop = "."` is short for `stop = ["."]`."""
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> Decoding:
        if "" in self.stop:
            raise ValueError("stop must be texts of at least one character, got an empty one; leave it out")
        if self.beam > 1 and not self.sample and (self.repetition_penalty != 1.0 or self.frequency_penalty):
            raise ValueError(
                f"repetition_penalty and frequency_penalty are not for beam search; set beam = 1, got {self.beam}"
            )
        if self.terms and (self.beam == 1 or self.sample):
            got = "sample = true" if self.sample else "beam = 1"
            raise ValueError(f"terms need beam search; set beam = 4 and sample = false, got {got}")
        if self.n_best > self.beam and not self.sample:
            raise ValueError(f"n_best must be at most beam, got n_best = {self.n_best} and beam = {self.beam}")
        return self
