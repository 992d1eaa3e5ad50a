"""Build our models in the sizes of a suite's case, for the contenders of all suites."""

from typing import Any

from saccade.config import schema
from saccade.model.build.model import build, build_writer
from saccade.model.model import Model
from saccade.model.writers.tokens import TokenWriter


def build_transformer(size: Any, *, dropout: float = 0.0, inner_dropout: float = 0.0) -> Model:
    """Build the model of the recipe `transformer`; `inner_dropout` applies in attention and feed-forward networks."""
    stack = schema.TransformerStack(
        layers=size.layers,
        dim=size.dim,
        heads=size.heads,
        ff=size.ff,
        dropout=dropout,
        attention_dropout=inner_dropout,
        ff_dropout=inner_dropout,
    )
    recipe = schema.Recipe(reader=schema.TokenReader(stack=stack), writer=schema.TokenWriter(stack=stack))
    return build(recipe, source_size=size.vocab, target_size=size.vocab)


def build_gpt2(size: Any, *, train: schema.Train | None = None) -> TokenWriter:
    """Build a GPT-2 style decoder-only model without dropout."""
    stack = schema.TransformerStack(
        layers=size.layers,
        dim=size.dim,
        heads=size.heads,
        ff=4 * size.dim,
        norm="pre",
        activation="gelu-tanh",
        dropout=0.0,
    )
    positions = schema.Learned(length=size.length)
    writer = schema.TokenWriter(stack=stack, positions=positions, scale_embedding=False, dropout=0.0, tie="output")
    return build_writer(writer, size=size.vocab, train=train)
