"""Training on packed rows."""

import functools

import pytest
import small
import torch

from saccade.config.schema import Train
from saccade.data.batching.batch import Batch, pad
from saccade.errors import SaccadeError
from saccade.train.batches.layout import should_pack
from saccade.train.batches.pack import clone_batch, get_shape_key, get_tensors, pack_batch, pack_if_padded
from saccade.train.objectives.objectives import next_token_loss, r_drop_loss

DRAW = torch.Generator()


@pytest.mark.parametrize("objective", [next_token_loss, functools.partial(r_drop_loss, alpha=3.0)])
@pytest.mark.parametrize("budget", [None, 512])
def test_packed_rows_give_the_loss_and_gradients_of_padded_ones(model, batch, objective, budget):
    model.eval().double()

    def gradients(given):
        model.zero_grad()
        terms = objective(model, given, DRAW)
        sum(term.sum * term.weight for term in terms.values()).backward()
        return terms, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    terms, ours = gradients(pack_batch(batch, budget=budget))
    expected_terms, expected = gradients(batch)

    for name, term in expected_terms.items():
        torch.testing.assert_close(terms[name].sum, term.sum)
        assert int(terms[name].count) == int(term.count)
    torch.testing.assert_close(ours, expected)


def test_batches_within_a_budget_have_few_shapes():
    drawn = torch.Generator().manual_seed(1)
    shapes = set()
    for _ in range(200):
        width = int(torch.randint(20, 30, (), generator=drawn))
        rows = 1024 // width
        sides = [
            pad([list(range(int(n))) for n in torch.randint(width - 4, width + 1, (rows,), generator=drawn)])
            for _ in range(2)
        ]
        shapes.add(get_shape_key(pack_batch(Batch(dict(zip(("source", "target"), sides, strict=True))), budget=1024)))
    assert len(shapes) <= 9  # three fillings of each side


def test_packing_keeps_every_token_and_count(batch):
    packed = pack_batch(batch, budget=256)
    for name, tokens in batch.fields.items():
        row = packed[name]
        assert row.ids[row.mask.keep].tolist() == tokens.ids[tokens.mask].tolist()
    assert packed.counts == batch.counts


def test_on_a_cpu_only_batches_with_padding_are_packed():
    padded = Batch({"source": pad([[3] * 10, [3] * 7]), "target": pad([[3] * 10, [3] * 10])})
    full = Batch({"source": pad([[3] * 10, [3] * 10]), "target": pad([[3] * 10, [3] * 9])})

    assert get_shape_key(pack_if_padded(padded)) == get_shape_key(pack_batch(padded))
    assert pack_if_padded(full) is full


def test_a_cloned_batch_shares_nothing(batch):
    packed = pack_batch(batch, budget=256)
    copy = clone_batch(packed)
    assert get_shape_key(copy) == get_shape_key(packed)
    for ours, theirs in zip(get_tensors(copy), get_tensors(packed), strict=True):
        assert ours.equal(theirs) and ours.data_ptr() != theirs.data_ptr()


def test_runs_on_packed_and_padded_rows_have_the_same_losses(fit):
    """Without dropout both give the same losses, up to rounding."""
    settings = {"stack": {**small.STACK, "dropout": 0.0}, "steps": 5}
    overrides = ["reader.dropout=0", "writer.dropout=0"]
    packed = fit("packed", pack=True, overrides=overrides, **settings)
    padded = fit("padded", pack=False, overrides=overrides, **settings)
    ours, theirs = (
        [line["loss"] for line in small.read_metrics(run) if line["event"] in ("train", "valid")]
        for run in (packed, padded)
    )
    assert len(ours) == 3
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_what_cannot_be_packed_or_captured_is_reported(fit, model):
    with pytest.raises(SaccadeError, match=r"train.cuda_graphs=true needs a CUDA device; leave"):
        fit(cuda_graphs=True)
    model.reader = torch.nn.Identity()
    with pytest.raises(SaccadeError, match=r"train.pack=true needs .* Identity, TokenWriter does not; leave"):
        should_pack(Train(pack=True), model, torch.device("cpu"))


def test_own_parts_are_not_packed(model):
    assert model.capabilities.packed_rows
    model.reader = torch.nn.Identity()
    assert not model.capabilities.packed_rows
