"""What of a recipe goes together, and what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saccade.config.fitting_again import misfits_of_again
from saccade.config.fitting_ctc import misfits_of_ctc
from saccade.config.fitting_joined import misfits_of_joined
from saccade.config.fitting_media import misfits_of_media
from saccade.config.fitting_permuted import misfits_of_permuting, misfits_of_segments
from saccade.config.fitting_routes import misfits_of_walking
from saccade.config.fitting_spans import misfits_of_restoring, misfits_of_reversible
from saccade.config.hidden_patches import PatchWriter
from saccade.config.kinds import Custom
from saccade.config.parts import (
    FillWriter,
    Head,
    MaskedWriter,
    NoReader,
    PermutedWriter,
    StatesWriter,
    TokenReader,
    TokenWriter,
)
from saccade.config.playing import misfits_of_playing
from saccade.config.stacks import TransformerStack
from saccade.config.training import Masked, Reward

if TYPE_CHECKING:
    from saccade.config.schema import Recipe

# Objectives by which each kind of writer learns; the first ones are what a message advises.
LEARNS_BY = {
    "tokens": ("next-token", "r-drop", "scheduled", "reinforce", "reward"),
    "actions": ("next-token",),
    "fill": ("fill",),
    "label": ("label",),
    "number": ("regress",),
    "tags": ("tag",),
    "masked": ("masked",),
    "permuted": ("permuted",),
    "states": ("masked",),
    "patches": ("patches",),
    "values": ("temporal-difference",),
}
OF_PAIRS = ("loss", "bleu", "gleu", "accuracy", "wer", "cer")  # metrics of what is written for a pair
OF_LABELS = {
    "label": ("loss", "accuracy", "f1", "matthews"),
    "number": ("loss", "pearson", "spearman"),
    "tags": ("loss", "accuracy", "f1"),
}


# Tasks whose writers are heads over what was read
HEADS_OF = {
    "label": (Head, '"label", "number" or "tags"'),
    "encode": (MaskedWriter | PermutedWriter | StatesWriter | PatchWriter, '"masked", "permuted" or "states"'),
}


ADVISED = ("translate", "describe", "restore")  # tasks whose outputs a language model may have a say in


def misfits(recipe: Recipe) -> str:
    """What of a recipe does not go with its task, said in one line; nothing where all goes together."""
    if recipe.task.name == "interact":
        return misfits_of_playing(recipe)
    if misfit := misfits_of_restoring(recipe) or misfits_of_reversible(recipe) or misfits_of_segments(recipe):
        return misfit
    if misfit := misfits_of_joined(recipe) or misfits_of_media(recipe) or misfits_of_ctc(recipe):
        return misfit
    if misfit := misfits_of_walking(recipe) or misfits_of_again(recipe):
        return misfit
    none = isinstance(recipe.reader, NoReader)
    if none != (recipe.task.name == "write"):
        return (
            f'task = "{recipe.task.name}" goes with reader.kind = "{"none" if not none else "tokens"}", '
            f'got "{recipe.reader.kind}"; change one of them'
        )
    tables, fitting = HEADS_OF.get(recipe.task.name, (TokenWriter | FillWriter, '"tokens" or "fill"'))
    if not isinstance(recipe.writer, tables | Custom):
        return (
            f'task = "{recipe.task.name}" goes with writer.kind = {fitting}, got "{recipe.writer.kind}"; '
            "change one of them"
        )
    if recipe.predict.lm and (recipe.task.name not in ADVISED or isinstance(recipe.writer, FillWriter)):
        return "predict.lm advises what is written token by token about something that was read; leave it out"
    if recipe.task.name == "label":
        return _misfits_of_labels(recipe)
    if recipe.task.name == "encode":
        return _misfits_of_encoding(recipe)
    return _misfits_of_writing(recipe) if none else _misfits_of_pairs(recipe)


def unlearnable(recipe: Recipe) -> str:
    """Which objective the writer of a recipe cannot learn by, said in one line; nothing where it can."""
    known = LEARNS_BY.get(recipe.writer.kind, ())
    for objective in [] if isinstance(recipe.writer, Custom) else recipe.objectives:
        if not isinstance(objective, Custom) and objective.kind not in known:
            fitting = " or ".join(f'"{kind}"' for kind in known[:2])
            return (
                f'a writer of kind "{recipe.writer.kind}" cannot learn by the objective "{objective.kind}"; '
                f"take {fitting}, or change writer.kind"
            )
    return ""


def _misfits_of_pairs(recipe: Recipe) -> str:
    if recipe.task.name == "walk":
        return ""
    if recipe.train.metric not in OF_PAIRS:
        return f'train.metric = "{recipe.train.metric}" is of labels; for outputs it is one of {", ".join(OF_PAIRS)}'
    return _misfits_of_causal_reading(recipe)


def _misfits_of_labels(recipe: Recipe) -> str:
    fitting = OF_LABELS.get(recipe.writer.kind, ("loss",))
    if recipe.train.metric not in fitting:
        return (
            f'train.metric = "{recipe.train.metric}" is not measured of a writer of kind "{recipe.writer.kind}"; '
            f"it is one of {', '.join(fitting)}"
        )
    if recipe.tokenizer.dropout:
        return "tokenizer.dropout is for pairs and documents; with labels set tokenizer.dropout = 0"
    if not recipe.tokenizer.shared:
        return "labels are no texts, so that there is one vocabulary; set tokenizer.shared = true"
    return _misfits_of_causal_reading(recipe)


def _misfits_of_encoding(recipe: Recipe) -> str:
    tokenizer, learned = recipe.tokenizer, recipe.tokenizer.kind not in ("file", "init")
    pairs = any(isinstance(objective, Masked) and objective.pairs != "none" for objective in recipe.objectives)
    if isinstance(recipe.writer, MaskedWriter) and pairs != recipe.writer.pairs:
        return (
            f"writer.pairs = {str(recipe.writer.pairs).lower()} needs "
            + ('objectives.0.pairs = "next" or "order"' if recipe.writer.pairs else 'objectives.0.pairs = "none"')
            + ", by which it learns whether one part of a text follows another; change one of them"
        )
    if pairs and recipe.data.cross:
        return "parts of a text that follow each other are of one document; set data.cross = false"
    if pairs and tokenizer.dropout:
        return "documents are cut into sentences once, so that tokenizer.dropout must be 0 with objectives.0.pairs"
    if learned and pairs and not tokenizer.begin:
        return "whether parts follow each other is told by the first state; set tokenizer.begin = true"
    if learned and isinstance(recipe.writer, MaskedWriter) and not tokenizer.mask:
        return "tokens are hidden by a piece of the tokenizer; set tokenizer.mask = true"
    if not tokenizer.shared:
        return 'task = "encode" has one vocabulary; set tokenizer.shared = true'
    if recipe.train.metric != "loss":
        metric = recipe.train.metric
        return f'task = "encode" has no references for train.metric = "{metric}"; set train.metric = "loss"'
    return misfits_of_permuting(recipe) or _misfits_of_causal_reading(recipe)


def _misfits_of_causal_reading(recipe: Recipe) -> str:
    reader = recipe.reader
    if isinstance(reader, TokenReader) and reader.causal and not isinstance(reader.stack, TransformerStack):
        return f'reader.causal = true is for a Transformer, got reader.stack.kind = "{reader.stack.kind}"; leave it out'
    return ""


def _misfits_of_writing(recipe: Recipe) -> str:
    writer, without = recipe.writer, 'nothing is read (reader.kind = "none")'
    kinds = [objective.kind for objective in recipe.objectives if isinstance(objective, Reward)]
    if isinstance(writer, FillWriter):
        return f'{without}, so that no length is known to a writer of kind "fill"; set writer.kind = "tokens"'
    if isinstance(writer, TokenWriter) and not isinstance(writer.stack, TransformerStack | Custom):
        kind = writer.stack.kind
        return f'{without}, and a {kind} stack writes about something; set writer.stack.kind = "transformer"'
    if isinstance(writer, TokenWriter) and writer.tie in ("all", "input"):
        return f'{without}, so that writer.tie = "{writer.tie}" has no reader to share with; set writer.tie = "output"'
    if kinds:
        return f'{without}, so that there are no pairs for the objective "{kinds[0]}"; take "next-token" or "r-drop"'
    if not recipe.tokenizer.shared:
        return f"{without}, so that there is one vocabulary; set tokenizer.shared = true"
    if "reader" in recipe.freeze:
        return f"{without}, so that there is no reader to freeze; leave it out"
    if recipe.train.metric != "loss":
        return f'{without}, so that train.metric = "{recipe.train.metric}" has no references; set train.metric = "loss"'
    return ""
