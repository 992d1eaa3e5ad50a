"""From a recipe to a model. Rows are those of the lectures."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from saccade.config import schema
from saccade.config.load import load
from saccade.config.schema import Recipe
from saccade.data.batching.batch import Batch
from saccade.errors import SaccadeError
from saccade.layers.attention import positions
from saccade.layers.blocks import transformer
from saccade.layers.memory import Memory
from saccade.model.build.model import build
from saccade.model.model import Model


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "expected"), [("transformer", 63_082_496), ("transformer-big", 214_245_376)])
def test_parameters_of_the_papers_models(name: str, expected: int) -> None:
    """Rows 88 and 89: 6 + 6 layers, one shared vocabulary of 37,000 tokens."""
    with torch.device("meta"):
        assert count(build(load(name), source_size=37_000, target_size=37_000)) == expected


def test_value_dim_reaches_every_attention() -> None:
    """Values of 3 features a head in place of 64: 61 fewer in W^V and in W^O, in 18 attention layers of 8 heads."""
    small = load("transformer", overrides=[f"{part}.stack.value_dim=3" for part in ("reader", "writer")])
    with torch.device("meta"):
        whole, narrow = (count(build(recipe, source_size=9, target_size=9)) for recipe in (load("transformer"), small))
    assert whole - narrow == 18 * 8 * (64 - 3) * (2 * 512 + 1)  # W^V has a bias of this width, W^O none


def test_parameters_computed_by_hand() -> None:
    """Row 88, from the defaults of the schema: parameters of each part."""
    d, ff, v = 512, 2048, 37_000
    attention, feedforward, norm = 4 * d * d + 4 * d, 2 * d * ff + ff + d, 2 * d
    reader_layer, writer_layer = attention + feedforward + 2 * norm, 2 * attention + feedforward + 3 * norm
    with torch.device("meta"):
        model = build(Recipe(), source_size=v, target_size=v)
    assert count(model) == v * d + 6 * (reader_layer + writer_layer) == 63_082_496
    assert len(model.reader.stack.blocks) == len(model.writer.stack.blocks) == 6


def test_the_schema_has_the_hyper_parameters_of_the_lecture() -> None:
    """Row 47: L, d_k and d_v (by dim and heads), heads, kind of positions; row 63: the form of the heads."""
    assert {
        "layers",
        "dim",
        "heads",
        "head_projection",
        "ff",
        "norm",
        "scale_attention",
    } <= schema.TransformerStack.model_fields.keys()
    assert "positions" in schema.TokenReader.model_fields and "positions" in schema.TokenWriter.model_fields


def test_ties(model: Callable[..., Model]) -> None:
    """Vaswani et al. 2017, section 3.4: none, the writer's embedding with the output, or the reader's too."""
    sizes = {}
    for tie in ("none", "output", "all"):
        made = model(f"writer.tie={tie}")
        tables = {made.reader.embedding.tokens.weight, made.writer.embedding.tokens.weight, made.writer.output.weight}
        assert (made.writer.output.weight is made.writer.embedding.tokens.weight) == (tie != "none")
        assert (made.reader.embedding.tokens.weight is made.writer.embedding.tokens.weight) == (tie == "all")
        assert len(tables) == {"none": 3, "output": 2, "all": 1}[tie]
        sizes[tie] = count(made)
    assert sizes["none"] - sizes["output"] == sizes["output"] - sizes["all"] == 23 * 12


def test_vocabularies_of_different_sizes(model: Callable[..., Model]) -> None:
    made = model("tokenizer.shared=false", "writer.tie=output", source_size=29, target_size=31)
    assert made.reader.embedding.tokens.num_embeddings == 29
    assert made.writer.output.weight.shape == (31, 12)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_concatenated_positions_take_half_of_the_width(model: Callable[..., Model], kind: str) -> None:
    """Row 60."""
    made = model(f"reader.positions.kind={kind}", "reader.positions.combine=concat", "writer.tie=output")
    embedding = made.reader.embedding
    assert embedding.tokens.embedding_dim == 6
    assert embedding(torch.tensor([[4, 5]])).shape == (1, 2, 12)


@pytest.mark.parametrize(("kind", "place"), [
    ("sinusoidal", "input"), ("learned", "input"), ("rotary", "rotary"),
    ("shaw", "term"), ("bucketed", "term"), ("alibi", "term"), ("none", None),
])  # fmt: skip
def test_positions_act_in_exactly_one_way(model: Callable[..., Model], kind: str, place: str | None) -> None:
    """Rows 74 and 75: each kind at the input, on queries and keys, or as a score term; never in two places."""
    for part in ("reader", "writer"):
        made = model(f"{part}.positions.kind={kind}")
        one = made.get_submodule(part)
        acts = {
            "input": one.embedding.positions is not None,
            "rotary": all(block.self.rotary is not None for block in one.stack.blocks),
            "term": all(block.self.heads.term is not None for block in one.stack.blocks),
        }
        assert [name for name, there in acts.items() if there] == ([place] if place else [])


def test_t5_shares_its_table_between_layers_and_shaw_does_not(model: Callable[..., Model]) -> None:
    first, second = model("writer.positions.kind=bucketed").writer.stack.blocks
    assert first.self.heads.term is second.self.heads.term and not first.self.heads.term.bidirectional
    assert model("reader.positions.kind=bucketed").reader.stack.blocks[0].self.heads.term.bidirectional
    first, second = model("writer.positions.kind=shaw").writer.stack.blocks
    assert first.self.heads.term is not second.self.heads.term


def test_settings_reach_their_blocks(model: Callable[..., Model]) -> None:
    made = model(
        "reader.stack.norm=pre", "reader.stack.norm_kind=rms", "reader.stack.activation=silu",
        "reader.stack.gated=true", "reader.stack.dropout=0.3", "reader.stack.ff_dropout=0.2",
        "reader.stack.attention_dropout=0.15",
        "reader.stack.bias=false", "reader.stack.window=5", "reader.stack.layers=3",
        "reader.stack.scale_attention=false",
        "reader.dropout=0.4", "train.recompute=true", "reader.positions.layout=concatenated",
    )  # fmt: skip
    stack, block = made.reader.stack, made.reader.stack.blocks[0]
    assert (stack.windows, stack.recompute, made.writer.stack.recompute) == ([5, 5, 5], True, True)
    assert isinstance(stack.norm, nn.RMSNorm) and isinstance(block.residuals[1].norm, nn.RMSNorm)
    assert block.residuals[0].pre_norm and block.residuals[0].dropout.p == 0.3
    assert block.feedforward.activation == "silu" and block.feedforward.gate is not None
    assert block.feedforward.dropout.p == 0.2 and block.self.heads.dropout == 0.15
    assert block.self.heads.scale == 1.0 and made.writer.stack.blocks[0].cross.heads.scale == 0.5
    assert not any(name.endswith("bias") for name, _ in stack.named_parameters())
    assert made.reader.embedding.dropout.p == 0.4 and not made.reader.embedding.positions.interleaved
    assert not made.writer.stack.blocks[0].residuals[0].pre_norm


@pytest.mark.parametrize(("overrides", "sizes", "message"), [
    ((), (23, 31), 'writer.tie = "all" needs one vocabulary, got 23 source and 31 target'),
    (("tokenizer.shared=false",), (23, 23), 'writer.tie = "all" needs one vocabulary'),
    (("writer.stack.dim=24",), (23, 23), "needs a reader and a writer of the same width, got 12 and 24"),
    (("writer.positions.combine=concat", "writer.tie=output"), (23, 23), "vectors of the width of the stack, got 6"),
    (("reader.positions.kind=learned", "reader.positions.length=100"), (23, 23),
     "positions.length must be at least data.max_length = 256, got 100"),
    (("writer.positions.kind=learned", "writer.positions.length=100"), (23, 23), "at least data.max_length = 256"),
    (("reader.stack.dim=14", "reader.stack.heads=2", "reader.positions.kind=rotary"), (23, 23),
     "rotary positions need an even head width, got 7"),
    (("reader.stack.dim=15", "writer.stack.dim=15"), (23, 23), "sinusoidal positions need an even width, got 15"),
    (("writer.stack.head_projection=split", "reader.stack.dim=16", "reader.stack.heads=2", "writer.tie=output"),
     (23, 23),
     "3 heads cannot split a width of 16"),
    (("reader.positions.kind=bucketed", "reader.positions.buckets=2"), (23, 23), "at least 4 buckets"),
])  # fmt: skip
def test_what_cannot_be_built_is_said_in_one_line(
    model: Callable[..., Model], overrides: tuple[str, ...], sizes: tuple[int, int], message: str
) -> None:
    with pytest.raises(SaccadeError, match=message) as error:
        model(*overrides, source_size=sizes[0], target_size=sizes[1])
    assert "\n" not in str(error.value)


# ---- a user's own kinds


class Bag(nn.Module):
    """A reader without attention: a bag of words."""

    def __init__(self, size: int, *, dim: int) -> None:
        super().__init__()
        self.table, self.dim = nn.Embedding(size, dim), dim

    def forward(self, ids: Tensor, mask: Tensor) -> Memory:
        return Memory(self.table(ids), mask)


def ramp(width: int, *, slope: float = 1.0) -> nn.Module:
    module = positions.Learned(width, max_length=300)
    with torch.no_grad():
        module.table.weight.copy_(slope * torch.arange(300)[:, None].expand(300, width))
    return module


def test_a_users_reader_gets_the_vocabulary_size(model: Callable[..., Model], batch: Batch) -> None:
    made = model("reader.kind=bag", "reader.dim=8", "writer.tie=output", kinds={"bag": Bag})
    memory = made.read(batch)
    assert memory.states.shape == (3, 7, 8)
    assert made.writer(batch["target"].ids, None, memory).shape == (3, 6, 12)


def test_all_cannot_be_tied_to_a_users_reader(model: Callable[..., Model]) -> None:
    with pytest.raises(SaccadeError, match='needs a reader of kind "tokens", got "bag"; set writer.tie = "output"'):
        model("reader.kind=bag", "reader.dim=8", kinds={"bag": Bag})


def test_a_users_positions_act_at_the_input(model: Callable[..., Model]) -> None:
    made = model("reader.positions.kind=ramp", "reader.positions.slope=0.5", kinds={"ramp": ramp})
    added: Any = made.reader.embedding(torch.full((1, 4), 9))
    torch.testing.assert_close(added.diff(dim=1), torch.full((1, 3, 12), 0.5))


def test_fresh_weights_follow_the_seed(model: Callable[..., Model]) -> None:
    torch.manual_seed(1)
    first = model()
    torch.manual_seed(1)
    second = model()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


class Recurrent(nn.Module):
    """A writer's stack without self-attention: a GRU that gets the mean of memory."""

    def __init__(self, memory_dim: int, *, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.cell = nn.GRU(dim + memory_dim, dim, batch_first=True)

    def forward(
        self, x: Tensor, mask: Tensor | None, memory: Any = None, state: Any = None
    ) -> tuple[Tensor, Tensor | None, Any, dict[str, Tensor]]:
        seen = memory.states.mean(1) if state is None else state.seen
        hidden = None if state is None else state.hidden[None]
        y, last = self.cell(torch.cat((x, seen[:, None].expand(-1, x.shape[1], -1)), -1), hidden)
        return y, mask, state and Carried(last[0], seen, state.lengths + x.shape[1]), {}

    def start(self, memory: Any, *, rows: int, capacity: int) -> "Carried":
        zeros = torch.zeros(rows, self.dim)
        return Carried(zeros, memory.states.mean(1), torch.zeros(rows, dtype=torch.long))


@dataclass(frozen=True)
class Carried:
    hidden: Tensor
    seen: Tensor
    lengths: Tensor

    def reorder(self, indices: Tensor) -> "Carried":
        return Carried(self.hidden[indices], self.seen[indices], self.lengths[indices])


def test_a_stack_of_the_users_own_can_write(model: Callable[..., Model]) -> None:
    made = model("writer.stack.kind=simple", "writer.stack.dim=12", kinds={"simple": Recurrent})
    ids, mask = torch.randint(4, 23, (3, 5)), torch.ones(3, 5, dtype=torch.bool)
    memory = made.reader(ids, mask)
    whole = made.writer.head(made.writer(ids, mask, memory))
    state = made.writer.start(memory, capacity=5)
    for t in range(5):
        step = made.writer.step(ids[:, t : t + 1], state)
        state = step.state
        torch.testing.assert_close(step.logits, whole[:, t])


@pytest.mark.parametrize(("residual", "kind"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_residual_stream_has_the_dtype_of_the_recipe(
    residual: str, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, whole = [], transformer.PLAIN_BLOCK.function
    counted = lambda block, x, *more: seen.append(x.dtype) or whole(block, x, *more)  # noqa: E731
    monkeypatch.setattr(transformer.PLAIN_BLOCK, "function", counted)
    model = build(
        load("transformer", tiny=True, overrides=[f"train.residual_precision={residual}"]), source_size=9, target_size=9
    )
    ids, keep = torch.tensor([[3, 4, 5]]), torch.ones(1, 3, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        model.writer(ids, keep, model.reader(ids, keep))
    assert len(seen) == 4
    assert seen[0] == seen[2] == kind  # what enters the stack of the reader and of the writer
    seen.clear()
    model.writer(ids, keep, model.reader(ids, keep))
    assert set(seen) == {torch.float32}  # without autocast nothing is narrow
