"""What a predictor gives: outputs with their scores, and what was attended to."""

from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Hypothesis:
    """One output: its score is its log-probability divided by the length penalty."""

    ids: list[int]  # without END
    text: str
    score: float
    log_prob: float
    alignment: list[list[float]] | None = None  # for each id, the weights over the source tokens, END included
    log_probs: list[float] | None = None  # after a prompt, where scores are asked for: of each id
    finish: str = ""  # after a prompt: ended by itself (end), by its length, or by a stop text

    def with_log_probs(self, values: list[float]) -> "Hypothesis":
        """The same with what the model gives to each id, and to all of them."""
        return replace(self, log_prob=sum(values), log_probs=values)


@dataclass(frozen=True)
class AttentionMaps:
    """Who looked where: address -> weights (H, T, S); rows and columns of a map are source or target tokens."""

    maps: dict[str, Float[Tensor, "H T S"]]
    source_labels: list[str]
    target_labels: list[str]
    text: str
    seen_labels: list[str]  # what the writer sees at each place while it writes
