"""Models with experts: which layers have them; padding, packing, steps and recomputation agree."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from saccade.data.batching.batch import Batch, Tokens
from saccade.errors import SaccadeError
from saccade.layers.auxiliary import merge_aux
from saccade.layers.blocks.experts import Experts, relative_load, sum_usage
from saccade.layers.blocks.feedforward import FeedForward
from saccade.model.model import Model
from saccade.train.batches.pack import pack_batch

TABLE = "{ count = 5, top_k = 2, hidden_dim = 7 }"
TRANSFORMER = [f"reader.stack.experts={TABLE}", f"writer.stack.experts={TABLE}", "reader.stack.norm=pre"]
NONE = ['reader.positions={ kind = "none" }', 'writer.positions={ kind = "none" }']


def recurrent(attention: str, *more: str) -> list[str]:
    """Three layers on both sides, experts between them."""
    shared = f'kind = "recurrent", cell = "gru", layers = 3, dim = 12, residual = true, experts = {TABLE}'
    writer = ", ".join((shared, f'attention = "{attention}"', *more))
    return [f"reader.stack={{ {shared} }}", f"writer.stack={{ {writer} }}", *NONE]


MODELS = {
    "transformer": TRANSFORMER,
    "additive": recurrent("additive"),
    "none": recurrent("none"),
    "general": recurrent("general"),
    "dot, all at once": recurrent("dot", "input_feeding = false"),
}


@pytest.fixture
def sharp(model: Callable[..., Model]) -> Callable[..., Model]:
    """The model with gates of larger weights, whose choice depends on the input."""

    def make(*overrides: str) -> Model:
        made = model(*overrides)
        for part in made.modules():
            if isinstance(part, Experts):
                torch.nn.init.normal_(part.gate.clean.weight)
        return made.double()

    return make


def write_with_loads(one: Model, batch: Batch) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The writer's hidden states, and the loads of all experts."""
    target = batch["target"]
    with one.collect_aux() as reports:
        hidden, _ = one.write(target.ids, target.mask, one.read(batch))
    return hidden, [*sum_usage(merge_aux(*reports)["routing"]).values()]


def test_every_second_block_has_experts(model: Any) -> None:
    one = model("reader.stack.layers=5", "reader.stack.experts={ every_n_layers = 2, count = 4 }")
    kinds = [type(block.feedforward) for block in one.reader.stack.blocks]
    assert kinds == [FeedForward, Experts, FeedForward, Experts, FeedForward]
    assert one.reader.stack.blocks[1].feedforward.up.shape == (4, 12, 17)
    assert all(type(block.feedforward) is FeedForward for block in one.writer.stack.blocks)


def test_between_layers_as_in_the_paper(model: Any) -> None:
    """Between layers 2 and 3 of the reader, 1 and 2 of the writer (Shazeer et al. 2017, appendix E)."""
    shared = 'kind = "recurrent", dim = 12'
    reader = f"reader.stack={{ {shared}, layers = 3, experts = {{ every_n_layers = 2 }} }}"
    one = model(reader, f"writer.stack={{ {shared}, layers = 2, experts = {{}} }}", *NONE)
    assert [*one.reader.stack.between.below] == ["2"]
    assert [*one.writer.stack.between.below] == ["1"]
    assert one.writer.stack.between.below["1"].up.shape == (8, 12, 12)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["reader.stack.experts={ top_k = 1 }"], "top_k"),
        (["reader.stack.experts={ count = 3, top_k = 3 }"], "top_k must be smaller than experts.count, got 3 of 3"),
        (
            ["reader.stack.experts={ every_n_layers = 3 }"],
            "experts.every_n_layers must be at most layers = 2, or no block has any, got 3",
        ),
        (["reader.stack.experts={}", "reader.stack.gated=true"], "experts are not gated networks; set gated = false"),
        (["reader.stack.experts={}", "reader.stack.ff=0"], "experts need a hidden width; set experts.hidden_dim"),
        (
            ['reader.stack={ kind = "recurrent", layers = 2, experts = { every_n_layers = 2 } }'],
            "experts.every_n_layers must be smaller than layers = 2, got 2",
        ),
        (
            ['writer.stack={ kind = "recurrent", layers = 1, experts = {} }'],
            "experts.every_n_layers must be smaller than layers = 1, got 1",
        ),
    ],
)
def test_experts_that_cannot_be_are_refused(recipe: Any, overrides: list[str], message: str) -> None:
    with pytest.raises(SaccadeError, match=message):
        recipe(*overrides)


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_padding_changes_no_output_and_no_load(sharp: Any, batch: Batch, name: str) -> None:
    one = sharp(*MODELS[name])
    hidden, loads = write_with_loads(one, batch)
    longer = Batch({key: Tokens(*(torch.nn.functional.pad(part, (0, 3)) for part in (x.ids, x.mask)))
                    for key, x in batch.fields.items()})  # fmt: skip
    wider, same = write_with_loads(one, longer)
    torch.testing.assert_close(wider[:, :-3], hidden, atol=1e-12, rtol=0)
    torch.testing.assert_close(same, loads, atol=1e-12, rtol=0)
    sizes = [int(x.mask.sum()) for x in batch.fields.values()]
    assert {int(used[2].sum()) for used in loads} == {2 * size for size in sizes}
    for row in range(3):
        alone = {key: Tokens(x.ids[row : row + 1, : x.mask[row].sum()], x.mask[row : row + 1, : x.mask[row].sum()])
                 for key, x in batch.fields.items()}  # fmt: skip
        length = alone["target"].ids.shape[1]
        torch.testing.assert_close(write_with_loads(one, Batch(alone))[0][0], hidden[row, :length], atol=1e-12, rtol=0)


@torch.no_grad()
def test_packed_rows_give_the_same_and_their_padding_is_not_counted(sharp: Any, batch: Batch) -> None:
    one = sharp(*TRANSFORMER)
    hidden, loads = write_with_loads(one, batch)
    for budget in (None, 256):
        row, same = write_with_loads(one, pack_batch(batch, budget=budget))
        torch.testing.assert_close(row[0, : batch.counts["target"]], hidden[batch["target"].mask], atol=1e-12, rtol=0)
        torch.testing.assert_close(same, loads, atol=1e-12, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_steps_equal_the_pass_over_all_positions(sharp: Any, batch: Batch, name: str) -> None:
    one, ids = sharp(*MODELS[name]), batch["target"].ids
    memory = one.read(batch)
    whole = one.writer.head(one.writer(ids, None, memory))
    state = one.writer.start(memory, capacity=ids.shape[1])
    for t in range(ids.shape[1]):
        step = one.writer.step(ids[:, t : t + 1], state)
        state = step.state
        torch.testing.assert_close(step.logits, whole[:, t], atol=1e-12, rtol=0)


def test_recomputed_gradients_are_the_kept_ones(sharp: Any, batch: Batch) -> None:
    """With noise and dropout, which are sampled identically in the recomputation."""
    results = []
    for recompute in ("false", "true"):
        torch.manual_seed(7)
        one = sharp(*TRANSFORMER, f"train.recompute={recompute}").train()
        torch.manual_seed(8)
        hidden, loads = write_with_loads(one, batch)
        total = hidden.square().sum() + sum(used[:2].square().sum() for used in loads)
        results.append(torch.autograd.grad(total, [*one.parameters()], allow_unused=True))
    for kept, again in zip(*results, strict=True):
        assert (kept is None) == (again is None)
        if kept is not None:
            torch.testing.assert_close(kept, again)


def test_the_load_is_spread_out_at_first(model: Any, batch: Batch) -> None:
    torch.manual_seed(3)
    for used in write_with_loads(model(*TRANSFORMER).train(), pack_batch(batch))[1]:
        assert relative_load(used).max() < 2
