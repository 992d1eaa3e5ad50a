"""The non-autoregressive writer with fertilities: copies, and the attention of Gu et al. 2018 by its formulas."""

import pytest
import torch

from saccade.config.load import validate
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END, PAD
from saccade.errors import SaccadeError
from saccade.layers.attention.positions import Sinusoidal
from saccade.layers.blocks import repeated_passes
from saccade.layers.record import record
from saccade.model.build.model import build
from saccade.model.writers.fertility import copy_by_fertility
from saccade.train.batches.pack import pack_batch

STACK = {"layers": 2, "dim": 12, "heads": 3, "ff": 17}


def make(stack=None, **writer):
    """A small model with random weights over 13 tokens."""
    stack = {**STACK, **(stack or {})}
    values = {
        "data": {"max_length": 24},
        "reader": {"stack": stack},
        "writer": {"kind": "fertility", "max_fertility": 4, "stack": stack, **writer},
        "objectives": [{"kind": "fertility"}],
    }
    torch.manual_seed(3)
    model = build(validate(values, origin="test"), source_size=13, target_size=13).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


@pytest.fixture
def batch():
    return Batch({"source": pad([[5, 6, 7, 8, END], [9, END]]), "target": pad([[5, 5, 7, END], [9, 9, 9, 9, 9, END]])})


def test_tokens_are_copied_as_often_as_their_fertility_says():
    source = pad([[5, 6, 7, END], [8, 9, END]])
    fertilities = torch.tensor([[2, 0, 1, 9], [0, 3, 9, 9]])  # of END and of padding: none, whatever is given
    copies = copy_by_fertility(source.ids, source.mask, fertilities, torch.tensor([3, 2]), 5)
    assert copies.tolist() == [[5, 5, 7, END, PAD], [9, 9, END, PAD, PAD]]
    more = copy_by_fertility(source.ids, source.mask, fertilities, torch.tensor([5, 5]), 6)
    assert more.tolist() == [[5, 5, 7, 7, 7, END], [9, 9, 9, 9, 9, END]]  # too few fertilities: the last token


@torch.no_grad()
def test_positional_attention_is_that_of_the_formula(batch):
    """softmax(Q K^T / sqrt(d_k)) V, where Q and K are projected position encodings and V the states."""
    layer = make().writer.stack.blocks[0].positional
    x = torch.randn(2, 5, 12)
    encoding = Sinusoidal(12)(torch.arange(5)[None])[0]
    heads = []
    for h in range(3):
        (wq, wk), (bq, bk) = layer.position.weight[h], layer.position.bias[h]
        weights = ((encoding @ wq.T + bq) @ (encoding @ wk.T + bk).T / 4**0.5).softmax(-1)
        heads.append(weights @ (x @ layer.value.weight[h, 0].T + layer.value.bias[h, 0]))
    expected = torch.cat(heads, -1) @ layer.heads.out.weight.T + layer.heads.out.bias
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_no_position_attends_to_itself_and_positions_weigh_the_same_in_every_row(batch):
    model = make()
    with record(model.writer) as maps:
        model.writer(batch["target"].ids, batch["target"].mask, model.read(batch))
    own = {name: weights for name, weights in maps.items() if name.endswith(".self")}
    assert len(own) == 2
    for weights in own.values():
        assert not weights.diagonal(dim1=-2, dim2=-1).any()
        torch.testing.assert_close(weights[1].sum(-1), torch.ones(3, 6))
    positional = [weights for name, weights in maps.items() if name.endswith(".positional")]
    for weights in positional:  # independent of the states; padding is left out
        torch.testing.assert_close(
            weights[0, :, :, :4] * weights[1, :, :, :4].sum(-1, keepdim=True), weights[1, :, :, :4]
        )
        assert not weights[0, :, :, 4:].any()
    assert len(positional) == 2


@pytest.mark.parametrize("switch", ["positional_attention", "attend_self"])
@torch.no_grad()
def test_each_mechanism_changes_the_states_and_can_be_left_out(batch, switch):
    default, changed = make(), make(**{switch: switch == "attend_self"})
    changed.load_state_dict(default.state_dict(), strict=False)
    states = [
        model.writer(batch["target"].ids, batch["target"].mask, model.read(batch)) for model in (default, changed)
    ]
    assert ((states[0] - states[1]).abs().amax(-1) > 1e-3)[batch["target"].mask].all()
    has = any("positional" in name for name in changed.state_dict())
    assert has == (switch == "attend_self")


@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_rows_alone_packed_and_in_repeated_passes_are_those_of_a_batch(batch, norm):
    model = make({"norm": norm})
    source, target = batch["source"], batch["target"]
    memory = model.read(batch)
    together = model.writer(target.ids, target.mask, memory)
    packed = pack_batch(batch)
    row = model.writer(packed["target"].ids, packed["target"].mask, model.read(packed))
    torch.testing.assert_close(row[0], together[target.mask], atol=1e-5, rtol=1e-5)
    alone = model.read(Batch({"source": pad([source.ids[0].tolist()])}))
    torch.testing.assert_close(model.writer(target.ids[:1, :4], None, alone)[0], together[0, :4], atol=1e-5, rtol=1e-5)
    assert repeated_passes.supports(model.writer.stack)
    logits = model.writer.build_canvas_decoder(memory, target.mask, target.ids.shape)(target.ids)
    torch.testing.assert_close(logits[target.mask], model.writer.head(together)[target.mask], atol=1e-4, rtol=1e-4)
    fertilities = model.writer.predict_fertilities(memory)
    torch.testing.assert_close(
        model.writer.predict_fertilities(model.read(packed))[1, :2], fertilities[1, :2], atol=1e-5, rtol=1e-5
    )


@torch.no_grad()
def test_a_position_that_is_alone_is_finite():
    model = make()
    batch = Batch({"source": pad([[5, END]]), "target": pad([[END]])})
    memory = model.read(batch)
    assert model.writer(batch["target"].ids, None, memory).isfinite().all()
    assert model.writer.build_canvas_decoder(memory, None, (1, 1))(batch["target"].ids).isfinite().all()


def test_embedding_and_output_are_those_of_the_reader():
    model, own = make(), make(tie="none")
    assert model.writer.embedding.tokens.weight is model.reader.embedding.tokens.weight is model.writer.output.weight
    assert own.writer.output.weight is not own.writer.embedding.tokens.weight is own.reader.embedding.tokens.weight


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"writer": {"kind": "fertility", "stack": {"window": 3}}},
            "attends to the whole output; leave writer.stack.w",
        ),
        (
            {"reader": {"embedding_dim": 8}},
            'copies token vectors of the reader; set reader.kind = "tokens", without emb',
        ),
        (
            {"writer": {"kind": "fertility", "positions": {"kind": "sinusoidal", "combine": "concat"}}},
            'adds positions to the vectors of the reader; set positions.combine = "add"',
        ),
        (
            {"objectives": [{"kind": "fill"}]},
            'a writer of kind "fertility" cannot be trained by the objective "fill"; use "fertility"',
        ),
        ({"task": "language-model", "reader": {"kind": "none"}}, "copies token vectors of the reader"),
        ({"writer": {"kind": "tokens"}}, 'a writer of kind "tokens" cannot be trained by the objective "fertility"'),
    ],
)
def test_what_does_not_go_together_is_said(changes, message):
    values = {"writer": {"kind": "fertility"}, "objectives": [{"kind": "fertility"}], **changes}
    with pytest.raises(SaccadeError) as error:
        validate(values, origin="test")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_widths_of_reader_and_writer_must_be_the_same():
    values = {
        "reader": {"stack": STACK},
        "writer": {"kind": "fertility", "stack": {**STACK, "dim": 24}},
        "objectives": [{"kind": "fertility"}],
    }
    with pytest.raises(SaccadeError, match="of width 12, but the writer has width 24; set the same stack.dim"):
        build(validate(values, origin="test"), source_size=9, target_size=9)
