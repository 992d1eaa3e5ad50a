"""The families that are known: by the name in a config.json, and by the form of a recipe."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from saccade.config.load import validate
from saccade.config.schema import Recipe, TransformerStack
from saccade.config.stacks import EPSILON
from saccade.errors import SaccadeError
from saccade.exchange.bart import BART
from saccade.exchange.family import Config, Family
from saccade.exchange.gpt2 import GPT2
from saccade.exchange.llama import LLAMA
from saccade.exchange.marian import MARIAN
from saccade.exchange.t5 import T5

FAMILIES = {family.name: family for family in (MARIAN, BART, T5, GPT2, LLAMA)}
ALONE = {"task": "write", "reader": {"kind": "none"}}  # of a recipe without a reader
DROPOUT = {"dropout", "attention_dropout", "ff_dropout"}  # changes no number of a trained model
FREE = {"init", "start", "output_bias", "tie"} | DROPOUT  # what a family leaves to weights, vocabulary and training


def family_named(config: Config) -> Family:
    """The family of a folder."""
    name = config.values.get("model_type")
    family = FAMILIES.get(str(name))
    if family is None:
        raise SaccadeError(
            f"{config.origin}: model_type = {name!r} is not known; expected one of {', '.join(sorted(FAMILIES))}"
        )
    made = config.take("architectures", None) or [family.architecture]
    if family.architecture not in made:
        raise SaccadeError(
            f"{config.origin}: architectures = {made} is another model than {family.architecture}, the one that can "
            f"be imported of {name}; take a folder of that one"
        )
    return family


def family_of(recipe: Recipe) -> Family:
    """The first family that says everything that a recipe says."""
    reasons = []
    for family in FAMILIES.values():
        difference = differs(recipe, family)
        if not difference:
            return family
        reasons.append(f"{family.name}: {difference}")
    raise SaccadeError(f"no family can hold this model ({'; '.join(reasons)})")


def differs(recipe: Recipe, family: Family) -> str:
    """The first setting that does not come back from the family's own settings."""
    if (recipe.task == "translate") != family.reads:
        return f"task = {recipe.task!r}"
    sides = ("reader", "writer") if family.reads else ("writer",)
    for side in sides:
        part: Any = getattr(recipe, side)
        if part.kind != "tokens" or part.stack.kind != "transformer":
            return f"{side} is no Transformer of tokens"
    try:
        again = validate(
            {**family.recipe(Config(family.config(recipe), origin=family.name)), **({} if family.reads else ALONE)}
        )
    except SaccadeError as error:
        return str(error)
    for side in sides:
        found = first_difference(getattr(recipe, side), getattr(again, side), side)
        if found:
            return found
    tie = recipe.writer.tie  # type: ignore[union-attr]
    return "" if tie in ("all" if family.reads else "output", family.apart) else f"writer.tie = {tie!r}"


def first_difference(ours: Any, theirs: Any, at: str) -> str:
    """Where two tables say something else."""
    if not isinstance(ours, BaseModel):
        return "" if ours == theirs else f"{at} = {ours!r}"
    if type(ours) is not type(theirs):
        return f"{at}.kind = {getattr(ours, 'kind', None)!r}"
    if isinstance(ours, TransformerStack) and isinstance(theirs, TransformerStack):
        ours, theirs = spelled_out(ours), spelled_out(theirs)
    names = [name for name in type(ours).model_fields if name not in FREE]
    found = (first_difference(getattr(ours, name), getattr(theirs, name), f"{at}.{name}") for name in names)
    return next(filter(None, found), "")


def spelled_out(stack: TransformerStack) -> TransformerStack:
    """The same stack, with the numbers that follow from others where it says none."""
    follow = {
        "norm_epsilon": EPSILON[stack.norm_kind], "head_dim": stack.dim // stack.heads, "kv_heads": stack.heads,
    }  # fmt: skip
    return stack.model_copy(update={name: number for name, number in follow.items() if getattr(stack, name) is None})
