"""What the successors of the Transformer are trained on: masked words, sentence pairs, corrupted spans."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saccade.config.schema import Recipe
from saccade.data.batching.batch import Batch, Tokens
from saccade.data.prepare import PreparedData, prepare
from saccade.data.tokenization.special_tokens import get_mask_id
from saccade.data.tokenization.tokenizers import END
from saccade.lectures.claims import Comparison, expect_at_least, expect_equal, expect_near
from saccade.lectures.references.transformer import encode_text
from saccade.lectures.scale.family_checks import (
    ENCODERS,
    build_family,
    load_family,
    predict_masked,
    predict_pair,
)
from saccade.model.model import Model
from saccade.train.objectives.masked import hash_noise, mask_tokens, sample_noise
from saccade.train.objectives.objectives import build_objectives

DOCUMENTS, SENTENCES = 16, 8
ROWS = 250  # of 40 tokens, of which about 1,400 are predicted
TRIES = 8  # epochs whose rows are looked at


def count_words(document: int, sentence: int) -> int:
    return 3 + (document + sentence) % 3


def list_places(document: int) -> list[tuple[int, ...]]:
    """Document, sentence and place of each word of a document."""
    return [(document, s, w) for s in range(SENTENCES) for w in range(count_words(document, s))]


def write_documents(folder: Path) -> Path:
    """Write documents of sentences whose words name their document, sentence and place, such as D3s1w0."""
    texts = []
    for document in range(DOCUMENTS):
        names = [f"D{d}s{s}w{w}{'' if w + 1 < count_words(d, s) else '.'}" for d, s, w in list_places(document)]
        texts.append(" ".join(names))
    path = folder / "documents.txt"
    path.write_text("\n\n".join(texts), encoding="utf-8")
    return path


def prepare_family(name: str, part: str, changes: Sequence[str] = ()) -> tuple[Recipe, PreparedData]:
    """Prepare the documents as the recipe asks, with whole words as tokens."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["tokenizer.kind=words", "tokenizer.size=900", f"data.train={write_documents(Path(folder))}"]
        recipe = load_family(name, (part,), (*words, *changes))
        return recipe, prepare(recipe, cache=Path(folder) / "cache", report=lambda text: None)


def list_rows(rows: Any, side: int = 0) -> list[list[int]]:
    """The tokens of each row."""
    tokens, lengths = rows.gather(np.arange(len(rows)), side=side)
    return [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])]


# ---- masked words and sentence pairs


def check_masking(name: str) -> list[Comparison]:
    """Compare what the model reads with the text: 15 % of the words, of these 80 % masked, 10 % other words."""
    sizes = ["data.max_length=40", "reader.positions.length=40", "reader.stack.layers=2"]
    recipe, prepared = prepare_family(ENCODERS[name][0], "reader", sizes)
    tokenizer = prepared.tokenizers.source
    (objective,) = build_objectives(recipe, tokenizer=tokenizer)
    net = build_family(recipe, size=tokenizer.size)
    words = torch.randint(60, tokenizer.size - 3, (ROWS, 40))
    words[:, 0], words[:, 39] = torch.tensor(tokenizer.prefix_ids[0]), END
    keep = torch.ones_like(words, dtype=torch.bool)
    fields = {"source": Tokens(words, keep), "pair": Tokens(torch.zeros(ROWS, 1, dtype=torch.long), keep[:, :1])}
    read: list[Tensor] = []
    generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
    small = {field: Tokens(tokens.ids[:9], tokens.mask[:9]) for field, tokens in fields.items()}
    with torch.no_grad(), net.reader.register_forward_pre_hook(lambda module, given: read.append(given[0])):
        count = int(objective(net, Batch(fields), generator)["masked"].count)
        for _ in range(2):
            objective(net, Batch(small), generator)
    total, mask = ROWS * 38, get_mask_id(tokenizer)
    masked = int((read[0] == mask).sum())
    other = int(((read[0] != words) & (read[0] != mask)).sum())
    special = int((read[0] != words)[:, [0, 39]].sum())
    again = "the same" if torch.equal(read[1], read[2]) else "others"
    return [
        expect_near(f"{name}: predicted words", count / total, 0.15, within=0.015),
        expect_near(f"{name}: of these masked", masked / count, 0.8, within=0.045),
        expect_near(f"{name}: of these replaced by other words", other / count, 0.1, within=0.035),
        expect_equal(f"{name}: special tokens that were masked", special, 0),
        expect_equal(f"{name}: masks when a text is read again", again, "the same" if name == "BERT" else "others"),
        *_compare_masked_loss(name, net, objective),
    ]


def _compare_masked_loss(name: str, net: Model, objective: Any) -> list[Comparison]:
    """Compare the losses of a small batch with those of the formulas: of masked words only, and of sentence pairs."""
    masking, style = objective.keywords["masking"], ENCODERS[name][1]
    words, labels = torch.randint(60, masking.vocabulary_size - 3, (4, 40)), torch.tensor([[0], [1], [1], [0]])
    tokens = Tokens(words, torch.ones_like(words, dtype=torch.bool))
    batch = Batch({"source": tokens, "pair": Tokens(labels, torch.ones(4, 1, dtype=torch.bool))})
    noise = hash_noise(tokens) if name == "BERT" else sample_noise(tokens, torch.Generator().manual_seed(7))
    inputs, target = mask_tokens(tokens, noise, masking)
    with torch.no_grad():
        found = objective(net, batch, torch.Generator().manual_seed(7))
        loss, pairs = 0.0, 0.0
        for row in range(4):
            states = encode_text(net, inputs[row], style)
            scores = predict_masked(net, states, style).log_softmax(-1).gather(1, words[row][:, None])[:, 0]
            loss -= float(scores[target[row]].sum())
            if name != "RoBERTa":
                pairs -= float(predict_pair(net, states).log_softmax(-1)[labels[row, 0]])
    compared = [("masked words", "masked", loss), *([("sentence pairs", "pairs", pairs)] if name != "RoBERTa" else [])]
    return [
        expect_near(
            f"{name}: loss of {what}, difference from the formulas", float(found[key].sum) - value, 0, within=1e-3
        )
        for what, key, value in compared
    ]


def check_pairs(name: str) -> list[Comparison]:
    """Look at sentence pairs: B follows A, or with label 1 comes from elsewhere (BERT) or before A (ALBERT)."""
    _, prepared = prepare_family(ENCODERS[name][0], "reader", ["data.max_length=24", "reader.positions.length=24"])
    tokenizer, kinds = prepared.tokenizers.source, {"wrong": 0, "negative": 0, "pairs": 0}
    for epoch in range(TRIES):
        rows = prepared.train.select_epoch(epoch, 0)
        for ids, label in zip(list_rows(rows), list_rows(rows, side=1), strict=True):
            text = " ".join(tokenizer.convert_ids_to_tokens(ids[len(tokenizer.prefix_ids) : -1]))
            both = [re.findall(r"d(\d+)s(\d+)w", part.lower()) for part in text.split("<end>")]
            if len(both) < 2 or not all(both) or label[0] > 1:
                continue
            first, second = ([(int(d), int(s)) for d, s in part] for part in both)
            follows, swapped = does_follow(first[-1], second[0]), does_follow(second[-1], first[0])
            expected = follows if label[0] == 0 else not follows if name == "BERT" else swapped
            kinds["wrong"] += not expected
            kinds["negative"] += label[0]
            kinds["pairs"] += 1
    return [
        expect_at_least(f"{name}: sentence pairs", kinds["pairs"], 200),
        expect_equal(f"{name}: pairs whose label does not tell how they lie in the text", kinds["wrong"], 0),
        expect_near(f"{name}: share of negative pairs", kinds["negative"] / max(kinds["pairs"], 1), 0.5, within=0.1),
    ]


def does_follow(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether a word, given as document and sentence, is in the sentence of another one or the next one."""
    return one[0] == other[0] and other[1] in (one[1], one[1] + 1)


def check_full_rows() -> list[Comparison]:
    """RoBERTa: rows are full and go on with the next document, without sentence pairs."""
    _, prepared = prepare_family("roberta", "reader", ["data.max_length=24", "reader.positions.length=24"])
    rows, tokenizer = prepared.train.select_epoch(0, 0), prepared.tokenizers.source
    texts = [row[1:-1] for row in list_rows(rows)]
    words = tokenizer.convert_ids_to_tokens([token for text in texts for token in text])
    places = [tuple(map(int, match.groups())) for w in words if (match := re.search(r"D(\d+)s(\d+)w(\d+)", w))]
    documents = [list(group) for _, group in itertools.groupby(places, key=lambda place: place[0])]
    whole = sum(document == list_places(document[0][0]) for document in documents)
    return [
        expect_at_least(
            "RoBERTa: tokens of the shortest row but the first and the last, of 24", 2 + min(map(len, texts[1:-1])), 23
        ),
        expect_at_least(
            "RoBERTa: rows that go on with the next document", sum(END in text for text in texts), DOCUMENTS // 2
        ),
        expect_equal("RoBERTa: documents that are whole in the rows, one after the other", whole, DOCUMENTS),
        expect_equal("RoBERTa: what a row has", str(rows.sides), "('source',)"),
    ]


# ---- corrupted spans


def check_spans() -> list[Comparison]:
    """T5: put the spans of a target in place of the sentinels of its source, and the text is whole again."""
    _, prepared = prepare_family("t5", "reader", ["data.max_length=64", "data.cross_document=true"])
    rows = prepared.train.select_epoch(3, 1)
    sentinels = {token: i for i, token in enumerate(prepared.train.sentinels)}
    whole = list_rows(rows.rows)
    restored = ordered = hidden = spans = words = 0
    for text, source, target in zip(whole, list_rows(rows), list_rows(rows, side=1), strict=True):
        parts: dict[int, list[int]] = {}
        for token in target[:-1]:
            if token in sentinels:
                parts[token] = []
            elif parts:
                parts[list(parts)[-1]].append(token)
        filled = [
            piece for token in source[:-1] for piece in (parts.get(token, [token]) if token in sentinels else [token])
        ]
        marks = [[sentinels[token] for token in side if token in sentinels] for side in (source, target)]
        restored += filled == text
        ordered += marks == [list(range(len(marks[0])))] * 2
        words, hidden, spans = words + len(text), hidden + sum(map(len, parts.values())), spans + len(parts)
    other = list_rows(prepared.train.select_epoch(3, 2))
    places = {tuple(i for i, token in enumerate(source) if token in sentinels) for source in list_rows(rows)}
    return [
        expect_equal("T5: rows that source and target make whole again", restored, len(whole)),
        expect_equal("T5: rows whose sentinels are 0, 1, 2 ... in source and target", ordered, len(whole)),
        expect_near("T5: share of the words in spans", hidden / words, 0.15, within=0.02),
        expect_near("T5: words of a span", hidden / max(spans, 1), 3.0, within=0.4),
        expect_at_least("T5: rows whose spans are in other places", len(places), len(whole) // 2),
        expect_equal("T5: other spans in the next epoch", str(other != list_rows(rows)), "True"),
    ]
