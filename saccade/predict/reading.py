"""What a model looks at while it reads, where nothing is written word by word."""

from collections.abc import Sequence
from typing import Any

from saccade.data.batch import Batch, pad
from saccade.layers.record import record
from saccade.predict.outputs import AttentionMaps
from saccade.view.viewing import View


def maps_of(predictor: Any, ids: Sequence[int], text: str) -> AttentionMaps:
    """The weights of every layer and head of the reader over one text, given as ids; `text` is what is said of it."""
    batch = Batch({"source": pad([list(ids)])}).to(predictor.device)
    with predictor._inference(), record(predictor.model) as maps:
        predictor.model.read(batch)
    source = predictor.tokenizers.source
    return AttentionMaps(
        maps={address: weights[0].float().cpu().clone() for address, weights in maps.items()},
        source_labels=source.labels(ids),
        target_labels=[],
        text=text,
        seen_labels=[],
        words={"source": source.words(ids)},
    )


def view_of(predictor: Any, ids: Sequence[int], text: str, *, output: str = "", title: str = "") -> View:
    """The same to be shown, with what the model says of the text."""
    seen = maps_of(predictor, ids, output)
    return View(
        title=title or predictor.recipe.name,
        input=text,
        output=output,
        labels={"source": seen.source_labels},
        maps=list(seen.values()),
        words=seen.words,
    )
