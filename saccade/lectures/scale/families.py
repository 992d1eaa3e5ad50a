"""The row of the systems that came after: a recipe of each, how it learns, and what is new in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from saccade.config.load import load
from saccade.config.schema import Recipe
from saccade.lectures.claims import Compared, Measured, check, measured, near, same
from saccade.model.build.model import build
from saccade.plan.counts import on_meta, parameters


class Member(NamedTuple):
    """A system: its recipe, the parameters that its paper or its release has, its objective, and what is new in it."""

    name: str
    recipe: str
    said: float
    precision: float
    learns: str
    trait: str
    found: Callable[[Any], str]
    released: tuple[str, ...] = ()  # settings in which the released model differs from the recipe


def hides(recipe: Recipe) -> str:
    """How tokens are hidden and parts of texts are paired."""
    objective: Any = recipe.objectives[0]
    pairs = {"none": "", "next": ", next sentence", "order": ", sentence order"}[objective.pairs]
    return f"masked{' anew each time' if objective.dynamic else ''}{pairs}"


def first(recipe: Recipe) -> str:
    return recipe.objectives[0].kind


def said(value: bool, what: str) -> str:
    return what if value else f"not {what}"


MEMBERS = (
    Member("GPT-2", "gpt2", 124.4e6, 0.1e6, "next-token", "reads nothing but what it wrote",
           lambda r: said(r.reader.is_none, "reads nothing but what it wrote")),
    Member("BERT", "bert", 110e6, 0.5e6, "masked, next sentence", "sees both sides of a word",
           lambda r: said(not r.reader.causal, "sees both sides of a word")),
    Member("GPT-3", "gpt3", 175e9, 0.5e9, "next-token", "dense and banded layers in turn",
           lambda r: said(r.writer.stack.window[0] == "none" and r.writer.stack.window[1] != "none",
                          "dense and banded layers in turn")),
    Member("XLNet", "xlnet", 117e6, 0.5e6, "permuted", "remembers the text before",
           lambda r: said(r.objectives[0].memory > 0 and r.reader.positions.kind == "transformer-xl",
                          "remembers the text before")),
    Member("ALBERT", "albert", 12e6, 0.3e6, "masked anew each time, sentence order", "layers share weights",
           lambda r: said(layers_share(r) and r.reader.embedding_dim < r.reader.stack.dim, "layers share weights")),
    Member("RoBERTa", "roberta", 125e6, 0.5e6, "masked anew each time", "full rows across documents",
           lambda r: said(r.data.cross, "full rows across documents")),
    Member("Reformer", "reformer", 2.75e6, 0.005e6, "next-token", "hashing, reversible",
           lambda r: said("lsh" in r.writer.stack.attention and r.writer.stack.residual == "reversible",
                          "hashing, reversible"),
           released=("data.max_length=524288", "writer.positions.shape=[512, 1024]")),
    Member("T5", "t5", 77e6, 0.5e6, "next-token", "hidden spans become text",
           lambda r: said(r.task.get_target_ratio(r) < 1 and r.tokenizer.sentinels > 0, "hidden spans become text")),
)  # fmt: skip


def layers_share(recipe: Recipe) -> bool:
    """Whether twice the layers have as many numbers."""
    reader: Any = recipe.reader
    deeper = reader.stack.model_copy(update={"layers": 2 * reader.stack.layers})
    twice = recipe.model_copy(update={"reader": reader.model_copy(update={"stack": deeper})})
    return parameters(on_meta(twice)) == parameters(on_meta(recipe))


@check(
    103,
    "S0:12, S4:242",
    "GPT-2, BERT, GPT-3, XLNet, ALBERT, RoBERTa, Reformer, T5: each is a recipe over the same blocks.",
    formula=r"\mathrm{recipe} \to \mathrm{blocks}",
    code=(build, on_meta),
)
def families() -> Measured:
    compared: list[Compared] = []
    rows = [("system", "recipe", "parameters", "learns by", "what is new")]
    for member in MEMBERS:
        recipe = load(member.recipe, overrides=member.released)
        count = parameters(on_meta(recipe))
        learns = hides(recipe) if first(recipe) == "masked" else first(recipe)
        compared += [
            near(f"{member.name}: parameters", count, member.said, within=member.precision),
            same(f"{member.name} learns by", learns, member.learns),
            same(f"{member.name}: what is new", member.found(recipe), member.trait),
        ]
        rows.append((member.name, member.recipe, f"{count:,}", member.learns, member.trait))
    return measured(*compared, table=rows)
