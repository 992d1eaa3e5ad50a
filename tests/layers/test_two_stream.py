"""Two-stream attention: visibility of the query stream, memory, and XLNet in transformers."""

import pytest
import torch
from torch import Tensor, nn

from saccade.config import schema
from saccade.layers.attention.masks import segments as by_segment
from saccade.layers.attention.positions import Sinusoidal, TransformerXL
from saccade.layers.attention.two_stream import build_permutation_mask, run_two_streams
from saccade.layers.blocks.transformer import TransformerStack
from saccade.layers.packing import build_packing
from saccade.layers.record import record
from saccade.model.build.transformer import build_transformer

B, T, L, D, H, E, FF, LAYERS, V = 2, 7, 5, 12, 3, 4, 17, 2, 23
CLOSE = {"rtol": 0.0, "atol": 1e-10}
PARITY = {"rtol": 0.0, "atol": 1e-9}


def stack(*, dropout: float = 0.0, epsilon: float = 1e-5, causal: bool = False) -> TransformerStack:
    settings = schema.TransformerStack(
        layers=LAYERS, dim=D, heads=H, ff=FF, activation="gelu", dropout=dropout, attention_dropout=dropout,
        attention_bias=False, norm_epsilon=epsilon,
    )  # fmt: skip
    where = schema.TransformerXL(content_bias=True, relative_segments=True)
    made = build_transformer(settings, where, memory_dim=None, causal=causal, train=schema.Train()).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.4)  # zeros and ones hide mistakes
    return made


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def orders(count: int = B, length: int = T) -> Tensor:
    return torch.stack([torch.randperm(length) for _ in range(count)])


def test_order_says_who_is_seen() -> None:
    seen = build_permutation_mask(torch.tensor([[2, -1, 0, 1, -1]]))[0]
    assert [row.nonzero().flatten().tolist() for row in seen] == [[1, 2, 3, 4], [1, 4], [1, 4], [1, 2, 4], [1, 4]]


def test_scores_are_content_place_and_segment() -> None:
    """Every pair by itself (Dai et al. 2019, section 3.3; Yang et al. 2019, section 2.5)."""
    layer = stack().blocks[0].self
    term, scale = layer.heads.term, E**-0.5
    x, segments = random(1, T, D), torch.tensor([[0, 0, 0, 1, 1, 0, 1]])
    with record(layer) as maps:
        layer(x, mask=by_segment(segments, segments))
    q, k, _ = layer.project(x)
    places = Sinusoidal(D)
    for h in range(H):
        scores = torch.zeros(T, T, dtype=torch.float64)
        for i in range(T):
            for j in range(T):
                r = term.project(places(torch.tensor([[j - i]])).double())[0, 0].unflatten(0, (H, E))[h]
                s = term.segments[h, int(segments[0, i] != segments[0, j])]
                asked = q[0, i, h] * scale
                scores[i, j] = (asked + term.content[h, 0]) @ k[0, j, h] + (asked + term.bias[h, 0]) @ r
                scores[i, j] += (asked + term.segment_bias[h, 0]) @ s
        torch.testing.assert_close(maps[""][0, h], scores.softmax(-1), **CLOSE)


@pytest.mark.parametrize("memory", [False, True])
def test_a_query_is_blind_to_its_target(memory: bool) -> None:
    """Bit by bit the same whatever the token is, at every position of several orders; the content is not."""
    model, content, query = stack(), random(4, T, D), random(4, T, D)
    before = [random(4, L, D) for _ in range(LAYERS)] if memory else []
    allowed = build_permutation_mask(orders(4))
    first = run_two_streams(model, content, query, allowed=allowed, memory=before)
    for j in range(T):
        changed = content.clone()
        changed[:, j] += random(4, D)
        again = run_two_streams(model, changed, query, allowed=allowed, memory=before)
        assert torch.equal(again.query[:, j], first.query[:, j])
        assert not (again.content[:, j] == first.content[:, j]).all(-1).any()
        for row, others in enumerate(allowed[:, :, j]):  # who comes later sees it, and nobody else
            assert torch.equal((again.query[row] != first.query[row]).any(-1), others)


def test_no_gradient_leads_from_a_query_to_its_target() -> None:
    model, content, query = stack(), random(B, T, D).requires_grad_(), random(B, T, D)
    allowed = build_permutation_mask(orders())
    found = run_two_streams(model, content, query, allowed=allowed).query
    for i in range(T):
        (gradient,) = torch.autograd.grad(found[:, i].sum(), content, retain_graph=True)
        assert torch.equal(gradient.abs().sum(-1) > 0, allowed[:, i])


def test_a_query_that_sees_nothing_gets_nothing_from_attention() -> None:
    model, content, query = stack(), random(1, T, D), random(1, T, D)
    with record(model) as maps:
        run_two_streams(model, content, query, allowed=build_permutation_mask(torch.arange(T)[None]))
    expected = maps["blocks.0.self#1"]
    assert (expected[:, :, 0] == 0).all()
    torch.testing.assert_close(expected[:, :, 1:].sum(-1), torch.ones_like(expected[:, :, 1:, 0]))


def test_queries_of_some_positions_are_those_of_all() -> None:
    model, content, targets = stack(), random(B, T, D), torch.tensor([[5, 0, 3], [1, 6, 2]])
    query, allowed, segments = random(D).expand(B, T, D), build_permutation_mask(orders()), torch.randint(2, (B, T))
    every = run_two_streams(model, content, query, allowed=allowed, segments=segments).query
    some = run_two_streams(
        model, content, query[:, :3], allowed=allowed, query_positions=targets, segments=segments
    ).query
    torch.testing.assert_close(some, every.gather(1, targets[..., None].expand(-1, -1, D)), **CLOSE)


def test_from_left_to_right_it_is_a_causal_language_model() -> None:
    model, content = stack(causal=True), random(B, T, D)
    found = run_two_streams(model, content, allowed=build_permutation_mask(torch.arange(T).expand(B, -1))).content
    torch.testing.assert_close(found, model(content, None)[0], **CLOSE)


def test_where_all_is_seen_contents_are_those_of_the_stack_alone() -> None:
    model, content, segments = stack(), random(B, T, D), torch.randint(2, (B, T))
    seen = torch.ones(B, T, T, dtype=torch.bool)
    found = run_two_streams(model, content, allowed=seen, segments=segments).content
    torch.testing.assert_close(found, model(content, None, segments=segments)[0], **CLOSE)
    assert not torch.allclose(found, model(content, None)[0])


def test_segments_are_those_of_each_text_of_a_packed_row() -> None:
    model, row = stack(), build_packing([T, 3])
    x, segments = random(1, T + 3, D), torch.randint(2, (1, T + 3))
    found = model(x, row, segments=segments)[0]
    for text in (slice(0, T), slice(T, T + 3)):
        expected = model(x[:, text], None, segments=segments[:, text])[0]
        torch.testing.assert_close(found[:, text], expected, **CLOSE)


def test_memory_is_the_text_before_computed_again() -> None:
    """In any order inside each text, as long as the first comes before the second."""
    model, content, query = stack(), random(B, L + T, D), random(B, L + T, D)
    order = torch.cat((orders(length=L), orders(length=T) + L), 1)
    segments = torch.randint(2, (B, L + T))
    whole = run_two_streams(
        model, content, query, allowed=build_permutation_mask(order), segments=segments, memory_length=2 * L
    )
    first = run_two_streams(
        model,
        content[:, :L],
        allowed=build_permutation_mask(order[:, :L]),
        segments=segments[:, :L],
        memory_length=2 * L,
    )  # fmt: skip
    second = run_two_streams(
        model, content[:, L:], query[:, L:], allowed=build_permutation_mask(order[:, L:]), segments=segments,
        memory=first.memory, memory_length=2 * L,
    )  # fmt: skip
    torch.testing.assert_close(second.content, whole.content[:, L:], **CLOSE)
    torch.testing.assert_close(second.query, whole.query[:, L:], **CLOSE)
    assert all(part.shape == (B, 2 * L, D) for part in second.memory)
    for one, other in zip(second.memory, whole.memory, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_no_gradient_goes_into_memory() -> None:
    model, text = stack(), random(B, T, D).requires_grad_()
    memory = run_two_streams(model, text, allowed=build_permutation_mask(orders()), memory_length=L).memory
    assert not any(part.requires_grad for part in memory)
    given = [random(B, L, D).requires_grad_() for _ in range(LAYERS)]
    run_two_streams(model, text, allowed=build_permutation_mask(orders()), memory=given).content.sum().backward()
    assert text.grad is not None and all(part.grad is None for part in given)


def test_without_room_nothing_is_remembered() -> None:
    assert run_two_streams(stack(), random(B, T, D), allowed=build_permutation_mask(orders())).memory == ()


def test_what_is_computed_twice_has_the_same_gradients() -> None:
    model, content, query = stack(dropout=0.3), random(B, T, D), random(B, T, D)
    grads = []
    for model.recompute in (False, True):
        torch.manual_seed(5)
        model.zero_grad()
        run_two_streams(
            model, content, query, allowed=build_permutation_mask(torch.arange(T).expand(B, -1))
        ).query.sum().backward()
        grads.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert len(grads[0]) == len(grads[1]) > 10
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


def test_dropout_changes_training_only() -> None:
    model, content, allowed = stack(dropout=0.5), random(B, T, D), build_permutation_mask(orders())
    first, second = (run_two_streams(model, content, allowed=allowed).content for _ in range(2))
    assert not torch.equal(first, second)
    model.eval()
    first, second = (run_two_streams(model, content, allowed=allowed).content for _ in range(2))
    assert torch.equal(first, second)


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
def ours(theirs: nn.Module) -> TransformerStack:
    """The same layers with the same weights."""
    made = stack(epsilon=theirs.config.layer_norm_eps)
    for layer, block in zip(theirs.transformer.layer, made.blocks, strict=True):
        source, mine = layer.rel_attn, block.self
        term: TransformerXL = mine.heads.term
        weights = [source.get_parameter(part).permute(1, 2, 0) for part in "qkv"]
        mine.project.weight.copy_(torch.stack(weights, 1))
        mine.heads.out.weight.copy_(source.o.flatten(1))
        sines, cosines = source.r.flatten(1).T.chunk(2, 1)  # theirs of i - j, ours of j - i, one beside the other
        term.project.weight.copy_(torch.stack((-sines, cosines), -1).flatten(1))
        for target, name in ((term.content, "r_w_bias"), (term.bias, "r_r_bias"), (term.segment_bias, "r_s_bias")):
            target.copy_(source.get_parameter(name)[:, None] * E**-0.5)
        term.segments.copy_(source.seg_embed.transpose(0, 1))
        block.residuals[0].norm.load_state_dict(source.layer_norm.state_dict())
        block.residuals[1].norm.load_state_dict(layer.ff.layer_norm.state_dict())
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
    allowed, keep = build_permutation_mask(order), torch.arange(T) < torch.tensor([[T], [6]]) if padded else None
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
    seen = allowed if keep is None else allowed & keep[:, None]
    known = nn.functional.pad(segments, (L, 0)) if memory else segments  # there, all that is remembered is of segment 0
    found = run_two_streams(
        mine, words(ids), query, allowed=seen, query_positions=targets, segments=known, memory=before, memory_length=100
    )  # fmt: skip
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
    found = ours(model)(model.transformer.word_embedding(ids), None, segments=segments)[0]
    torch.testing.assert_close(found, expected, **PARITY)


def test_from_left_to_right_it_is_xlnet_in_one_direction() -> None:
    model, ids = xlnet(direction="uni"), torch.randint(V, (B, T))
    expected = model.transformer(ids).last_hidden_state
    order = torch.arange(T).expand(B, -1)
    found = run_two_streams(
        ours(model), model.transformer.word_embedding(ids), allowed=build_permutation_mask(order)
    ).content
    torch.testing.assert_close(found, expected, **PARITY)


def test_in_float32_it_is_xlnet_as_it_comes() -> None:
    model, ids = xlnet(), torch.randint(V, (B, T))
    mine = ours(model).float()
    del model.transformer.relative_positional_encoding
    model.float()
    targets = torch.tensor([[5, 1, 3], [2, 6, 4]])
    allowed = build_permutation_mask(torch.full((B, T), -1).scatter(1, targets, torch.arange(3).expand(B, -1)))
    mapping = nn.functional.one_hot(targets, T).float()
    expected = model.transformer(ids, perm_mask=(~allowed).float(), target_mapping=mapping).last_hidden_state
    query = model.transformer.mask_emb.expand(B, 3, -1)
    found = run_two_streams(
        mine, model.transformer.word_embedding(ids), query, allowed=allowed, query_positions=targets
    ).query
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-4)
