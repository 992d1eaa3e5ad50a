"""Convolutional models in training: resumed, compiled, warm-started, on padded batches."""

import json

import pytest
import small
import torch

from saccade.config.schema import Decoding
from saccade.model.build.model import build
from saccade.predict.decode import decode
from saccade.predict.search.request import Request
from saccade.train.objectives.objectives import next_token_loss
from saccade.train.signals import Interrupted

STACK = {"kind": "convolution", "layers": 2, "dim": 14, "hidden_dim": 9, "dropout": 0.1}
BYTENET = {**STACK, "block": "residual", "dilations": [1, 2], "attention": [False], "unfold": [1.2, 1]}
STACKS = {"convs2s": STACK, "bytenet": BYTENET}
both = pytest.mark.parametrize("system", STACKS)
SHORT = {"steps": 8, "save_every": 3, "valid_every": 4, "report_every": 2, "ema": 0.9}


@both
def test_interrupted_and_resumed_is_bit_identical(system, fit, monkeypatch):
    whole = fit("whole", stack=STACKS[system], **SHORT)
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="saved at step 5"):
        patch.setattr(small.loop, "is_interrupted", lambda s, interrupts: s.progress.step == 5)
        fit("run", stack=STACKS[system], **SHORT)
    resumed = fit("run", resume=True)
    assert small.weights(resumed) == small.weights(whole)
    assert small.weights(resumed, 8) == small.weights(whole, 8)


@both
def test_rows_are_not_packed(system):
    model = build(small.small(stack=STACKS[system]), source_size=9, target_size=9)
    assert not model.capabilities.packed_rows


@both
def test_one_batch_is_learned_by_heart(system, batch):
    torch.manual_seed(1)
    model = build(small.small(stack={**STACKS[system], "dropout": 0.0}), source_size=13, target_size=13)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        term = next_token_loss(model, batch, torch.Generator(), label_smoothing=0.0)["next-token"]
        (term.sum / term.count).backward()
        optimizer.step()
    found = decode(model.eval(), Request([9] * 3, Decoding(beam=1), batch)).hypotheses
    assert [row[0].ids for row in found] == [[7, 6, 5, 11], [8], [10]]


def test_weights_of_an_earlier_run_are_taken_over(fit, capsys):
    first = fit("first", stack=STACK, **SHORT)
    fit("second", stack=STACK, **SHORT, overrides=[f"init={first}"])
    assert "tensors" in capsys.readouterr().err


@pytest.mark.slow
@both
def test_compiled_run_has_few_graphs_no_breaks_and_the_losses_of_eager(system, run_in_process, tmp_path):
    """One a side for all dilations; ConvS2S two, since what goes into its first block is a view."""
    stack = {**STACKS[system], "layers": 4} | ({"dilations": [1, 2, 4, 8]} if system == "bytenet" else {})
    train = {"steps": 6, "valid_every": 4, "batch_tokens": 200, "report_every": 1, "stack": stack}
    small.api.train(small.small(**train), run=tmp_path / "eager")
    assert run_in_process(small.train_compiled, str(tmp_path / "compiled"), train, "eager", []) == 0
    assert json.loads((tmp_path / "compiled/counts.json").read_text()) == {
        "graphs": 4 if system == "convs2s" else 2,
        "breaks": 0,
    }
    for got, expected in zip(*(small.read_metrics(tmp_path / name) for name in ("compiled", "eager")), strict=True):
        assert got["loss"] == pytest.approx(expected["loss"], abs=1e-5)
