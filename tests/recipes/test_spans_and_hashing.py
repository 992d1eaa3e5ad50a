"""The recipes t5 and reformer: the numbers of those that were released, and what their tiny tables learn."""

import json
import math
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import saccade
from saccade.config.load import load
from saccade.data.batching.spans import CorruptedSpans
from saccade.data.prepare import prepare
from saccade.demo.listing import get_demonstration
from saccade.layers.attention.local import LocalAttention
from saccade.layers.attention.lsh import LshAttention
from saccade.model.build.model import build
from saccade.plan.counts import build_on_meta, count_parameters


@pytest.mark.parametrize(("name", "count"), [("t5", 76_961_152), ("t5-base", 247_577_856)])
def test_t5_has_the_parameters_of_version_1_1(name, count):
    """As `transformers` counts those of google/t5-v1_1-small and -base."""
    assert count_parameters(build_on_meta(load(name))) == count


def test_rows_of_t5_are_those_of_the_paper(tmp_path):
    (tmp_path / "a.txt").write_text("a tale of two cities " * 500)
    tokenizer = ["tokenizer.kind=bytes", "tokenizer.size=400"]
    recipe = load("t5", overrides=[f"data.train={tmp_path / 'a.txt'}", *tokenizer])
    spans = prepare(recipe, cache=tmp_path).train
    assert isinstance(spans, CorruptedSpans)
    lengths = [spans.get_lengths(np.array([1]), side=side)[0] for side in (0, 1)]
    assert (spans.rows.length, lengths) == (568, [512, 114])


def test_t5_begins_with_scores_as_even_as_if_they_were_divided():
    """Its queries begin smaller by sqrt(d_k): the spread of scores is 1 and not 8."""
    recipe = load("t5", tiny=True, overrides=["reader.stack.head_dim=64"])
    attention = build(recipe, source_size=9, target_size=9).reader.stack.blocks[0].self
    query, key, _ = attention.project(torch.randn(4, 50, 64))
    spread = torch.einsum("bqhe,bkhe->bhqk", query, key).std()
    assert attention.heads.scale == 1.0 and 0.3 < spread < 1.5


def test_layers_of_reformer_are_local_and_hashing_in_turn():
    stack = build_on_meta(load("reformer")).writer.stack
    assert [type(block.attention) for block in stack.blocks] == [LocalAttention, LshAttention] * 3
    assert count_parameters(build_on_meta(load("reformer"))) == 2_551_296


@pytest.mark.slow
def test_tiny_t5_learns_more_than_how_frequent_words_are(tmp_path, monkeypatch):
    """Held-out loss below half of what the frequencies of words and sentinels give: that is the target."""
    monkeypatch.chdir(tmp_path)
    begin = time.process_time()
    saccade.train("t5", tiny=True, run="x")
    assert time.process_time() - begin < 120
    lines = [json.loads(line) for line in Path("runs/x/metrics.jsonl").read_text().splitlines()]
    best = min(line["nll"] for line in lines if line["event"] == "valid")
    assert get_demonstration("t5").target.is_reached(math.exp(best))


def unigram_loss(folder):
    data = prepare(load("t5", tiny=True), cache=folder)
    seen, held = (Counter(rows.gather(np.arange(len(rows)), side=1)[0].tolist()) for rows in (data.train, data.valid))
    return -sum(count * math.log(seen[token] / seen.total()) for token, count in held.items()) / held.total()


def test_the_target_is_half_the_loss_by_the_frequencies_of_words_and_sentinels(tmp_path):
    target = get_demonstration("t5").target
    assert target.metric == "perplexity"
    assert 0.95 * unigram_loss(tmp_path) / 2 < math.log(target.number) <= unigram_loss(tmp_path) / 2
