"""Scheduled sampling, alone and with CTC."""

import pytest
import torch

from saccade.config.load import load
from saccade.data.batching.batch import Batch, Frames, pad
from saccade.data.tokenization.tokenizers import END, START
from saccade.model.build.model import build
from saccade.train.objectives.objectives import next_token_loss
from saccade.train.objectives.scheduled import replace_with_samples, scheduled_sampling_loss

V = 9
SMALL = [
    "writer.ctc=true",
    "objectives.0.ctc_weight=0.3",
    "reader.sound.mel_bands=5",
    "reader.stack.dim=12",
    "writer.stack.dim=12",
]


@pytest.fixture
def model():
    torch.manual_seed(3)
    return build(load("listen-attend-spell", tiny=True, overrides=SMALL), source_size=V, target_size=V).train()


def batch():
    mask = torch.arange(31) < torch.tensor([31, 17])[:, None]
    frames = Frames(torch.randn(2, 31, 5, generator=torch.Generator().manual_seed(1)), mask)
    return Batch({"source": frames, "target": pad([[4, 5, 5, 6, END], [7, END]])})


def generator():
    return torch.Generator().manual_seed(5)


def test_without_samples_it_is_the_next_token(model):
    ours = scheduled_sampling_loss(model, batch(), generator(), sampling_probability=0.0)
    theirs = next_token_loss(model, batch(), generator())
    torch.testing.assert_close(ours["next-token"].sum, theirs["next-token"].sum)
    assert ours.keys() == theirs.keys()


def test_validation_samples_nothing(model):
    model.eval()
    ours = scheduled_sampling_loss(model, batch(), generator(), sampling_probability=0.9)
    torch.testing.assert_close(ours["nll"].sum, next_token_loss(model, batch(), generator())["nll"].sum)


def test_a_share_of_the_inputs_is_sampled_from_the_model():
    class Sure(torch.nn.Module):
        """Says 8 at every place."""

        def forward(self, ids, mask, memory):
            return ids[..., None].float()

        def head(self, hidden):
            return torch.nn.functional.one_hot(torch.full(hidden.shape[:-1], 8), V) * 99.0

    seen = torch.tensor([[START, *[4] * 999]] * 3)
    after = replace_with_samples(Sure(), seen, None, None, 0.25, generator())
    assert (after[:, 0] == START).all()
    assert set(after.unique().tolist()) == {START, 4, 8}
    assert (after == 8).float().mean().item() == pytest.approx(0.25, abs=0.03)


def test_non_finite_weights_give_a_non_finite_loss(model):
    with torch.no_grad():
        model.writer.output.weight.fill_(torch.nan)
    assert scheduled_sampling_loss(model, batch(), generator(), sampling_probability=0.5)["next-token"].sum.isnan()


def test_ctc_has_its_share_and_is_torchs(model):
    terms = scheduled_sampling_loss(model, batch(), generator(), sampling_probability=0.0, ctc_weight=0.3, weight=2.0)
    assert [terms[name].weight for name in ("next-token", "ctc")] == pytest.approx([1.4, 0.6])
    memory = model.read(batch())
    logs = model.ctc.output(memory.states).log_softmax(-1)
    single = [
        torch.nn.functional.ctc_loss(
            logs[row : row + 1, :length].transpose(0, 1), torch.tensor([text]), torch.tensor([length]),
            torch.tensor([len(text)]), reduction="sum",
        )
        for row, (length, text) in enumerate(zip(memory.mask.sum(1).tolist(), ([4, 5, 5, 6], [7]), strict=True))
    ]  # fmt: skip
    torch.testing.assert_close(terms["ctc"].sum, sum(single))
    terms["ctc"].sum.backward()
    assert model.ctc.output.weight.grad.abs().sum() > 0 and model.reader.stem.project.weight.grad.abs().sum() > 0


def test_a_target_longer_than_its_frames_has_no_ctc_loss(model):
    short = Batch(
        {"source": Frames(torch.randn(1, 4, 5), torch.ones(1, 4, dtype=torch.bool)), "target": pad([[4] * 7])}
    )
    assert scheduled_sampling_loss(model, short, generator(), ctc_weight=0.3)["ctc"].sum.item() == 0
