"""Metrics of language models over things other than words: ranking of the next item, validity of molecules."""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from saccade.config.metric import (
    LANGUAGE_MODEL,
    Predictions,
    Score,
    find_metric,
    format_expected,
    get_metrics,
    list_names,
)
from saccade.config.plugins import Kinds
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.data.synthetic.molecules import find_smiles_error
from saccade.data.tokenization.tokenizers import UNKNOWN
from saccade.errors import SaccadeError
from saccade.predict.lines import group_by_length
from saccade.predict.predictors.language import LanguageModel
from saccade.predict.search.likelihood import build_writer_inputs
from saccade.score.evaluate import Evaluation

TOP_ITEMS = 10  # k of hit@k and ndcg@k
MOLECULE_SAMPLES = 500  # sampled molecules


def check_language_metrics(metrics: Sequence[str], kinds: Kinds | None = None) -> None:
    """Refuse unknown metrics."""
    for name in metrics:
        if find_metric(name, LANGUAGE_MODEL, kinds) is None:
            known = [*list_names(LANGUAGE_MODEL, kinds), "or none: then it is measured by the probability of a text"]
            raise SaccadeError(f"unknown metric '{name}' of a language model{format_expected(name, known, kinds)}")


@dataclass(frozen=True)
class LanguageSample(Predictions):
    """A language model and the texts that it is measured on, which are the references; there are no outputs."""

    model: LanguageModel = field(kw_only=True)
    decoding: Decoding | None = None

    @functools.cached_property
    def ranks(self) -> list[int]:
        """The rank of the last token of each text among all text tokens."""
        return rank_last_items(self.model, [text for text in self.references if text.strip()])


def evaluate_language_metrics(
    model: LanguageModel,
    texts: Sequence[str],
    metrics: Sequence[str],
    *,
    decoding: Decoding | None = None,
) -> Evaluation:
    """Evaluate a language model by the given metrics."""
    kinds = model.recipe.kinds
    scores = compute_language_scores(model, texts, metrics, decoding=decoding, kinds=kinds)
    return Evaluation(scores, len(texts), [], kinds=kinds)


def compute_language_scores(
    model: LanguageModel,
    texts: Iterable[str],
    metrics: Sequence[str],
    *,
    decoding: Decoding | None = None,
    kinds: Kinds | None = None,
) -> dict[str, Score]:
    """Compute the given metrics, in that order; "valid" is of molecules sampled with the settings of `decoding`."""
    sample = LanguageSample((), list(texts), kind=LANGUAGE_MODEL, model=model, decoding=decoding)
    return {metric.name: metric.score(sample) for metric in get_metrics(metrics, LANGUAGE_MODEL, kinds)}


def ranking_scores(ranks: Sequence[int]) -> dict[str, Score]:
    """Compute hit@10, and ndcg@10 = mean of 1 / log2(1 + rank) up to rank 10 (Kang and McAuley 2018)."""
    gains = [1 / math.log2(1 + rank) if rank <= TOP_ITEMS else 0.0 for rank in ranks]
    signature = f"last item of each text among all|best {TOP_ITEMS}"
    return {
        "hit@10": Score(100 * fmean(rank <= TOP_ITEMS for rank in ranks), signature),
        "ndcg@10": Score(100 * fmean(gains), signature),
    }


def rank_last_items(model: LanguageModel, texts: Sequence[str]) -> list[int]:
    """Return the rank of the last token of each text among all text tokens, from 1; among ties, the worst."""
    rows = [model.tokenizers.target.encode(text)[:-1] for text in texts]
    max_length = model.recipe.data.max_length
    if too_short := [text for text, row in zip(texts, rows, strict=True) if len(row) < 2]:
        raise SaccadeError(
            f"to rank the next item, a text needs at least two items, got {too_short[0]!r}; leave it out"
        )
    if not rows:
        raise SaccadeError("there is nothing to evaluate: no text was given; is the file empty?")
    rows, ranks = [row[-max_length:] for row in rows], [0] * len(rows)
    with model.inference():
        for group in group_by_length([len(row) for row in rows], budget=model.recipe.predict.batch_tokens):
            batch = Batch({"target": pad([rows[i] for i in group])}).to(model.device)
            for i, rank in zip(group, _rank_targets(model, batch), strict=True):
                ranks[i] = rank
    return ranks


def _rank_targets(model: LanguageModel, batch: Batch) -> list[int]:
    """Return the rank of the last token of each row of a batch."""
    target, writer = batch["target"], model.model.writer
    memory = model.model.read(batch)
    hidden = writer(build_writer_inputs(writer, target, memory), target.mask, memory)
    last = target.mask.sum(1, keepdim=True) - 1
    states = hidden.gather(1, last[..., None].expand(-1, -1, hidden.shape[2]))[:, 0]
    logits = writer.head(states).float()
    logits[:, : UNKNOWN + 1] = -math.inf  # special tokens are no items; an unknown target ranks last
    own = logits.gather(1, target.ids.gather(1, last))
    return (~(logits < own)).sum(1).tolist()


def measure_valid_molecules(
    model: LanguageModel, count: int = MOLECULE_SAMPLES, *, decoding: Decoding | None = None
) -> Score:
    """Return the percentage of sampled texts that are valid SMILES."""
    sampling = (decoding or model.recipe.predict).model_copy(update={"sample": True, "n_best": 1, "stop": ()})
    texts = model.predict([""] * count, decoding=sampling)
    valid = [not find_smiles_error(text) for text in texts]
    signature = f"drawn:{count}|temperature:{sampling.temperature:g}|seed:{sampling.seed}"
    return Score(100 * fmean(valid), f"SMILES with right branches, rings and bonds|{signature}")
