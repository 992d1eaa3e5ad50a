"""Check on the successors of the Transformer: each is a recipe with its own objective and one new idea."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from saccade.config.load import load
from saccade.config.schema import Recipe
from saccade.lectures.claims import CheckResult, Comparison, build_result, check, expect_equal, expect_near
from saccade.model.build.model import build
from saccade.plan.counts import build_on_meta, count_parameters


class System(NamedTuple):
    """A system: its recipe, the reported number of parameters with its tolerance, its objective, and its new idea."""

    name: str
    recipe: str
    reported: float
    precision: float
    objective: str
    trait: str
    find_trait: Callable[[Any], str]
    overrides: tuple[str, ...] = ()  # settings in which the released model differs from the recipe


def describe_masking(recipe: Recipe) -> str:
    """Describe a masked language modelling objective: static or dynamic masking, and the sentence pair task."""
    objective: Any = recipe.objectives[0]
    pairs = {"none": "", "next": ", next sentence", "order": ", sentence order"}[objective.pairs]
    return f"{'dynamic' if objective.dynamic_masking else 'static'} masking{pairs}"


def get_objective(recipe: Recipe) -> str:
    return recipe.objectives[0].kind


def describe(value: bool, what: str) -> str:
    return what if value else f"not {what}"


SYSTEMS = (
    System("GPT-2", "gpt2", 124.4e6, 0.1e6, "next-token", "decoder only",
           lambda r: describe(r.reader.is_none, "decoder only")),
    System("BERT", "bert", 110e6, 0.5e6, "static masking, next sentence", "attends to both sides of a word",
           lambda r: describe(not r.reader.causal, "attends to both sides of a word")),
    System("GPT-3", "gpt3", 175e9, 0.5e9, "next-token", "alternating dense and banded attention",
           lambda r: describe(r.writer.stack.window[0] == "none" and r.writer.stack.window[1] != "none",
                          "alternating dense and banded attention")),
    System("XLNet", "xlnet", 117e6, 0.5e6, "permuted", "recurrent memory of the previous segment",
           lambda r: describe(r.objectives[0].memory_length > 0 and r.reader.positions.kind == "transformer-xl",
                          "recurrent memory of the previous segment")),
    System("ALBERT", "albert", 12e6, 0.3e6, "dynamic masking, sentence order", "layers share weights",
           lambda r: describe(shares_layers(r) and r.reader.embedding_dim < r.reader.stack.dim,
                          "layers share weights")),
    System("RoBERTa", "roberta", 125e6, 0.5e6, "dynamic masking", "sequences cross document boundaries",
           lambda r: describe(r.data.cross_document, "sequences cross document boundaries")),
    System("Reformer", "reformer", 2.75e6, 0.005e6, "next-token", "LSH attention, reversible layers",
           lambda r: describe("lsh" in r.writer.stack.attention and r.writer.stack.residual == "reversible",
                          "LSH attention, reversible layers"),
           overrides=("data.max_length=524288", "writer.positions.shape=[512, 1024]")),
    System("T5", "t5", 77e6, 0.5e6, "next-token", "generates masked spans",
           lambda r: describe(r.task.get_target_ratio(r) < 1 and r.tokenizer.sentinels > 0, "generates masked spans")),
)  # fmt: skip


def shares_layers(recipe: Recipe) -> bool:
    """Whether a model with twice as many layers has the same number of parameters."""
    reader: Any = recipe.reader
    deeper = reader.stack.model_copy(update={"layers": 2 * reader.stack.layers})
    twice = recipe.model_copy(update={"reader": reader.model_copy(update={"stack": deeper})})
    return count_parameters(build_on_meta(twice)) == count_parameters(build_on_meta(recipe))


@check(
    103,
    "S0:12, S4:242",
    "GPT-2, BERT, GPT-3, XLNet, ALBERT, RoBERTa, Reformer and T5 are recipes over the same Transformer blocks.",
    formula=r"\mathrm{recipe} \to \mathrm{blocks}",
    code=(build, build_on_meta),
)
def families() -> CheckResult:
    compared: list[Comparison] = []
    rows = [("system", "recipe", "parameters", "objective", "new idea")]
    for system in SYSTEMS:
        recipe = load(system.recipe, overrides=system.overrides)
        count = count_parameters(build_on_meta(recipe))
        objective = describe_masking(recipe) if get_objective(recipe) == "masked" else get_objective(recipe)
        compared += [
            expect_near(f"{system.name}: parameters", count, system.reported, within=system.precision),
            expect_equal(f"{system.name}: objective", objective, system.objective),
            expect_equal(f"{system.name}: new idea", system.find_trait(recipe), system.trait),
        ]
        rows.append((system.name, system.recipe, f"{count:,}", system.objective, system.trait))
    return build_result(*compared, table=rows)
