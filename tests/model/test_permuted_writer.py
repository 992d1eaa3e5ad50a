"""XLNet models: tied weights, segment ids and parameter names of the two-stream writer."""

from typing import Any

import torch

from saccade.config.load import load, validate
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.run import named_weights
from saccade.train.batches.pack import pack_batch

READER: dict[str, Any] = {
    "stack": {"layers": 2, "dim": 12, "heads": 3, "ff": 17, "attention_bias": False},
    "positions": {"kind": "transformer-xl", "content_bias": True, "relative_segments": True},
    "scale_embedding": False,
}
OBJECTIVES: dict[str, Any] = {"objectives": [{"kind": "permuted"}]}
ROWS = [[7, 6, END, 11, 9, END], [8, END], [10, END, 4, 5, END]]


def model(**writer: Any) -> Model:
    torch.manual_seed(3)
    given = {"task": "encode", "reader": READER, "writer": {"kind": "permuted", **writer}, **OBJECTIVES}
    made = build(validate(given), source_size=13, target_size=13).double().eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return made


def test_the_output_is_the_embedding_where_it_is_tied() -> None:
    tied, apart = model(), model(tie="none")
    assert tied.writer.output.weight is tied.reader.embedding.tokens.weight
    assert apart.writer.output.weight is not apart.reader.embedding.tokens.weight
    assert "writer.output.bias" in named_weights(tied) and "writer.output.weight" not in named_weights(tied)


def test_what_is_read_depends_on_segments_padded_and_packed() -> None:
    made, batch = model(), Batch({"source": pad(ROWS)})
    assert made.capabilities.packed_rows
    padded, packed = made.read(batch).states, made.read(pack_batch(batch)).states
    torch.testing.assert_close(padded[batch["source"].mask], packed[0])
    made.reader.uses_segments = False
    blind = made.read(batch).states
    assert not torch.allclose(blind[0], padded[0])
    torch.testing.assert_close(blind[1, :2], padded[1, :2])  # one segment alone


def test_a_reader_for_labels_has_the_same_names() -> None:
    label = validate({"task": "classify", "reader": READER, "writer": {"kind": "label", "pooling": "last"},
                      "objectives": [{"kind": "label"}]})  # fmt: skip
    names = [
        {name for name in named_weights(made) if name.startswith("reader.")}
        for made in (model(), build(label, source_size=13, target_size=4))
    ]
    assert names[0] == names[1] and len(names[0]) == 1 + 2 * 15


def test_attention_alone_has_no_biases() -> None:
    names = named_weights(model())
    assert "reader.stack.blocks.0.feedforward.up.bias" in names
    assert not {f"reader.stack.blocks.0.self.{part}.bias" for part in ("project", "heads.out")} & set(names)


def test_base_form_has_the_size_of_the_paper() -> None:
    """12 layers of 768: those of BERT, one more matrix for distances in each, biases, segments, and no positions."""
    with torch.device("meta"):
        made = build(load("xlnet"), source_size=32000, target_size=32000)
    dim, ff = 768, 3072
    layer = 5 * dim**2 + 3 * dim + 2 * dim + 2 * dim * ff + ff + dim + 4 * dim
    assert sum(x.numel() for x in made.parameters()) == 12 * layer + 32000 * dim + dim + 32000 == 116_750_336
