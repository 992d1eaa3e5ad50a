"""Mixup and CutMix, and the coverage penalty of attention."""

import pytest
import torch
from torch import nn

from saccade.config.load import load
from saccade.data.batching.batch import Batch, Pictures, pad
from saccade.layers.memory import Memory
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.train.augment.augment import build_augmentation
from saccade.train.augment.mixing import mix_pictures, sample_beta, sample_rectangle
from saccade.train.objectives.labels import label_loss
from saccade.train.objectives.objectives import next_token_loss


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


def make_numbered_batch(count=6, size=10):
    """Pictures whose pixels all equal their index."""
    values = torch.arange(count)[:, None, None, None].expand(count, 3, size, size).to(torch.uint8)
    return Batch(
        {"source": Pictures(values, torch.ones(count, 4).bool()), "label": pad([[i + 1] for i in range(count)])}
    )


def test_mixup_mixes_two_by_one_share():
    batch, others, share = mix_pictures(make_numbered_batch(), generator(), mixup=1.0, cutmix=0.0)
    expected = share * torch.arange(6) + (1 - share) * others
    torch.testing.assert_close(batch["source"].values[:, 0, 0, 0], expected)
    assert 0 < float(share) < 1


def test_cutmix_takes_a_rectangle_and_counts_its_pixels():
    for seed in range(5):
        batch, others, share = mix_pictures(make_numbered_batch(), generator(seed), mixup=0.0, cutmix=1.0)
        for number, picture in enumerate(batch["source"].values[:, 0]):
            assert set(picture.unique().tolist()) <= {number, int(others[number])}
            if others[number] != number:
                assert float((picture == number).float().mean()) == pytest.approx(float(share))


def test_where_both_are_asked_each_has_its_turn():
    kinds = set()
    for seed in range(12):
        batch, _, _ = mix_pictures(make_numbered_batch(), generator(seed), mixup=1.0, cutmix=1.0)
        kinds.add(bool((batch["source"].values == batch["source"].values.round()).all()))
    assert kinds == {True, False}


def test_shares_are_of_a_beta_distribution():
    """Beta(0.5, 0.5): mean 1/2, variance 1 / (4 (2 a + 1)) = 1/8."""
    drawn, source = torch.tensor([]), generator()
    drawn = torch.stack([sample_beta(0.5, source) for _ in range(2000)])
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.03)
    assert float(drawn.var()) == pytest.approx(0.125, abs=0.01)


def test_a_rectangle_has_the_sides_that_its_share_asks():
    assert not sample_rectangle(8, 8, torch.tensor(0.0), generator()).any()
    inside = sample_rectangle(100, 100, torch.tensor(0.25), generator(3))
    rows, columns = inside.any(1).sum(), inside.any(0).sum()
    assert int(inside.sum()) == int(rows * columns)
    assert max(int(rows), int(columns)) <= 51


class Same(nn.Module):
    """Class scores from a table; the reader returns the index of the picture."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, 7))

    def forward(self, memory):
        return torch.einsum("bk,kc->bc", memory.states[:, 0], self.table)


class Numbers(nn.Module):
    dim = 6

    def forward(self, values, mask):
        one_hot = torch.nn.functional.one_hot(values[:, 0, 0, 0].round().long().clamp(0, 5), 6).float()
        return Memory(one_hot[:, None], mask[:, :1])


def test_the_loss_of_a_mixed_picture_is_that_of_both_classes():
    model, batch = Model(Numbers(), Same()).train(), make_numbered_batch()
    plain = label_loss(model.eval(), batch, generator(), mixup=1.0)["label"].sum
    model.train()
    made, others, share = mix_pictures(batch, generator(), mixup=1.0, cutmix=0.0)
    logs = model.writer(model.read(made)).log_softmax(-1)
    rows = torch.arange(6)
    expected = -(share * logs[rows, rows] + (1 - share) * logs[rows, others]).sum()
    torch.testing.assert_close(label_loss(model, batch, generator(), mixup=1.0)["label"].sum, expected)
    assert not torch.isclose(plain, expected)  # validation sees pictures as they are


def test_coverage_spreads_attention_over_all_positions():
    model = build(load("show-attend-tell", tiny=True), source_size=9, target_size=9).train()
    values = torch.randint(0, 256, (2, 3, 48, 48), dtype=torch.uint8)
    source = Pictures(values, torch.ones(2, 36).bool())
    batch = Batch({"source": source, "target": pad([[5, 6, 2], [7, 2]])})
    plain = next_token_loss(model, batch, generator(), label_smoothing=0.0)
    terms = next_token_loss(model, batch, generator(), label_smoothing=0.0, coverage=0.5)
    assert plain.keys() == {"next-token", "nll"}
    assert terms["coverage"].weight == 0.5
    assert terms["coverage"].count == 2
    # Looks are nearly even at first: (1 - 3/36)^2 x 36 cells of one picture, (1 - 2/36)^2 x 36 of the other.
    assert float(terms["coverage"].sum.detach()) == pytest.approx(33**2 / 36 + 34**2 / 36, rel=0.02)
    terms["coverage"].sum.backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.writer.stack.recurrence.cross.parameters())


def test_pictures_are_augmented_if_the_reader_asks_for_it():
    assert build_augmentation(load("vit", overrides=["reader.augment={flip=0.0, crop=0, num_ops=0}"])) is None
    assert build_augmentation(load("transformer")) is None
    change = build_augmentation(load("vit", overrides=["reader.augment={flip=1.0, crop=0, num_ops=0}"]))
    values = torch.arange(2 * 3 * 4 * 4).view(2, 3, 4, 4).to(torch.uint8)
    batch = Batch({"source": Pictures(values, torch.ones(2, 4).bool()), "label": pad([[1], [2]])})
    changed = change(batch, generator())
    assert torch.equal(changed["source"].values, values.flip(-1).float())
    assert changed["label"] is batch["label"]
