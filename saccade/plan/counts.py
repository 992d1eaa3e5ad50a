"""Count the parameters of a model by part, and those that are active for a token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from saccade.config.kinds import list_custom_kinds
from saccade.config.schema import Recipe
from saccade.errors import SaccadeError
from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.blocks.transformer import TransformerStack
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.run import SkipInit
from saccade.train.optimizer import freeze

PARTS = (
    "embedding",
    "input",  # patches, convolutions or frames, before the stack
    "positions",
    "relative positions",
    "self-attention",
    "cross-attention",
    "feed-forward",
    "recurrence",
    "convolution",
    "norms",
    "head",
    "other",
)
LOOKUP_PARTS = ("embedding", "positions")  # lookups without a matmul
HEAD_MODULES = {"output", "transform", "hidden", "follows"}  # module names behind the last layer
DEFAULT_CLASSES = 2  # labels or actions: the real number depends on the data
MODULE_PARTS = (  # module name in a stack -> part
    ("term", "relative positions"),
    ("self", "self-attention"),
    ("attention", "self-attention"),
    ("cross", "cross-attention"),
)
# Modules of a writer that are applied to source tokens, once per token
SOURCE_MODULES = (".cross.memory", ".cross.score.key", ".cross.heads.score.key", ".cross.around")


class ParameterUse(NamedTuple):
    """A parameter in one of the modules that use it."""

    side: str  # reader or writer
    part: str  # one of PARTS
    is_source: bool  # whether it is applied to source tokens
    parameter: nn.Parameter
    is_matrix: bool
    share: float  # times it is used per token: below 1 for experts, above 1 for convolutions before downsampling


def build_on_meta(recipe: Recipe, *, vocabulary: int | None = None) -> Model:
    """Build the model of a recipe on the meta device, which allocates no memory."""
    own = [*list_custom_kinds(recipe.reader), *list_custom_kinds(recipe.writer)]
    if own:
        raise SaccadeError(f"plan supports only the kinds that come with saccade, got '{own[0]}'")
    size = recipe.tokenizer.size if vocabulary is None else vocabulary
    with torch.device("meta"), SkipInit():
        target_size = DEFAULT_CLASSES if recipe.writer.predicts_classes else size
        model = build(recipe, source_size=size, target_size=target_size)
    freeze(model, recipe.freeze)
    return model.train()


def iterate_uses(model: nn.Module) -> Iterator[ParameterUse]:
    """Yield each parameter for every module that uses it: tied and shared ones occur more than once."""
    for path, owner in model.named_modules(remove_duplicate=False):
        for name, parameter in owner.named_parameters(recurse=False):
            side = path.partition(".")[0]
            is_source = side == "reader" or any(place in f".{path}" for place in SOURCE_MODULES)
            share = get_declared_cost(owner, "active_fraction", get_repetitions(model, path))
            is_matrix = parameter.dim() > 1 and "bias" not in name
            yield ParameterUse(side, get_part(model, path, owner), is_source, parameter, is_matrix, share)


def get_repetitions(model: nn.Module, path: str) -> float:
    """Return how often a module is applied per state: convolutions before downsampling see more positions."""
    parents = [model.get_submodule(path.rsplit(".", n)[0]) for n in (1, 2)]
    outer = get_declared_cost(parents[1], "positions_per_state", 1.0)
    return get_declared_cost(parents[0], "positions_per_state", outer)


def get_declared_cost(module: nn.Module, name: str, default: float) -> float:
    """Return an attribute by which a module declares its cost; most modules have none."""
    return float(getattr(module, name, default))


def get_part(model: nn.Module, path: str, owner: nn.Module) -> str:
    """Return the part (one of PARTS) that a module belongs to, by its path."""
    names = path.split(".")
    if isinstance(owner, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm):
        return "norms"
    if "positions" in names and ("embedding" in names or "stack" not in names):
        return "positions"
    if "embedding" in names:
        return "embedding"
    if names[0] == "reader" and "stack" not in names:
        return "input"
    for name, part in MODULE_PARTS:
        if name in names:
            return part
    if "feedforward" in names or "between" in names:
        return "feed-forward"
    if "stack" not in names:
        return "head" if HEAD_MODULES & set(names) else "other"
    operation = str(model.get_submodule(".".join(names[: names.index("stack") + 1])).operation)
    return operation if operation in PARTS else "other"


def count_by_part(model: nn.Module) -> dict[str, dict[str, int]]:
    """Return {part: {side: parameters}}; tied parameters are counted at their first use."""
    seen: set[nn.Parameter] = set()
    found: dict[str, dict[str, int]] = {part: {} for part in PARTS}
    for use in iterate_uses(model):
        sides = found[use.part]
        sides[use.side] = sides.get(use.side, 0) + (0 if use.parameter in seen else use.parameter.numel())
        seen.add(use.parameter)
    return {part: sides for part, sides in found.items() if sides}


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def count_trainable(model: nn.Module) -> int:
    """Count the parameters that are not frozen."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def count_active(model: nn.Module, *, is_source: bool) -> float:
    """Count the parameters used in matmuls per source (or target) token: all but lookup tables, and the head."""
    return sum(
        use.share * use.parameter.numel()
        for use in iterate_uses(model)
        if use.is_source == is_source and use.part not in LOOKUP_PARTS
    )


def count_matmul_parameters(model: nn.Module) -> int:
    """Count the parameters of matrices in matmuls, without the head: those that autocast copies to bfloat16."""
    found = {u.parameter for u in iterate_uses(model) if u.part not in (*LOOKUP_PARTS, "head") and u.is_matrix}
    return sum(parameter.numel() for parameter in found)


def get_transformer_stack(part: Any) -> TransformerStack | None:
    """Return the stack of a reader or writer if it is a Transformer with standard self-attention, else None."""
    stack = part.stack
    plain = isinstance(stack, TransformerStack) and all(isinstance(block.self, SelfAttention) for block in stack.blocks)
    return stack if plain else None


def is_head(part: Any) -> bool:
    """Whether a reader or writer has no stack of its own."""
    return part is not None and part.stack is None


def get_predicted_share(recipe: Recipe, model: Model) -> float | None:
    """Return the predicted tokens per source token of a head; None if the writer has a stack."""
    if not is_head(model.writer) or model.reader is None:
        return None
    rates = (objective.prediction_rate for objective in recipe.objectives)
    return next(filter(None, rates), 0.0) if model.writer.output is not None else 0.0
