"""What goes together in recipes that read a picture and a question about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saccade.config.joined import ConcatJoin, QuestionJoin
from saccade.config.parts import JoinedReader, LabelWriter
from saccade.config.stacks import TransformerStack
from saccade.config.training import Label

if TYPE_CHECKING:
    from saccade.config.schema import Recipe


def misfits_of_joined(recipe: Recipe) -> str:
    """What does not go with questions about pictures, said in one line; nothing where all goes together."""
    reader = recipe.reader
    if not isinstance(reader, JoinedReader):
        return ""
    if reader.ask.init:
        return "reader.ask.init has no run that it could start from; set reader.init, or leave it out"
    if reader.look.init and isinstance(reader.join, QuestionJoin):
        return "reader.look.init is for what reads pictures, and the question alone reads none; leave it out"
    if isinstance(recipe.writer, LabelWriter) and recipe.writer.pooling != "mean" and one_by_one(reader):
        return (
            f"without reader.join.stack no state knows of the others, so that writer.pooling = "
            f'"{recipe.writer.pooling}" sees one cell or word alone; set it to "mean", or give a stack'
        )
    if reader.ask.causal and not isinstance(reader.ask.stack, TransformerStack):
        kind = reader.ask.stack.kind
        return f'reader.ask.causal = true is for a Transformer, got reader.ask.stack.kind = "{kind}"; leave it out'
    if any(isinstance(one, Label) and (one.mixup or one.cutmix) for one in recipe.objectives):
        return "a picture made of two has no one question, so that mixup and cutmix must be 0 here; set them to 0"
    return ""


def one_by_one(reader: JoinedReader) -> bool:
    """Whether cells and words stand side by side and nothing goes over both."""
    return isinstance(reader.join, ConcatJoin) and reader.join.stack is None
