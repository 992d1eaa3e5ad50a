"""What a trained model looks at while it writes: every attention layer, head by head, and how the output was found."""

from typing import Any, NamedTuple

from torch import Tensor

from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.errors import SaccadeError
from saccade.layers.record import record
from saccade.predict.outputs import AttentionMaps
from saccade.predict.search.fill import fills
from saccade.predict.search.likelihood import seen_while_writing
from saccade.predict.search.trace import Tree, described
from saccade.view.viewing import View


class Given(NamedTuple):
    """What is read and written, as ids with END last, and how it was found."""

    source: Any  # a list, or a picture or sound; none where nothing is read
    target: list[int]
    text: str  # the output
    tree: Tree | None = None  # of the search, where there was one
    first: int = 0  # the token of the target with which the search began


def attention(predictor: Any, source: str, target: str | None) -> AttentionMaps:
    """The weights while a target, or what is predicted, is written."""
    check_single(predictor)
    given = predictor._given(source, target, None)
    return looked(predictor, given, given.text if given.source is not None else source + given.text)[0]


def view(predictor: Any, source: str, target: str | None, *, decoding: Decoding | None, title: str) -> View:
    """The same, to be shown, with each step of the output."""
    check_single(predictor)
    given = predictor._given(source, target, decoding)
    seen, hidden = looked(predictor, given, given.text)
    steps = []
    if not fills(predictor.model.writer):  # which has no steps
        with predictor._inference():
            log_probs = predictor.model.writer.head(hidden[0]).float().log_softmax(-1).cpu()
        steps = described(log_probs, given.target, predictor.tokenizers.target, given.tree, first=given.first)
    return View(
        title=title or predictor.recipe.name,
        input=predictor._called(source),
        output=given.text,
        labels=seen.labels,
        maps=list(seen.values()),
        words=seen.words,
        steps=steps,
        background=None if given.source is None else predictor._background(given.source),
    )


def check_single(predictor: Any) -> None:
    if predictor.members > 1:
        raise SaccadeError(f"attention is shown for one run at a time, got {predictor.members}; give one")


def looked(predictor: Any, given: Given, text: str) -> tuple[AttentionMaps, Tensor]:
    """One pass over what is read and written, with all weights, and the writer's states (1, T, D)."""
    model, target_of = predictor.model, predictor.tokenizers.target
    if given.source is None:
        batch = Batch({"target": pad([given.target])}).to(predictor.device)
    else:
        batch = predictor._batch(source=[given.source], target=[given.target])
    with predictor._inference(), record(model) as maps:
        seen = seen_while_writing(model.writer, batch["target"])
        hidden = model.writer(seen, batch["target"].mask, model.read(batch))
    # All places of a canvas look alike before it is filled, so that they are named after what comes there.
    seen_ids = given.target if fills(model.writer) else seen[0].tolist()
    sides = {
        name: (target_of.labels(ids), target_of.words(ids))
        for name, ids in (("target", given.target), ("seen", seen_ids))
    }
    sides["source"] = ([], []) if given.source is None else predictor._source_labels(given.source)
    sides["question"] = ([], []) if given.source is None else predictor._question_labels(given.source)
    found = AttentionMaps(
        maps={
            address: predictor._shown(address, weights[0].float().cpu().clone()) for address, weights in maps.items()
        },
        source_labels=sides["source"][0],
        target_labels=sides["target"][0],
        text=text,
        seen_labels=sides["seen"][0],
        words={name: words for name, (_, words) in sides.items() if words},
        question_labels=sides["question"][0],
    )
    return found, hidden
