"""Embedding and reader. Rows are those of the lectures."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from saccade.data.batching.batch import Batch, pad
from saccade.layers.attention.positions import Learned, Sinusoidal
from saccade.model.model import Model
from saccade.model.readers.tokens import Embedding

B, T, V = 2, 5, 13


@pytest.mark.parametrize("kind", ["learned", "fixed"])
@pytest.mark.parametrize("how", ["add", "concat"])
def test_positions_are_added_or_concatenated_learned_or_fixed(kind: str, how: str) -> None:
    """Row 60: the four modes of E(i)."""
    tokens, ids = nn.Embedding(V, 6), torch.randint(V, (B, T))
    code = Sinusoidal(6) if kind == "fixed" else Learned(6, max_length=T)
    x = Embedding(tokens, positions=code, concat=how == "concat")(ids)
    words = tokens.weight[ids] * math.sqrt(6)  # Vaswani et al. 2017, section 3.4
    where = code(torch.arange(T)[None]).expand(B, T, 6)
    torch.testing.assert_close(x, words + where if how == "add" else torch.cat((words, where), -1))
    assert len(list(code.parameters())) == (kind == "learned")


def test_positions_may_be_given_or_left_out() -> None:
    tokens, ids = nn.Embedding(V, 6), torch.randint(V, (B, T))
    later = Embedding(tokens, positions=Sinusoidal(6))(ids, torch.tensor([[3], [0]]) + torch.arange(T))
    whole = Embedding(tokens, positions=Sinusoidal(6))(torch.cat((ids[:, :3], ids), 1))
    torch.testing.assert_close(later[0], whole[0, 3:])
    torch.testing.assert_close(Embedding(tokens)(ids), tokens(ids) * math.sqrt(6))


def test_fresh_embeddings_have_unit_variance(model: Callable[..., Model]) -> None:
    """So that token vectors and sinusoids have about the same scale."""
    embedding = model("reader.positions.kind=none", source_size=5000, target_size=5000).reader.embedding
    assert embedding(torch.arange(5000)[None]).std().item() == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("overrides", [(), ("reader.stack.norm=pre",), ("reader.stack.window=2",)])
def test_padding_changes_nothing(model: Callable[..., Model], overrides: tuple[str, ...]) -> None:
    """A sequence alone has the same memory as in a batch with longer ones."""
    made, rows = model(*overrides), [[5, 6, 7, 8, 9, 10, 2], [11, 12, 2], [2]]
    memory = made.read(Batch({"source": pad(rows)}))
    for i, row in enumerate(rows):
        alone = made.read(Batch({"source": pad([row])}))
        torch.testing.assert_close(memory.states[i, : len(row)], alone.states[0], atol=1e-5, rtol=1e-5)
    assert memory.mask.sum(-1).tolist() == [7, 3, 1]
    assert torch.equal(memory.tokens, pad(rows).ids)


def test_a_reader_attends_in_both_directions(model: Callable[..., Model]) -> None:
    made = model()
    one, other = (made.read(Batch({"source": pad([[4, 5, last]])})).states for last in (6, 7))
    assert not torch.allclose(one[0, 0], other[0, 0], atol=1e-4)


def test_order_matters_with_positions_and_not_without(model: Callable[..., Model]) -> None:
    """Rows 58 and 60: without positions a sequence is a set."""
    forth, back = Batch({"source": pad([[4, 5, 6, 7]])}), Batch({"source": pad([[7, 6, 5, 4]])})
    made = model("reader.positions.kind=none")
    torch.testing.assert_close(made.read(forth).states, made.read(back).states.flip(1), atol=1e-5, rtol=1e-5)
    for kind in ("sinusoidal", "learned", "rotary", "shaw", "bucketed"):
        made = model(f"reader.positions.kind={kind}")
        assert not torch.allclose(made.read(forth).states, made.read(back).states.flip(1), atol=1e-3)


def test_alibi_knows_distances_but_no_direction(model: Callable[..., Model]) -> None:
    """Its bias is symmetric, so a reader without other positions is equivariant to reversal."""
    made = model("reader.positions.kind=alibi")
    one, other, mirror = (made.read(Batch({"source": pad([row])})).states for row in ([4, 5, 6], [5, 4, 6], [6, 5, 4]))
    torch.testing.assert_close(one, mirror.flip(1), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(one[0, 2], other[0, 2], atol=1e-4)
