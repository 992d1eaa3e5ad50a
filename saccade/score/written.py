"""What is measured of language models of other things than words: the next item, and molecules that are drawn."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

import torch

from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.data.synthetic.molecules import wrong_with
from saccade.data.tokenization.tokenizers import UNKNOWN
from saccade.errors import SaccadeError
from saccade.predict.lines import groups_by_length
from saccade.predict.predictors.language import LanguageModel
from saccade.predict.search.likelihood import seen_while_writing
from saccade.score.bleu import Score
from saccade.score.evaluate import Evaluation

BEST = 10  # items that a visitor is shown
DRAWN = 500  # molecules
WRITTEN = ("hit@10", "ndcg@10", "valid")


def check_written(metrics: Sequence[str]) -> None:
    for name in metrics:
        if name not in WRITTEN:
            raise SaccadeError(
                f"unknown metric '{name}' of a language model; expected one of {', '.join(WRITTEN)}, or none: then it "
                "is measured by the probability of a text"
            )


def evaluate_written(
    model: LanguageModel,
    texts: Sequence[str],
    metrics: Sequence[str],
    *,
    decoding: Decoding | None = None,
) -> Evaluation:
    """Metrics of a language model that were asked for by their names."""
    return Evaluation(written_scores(model, texts, metrics, decoding=decoding), len(texts), [])


def written_scores(
    model: LanguageModel, texts: Iterable[str], metrics: Sequence[str], *, decoding: Decoding | None = None
) -> dict[str, Score]:
    """Every metric that was asked for, in that order; "valid" is of molecules drawn as `decoding` says."""
    ranked = {name for name in metrics if name != "valid"}
    places = last_places(model, [text for text in texts if text.strip()]) if ranked else []
    scores = ranking_scores(places) if ranked else {}
    if "valid" in metrics:
        scores["valid"] = share_of_molecules(model, decoding=decoding)
    return {name: scores[name] for name in metrics}


def ranking_scores(places: Sequence[int]) -> dict[str, Score]:
    """Whether the item is among the best ten, and how far up: 1 / log2(1 + place) (Kang and McAuley 2018)."""
    gains = [1 / math.log2(1 + place) if place <= BEST else 0.0 for place in places]
    how = f"last item of each text among all|best {BEST}"
    return {
        "hit@10": Score(100 * fmean(place <= BEST for place in places), how),
        "ndcg@10": Score(100 * fmean(gains), how),
    }


def last_places(model: LanguageModel, texts: Sequence[str]) -> list[int]:
    """The place of the last token of each text among all that may be written there, from 1 on; of equals, the last."""
    rows = [model.tokenizers.target.encode(text)[:-1] for text in texts]
    longest = model.recipe.data.max_length
    if short := [text for text, row in zip(texts, rows, strict=True) if len(row) < 2]:
        raise SaccadeError(f"to rank the next item, a text needs two at least, got {short[0]!r}; leave it out")
    if not rows:
        raise SaccadeError("there is nothing to evaluate: no text was given; is the file empty?")
    rows, places = [row[-longest:] for row in rows], [0] * len(rows)
    with torch.inference_mode():
        for group in groups_by_length([len(row) for row in rows], budget=model.recipe.predict.batch_tokens):
            batch = Batch({"target": pad([rows[i] for i in group])}).to(model.device)
            for i, place in zip(group, _places(model, batch), strict=True):
                places[i] = place
    return places


def _places(model: LanguageModel, batch: Batch) -> list[int]:
    target, writer = batch["target"], model.model.writer
    hidden = writer(seen_while_writing(writer, target), target.mask, model.model.read(batch))
    last = target.mask.sum(1, keepdim=True) - 1
    states = hidden.gather(1, last[..., None].expand(-1, -1, hidden.shape[2]))[:, 0]
    logits = writer.head(states).float()
    logits[:, : UNKNOWN + 1] = -math.inf  # no item is one of these; one that is not known comes behind all others
    own = logits.gather(1, target.ids.gather(1, last))
    return (~(logits < own)).sum(1).tolist()


def share_of_molecules(model: LanguageModel, count: int = DRAWN, *, decoding: Decoding | None = None) -> Score:
    """How many texts that are drawn freely are molecules."""
    drawn = (decoding or model.recipe.predict).model_copy(update={"sample": True, "n_best": 1, "stop": ()})
    texts = model.predict([""] * count, decoding=drawn)
    right = [not wrong_with(text) for text in texts]
    how = f"drawn:{count}|temperature:{drawn.temperature:g}|seed:{drawn.seed}"
    return Score(100 * fmean(right), f"SMILES with right branches, rings and bonds|{how}")
