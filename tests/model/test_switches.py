"""Every setting that docs/transformer.md lists: training, decoding and all code paths agree."""

import copy
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch
from saccade.errors import SaccadeError
from saccade.layers.attention.static_cache import StaticSizes
from saccade.layers.blocks.transformer import TransformerStack
from saccade.model.inference import load_quantized_weights, prepack_weights, quantize_weights
from saccade.model.model import Model
from saccade.predict.decode import decode
from saccade.predict.search.request import Request
from saccade.train.batches.pack import pack_batch as packed
from saccade.train.objectives.objectives import next_token_loss

PAGE = Path(__file__).parent.parent.parent / "docs" / "transformer.md"
SWITCHES = dict(re.findall(r"^\| ([^|]+) \| `(reader\.[^`]+)` \| [\d, ]+ \|$", PAGE.read_text("utf-8"), re.MULTILINE))


def test_the_page_lists_what_the_notes_name() -> None:
    listed = " ".join(SWITCHES.values())
    named = (
        "norm=post norm=pre norm=none residual=false ff=0 activation=sigmoid scale_attention=false heads=1 window=2 "
        "combine=concat "
        "kind=sinusoidal kind=learned kind=none kind=shaw kind=rotary kind=alibi"
    )
    assert not [name for name in named.split() if name not in listed]
    assert len(SWITCHES) == 21


@pytest.mark.parametrize("switch", SWITCHES)
def test_every_switch_trains_and_decodes(model: Callable[..., Model], batch: Batch, switch: str) -> None:
    made = model(*SWITCHES[switch].split()).train()
    steps = torch.optim.Adam(made.parameters(), lr=0.01)
    losses = []
    for _ in range(4):
        loss = next_token_loss(made, batch, torch.Generator())["next-token"].sum
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    decoding = Decoding(beam=2, n_best=2)
    for first, second in decode(made.eval(), Request([5, 5, 5], decoding, batch, align=True)).hypotheses:
        assert first.score > second.score
        assert first.alignment is not None


@torch.no_grad()
@pytest.mark.parametrize("switch", SWITCHES)
def test_all_ways_to_compute_a_switch_agree(model: Callable[..., Model], batch: Batch, switch: str) -> None:
    made = model(*SWITCHES[switch].split())
    target = batch["target"]
    expected = made.writer.head(made.writer(target.ids, target.mask, made.read(batch)))
    real = target.mask
    torch.testing.assert_close(over_packed(made, batch), expected[real], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(step_by_step(made, batch), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(on_fixed_buffers(made, batch), expected, atol=1e-5, rtol=1e-5)
    for prepare, share in (
        (prepack_weights, 1e-8),
        (lambda model: load_quantized_weights(model, quantize_weights(model)), 0.005),
    ):
        other = copy.deepcopy(made)
        prepare(other)
        got = other.writer.head(other.writer(target.ids, target.mask, other.read(batch)))
        assert (got - expected)[real].square().mean() < share * expected[real].square().mean()


def over_packed(made: Model, batch: Batch) -> torch.Tensor:
    """Sequences packed into one row."""
    row = packed(batch)
    return made.writer.head(made.writer(row["target"].ids, row["target"].mask, made.read(row)))[0]


def step_by_step(made: Model, batch: Batch) -> torch.Tensor:
    state, found = made.writer.start(made.read(batch), capacity=7), []
    for ids in batch["target"].ids.split(1, 1):
        step = made.writer.step(ids, state)
        state = step.state
        found.append(step.logits)
    return torch.stack(found, 1)


def on_fixed_buffers(made: Model, batch: Batch) -> torch.Tensor:
    memory, stack, found = made.read(batch), made.writer.stack, []
    rows, length = memory.mask.shape
    state = stack.start_static(StaticSizes(rows, 1, 7, length))
    state.reset(1)
    state.load_memory([block.cross.project_memory(memory.states) for block in stack.blocks], memory.mask)
    for ids in batch["target"].ids.split(1, 1):
        x = made.writer.embedding(ids, state.lengths[:, None])
        found.append(made.writer.head(stack.step_static(x, state)[:, 0]))
        state.lengths.add_(1)
    return torch.stack(found, 1)


def test_without_residual_nothing_of_the_input_runs_along(model: Callable[..., Model]) -> None:
    """A sublayer of zeros outputs zeros without the residual connection, and its input with it."""
    for residual, left in (("false", 0.0), ("true", 1.0)):
        made = model("reader.stack.norm=none", f"reader.stack.residual={residual}")
        stack: TransformerStack = made.reader.stack
        for name, parameter in stack.named_parameters():
            if ".out." in name or ".down." in name:
                torch.nn.init.zeros_(parameter)
        x = torch.ones(2, 3, 12)
        torch.testing.assert_close(stack(x, None)[0], left * x)


def test_a_block_without_feed_forward_has_one_residual_less(model: Callable[..., Model]) -> None:
    made = model("writer.stack.ff=0", "writer.stack.norm=none")
    [block, _] = made.writer.stack.blocks
    assert block.feedforward is None
    assert len(block.residuals) == 2
    assert not [name for name, _ in made.writer.named_parameters() if "feedforward" in name or "norm" in name]


def test_a_negative_width_is_refused(model: Callable[..., Model]) -> None:
    with pytest.raises(SaccadeError, match=r"reader\.stack\.ff.*0.*-1"):
        model("reader.stack.ff=-1")
