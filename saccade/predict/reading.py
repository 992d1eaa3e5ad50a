"""What a model looks at while it reads, where nothing is written word by word."""

from typing import Any

from saccade.data.tokenization.tokenizer import PIECES, START
from saccade.layers.record import record
from saccade.predict.outputs import AttentionMaps
from saccade.view.viewing import View


def maps_of(predictor: Any, ids: Any, text: str) -> AttentionMaps:
    """The weights of every layer and head of the reader over one text, given as ids; `text` is what is said of it.

    Where it is read again, that looks as if the text were written: each place sees those before it.
    """
    batch = predictor._batch(source=[ids])
    with predictor._inference(), record(predictor.model) as maps:
        predictor.model.read(batch)
    labels, words = predictor._source_labels(ids)
    question, groups = predictor._question_labels(ids)
    again = labels if getattr(predictor.model.reader, "again", None) is not None else []
    return AttentionMaps(
        maps={
            address: predictor._shown(address, weights[0].float().cpu().clone()) for address, weights in maps.items()
        },
        source_labels=labels,
        target_labels=again,
        text=text,
        seen_labels=[PIECES[START], *again[:-1]] if again else [],
        words={"source": words, **({"question": groups} if question else {}), **({"target": words} if again else {})},
        question_labels=question,
    )


def view_of(predictor: Any, ids: Any, text: str, *, output: str = "", title: str = "") -> View:
    """The same to be shown, with what the model says of the text."""
    seen = maps_of(predictor, ids, output)
    return View(
        title=title or predictor.recipe.name,
        input=predictor._called(text),
        output=output,
        labels=seen.labels,
        maps=list(seen.values()),
        words=seen.words,
        background=predictor._background(ids),
    )
