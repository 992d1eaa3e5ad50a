"""Block and stack. Rows are those of the lectures."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.blocks.feedforward import FeedForward
from saccade.layers.blocks.residual import Residual
from saccade.layers.blocks.transformer import Block, TransformerStack
from saccade.layers.memory import Memory

B, T, S, H, D, FF = 3, 5, 7, 2, 12, 11


def block(*, order: str = "post", cross: bool = False, dropout: float = 0.0) -> Block:
    residuals = [Residual(nn.LayerNorm(D), order=order, dropout=dropout) for _ in range(3 if cross else 2)]
    attention = CrossAttention(D, heads=H, memory_dim=D) if cross else None
    return Block(SelfAttention(D, heads=H), FeedForward(D, hidden_dim=FF), residuals=residuals, cross=attention)


def stack(*, order: str = "post", cross: bool = False, layers: int = 2, **settings: object) -> TransformerStack:
    blocks = [block(order=order, cross=cross) for _ in range(layers)]
    norm = nn.LayerNorm(D) if order == "pre" else None
    made = TransformerStack(blocks, dim=D, norm=norm, **settings)
    for parameter in made.parameters():
        if parameter.dim() < 3:
            nn.init.normal_(parameter, std=0.5)
    return made.double()


def inputs(length: int = T) -> Tensor:
    return torch.randn(B, length, D, dtype=torch.float64)


def read() -> Memory:
    return Memory(inputs(S), torch.arange(S) < torch.tensor([[S], [4], [1]]))


def around(residual: Residual, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
    """The sublayer with its residual connection, added up."""
    hidden, stream = residual.begin_sublayer(x, None)
    return add_residual(*residual.end_sublayer(sublayer(hidden), stream))


def add_residual(hidden: Tensor, residual: Tensor | None, *_: object) -> Tensor:
    """Pre-norm leaves the last add to the next norm."""
    return hidden if residual is None else residual + hidden


def test_post_norm_normalises_after_the_residual() -> None:
    """Rows 76 and 80: LayerNorm(x + sublayer(x))."""
    residual, x = Residual(nn.LayerNorm(D), order="post", dropout=0.0), torch.randn(B, T, D)
    nn.init.normal_(residual.norm.weight)
    torch.testing.assert_close(around(residual, x, torch.sin), residual.norm(x + x.sin()))


def test_pre_norm_normalises_inside_the_residual() -> None:
    """Row 81: x + sublayer(LayerNorm(x))."""
    residual, x = Residual(nn.LayerNorm(D), order="pre", dropout=0.0), torch.randn(B, T, D)
    nn.init.normal_(residual.norm.weight)
    torch.testing.assert_close(around(residual, x, torch.sin), x + residual.norm(x).sin())


def test_dropout_is_applied_to_the_sublayer_and_not_to_the_residual() -> None:
    residual, x = Residual(nn.Identity(), order="post", dropout=0.5), torch.zeros(B, T, D)
    y = around(residual, x + 100, torch.ones_like)
    assert set(y.unique().tolist()) == {100.0, 102.0}


@pytest.mark.parametrize("order", ["post", "pre"])
def test_a_block_is_attention_then_feed_forward(order: str) -> None:
    """Rows 76, 79 and 80: the formula written out."""
    one, x = block(order=order), torch.randn(B, T, D)
    first, second = (residual.norm for residual in one.residuals)
    if order == "post":
        middle = first(x + one.self(x))
        expected = second(middle + one.feedforward(middle))
    else:
        middle = x + one.self(first(x))
        expected = middle + one.feedforward(second(middle))
    torch.testing.assert_close(add_residual(*one(x)), expected)


def test_a_stack_is_its_blocks_one_after_the_other() -> None:
    """Row 82; and row 81: pre-norm has one more norm at the end."""
    for order, layers in (("post", 3), ("pre", 4)):
        one, x = stack(order=order, layers=layers), inputs()
        expected = x
        for part in one.blocks:
            expected = add_residual(*part(expected))
        assert len(one.blocks) == layers
        torch.testing.assert_close(one(x, None)[0], one.norm(expected))
        assert isinstance(one.norm, nn.LayerNorm if order == "pre" else nn.Identity)


@pytest.mark.parametrize("order", ["post", "pre"])
def test_only_attention_lets_positions_interact(order: str) -> None:
    """Row 79: with attention replaced by nothing, a change of x_j changes y_j alone."""
    one, x = block(order=order).double(), inputs(7)
    changed = x.clone()
    changed[:, 3] += torch.randn(D)  # not a constant: LayerNorm would take it away

    def where_changed() -> list[bool]:
        return (add_residual(*one(changed)) != add_residual(*one(x))).any(-1).all(0).tolist()

    assert where_changed() == [True] * 7
    one.self.forward = lambda x, **how: torch.zeros_like(x)
    assert where_changed() == [j == 3 for j in range(7)]


# ---- torch.nn


def copy_attention(theirs: nn.MultiheadAttention, ours: SelfAttention | CrossAttention) -> None:
    weights = [w.unflatten(0, (H, -1)) for w in theirs.in_proj_weight.chunk(3)]
    biases = [b.unflatten(0, (H, -1)) for b in theirs.in_proj_bias.chunk(3)]
    pairs = [(weights, biases, ours.project)] if isinstance(ours, SelfAttention) else [
        (weights[:1], biases[:1], ours.query), (weights[1:], biases[1:], ours.memory),
    ]  # fmt: skip
    for w, b, project in pairs:
        project.weight.copy_(torch.stack(w, 1))
        project.bias.copy_(torch.stack(b, 1))
    ours.heads.out.load_state_dict(theirs.out_proj.state_dict())


@torch.no_grad()
def copy_layer(theirs: nn.Module, ours: Block) -> None:
    for parameter in theirs.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)  # torch begins with zeros and ones, which hide mistakes
    copy_attention(theirs.self_attn, ours.self)
    if ours.cross is not None:
        copy_attention(theirs.multihead_attn, ours.cross)
    ours.feedforward.up.load_state_dict(theirs.linear1.state_dict())
    ours.feedforward.down.load_state_dict(theirs.linear2.state_dict())
    for i, residual in enumerate(ours.residuals, 1):
        residual.norm.load_state_dict(theirs.get_submodule(f"norm{i}").state_dict())


@pytest.mark.parametrize("order", ["post", "pre"])
def test_reader_layers_equal_those_of_torch(order: str) -> None:
    theirs = nn.TransformerEncoderLayer(D, H, FF, dropout=0, batch_first=True, norm_first=order == "pre").double()
    ours, x, keep = stack(order=order, layers=1), inputs(), torch.arange(T) < torch.tensor([[T], [3], [1]])
    copy_layer(theirs, ours.blocks[0])
    expected = ours.norm(theirs(x, src_key_padding_mask=~keep))
    torch.testing.assert_close(ours(x, keep)[0][keep], expected[keep], atol=1e-10, rtol=0)


@pytest.mark.parametrize("order", ["post", "pre"])
def test_writer_layers_equal_those_of_torch(order: str) -> None:
    """Row 68: masked self-attention, then attention to memory, then feed-forward."""
    theirs = nn.TransformerDecoderLayer(D, H, FF, dropout=0, batch_first=True, norm_first=order == "pre").double()
    ours, x, memory = stack(order=order, layers=1, cross=True, causal=True), inputs(), read()
    copy_layer(theirs, ours.blocks[0])
    look_ahead = torch.ones(T, T, dtype=torch.bool).triu(1)
    expected = ours.norm(theirs(x, memory.states, tgt_mask=look_ahead, memory_key_padding_mask=~memory.mask))
    torch.testing.assert_close(ours(x, None, memory)[0], expected, atol=1e-10, rtol=0)


# ---- masks in the stack


def test_padding_changes_nothing() -> None:
    one, x = stack(), inputs()
    short = one(x[:, :3], torch.ones(B, 3, dtype=torch.bool))[0]
    padded = one(torch.cat((x[:, :3], 1e6 * torch.ones(B, 4, D)), 1), (torch.arange(7) < 3).expand(B, 7))[0]
    torch.testing.assert_close(padded[:, :3], short)


@pytest.mark.parametrize("window", [None, 0, 2])
def test_a_causal_stack_does_not_look_ahead(window: int | None) -> None:
    """Row 61, through several layers."""
    one, x = stack(causal=True, window=window), inputs(7)
    changed = x.clone()
    changed[:, 4] += torch.randn(D)
    before, after = one(x, None)[0], one(changed, None)[0]
    assert torch.equal(after[:, :4], before[:, :4])
    assert not torch.equal(after[:, 4], before[:, 4])


def test_a_window_reaches_further_with_every_layer() -> None:
    """Row 84's path length: r keys on each side and L layers connect positions up to L r apart."""
    one, x = stack(window=2, layers=3), inputs(17)
    changed = x.clone()
    changed[:, 8] += torch.randn(D)
    touched = (one(changed, None)[0] != one(x, None)[0]).any(-1).any(0)
    assert touched.nonzero().flatten().tolist() == list(range(2, 15))


def test_padding_far_from_any_real_key_is_finite() -> None:
    """Queries of the padding have no key within the window: zeros, and gradients that are numbers."""
    one, x = stack(window=1), inputs(11).requires_grad_()
    keep = (torch.arange(11) < 3).expand(B, 11)
    y = one(x, keep)[0]
    y[keep].sum().backward()
    assert y.isfinite().all() and x.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in one.parameters())


@pytest.mark.parametrize("cross", [False, True])
def test_recomputing_activations_changes_nothing(cross: bool) -> None:
    plain, memory = stack(cross=cross, causal=True), read() if cross else None
    saving = TransformerStack(list(plain.blocks), dim=D, causal=True, recompute=True)
    x = inputs().requires_grad_()
    results = []
    for one in (plain, saving):
        y = one(x, None, memory)[0]
        results.append((y, *torch.autograd.grad(y.square().sum(), [x, *plain.parameters()])))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
