"""Attention weights of a trained model on one input: every layer, head by head."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizer import PIECES, START
from saccade.layers.record import record
from saccade.predict.outputs import AttentionMaps
from saccade.predict.predictors.parts import InputCodec
from saccade.predict.search.fill import fills
from saccade.predict.search.likelihood import seen_while_writing
from saccade.predict.search.trace import Tree
from saccade.view.viewing import View
from saccade.view.words import Groups


class Given(NamedTuple):
    """What is read and written, as rows with END last, and how it was found."""

    source: Any  # a row of the codec; none where nothing is read
    target: list[int]
    text: str  # the output
    tree: Tree | None = None  # of the search, where there was one
    first: int = 0  # the token of the target with which the search began


def record_writing(codec: InputCodec, given: Given, text: str) -> tuple[AttentionMaps, Tensor]:
    """Attention while a given output is written, and the hidden states of the writer (1, T, D)."""
    loaded, tokenizer = codec.loaded, codec.tokenizers.target
    if given.source is None:
        batch = Batch({"target": pad([given.target])}).to(loaded.device)
    else:
        batch = codec.collate([given.source], [given.target])
    with loaded.inference(), record(loaded.model) as maps:
        seen = seen_while_writing(loaded.model.writer, batch["target"])
        hidden = loaded.model.writer(seen, batch["target"].mask, loaded.model.read(batch))
    # All positions of a canvas are alike before it is filled, so they are named after the tokens to come.
    seen_ids = given.target if fills(loaded.model.writer) else seen[0].tolist()
    sides: dict[str, tuple[list[str], Groups]] = {
        name: (tokenizer.labels(ids), tokenizer.words(ids))
        for name, ids in (("target", given.target), ("seen", seen_ids))
    }
    sides["source"] = ([], []) if given.source is None else codec.label_source(given.source)
    sides["question"] = ([], []) if given.source is None else codec.label_question(given.source)
    return label_maps(codec, maps, sides, text), hidden


def record_reading(codec: InputCodec, row: Any, text: str, *, cell: int | None = None) -> AttentionMaps:
    """Attention of the reader over one row, where nothing is written token by token; `text` is the output.

    A second pass over the text attends as if the text were written: each position sees those before it.
    """
    batch = codec.collate([row])
    with codec.loaded.inference(), record(codec.loaded.model) as maps:
        codec.loaded.model.read(batch)
    labels, words = codec.label_source(row)
    again = getattr(codec.loaded.single.reader, "again", None) is not None
    sides: dict[str, tuple[list[str], Groups]] = {"source": (labels, words), "question": codec.label_question(row)}
    sides |= {"target": (labels, words), "seen": ([PIECES[START], *labels[:-1]], [])} if again else {}
    return label_maps(codec, maps, sides, text, cell=cell)


def label_maps(
    codec: InputCodec,
    maps: Mapping[str, Tensor],
    sides: Mapping[str, tuple[list[str], Groups]],
    text: str,
    *,
    cell: int | None = None,
) -> AttentionMaps:
    """Recorded weights of a batch of one row, with the labels and words of their sides."""
    weights = {address: recorded[0].float().cpu().clone() for address, recorded in maps.items()}
    labels = {name: sides[name][0] if name in sides else [] for name in ("source", "target", "seen", "question")}
    return AttentionMaps(
        maps={address: codec.crop_weights(address, one, cell=cell) for address, one in weights.items()},
        source_labels=labels["source"],
        target_labels=labels["target"],
        text=text,
        seen_labels=labels["seen"],
        words={name: words for name, (_, words) in sides.items() if words},
        question_labels=labels["question"],
    )


def make_view(
    codec: InputCodec,
    seen: AttentionMaps,
    source: str,
    row: Any,
    *,
    output: str,
    title: str,
    steps: Sequence[Mapping[str, Any]] = (),
) -> View:
    """Recorded attention with all that a page shows; `row` is none where nothing was read."""
    return View(
        title=title or codec.recipe.name,
        input=codec.name_input(source),
        output=output,
        labels=seen.labels,
        maps=list(seen.values()),
        words=seen.words,
        steps=steps,
        background=None if row is None else codec.make_background(row),
    )
