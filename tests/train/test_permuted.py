"""Tokens in an order that is drawn: which are asked for, who sees whom, pieces and their memory, packed rows."""

import json
import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from saccade.config.load import validate
from saccade.config.schema import LabelWriter
from saccade.data.batching.batch import Batch, Tokens, pad
from saccade.data.synthetic.grammar import sentences
from saccade.data.tokenization.tokenizers import END
from saccade.layers.packing import packing
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.train.api import train
from saccade.train.batches.pack import pack
from saccade.train.objectives.permuted import drawn, permuted, pieces, rectangle
from saccade.train.transfer.adopt import labelling

SIZE = 13
ROWS = [[7, 6, 5, 11, 9, 2, 4, 8, 6, 5, 2], [8, 2], [2], [10, 4, 12, 5, 6, 2]]
RECIPE: dict[str, Any] = {
    "task": "encode",
    "tokenizer": {"kind": "characters"},
    "reader": {
        "stack": {"layers": 2, "dim": 12, "heads": 3, "ff": 17, "dropout": 0.0, "attention_bias": False},
        "positions": {"kind": "transformer-xl", "content": True, "segments": True},
        "scale": False,
        "dropout": 0.0,
    },
    "writer": {"kind": "permuted"},
    "objectives": [{"kind": "permuted"}],
}


FEW = "data.valid=[{ files = ['embedded:sentences-heldout'], examples = 20 }]"


def model(tie: str = "all") -> Model:
    torch.manual_seed(3)
    made = build(
        validate(RECIPE | {"writer": {"kind": "permuted", "tie": tie}}), source_size=SIZE, target_size=SIZE
    ).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return made


def fixed() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def batch() -> Batch:
    return Batch({"source": pad(ROWS)})


def masks(*lengths: int) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def test_one_in_so_many_is_asked_for_and_the_last_comes_last() -> None:
    order = drawn(masks(13, 6, 7, 1, 0), fixed(), one_in=6, span=1)
    assert order.real.sum(1).tolist() == [3, 1, 2, 1, 0]
    for when, at, real in zip(order.when, order.at, order.real, strict=True):
        count = int(real.sum())
        assert when[at[real]].tolist() == list(range(count))  # in the order in which they are asked
        assert int((when >= 0).sum()) == count and when.min() >= -1


def test_padding_is_never_asked_for() -> None:
    keep = masks(9, 4, 1).repeat(300, 1)
    order = drawn(keep, fixed(), one_in=2, span=2)
    assert not (order.when >= 0)[~keep].any()


def test_every_token_is_asked_for_equally_often() -> None:
    order = drawn(torch.ones(4000, 5, dtype=torch.bool), fixed(), one_in=5, span=1)
    assert torch.bincount(order.at.flatten()).tolist() == pytest.approx([800] * 5, abs=90)


def test_tokens_of_a_span_follow_each_other() -> None:
    order = drawn(torch.ones(500, 30, dtype=torch.bool), fixed(), one_in=1, span=3)
    blocks = order.at.sort(1).values  # all of them are asked for
    assert torch.equal(blocks, torch.arange(30).expand(500, -1))
    near = (order.at.diff(dim=1).abs() <= 2).float().mean()
    assert near > 0.65  # two of three neighbours in the order are of one span of three
    alone = drawn(torch.ones(500, 30, dtype=torch.bool), fixed(), one_in=1, span=1)
    assert (alone.at.diff(dim=1).abs() <= 2).float().mean() < 0.2


def test_no_token_helps_to_predict_itself_or_an_earlier_one() -> None:
    """Whatever stands at a place, those asked up to it say the same of their own, and those asked later do not."""
    made, ids = model(), torch.tensor([ROWS[0]])
    keep, segments = torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids)
    order = drawn(keep, fixed(), one_in=2, span=1)

    @torch.no_grad()
    def logits(given: Tensor) -> Tensor:
        found = made.writer(made.reader, given, order.when, at=order.at, keep=keep, segments=segments)
        return made.writer.head(found.query)[0]

    first = logits(ids)
    for time, at in enumerate(order.at[0].tolist()):
        again = logits(ids.index_fill(1, torch.tensor([at]), 3))
        assert torch.equal(again[: time + 1], first[: time + 1])
        assert (again[time + 1 :] != first[time + 1 :]).any(-1).all()


@torch.no_grad()
def test_terms_are_sums_over_what_is_asked_for() -> None:
    made = model()
    terms = permuted(made, batch(), fixed(), one_in=3)
    assert int(terms["permuted"].count) == 3 + 1 + 0 + 2
    assert float(terms["permuted"].sum) == pytest.approx(float(terms["nll"].sum))
    ids, keep = rectangle(batch()["source"])
    order = drawn(keep & (ids != END), fixed(), one_in=3, span=1)  # where an END is can be told from segments
    ends = (ids == END).long()
    found = made.writer(
        made.reader, ids, order.when, at=order.at, keep=keep, segments=ends.cumsum(1) - ends
    )  # fmt: skip
    log_probs = made.writer.head(found.query).log_softmax(-1).gather(-1, ids.gather(1, order.at)[..., None])[..., 0]
    assert float(terms["nll"].sum) == pytest.approx(-float(log_probs[order.real].sum()))
    assert terms["nll"].weight == 0


@pytest.mark.parametrize("settings", [{}, {"piece": 4, "memory": 3}, {"span": 2, "one_in": 2}])
def test_packed_rows_give_the_same_loss_and_gradients(settings: dict[str, Any]) -> None:
    made, found = model(), []
    for rows in (batch(), pack(batch())):
        made.zero_grad()
        terms = permuted(made, rows, fixed(), **settings)
        terms["permuted"].sum.backward()
        found.append((terms["permuted"].sum, terms["permuted"].count, made.reader.embedding.tokens.weight.grad.clone()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_what_fills_up_a_packed_row_is_not_asked_for() -> None:
    row = packing([4, 3], tokens=64, texts=8)
    ids = torch.arange(row.texts.shape[1])[None] % SIZE
    _, keep = rectangle(Tokens(ids, row))
    assert keep.sum(1).tolist() == [4, 3, *[0] * (len(keep) - 2)]
    assert int(permuted(model(), Batch({"source": Tokens(ids, row)}, {"source": 7}), fixed())["nll"].count) == 2


def test_pieces_cover_a_text() -> None:
    assert list(pieces(10, 4)) == [(0, 4), (4, 8), (8, 10)]
    assert list(pieces(10, None)) == [(0, 10)]


def test_a_later_piece_sees_the_one_before_it() -> None:
    made, ids = model(), torch.tensor([[7, 6, 5, 11, 9, 4, 10, 8]])
    changed = ids.clone()
    changed[0, 1] = 12

    def of_last(given: Tensor, memory: int) -> float:
        """The loss of the second piece: that of both without that of the first."""
        sums = [
            permuted(made, Batch({"source": pad(part.tolist())}), fixed(), piece=4, memory=memory, one_in=4)["nll"].sum
            for part in (given, given[:, :4])
        ]
        return float(sums[0] - sums[1])

    assert of_last(ids, 0) == pytest.approx(of_last(changed, 0), abs=1e-12)
    assert of_last(ids, 4) != pytest.approx(of_last(changed, 4), abs=1e-6)


def test_no_gradient_goes_into_the_piece_before() -> None:
    made, ids = model("none"), torch.tensor([[7, 6, 5, 11, 9, 4, 10, 8]])
    grads = []
    for given in (ids, ids[:, :4]):
        made.zero_grad()
        rows = Batch({"source": pad(given.tolist())})
        permuted(made, rows, fixed(), piece=4, memory=4, one_in=4)["permuted"].sum.backward()
        grads.append(made.reader.embedding.tokens.weight.grad[[7, 6, 5, 11]].clone())
    assert grads[0].abs().sum() > 0
    torch.testing.assert_close(*grads)


def test_labels_are_told_from_the_last_state() -> None:
    old = validate(RECIPE)
    writer = labelling(LabelWriter(), old, old.reader)
    assert (writer.pooling, writer.hidden) == ("last", 12)


def test_it_learns_more_than_how_often_tokens_occur(tmp_path: Path) -> None:
    """Held-out loss, of tokens in orders that are drawn anew, below what the frequencies in the training text give."""
    few = ["train.steps=100", "train.valid_every=100", "train.schedule.warmup=30", "train.batch_tokens=768"]
    train("xlnet", tiny=True, run=str(tmp_path / "x"), overrides=few)
    lines = [json.loads(line) for line in (tmp_path / "x" / "metrics.jsonl").read_text().splitlines()]
    (found,) = [line["nll"] for line in lines if line["event"] == "valid"]
    seen = Counter(letter for text in sentences(4000, seed=1) for letter in text)
    held = [letter for text in sentences(300, seed=1, heldout=True) for letter in text]
    frequent = -sum(math.log(seen[letter] / seen.total()) for letter in held) / len(held)
    assert 2.5 < frequent < 3.0
    assert found < 0.9 * frequent


def test_a_resumed_training_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    few = ["train.steps=4", "train.save_every=2", "train.batch_tokens=256", "train.schedule.warmup=1", FEW]
    whole, half = (str(tmp_path / name) for name in ("whole", "half"))
    train("xlnet", tiny=True, run=whole, overrides=few)
    shutil.copytree(whole, half)
    shutil.rmtree(Path(half, "checkpoints", "step-4"))
    train(resume=half)
    assert Path(whole, "model.safetensors").read_bytes() == Path(half, "model.safetensors").read_bytes()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("graphs", ["true", "false"])
def test_on_a_gpu_packed_rows_and_graphs_learn_too(tmp_path: Path, graphs: str) -> None:
    few = ["train.steps=60", "train.valid_every=60", "train.schedule.warmup=20", f"train.graphs={graphs}"]
    train("xlnet", tiny=True, run=str(tmp_path / "x"), overrides=[*few, "train.device=cuda", "train.pack=true"])
    lines = [json.loads(line) for line in (tmp_path / "x" / "metrics.jsonl").read_text().splitlines()]
    (found,) = [line["nll"] for line in lines if line["event"] == "valid"]
    assert found < 2.9
