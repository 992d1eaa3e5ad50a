"""The reader of sound, with each of its stacks."""

import pytest
import torch

from saccade.config.plugins import Kinds
from saccade.config.schema import Train
from saccade.config.sound import FrameReader
from saccade.model.build.media import build_frame_reader
from saccade.model.build.options import Options

STACKS = {
    "transformer": {"layers": 2, "dim": 12, "heads": 2, "ff": 16},
    "recurrent": {"layers": 2, "dim": 12, "bidirectional": True},
    "pyramid": {"layers": 3, "dim": 12},
}


def reader(kind: str, **settings):
    torch.manual_seed(1)
    table = FrameReader(sound={"mel_bands": 5}, stack={"kind": kind, **STACKS[kind]}, **settings)
    return build_frame_reader(table, 0, Options(Train(), {})).eval()


@pytest.mark.parametrize("kind", STACKS)
def test_a_recording_is_read_alike_alone_and_beside_a_longer_one(kind):
    model, frames = reader(kind), torch.randn(2, 37, 5)
    mask = torch.arange(37) < torch.tensor([37, 18])[:, None]
    both, alone = model(frames, mask), model(frames[1:, :18], mask[1:, :18])
    length = int(alone.mask.sum())
    assert length == (5 if kind != "pyramid" else 2)  # 18, 9, 5 and, in the pyramid, 3, 2
    torch.testing.assert_close(both.states[1, :length], alone.states[0, :length])
    assert both.mask[1].sum() == length and both.states.shape[2] == model.dim == 12


@pytest.mark.parametrize("kind", STACKS)
def test_every_weight_learns(kind):
    model = reader(kind, dropout=0.0).train()
    memory = model(torch.randn(2, 64, 5), torch.ones(2, 64, dtype=torch.bool))
    memory.states.square().sum().backward()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for name, p in model.named_parameters() if "bias_" not in name
    )


def test_without_strides_and_positions_there_is_a_state_for_each_frame():
    model = reader("recurrent", strides=[], positions="none")
    assert model(torch.randn(2, 7, 5), torch.ones(2, 7, dtype=torch.bool)).states.shape == (2, 7, 12)


def test_a_users_own_stack_is_called_with_its_settings():
    class Same(torch.nn.Module):
        def __init__(self, *, dim: int = 6) -> None:
            super().__init__()
            self.dim = dim

        def forward(self, x, mask):
            return x, mask, None, {}

    table = FrameReader.model_validate(
        {"sound": {"mel_bands": 5}, "stack": {"kind": "same"}}, context={"kinds": Kinds({"same": Same})}
    )
    model = build_frame_reader(table, 0, Options(Train()))
    assert model(torch.randn(1, 8, 5), torch.ones(1, 8, dtype=torch.bool)).states.shape == (1, 2, 6)


@pytest.mark.parametrize("settings", [{"kernel": 4}, {"kernel": 1}, {"kernel": 3, "strides": [5]}])
def test_frames_that_no_convolution_reads_are_refused(settings):
    with pytest.raises(ValueError, match="kernel must be odd, and at least as large as every stride"):
        FrameReader(**settings)
