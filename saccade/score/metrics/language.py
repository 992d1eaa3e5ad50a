"""Metrics of language models over things other than words: ranking of the next item, validity of molecules.

They get a `LanguageSample` of saccade.score.language_metrics: the model and texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from saccade.config.metric import LANGUAGE_MODEL, Metric, Predictions, Score

if TYPE_CHECKING:
    from saccade.score.language_metrics import LanguageSample


class Hit(Metric):
    name = "hit@10"
    outputs = (LANGUAGE_MODEL,)
    order = 30

    def score(self, predictions: Predictions) -> Score:
        from saccade.score.language_metrics import ranking_scores

        return ranking_scores(cast("LanguageSample", predictions).ranks)[self.name]


class Ndcg(Hit):
    name = "ndcg@10"
    order = 31


class Valid(Metric):
    name = "valid"
    outputs = (LANGUAGE_MODEL,)
    order = 32

    def score(self, predictions: Predictions) -> Score:
        from saccade.score.language_metrics import measure_valid_molecules

        sample = cast("LanguageSample", predictions)
        return measure_valid_molecules(sample.model, decoding=sample.decoding)


METRICS = (Hit(), Ndcg(), Valid())
