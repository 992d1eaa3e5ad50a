"""Table of a recipe: how outputs are searched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator, model_validator

from saccade.config.table import Count, Share, Table

if TYPE_CHECKING:
    from saccade.config.schema import Recipe


class Decoding(Table):
    """How the writer's output is searched. beam = 1 is greedy; sample = true draws instead.

    A writer that fills its output at once has no beam and no length penalty: those two say nothing to it.
    """

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
    max_length: Count | None = None  # none: 2 x source + 20, at least 50, or all after a prompt; in data.max_length
    no_repeat: Annotated[int, Field(ge=0)] = 0  # no n-gram of this size twice
    prefix: str = ""  # every output begins with this text
    stop: tuple[str, ...] = ()  # after a prompt: texts before which an output ends
    slide: bool = False  # of a prompt that is too long for the model, the last tokens are taken
    repetition: Annotated[float, Field(ge=1)] = 1.0  # log-probabilities of tokens that occurred, times this
    frequency: Annotated[float, Field(ge=0)] = 0.0  # taken off the log-probability of a token for each time it occurred
    replace_unknown: bool = False  # unknown words become the source word that was looked at, or its lexicon's
    iterations: Count = 1  # of a writer that fills: passes, each of which writes the least sure tokens again
    lengths: Count = 1  # of a writer that fills: lengths that are tried side by side
    collapse: bool = False  # of a writer that fills: equal neighbours become one token
    ctc: Share = 0.0  # share of the head of writer.ctc in what is compared (Watanabe et al. 2017)
    lm: str = ""  # a run of task "write" with the same tokenizer, which has a say in what is written (shallow fusion)
    lm_weight: Annotated[float, Field(ge=0)] = 0.3  # of its log-probabilities beside those of the model
    batch_tokens: Count = 4096

    def find_conflict(self, recipe: Recipe) -> str:
        """What of the recipe does not go with this table, in one line."""
        if self.ctc and not (recipe.writer.tokens and recipe.writer.tokens.ctc):
            return f"predict.ctc = {self.ctc:g} needs writer.ctc = true; set it, or predict.ctc = 0"
        if self.lm and (recipe.writer.is_filling or not recipe.task.supports_fusion):
            return "predict.lm advises what is written token by token about something that was read; leave it out"
        return ""

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop(cls, value: Any) -> Any:
        """`stop = "."` is short for `stop = ["."]`."""
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> Decoding:
        if "" in self.stop:
            raise ValueError("stop must be texts of at least one letter, got an empty one; leave it out")
        if self.beam > 1 and not self.sample and (self.repetition != 1.0 or self.frequency):
            raise ValueError(f"repetition and frequency change what beams compare; set beam = 1, got {self.beam}")
        if self.n_best > self.beam and not self.sample:
            raise ValueError(f"n_best must be at most beam, got n_best = {self.n_best} and beam = {self.beam}")
        return self
