"""Attention by hashing against exact attention, and against Reformer in transformers with the same rotations."""

import math

import pytest
import torch
from torch import Tensor, nn

from saccade.errors import SaccadeError
from saccade.layers.attention.lsh import (
    Hashing,
    LshAttention,
    hash_vectors,
    lsh_attention,
    normalize_keys,
    shared_qk_attention,
)
from saccade.layers.blocks.feedforward import FeedForward
from saccade.layers.blocks.reversible import ReversibleBlock, ReversibleStack
from saccade.layers.record import record

B, H, T, E = 2, 3, 24, 5
EXACT = {"rtol": 0.0, "atol": 1e-10}


def shared_and_value(length: int = T) -> tuple[Tensor, Tensor]:
    shared, value = torch.randn(2, B, H, length, E, dtype=torch.float64)
    return shared, value


def by_hand(shared: Tensor, value: Tensor, *, causal: bool, keep: Tensor | None = None) -> Tensor:
    """Position by position: softmax over all others that may be seen, or itself where there is no other."""
    y = torch.zeros_like(value)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, shared.shape[:3])).tolist():
        others = [
            j for j in range(shared.shape[2])
            if j != i and (j < i or not causal) and (keep is None or keep[b, j])
        ] or [i]  # fmt: skip
        keys = shared[b, h, others]
        keys = keys / (keys.square().mean(-1, keepdim=True) + 1e-6).sqrt() / math.sqrt(E)
        y[b, h, i] = (keys @ shared[b, h, i]).softmax(0) @ value[b, h, others]
    return y


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_shared_attention_is_attention_to_all_others(causal: bool, padded: bool) -> None:
    shared, value = shared_and_value(7)
    keep = torch.arange(7) < torch.tensor([[7], [4]]) if padded else None
    y, weights = shared_qk_attention(shared, value, causal=causal, keep=keep)
    torch.testing.assert_close(y, by_hand(shared, value, causal=causal, keep=keep), **EXACT)
    torch.testing.assert_close(weights @ value, y)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("length", [T, 2 * T - 1])
def test_one_bucket_is_exact_attention(causal: bool, rounds: int, length: int) -> None:
    """Of one chunk, which sees itself twice, or of two, which see each other; the last one is not full."""
    shared, value = shared_and_value(length)
    buckets = torch.zeros(B, H, rounds, length, dtype=torch.int32)
    y, _ = lsh_attention(shared, value, buckets, chunk=T, causal=causal)
    exact, _ = shared_qk_attention(shared, value, causal=causal)
    torch.testing.assert_close(y, exact, **EXACT)


@pytest.mark.parametrize("causal", [False, True])
def test_padding_is_never_seen(causal: bool) -> None:
    shared, value = shared_and_value()
    keep = torch.arange(T) < torch.tensor([[T], [T - 7]])
    buckets = Hashing(rounds=2, chunk=4, seed=1)(shared)
    y, _ = lsh_attention(shared, value, buckets, chunk=4, causal=causal, keep=keep)
    other = torch.where(keep[:, None, :, None], value, torch.randn_like(value))
    again, _ = lsh_attention(shared, other, buckets, chunk=4, causal=causal, keep=keep)
    real = keep[:, None, :, None].expand_as(y)
    assert torch.equal(y[real], again[real])
    unmasked, _ = lsh_attention(shared, other, buckets, chunk=4, causal=causal)
    assert causal or not torch.equal(y[real], unmasked[real])


def test_the_future_is_never_seen() -> None:
    shared, value = shared_and_value()
    buckets = Hashing(rounds=3, chunk=4, seed=1)(shared)
    changed = value.clone()
    changed[:, :, 11] += 1
    y, again = (lsh_attention(shared, v, buckets, chunk=4, causal=True)[0] for v in (value, changed))
    assert torch.equal(y[:, :, :11], again[:, :, :11])
    assert not torch.equal(y[:, :, 11:], again[:, :, 11:])


def test_rounds_count_by_what_they_found() -> None:
    """Chunks (0 1)(2 3), then (0 2)(1 3); before the first chunk of a round stands the last of the round before."""
    shared, value = (x[:1, :1, :4] for x in shared_and_value())
    buckets = torch.tensor([[[[0, 0, 1, 1], [0, 1, 0, 1]]]], dtype=torch.int32)
    y, _ = lsh_attention(shared, value, buckets, chunk=2)
    keys, seen = normalize_keys(shared)[0, 0], [1, 1, 3, 2, 2, 3]  # by position 0, three in each round
    weights = (keys[seen] @ shared[0, 0, 0]).softmax(0)
    torch.testing.assert_close(y[0, 0, 0], weights @ value[0, 0, seen], **EXACT)


def test_recall_of_the_strongest_key_rises_with_rounds() -> None:
    """In how many rows of exact attention hashing looks at the key with the largest weight; in 8 rounds it looks at
    less than half of all."""
    shared, value = torch.randn(2, 2, 2, 256, 16)
    best = shared_qk_attention(shared, value)[1].argmax(-1, keepdim=True)
    recalled = []
    for rounds in (1, 2, 4, 8):
        buckets = Hashing(rounds=rounds, chunk=8, seed=3)(shared)
        with record(nn.Identity()):
            weights = lsh_attention(shared, value, buckets, chunk=8)[1]
        assert (weights > 0).float().mean() < 0.06 * rounds + 0.01
        recalled.append((weights.gather(-1, best) > 0).float().mean().item())
    assert recalled == sorted(set(recalled))
    assert recalled[-1] > 0.75


def test_what_is_seen_is_what_was_mixed() -> None:
    layer = LshAttention(12, heads=H, hashing=Hashing(rounds=2, chunk=4, seed=0), causal=True).double()
    x = torch.randn(B, 10, 12, dtype=torch.float64)
    with record(layer) as maps:
        y, _ = layer(x)
    weights, (_, value) = maps[""], layer.project(x)
    assert weights.shape == (B, H, 10, 10)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, 10, dtype=torch.float64))
    torch.testing.assert_close(layer.out((weights @ value.transpose(1, 2)).transpose(1, 2).flatten(2)), y, **EXACT)


def test_buckets_that_are_known_are_not_hashed_anew() -> None:
    layer, x = LshAttention(12, heads=H, hashing=Hashing(rounds=2, chunk=4)), torch.randn(B, 10, 12)
    y, kept = layer(x)
    again, same = layer(x, choices=kept)
    assert torch.equal(again, y) and same[0] is kept[0]
    assert not torch.equal(layer(x, choices=(kept[0].flip(-1),))[0], y)
    assert layer(x[:, :4])[1] == ()


def test_near_vectors_share_a_bucket_and_opposite_ones_never() -> None:
    x = torch.randn(1, 1, 50, 16)
    rotations = torch.randn(1, 16, 1, 4)
    same, opposite = hash_vectors(x * 2, rotations, (8,)), hash_vectors(-x, rotations, (8,))
    here = hash_vectors(x, rotations, (8,))
    assert torch.equal(here, same)
    assert not (here == opposite).any()
    assert torch.equal((here - opposite).abs(), torch.full_like(here, 4))


def test_buckets_follow_from_the_length() -> None:
    hashing = Hashing(rounds=1, chunk=4)
    assert [hashing.get_bucket_factors(length) for length in (5, 8, 16, 64, 1024)] == [
        (2,),
        (4,),
        (8,),
        (4, 8),
        (16, 32),
    ]
    assert Hashing(rounds=1, chunk=4, buckets=(6, 2)).get_bucket_factors(1000) == (6, 2)


@pytest.mark.parametrize("buckets", [(3,), (4, 5), (0,)])
def test_odd_numbers_of_buckets_are_refused(buckets: tuple[int, ...]) -> None:
    with pytest.raises(SaccadeError, match="even numbers of buckets"):
        Hashing(rounds=1, chunk=4, buckets=buckets)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(SaccadeError, match="dim = 10 and heads = 3"):
        LshAttention(10, heads=3, hashing=Hashing(rounds=1, chunk=4))


def test_a_seed_makes_the_same_buckets_each_time_and_leaves_other_draws_alone() -> None:
    shared, _ = shared_and_value()
    torch.manual_seed(7)
    first = Hashing(rounds=2, chunk=4, seed=5)(shared)
    drawn = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3), drawn)
    assert torch.equal(first, Hashing(rounds=2, chunk=4, seed=5)(shared))
    unseeded = Hashing(rounds=2, chunk=4)
    assert not torch.equal(unseeded(shared), unseeded(shared))


# ---- Reformer in transformers

D, FF, LAYERS, CHUNK = 12, 17, 3, 4


def reformer(*, causal: bool, buckets: list[int] | int, rounds: int) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.ReformerConfig(
        hidden_size=D, num_attention_heads=H, attention_head_size=E, feed_forward_size=FF, vocab_size=31,
        attn_layers=["lsh"] * LAYERS, lsh_attn_chunk_length=CHUNK, num_buckets=buckets, num_hashes=rounds,
        is_decoder=causal, axial_pos_embds=False, max_position_embeddings=64, hash_seed=11, hidden_act="relu",
        hidden_dropout_prob=0.0, lsh_attention_probs_dropout_prob=0.0, chunk_size_feed_forward=0, pad_token_id=0,
    )  # fmt: skip
    model = transformers.ReformerModel(config).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)  # zeros and ones hide mistakes
    return model


def ours(theirs: nn.Module) -> ReversibleStack:
    """The same layers with the same weights."""
    config = theirs.config
    buckets = tuple(config.num_buckets) if isinstance(config.num_buckets, list) else (config.num_buckets,)
    hashing = Hashing(rounds=config.num_hashes, chunk=CHUNK, buckets=buckets, seed=config.hash_seed)
    blocks = [
        ReversibleBlock(
            LshAttention(D, heads=H, hashing=hashing, form=E, causal=config.is_decoder),
            FeedForward(D, hidden_dim=FF),
            norms=[nn.LayerNorm(D, eps=config.layer_norm_eps) for _ in range(2)],
            chunk=5,
        )
        for _ in range(LAYERS)
    ]
    stack = ReversibleStack(blocks, dim=D, norm=nn.LayerNorm(2 * D, eps=config.layer_norm_eps)).double()
    stack.norm.load_state_dict(theirs.encoder.layer_norm.state_dict())
    for layer, block in zip(theirs.encoder.layers, blocks):
        mine, source = block.attention, layer.attention
        block.norms[0].load_state_dict(source.layer_norm.state_dict())
        block.norms[1].load_state_dict(layer.feed_forward.layer_norm.state_dict())
        block.feedforward.up.load_state_dict(layer.feed_forward.dense.dense.state_dict())
        block.feedforward.down.load_state_dict(layer.feed_forward.output.dense.state_dict())
        with torch.no_grad():
            parts = (source.self_attention.query_key.weight, source.self_attention.value.weight)
            mine.project.weight.copy_(torch.stack([part.unflatten(0, (H, E)) for part in parts], 1))
            mine.out.weight.copy_(source.output.dense.weight)
    return stack


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "rounds"), [(4, 1), (6, 3), ([2, 4], 2)])
@pytest.mark.parametrize("padded", [False, True])
def test_attention_is_that_of_reformer(causal: bool, buckets: list[int] | int, rounds: int, padded: bool) -> None:
    theirs = reformer(causal=causal, buckets=buckets, rounds=rounds)
    layer = ours(theirs).blocks[0].attention
    x = torch.randn(B, 20, D, dtype=torch.float64)
    keep = torch.arange(20) < torch.tensor([[20], [13]]) if padded else None
    expected = theirs.encoder.layers[0].attention.self_attention(x, attention_mask=keep)
    y, (found,) = layer(x, mask=keep)
    if keep is None:
        count = math.prod(layer.hashing.buckets)
        assert torch.equal(found.long(), expected.buckets - count * torch.arange(rounds)[:, None])
    torch.testing.assert_close(y, layer.out(expected.hidden_states), rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("length", [3, 20])
def test_stack_and_its_gradients_are_those_of_reformer(length: int) -> None:
    """A text of one chunk, where attention is exact, and a longer one."""
    theirs = reformer(causal=True, buckets=4, rounds=2).train()
    stack = ours(theirs)
    x = torch.randn(B, length, D, dtype=torch.float64, requires_grad=True)
    keep = torch.ones(B, length, dtype=torch.bool)
    expected = theirs.encoder(x, attention_mask=keep).hidden_states
    y = stack(x, keep)[0]
    torch.testing.assert_close(y, expected, rtol=0.0, atol=1e-9)
    back = torch.randn_like(y)
    (grad,) = torch.autograd.grad(y, x, back, retain_graph=True)
    y.backward(back)
    ours_at, x.grad = x.grad, None
    expected.backward(back)
    torch.testing.assert_close(grad, x.grad, rtol=0.0, atol=1e-9)
    torch.testing.assert_close(ours_at, x.grad, rtol=0.0, atol=1e-9)
    for block, layer in zip(stack.blocks, theirs.encoder.layers):
        mine, source = block.attention.project.weight.grad, layer.attention.self_attention
        for part, linear in zip(mine.unbind(1), (source.query_key, source.value)):
            torch.testing.assert_close(part.flatten(0, 1), linear.weight.grad, rtol=0.0, atol=1e-9)
