"""The families that are known: by the name in a config.json, and by the form of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from saccade.config.kinds import Custom
from saccade.config.load import validate
from saccade.config.schema import Recipe
from saccade.config.table import Table
from saccade.data.tokenization.tokenizer import Tokenizer
from saccade.errors import SaccadeError
from saccade.exchange.families.albert import ALBERT
from saccade.exchange.families.bart import BART, MARIAN
from saccade.exchange.families.bert import BERT, ROBERTA
from saccade.exchange.families.family import Config, Family
from saccade.exchange.families.gpt2 import GPT2
from saccade.exchange.families.gptneo import GPTNEO
from saccade.exchange.families.heads import STATES
from saccade.exchange.families.llama import LLAMA
from saccade.exchange.families.reformer import REFORMER
from saccade.exchange.families.t5 import T5
from saccade.exchange.families.vit import VIT
from saccade.exchange.families.whisper import WHISPER
from saccade.exchange.families.xlnet import XLNET

KNOWN = (MARIAN, BART, T5, GPT2, LLAMA, XLNET, GPTNEO, REFORMER, ROBERTA, BERT, ALBERT, VIT, WHISPER)
FAMILIES = {family.name: family for family in KNOWN}
ALONE = {  # of a recipe without a reader
    "task": "write", "reader": {"kind": "none"}, "predict": {"beam": 1, "sample": True},
    "objectives": [{"kind": "next-token", "smoothing": 0.0}],
}  # fmt: skip
DROPOUT = {"dropout", "attention_dropout", "ff_dropout", "drop_path"}  # changes no number of a trained model
# What a family leaves to weights, vocabulary and training.
FREE = {"init", "start", "output_bias", "tie", "changes", "pool"} | DROPOUT


def family_named(config: Config) -> Family:
    """The family of a folder."""
    name = config.values.get("model_type")
    family = FAMILIES.get(str(name))
    if family is None:
        raise SaccadeError(
            f"{config.origin}: model_type = {name!r} is not known; expected one of {', '.join(sorted(FAMILIES))}"
        )
    made, known = config.take("architectures", None) or [family.architecture], (family.architecture, *family.others)
    if not set(known) & set(made):
        raise SaccadeError(
            f"{config.origin}: architectures = {made} is another model than {' or '.join(known)}, which can be "
            f"imported of {name}; take a folder of that one"
        )
    return family


def family_of(recipe: Recipe, tokenizer: Tokenizer | None = None) -> Family:
    """The first family that says everything that a recipe says, that of its own name before others.

    Numbers of pieces, which mean something in some of them, are looked at where a tokenizer is given.
    """
    reasons, known = [], sorted(FAMILIES.values(), key=lambda family: family.name != recipe.name)
    for family in [family for family in known if not unlike(recipe, family)] or known:
        difference = differs(recipe, family)
        if not difference and family.refuses is not None and tokenizer is not None:
            difference = family.refuses(tokenizer)
        if not difference:
            return family
        reasons.append(f"{family.name}: {difference}")
    raise SaccadeError(f"no family can hold this model ({'; '.join(reasons)}){other_head(recipe, reasons)}")


def other_head(recipe: Recipe, reasons: Sequence[str]) -> str:
    """What to do where nothing but the head of a model that labels texts is unknown elsewhere."""
    if any(reason.endswith("reader.again = None") for reason in reasons):
        return "; such models read texts twice: train it with [reader.again] like the [writer] of the run it began with"
    if not recipe.task.predicts_labels or not any(": writer." in reason for reason in reasons):
        return ""
    if recipe.reader.is_causal:
        return "; train it with the head of GPT-2: writer.pooling=before-end writer.bias=false"
    width = getattr(getattr(recipe.reader, "stack", None), "dim", "DIM")
    return f"; train it with the head of BERT: writer.pooling=first writer.hidden={width} writer.activation=tanh"


def unlike(recipe: Recipe, family: Family) -> str:
    """Why a recipe is of another sort than a family: it does or reads something else."""
    if not can_hold(family, recipe):
        return f"task = {recipe.task.name!r}"
    for side in sides_of(recipe, family)[: 2 if recipe.task.writes_stepwise else 1]:
        part: Any = getattr(recipe, side)
        kind = family.reader if side == "reader" else "tokens"
        if part.kind != kind or not part.stack.is_transformer:  # a family names the kind of reader that it holds
            return f"{side} is no Transformer of {kind}"
    return ""


def sides_of(recipe: Recipe, family: Family) -> tuple[str, ...]:
    return ("reader", "writer") if family.reads or recipe.writer.is_label_head else ("writer",)


def differs(recipe: Recipe, family: Family) -> str:
    """The first setting that does not come back from the family's own settings."""
    other = unlike(recipe, family)
    if other:
        return other
    try:
        number = {"problem_type": "regression"} if recipe.writer.label_kind == "number" else {}
        tables = family.recipe(Config({**family.config(recipe), **number}, origin=family.name))
        if family.sense is not None and family.senses is not None:
            family.sense(Config(family.senses(recipe), origin=family.name), tables)
        again = validate({**tables, **({} if family.reads or recipe.task.predicts_labels else ALONE)})
    except SaccadeError as error:  # what it says of importing is no help here
        return str(error).removeprefix(f"{family.name}: ").partition("; ")[0]
    for side in sides_of(recipe, family):
        found = first_difference(getattr(recipe, side), getattr(again, side), side)
        if found:
            return found
    tie = family.apart if recipe.writer.tied is None else recipe.writer.tied
    shared = "all" if family.reads and family.reader == "tokens" else "output"
    return "" if tie in (shared, family.apart) else f"writer.tie = {tie!r}"


def can_hold(family: Family, recipe: Recipe) -> bool:
    """Whether models of the family do what the recipe's task does: write text, label, or give vectors."""
    task, heads = recipe.task, " ".join(family.others)
    encodes = task.learns_from_documents and not task.writes_stepwise
    if family.encodes:
        return encodes or task.predicts_labels
    if family.reader != "tokens":
        return task.writes_stepwise and bool(recipe.reader.medium)
    if not family.reads:
        return task.is_language_model or (task.predicts_labels and bool(family.others))
    if task.writes_stepwise:
        return not (task.is_language_model or recipe.reader.medium or recipe.writer.actions)
    return (task.predicts_labels and "Classification" in heads) or (encodes and STATES in heads)


def first_difference(ours: Any, theirs: Any, at: str) -> str:
    """Where two tables say something else."""
    if not isinstance(ours, Table | Custom):
        return "" if ours == theirs else f"{at} = {ours!r}"
    if type(ours) is not type(theirs):
        return f"{at}.kind = {getattr(ours, 'kind', None)!r}"
    ours, theirs = ours.trained_form(), theirs.trained_form()
    names = [name for name in type(ours).model_fields if name not in FREE]
    found = (first_difference(getattr(ours, name), getattr(theirs, name), f"{at}.{name}") for name in names)
    return next(filter(None, found), "")
