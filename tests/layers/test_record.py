"""Recording attention weights."""

import threading

import pytest
import torch
from torch import Tensor, nn

from saccade.errors import SaccadeError
from saccade.layers import record as module
from saccade.layers.attention.masks import causal
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.blocks.feedforward import FeedForward
from saccade.layers.blocks.residual import Residual
from saccade.layers.blocks.transformer import Block, TransformerStack
from saccade.layers.memory import Memory
from saccade.layers.record import is_recording, limit_weights, record
from saccade.layers.regions import compiled_regions, region

B, T, S, H, D = 2, 5, 7, 3, 12


def block(*, dropout: float = 0.0) -> Block:
    residuals = [Residual(nn.LayerNorm(D), order="post", dropout=dropout) for _ in range(3)]
    attention, cross = SelfAttention(D, heads=H), CrossAttention(D, heads=H, memory_dim=D)
    return Block(attention, FeedForward(D, hidden_dim=13), residuals=residuals, cross=cross)


def writer(blocks: list[Block] | None = None, **settings: object) -> TransformerStack:
    return TransformerStack(blocks or [block(), block()], dim=D, causal=True, **settings)


def read() -> Memory:
    return Memory(torch.randn(B, S, D), torch.arange(S) < torch.tensor([[S], [4]]))


class Twice(nn.Module):
    """One layer, used two times, as in a Universal Transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = SelfAttention(D, heads=H)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x, mask=causal()))


@pytest.mark.parametrize("window", [None, 1])
def test_every_layer_leaves_its_weights_under_its_address(window: int | None) -> None:
    stack, memory = writer(window=window), read()
    with record(stack) as maps:
        stack(torch.randn(B, T, D), None, memory)
    assert {address: tuple(weights.shape) for address, weights in maps.items()} == {
        "blocks.0.self": (B, H, T, T),
        "blocks.0.cross": (B, H, T, S),
        "blocks.1.self": (B, H, T, T),
        "blocks.1.cross": (B, H, T, S),
    }
    for weights in maps.values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, T))
    assert (maps["blocks.1.cross"][1, :, :, 4:] == 0).all()
    assert (maps["blocks.1.self"].triu(1) == 0).all()
    assert ((maps["blocks.0.self"][..., 4, 2] == 0).all()) == (window == 1)


@pytest.mark.parametrize("window", [None, 1])
def test_looking_changes_neither_outputs_nor_gradients(window: int | None) -> None:
    """What is shown equals what the fused path used, to 1e-5 in float32."""
    stack, memory, x = writer(window=window).eval(), read(), torch.randn(B, T, D).requires_grad_()
    wanted = stack(x, None, memory)[0]
    with record(stack):
        got = stack(x, None, memory)[0]
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    inputs = [x, *stack.parameters()]
    for a, b in zip(*(torch.autograd.grad(y.pow(3).sum(), inputs) for y in (got, wanted)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_looking_in_bfloat16_is_near_to_the_fused_path() -> None:
    """8 bits are good for 5e-2 after two layers."""
    stack, memory, x = writer().eval(), read(), torch.randn(B, T, D)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = stack(x, None, memory)[0]
        with record(stack):
            got = stack(x, None, memory)[0]
    torch.testing.assert_close(got, wanted, atol=5e-2, rtol=5e-2)


def test_a_shared_layer_has_one_address_for_each_call() -> None:
    model, x = Twice(), torch.randn(B, T, D)
    with record(model) as maps:
        model(x)
    assert list(maps) == ["layer", "layer#1"]
    assert (maps["layer"].triu(1) == 0).all() and (maps["layer#1"] > 0).all()


def test_steps_have_addresses_of_their_own() -> None:
    stack, memory = writer([block()]), read()
    with record(stack) as maps:
        state = stack.start(memory, rows=B, capacity=3)
        for n in (2, 1):
            state = stack(torch.randn(B, n, D), None, None, state)[2]
    shapes = {address: tuple(weights.shape[2:]) for address, weights in maps.items()}
    assert shapes == {
        "blocks.0.self": (2, 2), "blocks.0.cross": (2, S), "blocks.0.self#1": (1, 3), "blocks.0.cross#1": (1, S),
    }  # fmt: skip


def test_nothing_is_left_behind() -> None:
    stack, memory = writer(), read()
    before = [set(vars(part)) for part in stack.modules()]
    with record(stack) as maps:
        stack(torch.randn(B, T, D), None, memory)
    kept = len(maps)
    stack(torch.randn(B, T, D), None, memory)
    assert len(maps) == kept == 4
    assert [set(vars(part)) for part in stack.modules()] == before
    assert not module._recorders and not is_recording()
    assert not any(weights.requires_grad for weights in maps.values())


def test_looking_is_in_eval_mode_and_every_part_gets_its_own_mode_back() -> None:
    stack, memory, x = writer([block(dropout=0.5), block(dropout=0.5)]).train(), read(), torch.randn(B, T, D)
    stack.blocks[0].eval()  # as a frozen part may be
    modes = [part.training for part in stack.modules()]
    with record(stack):
        assert not any(part.training for part in stack.modules())
        assert torch.equal(stack(x, None, memory)[0], stack(x, None, memory)[0])
    assert [part.training for part in stack.modules()] == modes


def test_an_error_inside_ends_the_looking_too() -> None:
    stack = writer().train()
    with pytest.raises(RuntimeError, match="mine"), record(stack):
        raise RuntimeError("mine")
    assert stack.training and not is_recording()


def test_inner_and_outer_see_the_same() -> None:
    stack, memory = writer(), read()
    with record(stack) as outer:
        with record(stack.blocks[1]) as inner:
            stack(torch.randn(B, T, D), None, memory)
        assert is_recording()
    assert list(inner) == ["self", "cross"]
    assert list(outer) == ["blocks.0.self", "blocks.0.cross", "blocks.1.self", "blocks.1.cross"]
    assert torch.equal(inner["cross"], outer["blocks.1.cross"])


def test_layers_of_another_model_are_not_recorded() -> None:
    mine, other = SelfAttention(D, heads=H), SelfAttention(D, heads=H)
    with record(mine) as maps:
        other(torch.randn(B, T, D))
    assert maps == {}


def test_looking_is_never_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that was made when nobody looked would run again and leave nothing."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda *_: "compiled")
    part = region(lambda: "plain")
    with compiled_regions():
        assert part() == "compiled"
        with record(nn.Linear(2, 3)):
            assert part() == "plain"
        assert part() == "compiled"


def test_recording_too_many_weights_is_an_error() -> None:
    model, x = writer(), torch.randn(1, T, D)
    layer = H * T * (T + S)
    memory = Memory(torch.randn(1, S, D), torch.ones(1, S, dtype=torch.bool))
    with limit_weights(2 * layer), record(model) as maps:
        model(x, torch.ones(1, T, dtype=torch.bool), memory=memory)
    assert sum(weights.numel() for weights in maps.values()) == 2 * layer
    with (
        pytest.raises(SaccadeError, match=f"more than {2 * layer - 1} weights"),
        limit_weights(2 * layer - 1),
        record(model),
    ):
        model(x, torch.ones(1, T, dtype=torch.bool), memory=memory)
    with record(model):  # what was outside is free again
        model(x, torch.ones(1, T, dtype=torch.bool), memory=memory)


def test_threads_look_apart() -> None:
    """One thread looks while another only runs: it leaves nothing behind."""
    stack, memory, x = writer().eval(), read(), torch.randn(B, T, D)
    seen: dict[str, object] = {}

    def other() -> None:
        seen["recording"] = is_recording()
        stack(x, None, memory)
        with record(stack) as maps:
            stack(x[:1], None, Memory(memory.states[:1], memory.mask[:1]))
        seen["maps"] = maps

    with record(stack) as maps:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert maps == {}
        stack(x, None, memory)
    assert seen["recording"] is False
    assert {weights.shape[0] for weights in seen["maps"].values()} == {1}
    assert {weights.shape[0] for weights in maps.values()} == {B}
