"""The number of own stack frames from the training loop to the attention kernel."""

import sys
from pathlib import Path

import pytest
import torch.nn.functional as F

import saccade
from saccade.config.load import load
from saccade.train import api

MOST = 12
PACKAGE = str(Path(saccade.__file__).parent)


def own_frames() -> list[str]:
    """Functions of this package from the training loop to the caller, outermost first."""
    frame, found = sys._getframe(1), []
    while frame is not None and (not found or found[-1] != "run_loop"):
        if frame.f_code.co_filename.startswith(PACKAGE):
            found.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return found[::-1]


@pytest.mark.parametrize("packed", [True, False])
def test_twelve_own_frames_lead_from_the_loop_to_the_kernel(packed, tmp_path, monkeypatch):
    """In reader and writer, in self-attention and cross-attention."""
    kernel, ways = F.scaled_dot_product_attention, set()

    def counted(*given, **settings):
        ways.add(tuple(own_frames()))
        return kernel(*given, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    overrides = ["train.steps=1", "train.device=cpu", "train.valid_predictions=0", f"train.pack={str(packed).lower()}"]
    api.train(load("transformer", tiny=True, overrides=overrides), run=tmp_path / "run")
    ways = {way for way in ways if way[0] == "run_loop" and "optimizer_step" in way}
    for way in sorted(ways):
        print(len(way), *way)
    assert len(ways) >= 2
    assert max(map(len, ways)) <= MOST
