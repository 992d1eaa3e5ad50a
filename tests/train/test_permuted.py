"""Permutation language modelling: orders, attention masks, chunks with memory, packed rows."""

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
from saccade.data.synthetic.grammar import generate_sentences
from saccade.data.tokenization.tokenizers import END
from saccade.layers.packing import build_packing
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.train.api import train
from saccade.train.batches.pack import pack_batch
from saccade.train.objectives.permuted import permutation_loss, sample_order, split_chunks, unpack_tokens
from saccade.train.transfer.adopt import choose_label_head

SIZE = 13
ROWS = [[7, 6, 5, 11, 9, 2, 4, 8, 6, 5, 2], [8, 2], [2], [10, 4, 12, 5, 6, 2]]
RECIPE: dict[str, Any] = {
    "task": "encode",
    "tokenizer": {"kind": "characters"},
    "reader": {
        "stack": {"layers": 2, "dim": 12, "heads": 3, "ff": 17, "dropout": 0.0, "attention_bias": False},
        "positions": {"kind": "transformer-xl", "content_bias": True, "relative_segments": True},
        "scale_embedding": False,
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


def make_generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def batch() -> Batch:
    return Batch({"source": pad(ROWS)})


def masks(*lengths: int) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def test_one_in_so_many_is_asked_for_and_the_last_comes_last() -> None:
    order = sample_order(masks(13, 6, 7, 1, 0), make_generator(), tokens_per_prediction=6, span_length=1)
    assert order.real.sum(1).tolist() == [3, 1, 2, 1, 0]
    for when, at, real in zip(order.step, order.target_positions, order.real, strict=True):
        count = int(real.sum())
        assert when[at[real]].tolist() == list(range(count))  # in the order in which they are asked
        assert int((when >= 0).sum()) == count and when.min() >= -1


def test_padding_is_never_asked_for() -> None:
    keep = masks(9, 4, 1).repeat(300, 1)
    order = sample_order(keep, make_generator(), tokens_per_prediction=2, span_length=2)
    assert not (order.step >= 0)[~keep].any()


def test_every_token_is_asked_for_equally_often() -> None:
    order = sample_order(
        torch.ones(4000, 5, dtype=torch.bool), make_generator(), tokens_per_prediction=5, span_length=1
    )
    assert torch.bincount(order.target_positions.flatten()).tolist() == pytest.approx([800] * 5, abs=90)


def test_tokens_of_a_span_follow_each_other() -> None:
    order = sample_order(
        torch.ones(500, 30, dtype=torch.bool), make_generator(), tokens_per_prediction=1, span_length=3
    )
    blocks = order.target_positions.sort(1).values  # all of them are asked for
    assert torch.equal(blocks, torch.arange(30).expand(500, -1))
    near = (order.target_positions.diff(dim=1).abs() <= 2).float().mean()
    assert near > 0.65  # two of three neighbours in the order are of one span of three
    alone = sample_order(
        torch.ones(500, 30, dtype=torch.bool), make_generator(), tokens_per_prediction=1, span_length=1
    )
    assert (alone.target_positions.diff(dim=1).abs() <= 2).float().mean() < 0.2


def test_no_token_helps_to_predict_itself_or_an_earlier_one() -> None:
    """A token influences only the predictions of tokens that come later in the order."""
    made, ids = model(), torch.tensor([ROWS[0]])
    keep, segments = torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids)
    order = sample_order(keep, make_generator(), tokens_per_prediction=2, span_length=1)

    @torch.no_grad()
    def logits(given: Tensor) -> Tensor:
        found = made.writer(made.reader, given, order.step, at=order.target_positions, keep=keep, segments=segments)
        return made.writer.head(found.query)[0]

    first = logits(ids)
    for time, at in enumerate(order.target_positions[0].tolist()):
        again = logits(ids.index_fill(1, torch.tensor([at]), 3))
        assert torch.equal(again[: time + 1], first[: time + 1])
        assert (again[time + 1 :] != first[time + 1 :]).any(-1).all()


@torch.no_grad()
def test_terms_are_sums_over_predicted_tokens() -> None:
    made = model()
    terms = permutation_loss(made, batch(), make_generator(), tokens_per_prediction=3)
    assert int(terms["permuted"].count) == 3 + 1 + 0 + 2
    assert float(terms["permuted"].sum) == pytest.approx(float(terms["nll"].sum))
    ids, keep = unpack_tokens(batch()["source"])
    order = sample_order(keep & (ids != END), make_generator(), tokens_per_prediction=3, span_length=1)
    ends = (ids == END).long()
    found = made.writer(
        made.reader, ids, order.step, at=order.target_positions, keep=keep, segments=ends.cumsum(1) - ends
    )  # fmt: skip
    log_probs = (
        made.writer.head(found.query)
        .log_softmax(-1)
        .gather(-1, ids.gather(1, order.target_positions)[..., None])[..., 0]
    )
    assert float(terms["nll"].sum) == pytest.approx(-float(log_probs[order.real].sum()))
    assert terms["nll"].weight == 0


@pytest.mark.parametrize(
    "settings", [{}, {"segment_length": 4, "memory_length": 3}, {"span_length": 2, "tokens_per_prediction": 2}]
)
def test_packed_rows_give_the_same_loss_and_gradients(settings: dict[str, Any]) -> None:
    made, found = model(), []
    for rows in (batch(), pack_batch(batch())):
        made.zero_grad()
        terms = permutation_loss(made, rows, make_generator(), **settings)
        terms["permuted"].sum.backward()
        found.append((terms["permuted"].sum, terms["permuted"].count, made.reader.embedding.tokens.weight.grad.clone()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_padding_of_a_packed_row_is_not_predicted() -> None:
    row = build_packing([4, 3], tokens=64, sequences=8)
    ids = torch.arange(row.sequence_ids.shape[1])[None] % SIZE
    _, keep = unpack_tokens(Tokens(ids, row))
    assert keep.sum(1).tolist() == [4, 3, *[0] * (len(keep) - 2)]
    assert (
        int(
            permutation_loss(model(), Batch({"source": Tokens(ids, row)}, {"source": 7}), make_generator())["nll"].count
        )
        == 2
    )


def test_chunks_cover_a_sequence() -> None:
    assert list(split_chunks(10, 4)) == [(0, 4), (4, 8), (8, 10)]
    assert list(split_chunks(10, None)) == [(0, 10)]


def test_a_chunk_attends_to_the_one_before_it() -> None:
    made, ids = model(), torch.tensor([[7, 6, 5, 11, 9, 4, 10, 8]])
    changed = ids.clone()
    changed[0, 1] = 12

    def of_last(given: Tensor, memory: int) -> float:
        """The loss of the second piece: that of both without that of the first."""
        sums = [
            permutation_loss(
                made,
                Batch({"source": pad(part.tolist())}),
                make_generator(),
                segment_length=4,
                memory_length=memory,
                tokens_per_prediction=4,
            )["nll"].sum
            for part in (given, given[:, :4])
        ]
        return float(sums[0] - sums[1])

    assert of_last(ids, 0) == pytest.approx(of_last(changed, 0), abs=1e-12)
    assert of_last(ids, 4) != pytest.approx(of_last(changed, 4), abs=1e-6)


def test_no_gradient_reaches_the_chunk_before() -> None:
    made, ids = model("none"), torch.tensor([[7, 6, 5, 11, 9, 4, 10, 8]])
    grads = []
    for given in (ids, ids[:, :4]):
        made.zero_grad()
        rows = Batch({"source": pad(given.tolist())})
        permutation_loss(made, rows, make_generator(), segment_length=4, memory_length=4, tokens_per_prediction=4)[
            "permuted"
        ].sum.backward()
        grads.append(made.reader.embedding.tokens.weight.grad[[7, 6, 5, 11]].clone())
    assert grads[0].abs().sum() > 0
    torch.testing.assert_close(*grads)


def test_labels_are_predicted_from_the_last_state() -> None:
    old = validate(RECIPE)
    writer = choose_label_head(LabelWriter(), old, old.reader)
    assert (writer.pooling, writer.hidden_dim) == ("last", 12)


def test_it_learns_more_than_how_often_tokens_occur(tmp_path: Path) -> None:
    """Held-out loss, with newly sampled orders, below that of the unigram distribution."""
    few = ["train.steps=100", "train.valid_every=100", "train.schedule.warmup_steps=30", "train.batch_tokens=768"]
    train("xlnet", tiny=True, run=str(tmp_path / "x"), overrides=few)
    lines = [json.loads(line) for line in (tmp_path / "x" / "metrics.jsonl").read_text().splitlines()]
    (found,) = [line["nll"] for line in lines if line["event"] == "valid"]
    seen = Counter(letter for text in generate_sentences(4000, seed=1) for letter in text)
    held = [letter for text in generate_sentences(300, seed=1, heldout=True) for letter in text]
    frequent = -sum(math.log(seen[letter] / seen.total()) for letter in held) / len(held)
    assert 2.5 < frequent < 3.0
    assert found < 0.9 * frequent


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    few = ["train.steps=4", "train.save_every=2", "train.batch_tokens=256", "train.schedule.warmup_steps=1", FEW]
    whole, half = (str(tmp_path / name) for name in ("whole", "half"))
    train("xlnet", tiny=True, run=whole, overrides=few)
    shutil.copytree(whole, half)
    shutil.rmtree(Path(half, "checkpoints", "step-4"))
    train(resume=half)
    assert Path(whole, "model.safetensors").read_bytes() == Path(half, "model.safetensors").read_bytes()


@pytest.mark.cuda
@pytest.mark.parametrize("graphs", ["true", "false"])
def test_on_a_gpu_packed_rows_and_graphs_learn_too(tmp_path: Path, graphs: str) -> None:
    few = ["train.steps=60", "train.valid_every=60", "train.schedule.warmup_steps=20", f"train.cuda_graphs={graphs}"]
    train("xlnet", tiny=True, run=str(tmp_path / "x"), overrides=[*few, "train.device=cuda", "train.pack=true"])
    lines = [json.loads(line) for line in (tmp_path / "x" / "metrics.jsonl").read_text().splitlines()]
    (found,) = [line["nll"] for line in lines if line["event"] == "valid"]
    assert found < 2.9
