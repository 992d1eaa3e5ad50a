"""Attention weights of a trained model on one input: every layer, head by head."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizer import SPECIAL_TOKENS, START
from saccade.layers.record import record
from saccade.predict.outputs import AttentionMaps
from saccade.predict.predictors.parts import InputCodec
from saccade.predict.search.likelihood import build_writer_inputs
from saccade.predict.search.mask_predict import is_non_autoregressive
from saccade.predict.search.trace import SearchTree
from saccade.view.viewing import View
from saccade.view.words import Groups


class AttentionExample(NamedTuple):
    """A source and a target for which attention is recorded, as token ids with END last."""

    source: Any  # an encoded input; None for a language model, which has no source
    target: list[int]
    text: str  # the target as text
    tree: SearchTree | None = None  # candidates of the search that found the target, if there was a search
    search_start: int = 0  # index of the first target token that the search chose


def record_writer_attention(codec: InputCodec, example: AttentionExample, text: str) -> tuple[AttentionMaps, Tensor]:
    """Record attention in a teacher-forced pass; also return the writer's hidden states (1, T, D)."""
    loaded, tokenizer = codec.loaded, codec.tokenizers.target
    if example.source is None:
        batch = Batch({"target": pad([example.target])}).to(loaded.device)
    else:
        batch = codec.collate([example.source], [example.target])
    with loaded.inference(), record(loaded.model) as maps:
        memory = loaded.model.read(batch)
        inputs = build_writer_inputs(loaded.model.writer, batch["target"], memory)
        hidden = loaded.model.writer(inputs, batch["target"].mask, memory)
    # A blank canvas has the same mask token everywhere, and copies are source tokens: positions are labelled with the
    # target tokens.
    input_ids = example.target if is_non_autoregressive(loaded.model.writer) else inputs[0].tolist()
    sides: dict[str, tuple[list[str], Groups]] = {
        name: (tokenizer.convert_ids_to_tokens(ids), tokenizer.group_words(ids))
        for name, ids in (("target", example.target), ("seen", input_ids))
    }
    sides["source"] = ([], []) if example.source is None else codec.label_source(example.source)
    sides["question"] = ([], []) if example.source is None else codec.label_question(example.source)
    return label_maps(codec, maps, sides, text), hidden


def record_reader_attention(codec: InputCodec, row: Any, text: str, *, cell: int | None = None) -> AttentionMaps:
    """Record the reader's attention over one encoded input, for models whose output is not a token sequence.

    `text` is the model's output. `cell` selects one query position of a picture. A decoder pooler (a second, causal
    pass over the source) is labelled as a writer: each position sees those before it.
    """
    batch = codec.collate([row])
    with codec.loaded.inference(), record(codec.loaded.model) as maps:
        codec.loaded.model.read(batch)
    labels, words = codec.label_source(row)
    has_decoder_pooler = getattr(codec.loaded.single.reader, "again", None) is not None
    sides: dict[str, tuple[list[str], Groups]] = {"source": (labels, words), "question": codec.label_question(row)}
    sides |= (
        {"target": (labels, words), "seen": ([SPECIAL_TOKENS[START], *labels[:-1]], [])} if has_decoder_pooler else {}
    )
    return label_maps(codec, maps, sides, text, cell=cell)


def label_maps(
    codec: InputCodec,
    maps: Mapping[str, Tensor],
    sides: Mapping[str, tuple[list[str], Groups]],
    text: str,
    *,
    cell: int | None = None,
) -> AttentionMaps:
    """Convert recorded weights of a batch of one row to `AttentionMaps`, with labels and word groups of each axis."""
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
    maps: AttentionMaps,
    source: str,
    row: Any,
    *,
    output: str,
    title: str,
    steps: Sequence[Mapping[str, Any]] = (),
) -> View:
    """Build a `View` for display from recorded attention; `row` is the encoded input, None for a language model."""
    return View(
        title=title or codec.recipe.name,
        input=codec.name_input(source),
        output=output,
        labels=maps.labels,
        maps=list(maps.values()),
        words=maps.words,
        steps=steps,
        background=None if row is None else codec.make_background(row),
    )
