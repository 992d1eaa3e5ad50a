"""Two streams over one text: what a query sees and what it cannot, memory, and XLNet in transformers."""

import pytest
import torch
from torch import Tensor, nn

from saccade.errors import SaccadeError
from saccade.layers.feedforward import FeedForward
from saccade.layers.multihead import SelfAttention
from saccade.layers.positions import Sinusoidal
from saccade.layers.record import record
from saccade.layers.transformer import Block, Residual, TransformerStack
from saccade.layers.two_stream import RelativeAttention, TwoStreamBlock, TwoStreamStack, aligned, earlier

B, T, L, D, H, E, FF, LAYERS, V = 2, 7, 5, 12, 3, 4, 17, 2, 23
CLOSE = {"rtol": 0.0, "atol": 1e-10}
PARITY = {"rtol": 0.0, "atol": 1e-9}


def stack(*, remember: int = 0, dropout: float = 0.0, epsilon: float = 1e-5) -> TwoStreamStack:
    blocks = [
        TwoStreamBlock(
            RelativeAttention(D, heads=H, dropout=dropout),
            FeedForward(D, hidden=FF, activation="gelu", dropout=dropout),
            norms=[nn.LayerNorm(D, eps=epsilon) for _ in range(2)],
            dropout=dropout,
        )
        for _ in range(LAYERS)
    ]
    made = TwoStreamStack(blocks, dim=D, remember=remember, dropout=dropout).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.4)  # zeros and ones hide mistakes
    return made


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def orders(count: int = B, length: int = T) -> Tensor:
    return torch.stack([torch.randperm(length) for _ in range(count)])


def test_each_row_of_distances_is_aligned_with_its_keys() -> None:
    """Distance by distance: query i stands at L + i, key j at j."""
    scores = random(B, H, T, L + 2 * T)
    distances = list(range(L + T, -T, -1))
    expected = torch.stack([
        torch.stack([scores[:, :, i, distances.index(L + i - j)] for j in range(L + T)], -1) for i in range(T)
    ], 2)  # fmt: skip
    assert torch.equal(aligned(scores, L + T), expected)
    at = orders()
    rows = at[:, None, :, None].expand(-1, H, -1, scores.shape[-1])
    chosen = at[:, None, :, None].expand(-1, H, -1, L + T)
    assert torch.equal(aligned(scores.gather(2, rows), L + T, at), expected.gather(2, chosen))


def test_order_says_who_is_seen() -> None:
    seen = earlier(torch.tensor([[2, -1, 0, 1, -1]]))[0]
    assert [row.nonzero().flatten().tolist() for row in seen] == [[1, 2, 3, 4], [1, 4], [1, 4], [1, 2, 4], [1, 4]]


def test_scores_are_content_place_and_segment() -> None:
    """Every pair by itself (Dai et al. 2019, section 3.3; Yang et al. 2019, section 2.5)."""
    layer = stack().blocks[0].self
    x, segments = random(1, T, D), torch.tensor([[0, 0, 0, 1, 1, 0, 1]])
    around = TwoStreamStack([], dim=D).around(x, 0, segments=segments)
    with record(layer) as maps:
        layer(x, None, around)
    (q,), (k, _) = layer.query(x), layer.project(x)
    places = Sinusoidal(D, layout="concatenated")
    for h in range(H):
        scores = torch.zeros(T, T, dtype=torch.float64)
        for i in range(T):
            for j in range(T):
                r = layer.place(places(torch.tensor([[i - j]])).double())[0][0, 0, h]
                s = layer.segments[int(segments[0, i] != segments[0, j]), h]
                asked = q[0, i, h]
                scores[i, j] = (asked + layer.content_bias[h]) @ k[0, j, h] + (asked + layer.place_bias[h]) @ r
                scores[i, j] += (asked + layer.segment_bias[h]) @ s
        torch.testing.assert_close(maps[""][0, h], (scores / E**0.5).softmax(-1), **CLOSE)


@pytest.mark.parametrize("memory", [False, True])
def test_a_query_is_blind_to_its_target(memory: bool) -> None:
    """Bit by bit the same whatever the token is, at every position of several orders; the content is not."""
    model, content, query = stack(), random(4, T, D), random(4, T, D)
    before = [random(4, L, D) for _ in range(LAYERS)] if memory else []
    allowed = earlier(orders(4))
    first = model(content, query, allowed=allowed, memory=before)
    for j in range(T):
        changed = content.clone()
        changed[:, j] += random(4, D)
        again = model(changed, query, allowed=allowed, memory=before)
        assert torch.equal(again.query[:, j], first.query[:, j])
        assert not (again.content[:, j] == first.content[:, j]).all(-1).any()
        for row, others in enumerate(allowed[:, :, j]):  # who comes later sees it, and nobody else
            assert torch.equal((again.query[row] != first.query[row]).any(-1), others)


def test_a_query_that_sees_nothing_gets_nothing_from_attention() -> None:
    layer, content, query = stack().blocks[0].self, random(1, T, D), random(1, T, D)
    around = TwoStreamStack([], dim=D).around(content, 0, earlier(torch.arange(T)[None]))
    _, told = layer(content, query, around)
    assert (told[:, 0] == 0).all() and (told[:, 1:] != 0).all()


def test_queries_need_to_know_what_they_may_see() -> None:
    with pytest.raises(ValueError, match="give `allowed`"):
        stack()(random(B, T, D), random(B, T, D))


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(SaccadeError, match="dim = 10 and heads = 3"):
        RelativeAttention(10, heads=3)


def test_queries_of_some_positions_are_those_of_all() -> None:
    model, content, targets = stack(), random(B, T, D), torch.tensor([[5, 0, 3], [1, 6, 2]])
    query, allowed, segments = random(D).expand(B, T, D), earlier(orders()), torch.randint(2, (B, T))
    every = model(content, query, allowed=allowed, segments=segments).query
    some = model(content, query[:, :3], allowed=allowed, targets=targets, segments=segments).query
    torch.testing.assert_close(some, every.gather(1, targets[..., None].expand(-1, -1, D)), **CLOSE)


class Relative(nn.Module):
    """Place as a term of any attention's scores, where nothing is added to the content's query."""

    def __init__(self, source: RelativeAttention) -> None:
        super().__init__()
        self.source, self.places = source, Sinusoidal(D, layout="concatenated")

    def forward(self, query: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        distances = q_pos[0, :, None] - k_pos[0, None, :]
        (places,) = self.source.place(self.places(distances).to(query.dtype))
        asked = query + self.source.place_bias[:, None] * self.source.scale
        return torch.einsum("bhqe,qkhe->bhqk", asked, places)


def causal_model(source: TwoStreamStack) -> TransformerStack:
    """The Transformer that a text is written with from left to right, with the same weights."""
    blocks = []
    for block in source.blocks:
        nn.init.zeros_(block.self.content_bias)
        attention = SelfAttention(D, heads=H, bias=False, term=Relative(block.self)).double()
        with torch.no_grad():
            parts = (block.self.query.weight, block.self.project.weight)
            attention.project.weight.copy_(torch.cat(parts, 1))
            attention.heads.out.weight.copy_(block.self.out.weight)
        residuals = [Residual(norm, order="post", dropout=0.0) for norm in block.norms]
        blocks.append(Block(attention, block.feedforward, residuals=residuals))
    return TransformerStack(blocks, dim=D, causal=True)


def test_from_left_to_right_it_is_a_causal_language_model() -> None:
    model, content = stack(), random(B, T, D)
    causal = causal_model(model)
    y = model(content, allowed=earlier(torch.arange(T).expand(B, -1))).content
    torch.testing.assert_close(y, causal(content, None)[0], **CLOSE)


def test_memory_is_the_text_before_computed_again() -> None:
    """In any order inside each text, as long as the first comes before the second."""
    model, content, query = stack(remember=2 * L), random(B, L + T, D), random(B, L + T, D)
    order = torch.cat((orders(length=L), orders(length=T) + L), 1)
    segments = torch.cat((torch.zeros(B, L, dtype=torch.long), torch.randint(2, (B, T))), 1)
    whole = model(content, query, allowed=earlier(order), segments=segments)
    first = model(content[:, :L], allowed=earlier(order[:, :L]), segments=segments[:, :L])
    second = model(
        content[:, L:], query[:, L:], allowed=earlier(order[:, L:]), segments=segments[:, L:], memory=first.memory
    )
    torch.testing.assert_close(second.content, whole.content[:, L:], **CLOSE)
    torch.testing.assert_close(second.query, whole.query[:, L:], **CLOSE)
    assert all(part.shape == (B, 2 * L, D) for part in second.memory)
    for one, other in zip(second.memory, whole.memory, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_no_gradient_goes_into_memory() -> None:
    model, text = stack(remember=L), random(B, T, D).requires_grad_()
    memory = model(text).memory
    assert not any(part.requires_grad for part in memory)
    given = [random(B, L, D).requires_grad_() for _ in range(LAYERS)]
    model(text, memory=given).content.sum().backward()
    assert text.grad is not None and all(part.grad is None for part in given)


def test_without_room_nothing_is_remembered() -> None:
    assert stack()(random(B, T, D)).memory == ()


def test_padding_is_never_seen() -> None:
    model, content, query = stack(), random(B, T, D), random(B, T, D)
    keep, allowed = torch.arange(T) < torch.tensor([[T], [4]]), earlier(orders())
    first = model(content, query, allowed=allowed, keep=keep)
    again = model(torch.where(keep[..., None], content, random(B, T, D)), query, allowed=allowed, keep=keep)
    assert torch.equal(again.query, first.query)
    assert torch.equal(again.content[keep], first.content[keep])
    assert not torch.equal(again.content, first.content)


def test_dropout_changes_training_only() -> None:
    model, content = stack(dropout=0.5), random(B, T, D)
    assert not torch.equal(model(content).content, model(content).content)
    model.eval()
    assert torch.equal(model(content).content, model(content).content)


# ---- XLNet in transformers


def places_in_float64(klen: int, qlen: int, bsz: int) -> Tensor:
    distances = torch.arange(klen, -qlen, -1)[None]
    return Sinusoidal(D, layout="concatenated")(distances)[0, :, None].expand(-1, bsz, -1).double()


def xlnet(*, direction: str = "bi") -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.XLNetConfig(
        vocab_size=V, d_model=D, n_layer=LAYERS, n_head=H, d_inner=FF, ff_activation="gelu", dropout=0.0,
        attn_type=direction, mem_len=None, use_mems_eval=True,
    )  # fmt: skip
    model = transformers.XLNetLMHeadModel(config).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    # Theirs are float32 only, and do not go with weights of another type.
    model.transformer.relative_positional_encoding = lambda qlen, klen, bsz, device: places_in_float64(
        klen, qlen if direction == "bi" else 1, bsz
    )
    return model


@torch.no_grad()
def ours(theirs: nn.Module) -> TwoStreamStack:
    """The same layers with the same weights."""
    made = stack(remember=100, epsilon=theirs.config.layer_norm_eps)
    for layer, block in zip(theirs.transformer.layer, made.blocks, strict=True):
        source, mine = layer.rel_attn, block.self
        for target, parts in ((mine.query, "q"), (mine.place, "r"), (mine.project, "kv")):
            weights = [source.get_parameter(part).permute(1, 2, 0) for part in parts]
            target.weight.copy_(torch.stack(weights, 1))
        mine.out.weight.copy_(source.o.flatten(1))
        for target, name in (("content_bias", "r_w_bias"), ("place_bias", "r_r_bias"), ("segment_bias", "r_s_bias")):
            mine.get_parameter(target).copy_(source.get_parameter(name))
        mine.segments.copy_(source.seg_embed)
        block.norms[0].load_state_dict(source.layer_norm.state_dict())
        block.norms[1].load_state_dict(layer.ff.layer_norm.state_dict())
        block.feedforward.up.load_state_dict(layer.ff.layer_1.state_dict())
        block.feedforward.down.load_state_dict(layer.ff.layer_2.state_dict())
    return made


def test_places_are_those_of_xlnet() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.XLNetConfig(vocab_size=V, d_model=D, n_layer=1, n_head=H, d_inner=FF)
    expected = transformers.XLNetModel(config).relative_positional_encoding(T, L + T, bsz=B)
    torch.testing.assert_close(places_in_float64(L + T, T, B).float(), expected, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_logits_and_gradients_are_those_of_xlnet(memory: bool, padded: bool) -> None:
    """Some positions are asked for in some order, with segments; every query sees something, see above."""
    model = xlnet()
    mine, words = ours(model), model.transformer.word_embedding
    ids, segments, targets = torch.randint(V, (B, T)), torch.randint(2, (B, T)), torch.tensor([[5, 1, 3], [2, 6, 4]])
    order = torch.full((B, T), -1).scatter(1, targets, torch.tensor([[1, 0, 2], [2, 0, 1]]))
    allowed, keep = earlier(order), torch.arange(T) < torch.tensor([[T], [6]]) if padded else None
    before = [random(B, L, D) for _ in range(LAYERS)] if memory else []
    expected = model(
        ids,
        perm_mask=(~allowed).double(),
        target_mapping=nn.functional.one_hot(targets, T).double(),
        token_type_ids=segments,
        attention_mask=None if keep is None else keep.double(),
        mems=[part.transpose(0, 1) for part in before] or None,
    )
    query = model.transformer.mask_emb.expand(B, 3, -1)
    found = mine(words(ids), query, allowed=allowed, targets=targets, keep=keep, segments=segments, memory=before)
    logits = found.query @ words.weight.T + model.lm_loss.bias
    torch.testing.assert_close(logits, expected.logits, **PARITY)
    for one, other in zip(found.memory, expected.mems, strict=True):
        torch.testing.assert_close(one, other.transpose(0, 1), **PARITY)
    back = torch.randn_like(logits)
    theirs = torch.autograd.grad(expected.logits, words.weight, back)[0]
    torch.testing.assert_close(torch.autograd.grad(logits, words.weight, back)[0], theirs, **PARITY)


@pytest.mark.parametrize("segmented", [False, True])
def test_contents_alone_are_those_of_xlnet(segmented: bool) -> None:
    """As it is fine-tuned: no queries, everything seen."""
    model, ids = xlnet(), torch.randint(V, (B, T))
    segments = torch.randint(2, (B, T)) if segmented else None
    expected = model.transformer(ids, token_type_ids=segments).last_hidden_state
    found = ours(model)(model.transformer.word_embedding(ids), segments=segments).content
    torch.testing.assert_close(found, expected, **PARITY)


def test_from_left_to_right_it_is_xlnet_in_one_direction() -> None:
    model, ids = xlnet(direction="uni"), torch.randint(V, (B, T))
    expected = model.transformer(ids).last_hidden_state
    order = torch.arange(T).expand(B, -1)
    found = ours(model)(model.transformer.word_embedding(ids), allowed=earlier(order)).content
    torch.testing.assert_close(found, expected, **PARITY)


def test_in_float32_it_is_xlnet_as_it_comes() -> None:
    model, ids = xlnet(), torch.randint(V, (B, T))
    mine = ours(model).float()
    del model.transformer.relative_positional_encoding
    model.float()
    targets = torch.tensor([[5, 1, 3], [2, 6, 4]])
    allowed = earlier(torch.full((B, T), -1).scatter(1, targets, torch.arange(3).expand(B, -1)))
    mapping = nn.functional.one_hot(targets, T).float()
    expected = model.transformer(ids, perm_mask=(~allowed).float(), target_mapping=mapping).last_hidden_state
    query = model.transformer.mask_emb.expand(B, 3, -1)
    found = mine(model.transformer.word_embedding(ids), query, allowed=allowed, targets=targets).query
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-4)
