"""Encoder models: segments, shared layers, narrow embeddings, heads over states."""

from typing import Any

import torch

from saccade.config.load import load, validate
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizer import END
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.readers.tokens import get_segment_ids
from saccade.model.run import named_weights
from saccade.model.writers.labels import pool_states
from saccade.train.batches.pack import pack_batch

ROWS = [[5, 6, END, 7, 8, 9, END], [5, 4, END], [6, END, END, 7, END], [5, END, 9, 9, END]]


def encoder(**reader: Any) -> Model:
    stack = {"layers": 3, "dim": 14, "heads": 2, "ff": 22, "dropout": 0.0, **reader.pop("stack", {})}
    recipe = validate(
        {
            "task": "encode",
            "tokenizer": {"cls_token": True, "mask_token": True},
            "reader": {"stack": stack, "dropout": 0.0, **reader},
            "writer": {"kind": "masked", "pairs": True, "dropout": 0.0},
            "objectives": [{"kind": "masked", "pairs": "order"}],
        }
    )
    return build(recipe, source_size=11, target_size=11)


def test_segment_ids_count_end_tokens() -> None:
    batch = Batch({"source": pad(ROWS)})
    counted = get_segment_ids(batch["source"].ids, None)
    assert counted[0].tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert counted[2, :5].tolist() == [0, 0, 1, 2, 2]
    packed = pack_batch(batch)["source"]
    assert torch.equal(get_segment_ids(packed.ids, packed.mask.positions)[0], counted[batch["source"].mask])


def test_segments_change_the_states_and_packing_does_not() -> None:
    model, batch = encoder(segments=2, embedding_norm=True).double(), Batch({"source": pad(ROWS)})
    padded, packed = model.read(batch), model.read(pack_batch(batch))
    torch.testing.assert_close(packed.states[0], padded.states[batch["source"].mask])
    torch.testing.assert_close(pool_states(packed, "first"), pool_states(padded, "first"))
    table = model.reader.embedding.segments.weight
    [gradient] = torch.autograd.grad(padded.states[1, :3].sum() * 1.0 + padded.states[1, :3].square().sum(), table)
    assert gradient[0].abs().sum() > 0 and gradient[1].abs().sum() == 0  # a text of one part


def test_layers_that_share_weights_are_one_and_stored_once() -> None:
    model, plain = encoder(stack={"share_layers": True}), encoder()
    assert len({id(block) for block in model.reader.stack.blocks}) == 1 and len(model.reader.stack.blocks) == 3
    assert {name.split(".")[3] for name in named_weights(model) if ".blocks." in name} == {"0"}
    with torch.no_grad():
        for block in plain.reader.stack.blocks:
            block.load_state_dict(model.reader.stack.blocks[0].state_dict())
        plain.reader.embedding.load_state_dict(model.reader.embedding.state_dict())
    batch = Batch({"source": pad(ROWS)})
    torch.testing.assert_close(model.read(batch).states, plain.read(batch).states)


def test_narrow_token_vectors_are_made_wide_and_tied_to_the_output() -> None:
    model = encoder(embedding_dim=5, segments=2, embedding_norm=True, positions={"kind": "learned", "length": 256})
    shapes = {name: tuple(tensor.shape) for name, tensor in named_weights(model).items()}
    assert shapes["reader.embedding.tokens.weight"] == (11, 5) and shapes["reader.embedding.project.weight"] == (14, 5)
    assert shapes["writer.transform.weight"] == (5, 14) and "writer.output.weight" not in shapes
    assert model.writer.output.weight is model.reader.embedding.tokens.weight
    assert model.writer.head(model.writer(torch.randn(3, 14))).shape == (3, 11)


def test_encoders_take_packed_rows() -> None:
    assert encoder().capabilities.packed_rows


def test_norms_around_a_stack_have_its_epsilon() -> None:
    with torch.device("meta"):
        model = build(load("bert"), source_size=9, target_size=9)
    assert model.reader.embedding.norm.eps == model.writer.norm.eps == 1e-12
