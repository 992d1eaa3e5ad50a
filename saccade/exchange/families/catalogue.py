"""The supported Hugging Face architectures, found by the `model_type` of config.json or by the settings of a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from saccade.config.kinds import Custom
from saccade.config.load import validate
from saccade.config.plugins import Kinds, load_installed
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
from saccade.exchange.families.heads import ENCODER_MODEL
from saccade.exchange.families.llama import LLAMA
from saccade.exchange.families.reformer import REFORMER
from saccade.exchange.families.t5 import T5
from saccade.exchange.families.vit import VIT
from saccade.exchange.families.whisper import WHISPER
from saccade.exchange.families.xlnet import XLNET

KNOWN = (MARIAN, BART, T5, GPT2, LLAMA, XLNET, GPTNEO, REFORMER, ROBERTA, BERT, ALBERT, VIT, WHISPER)
FAMILIES = {family.name: family for family in KNOWN}
LANGUAGE_MODEL_TABLES: dict[str, Any] = {  # tables of a recipe without a reader
    "task": "language-model", "reader": {"kind": "none"}, "predict": {"beam": 1, "sample": True},
    "objectives": [{"kind": "next-token", "label_smoothing": 0.0}],
}  # fmt: skip
DROPOUT_KEYS = {
    "dropout",
    "attention_dropout",
    "ff_dropout",
    "drop_path",
}  # does not affect the outputs of a trained model
# Keys that `find_first_difference` does not compare: weights, vocabulary or training determine them.
UNCOMPARED_KEYS = {"init", "start_token", "output_bias", "tie", "augment", "pooler"} | DROPOUT_KEYS


def list_families(kinds: Kinds) -> dict[str, Family]:
    """Return the architectures by `model_type`, those that the user brings included."""
    own = {name: kind for name, kind in kinds.items() if isinstance(kind, Family)}
    for name, family in own.items():
        if family.name != name:
            raise SaccadeError(f"kinds={{'{name}': ...}} is a family with the name '{family.name}'; use that name")
        if name in FAMILIES:
            raise SaccadeError(f"'{name}' is a family of saccade already; give yours another name")
    return FAMILIES | own


def iter_installed_families() -> Iterator[Family]:
    """Yield the architectures of installed plugins, which are loaded only if no other one fits."""
    yield from (kind for kind, _ in load_installed().values() if isinstance(kind, Family))


def get_family(config: Config, kinds: Kinds | None = None) -> Family:
    """Return the architecture that a config.json names."""
    name, kinds = config.values.get("model_type"), Kinds() if kinds is None else kinds
    families = list_families(kinds)
    family = families.get(str(name)) or kinds.find(str(name))
    if not isinstance(family, Family):
        raise SaccadeError(
            f"{config.origin}: unknown model_type = {name!r}; expected one of {', '.join(sorted(families))}; your own: "
            f"--plugin FILE.py, or kinds={{'{name}': ...}} in Python{kinds.describe_failures()}"
        )
    config.set_defaults(family.defaults)
    architectures, known = (
        config.take("architectures", None) or [family.architecture],
        (family.architecture, *family.other_architectures),
    )
    if not set(known) & set(architectures):
        raise SaccadeError(
            f"{config.origin}: architectures = {architectures} cannot be imported; expected a {name} folder with "
            f"{' or '.join(known)}"
        )
    return family


def find_family(recipe: Recipe, tokenizer: Tokenizer | None = None) -> Family:
    """Return the first architecture whose config.json can express all settings of a recipe.

    The architecture that has the name of the recipe is tried first. If a tokenizer is given, its ids are checked too.
    """
    reasons, known = [], sorted(list_families(recipe.kinds).values(), key=lambda family: family.name != recipe.name)
    candidates = [family for family in known if not find_kind_difference(recipe, family)] or known
    for family in chain(candidates, iter_installed_families()):
        difference = find_difference(recipe, family)
        if not difference and family.check_tokenizer is not None and tokenizer is not None:
            difference = family.check_tokenizer(tokenizer)
        if not difference:
            return family
        reasons.append(f"{family.name}: {difference}")
    raise SaccadeError(
        f"no Hugging Face architecture matches this model ({'; '.join(reasons)}){suggest_head(recipe, reasons)}"
    )


def suggest_head(recipe: Recipe, reasons: Sequence[str]) -> str:
    """Return advice for a labelling model whose head is the only part that no architecture has."""
    if any(reason.endswith("reader.second_pass = None") for reason in reasons):
        return (
            "; such classifiers use their decoder as pooler: train it with [reader.second_pass] like the [writer] of "
            "the run that it was initialized from"
        )
    if not recipe.task.predicts_labels or not any(": writer." in reason for reason in reasons):
        return ""
    if recipe.reader.is_causal:
        return "; train it with the head of GPT-2: writer.pooling=before-end writer.bias=false"
    width = getattr(getattr(recipe.reader, "stack", None), "dim", "DIM")
    return f"; train it with the head of BERT: writer.pooling=first writer.hidden_dim={width} writer.activation=tanh"


def find_kind_difference(recipe: Recipe, family: Family) -> str:
    """Return why task or kind of reader and writer do not fit an architecture; "" if they do."""
    if not supports_task(family, recipe):
        return f"task = {recipe.task.name!r}"
    for side in get_sides(recipe, family)[: 2 if recipe.task.writes_stepwise else 1]:
        part: Any = getattr(recipe, side)
        kind = family.reader_kind if side == "reader" else "tokens"
        if part.kind != kind or not part.stack.is_transformer:
            return f"{side} is not a Transformer over {kind}"
    return ""


def get_sides(recipe: Recipe, family: Family) -> tuple[str, ...]:
    return ("reader", "writer") if family.has_encoder or recipe.writer.is_label_head else ("writer",)


def find_difference(recipe: Recipe, family: Family) -> str:
    """Return the first setting that is lost when a recipe is converted to config.json and back; "" if none is."""
    other = find_kind_difference(recipe, family)
    if other:
        return other
    try:
        regression = {"problem_type": "regression"} if recipe.writer.label_kind == "number" else {}
        tables = family.to_recipe(Config({**family.to_config(recipe), **regression}, origin=family.name))
        if family.read_preprocessor is not None and family.to_preprocessor is not None:
            family.read_preprocessor(Config(family.to_preprocessor(recipe), origin=family.name), tables)
        restored = validate(
            {**tables, **({} if family.has_encoder or recipe.task.predicts_labels else LANGUAGE_MODEL_TABLES)}
        )
    except SaccadeError as error:  # without its advice, which is about importing
        return str(error).removeprefix(f"{family.name}: ").partition("; ")[0]
    for side in get_sides(recipe, family):
        found = find_first_difference(getattr(recipe, side), getattr(restored, side), side)
        if found:
            return found
    tie = family.untied if recipe.writer.tied is None else recipe.writer.tied
    shared = "all" if family.has_encoder and family.reader_kind == "tokens" else "output"
    return "" if tie in (shared, family.untied) else f"writer.tie = {tie!r}"


def supports_task(family: Family, recipe: Recipe) -> bool:
    """Whether models of this architecture can perform the recipe's task: generate text, label, or embed."""
    task, heads = recipe.task, " ".join(family.other_architectures)
    encodes = task.learns_from_documents and not task.writes_stepwise
    if family.is_encoder_only:
        return encodes or task.predicts_labels
    if family.reader_kind != "tokens":
        return task.writes_stepwise and bool(recipe.reader.medium)
    if not family.has_encoder:
        return task.is_language_model or (task.predicts_labels and bool(family.other_architectures))
    if task.writes_stepwise:
        return not (task.is_language_model or recipe.reader.medium or recipe.writer.only_tasks)
    return (task.predicts_labels and "Classification" in heads) or (encodes and ENCODER_MODEL in heads)


def find_first_difference(ours: Any, theirs: Any, key: str) -> str:
    """Return the first key in which two tables differ, with our value; "" if they are equal."""
    if not isinstance(ours, Table | Custom):
        return "" if ours == theirs else f"{key} = {ours!r}"
    if type(ours) is not type(theirs):
        return f"{key}.kind = {getattr(ours, 'kind', None)!r}"
    ours, theirs = ours.to_trained_form(), theirs.to_trained_form()
    names = [name for name in type(ours).model_fields if name not in UNCOMPARED_KEYS]
    found = (find_first_difference(getattr(ours, name), getattr(theirs, name), f"{key}.{name}") for name in names)
    return next(filter(None, found), "")
