"""The non-autoregressive writer: what it attends to, and its length prediction."""

import pytest
import torch

from saccade.data.batching.batch import Batch, Tokens, pad
from saccade.data.tokenization.tokenizers import END, PAD, START
from saccade.errors import SaccadeError
from saccade.layers.memory import Memory
from saccade.model.writers.fill import MASK, FillWriter, build_masked_canvas, soft_copy
from saccade.train.batches.pack import pack_batch


@pytest.fixture
def filler(model):
    """A small non-autoregressive model; settings of the writer by dotted keys."""
    stack = "{ layers = 2, dim = 12, heads = 3, ff = 17 }"
    fills = (
        f"writer={{ kind = 'fill', max_length_difference = 3, stack = {stack} }}",
        "objectives=[{ kind = 'fill' }]",
    )
    return lambda *overrides: model(*fills, *overrides)


def test_a_blank_canvas_has_masks_and_then_the_end():
    assert MASK == START
    assert build_masked_canvas(torch.tensor([4, 1, 2]), 5).tolist() == [
        [MASK, MASK, MASK, END, PAD],
        [END, PAD, PAD, PAD, PAD],
        [MASK, END, PAD, PAD, PAD],
    ]


@torch.no_grad()
def test_every_position_attends_to_every_other(filler, batch):
    writer, memory = filler().writer, filler().read(batch)
    canvas, mask = batch["target"].ids, batch["target"].mask
    changed = canvas.clone()
    changed[0, 4] = 5 if canvas[0, 4] != 5 else 6
    before, after = (writer(ids, mask, memory) for ids in (canvas, changed))
    assert (before[0] != after[0]).any(-1)[mask[0]].all()
    assert torch.equal(before[1:], after[1:])


@pytest.mark.parametrize("copy", ["true", "false"])
@torch.no_grad()
def test_sequences_in_a_batch_equal_those_alone(filler, batch, copy):
    model = filler(f"writer.copy_source={copy}")
    source, target = batch["source"], batch["target"]
    canvas = build_masked_canvas(target.mask.sum(1), target.ids.shape[1])
    together, lengths = (
        model.writer(canvas, target.mask, model.read(batch)),
        model.writer.predict_lengths(model.read(batch)),
    )
    for row in range(3):
        s, t = int(source.mask[row].sum()), int(target.mask[row].sum())
        alone = model.read(Batch({"source": pad([source.ids[row, :s].tolist()])}))
        torch.testing.assert_close(
            model.writer(canvas[row : row + 1, :t], None, alone)[0], together[row, :t], atol=1e-5, rtol=0
        )
        single = model.writer.predict_lengths(alone)
        torch.testing.assert_close(single.logits[0], lengths.logits[row], atol=1e-5, rtol=0)
        assert int(single.min_length[0]) == int(lengths.min_length[row]) == s - 3


@torch.no_grad()
def test_packed_and_padded_sequences_agree(filler, batch):
    model = filler()
    mask, packed = batch["target"].mask, pack_batch(batch, budget=512)
    canvas = torch.where(torch.rand(mask.shape) < 0.5, MASK, batch["target"].ids)
    row = pack_batch(Batch({"source": batch["source"], "target": Tokens(canvas, mask)}), budget=512)["target"]
    memories = model.read(batch), model.read(packed)
    expected = model.writer(canvas, mask, memories[0])[mask]
    torch.testing.assert_close(
        model.writer(row.ids, row.mask, memories[1])[0, : len(expected)], expected, atol=1e-5, rtol=0
    )
    lengths = [model.writer.predict_lengths(memory) for memory in memories]
    torch.testing.assert_close(lengths[1].logits[:3], lengths[0].logits, atol=1e-5, rtol=0)
    assert torch.equal(lengths[1].min_length[:3], lengths[0].min_length)


def test_what_is_copied_is_about_as_far_on_in_the_source():
    """Five positions over three states: position t corresponds to t / 2 of the source."""
    memory = Memory(torch.eye(4)[None], torch.tensor([[True, True, True, False]]))
    near = torch.exp(-torch.tensor([[0, 1, 2], [0.5, 0.5, 1.5], [1, 0, 1], [1.5, 0.5, 0.5], [2, 1, 0]]))
    weights = torch.cat((near / near.sum(1, keepdim=True), torch.zeros(5, 1)), 1)
    torch.testing.assert_close(soft_copy(memory, None, (1, 5)), weights[None])
    longer = soft_copy(memory, torch.arange(7)[None] < 5, (1, 7))
    torch.testing.assert_close(longer[:, :5], weights[None])


def test_only_masked_positions_get_the_soft_copy(filler, batch):
    model = filler()
    memory, seen = model.read(batch), []
    model.writer.stack.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    for copies in (True, False):
        model.writer.copy_source = copies
        model.writer(torch.tensor([[MASK, 7, END]]), None, Memory(memory.states[:1], memory.mask[:1]))
    assert (seen[0] != seen[1]).any(-1).tolist() == [[True, False, False]]


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["writer.copy_source=false"],
        ["writer.positions.kind=rotary"],
        ["writer.positions={ kind = 'learned', combine = 'concat' }", "writer.tie=none"],
    ],
)
@torch.no_grad()
def test_passes_give_the_logits_of_the_whole_writer(filler, batch, changes):
    model = filler(*changes)
    memory, target = model.read(batch), batch["target"]
    over = model.writer.build_canvas_decoder(memory, target.mask, target.ids.shape)
    for canvas in (build_masked_canvas(target.mask.sum(1), 6), target.ids):
        expected = model.writer.head(model.writer(canvas, target.mask, memory))
        torch.testing.assert_close(over(canvas)[target.mask], expected[target.mask], atol=1e-4, rtol=0)


def test_weights_have_the_names_of_any_writer(filler, model):
    """So that a non-autoregressive model can be warm-started from its teacher."""
    names = {name for name, _ in model().named_parameters()}
    assert {name for name, _ in filler().named_parameters()} - names == {
        f"writer.length.{layer}.{part}" for layer in (0, 2) for part in ("weight", "bias")
    }
    assert isinstance(filler().writer, FillWriter)


def test_copying_needs_one_width(filler):
    with pytest.raises(SaccadeError, match=r"the reader has width 12 and the writer 15; set the same stack.dim"):
        filler("writer.stack.dim=15", "writer.tie=output")
    assert filler("writer.stack.dim=18", "writer.tie=output", "writer.copy_source=false")


def test_tied_tables_need_one_vocabulary(filler):
    with pytest.raises(SaccadeError, match='writer.tie = "all" needs one vocabulary'):
        filler("tokenizer.shared=false")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["writer={ kind = 'fill' }"],
            'a writer of kind "fill" cannot be trained by the objective "next-token"; use "fill"',
        ),
        (
            ["objectives=[{ kind = 'fill' }]"],
            'a writer of kind "tokens" cannot be trained by the objective "fill"; use "next',
        ),
    ],
)
def test_writer_and_objective_must_fit(recipe, overrides, said):
    with pytest.raises(SaccadeError, match=said):
        recipe(*overrides)
