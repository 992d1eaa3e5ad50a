"""ROUGE by the package rouge-score (Lin 2004): overlap of n-grams, or the longest common subsequence, of words."""

import functools
import importlib.util
import sys
from importlib.metadata import version
from typing import Any

from saccade.config.metric import MeanMetric, Predictions, Score
from saccade.errors import SaccadeError
from saccade.extras import get_install_command


class Rouge(MeanMetric):
    """Mean F1 over examples, in percent. Words are runs of a to z and 0 to 9 in lower case, and are not stemmed."""

    def __init__(self, variant: str, order: int) -> None:
        self.name, self.title, self.order = variant, variant.replace("rouge", "ROUGE-"), order

    def check_available(self) -> None:
        if importlib.util.find_spec("rouge_score") is None:
            raise SaccadeError(
                f"metric '{self.name}' needs the package rouge-score; choose another metric, such as chrf, or install "
                f"it with: {get_install_command('rouge')}"
            )

    def score(self, predictions: Predictions) -> Score:
        self.check_available()
        if not any(tokenize(text) for text in predictions.references):
            raise SaccadeError(
                f"metric '{self.name}' counts words of the letters a to z and of digits, of which the references have "
                "none; use chrf or bleu for other scripts"
            )
        return super().score(predictions)

    def score_example(self, output: str, reference: str) -> float:
        return 100 * float(build_scorer(self.name).score(reference, output)[self.name].fmeasure)

    def format_signature(self, predictions: Predictions) -> str:
        return f"{self.name}|F1, mean of examples|case:lc|tok:a-z0-9|stem:no|nrefs:1|version:{version('rouge-score')}"


@functools.cache
def build_scorer(variant: str) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    keep_stderr_open()
    return RougeScorer([variant], use_stemmer=False)


def keep_stderr_open() -> None:
    """Keep absl, which rouge-score imports, from closing what sys.stderr is now.

    Its log handler closes a stream that is no longer sys.stderr when logging is configured anew, as uvicorn does; where
    sys.stderr is replaced for a while, as by pytest, nothing could be written to the one before.
    """
    from absl import logging as absl_logging

    absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__


def tokenize(text: str) -> list[str]:
    from rouge_score.tokenize import tokenize as split

    found: list[str] = split(text, None)
    return found


METRICS = (Rouge("rouge1", 8), Rouge("rouge2", 9), Rouge("rougeL", 10))
