"""How many numbers a model learns, part by part, and how many of them each token passes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from saccade.config.schema import Recipe
from saccade.errors import SaccadeError
from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.blocks.transformer import TransformerStack
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.run import Undrawn
from saccade.train.optimizer import freeze

PARTS = (
    "embedding",
    "input",  # what makes states of pictures or sound, before the stack
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
LOOKED_UP = ("embedding", "positions")  # rows are taken from a table, nothing is multiplied
OF_HEADS = {"output", "transform", "hidden", "follows"}  # names of what stands behind all layers
CLASSES = 2  # of labels or actions, which only data tells
NAMED = (  # what modules of a stack are called, and what they are
    ("term", "relative positions"),
    ("self", "self-attention"),
    ("attention", "self-attention"),
    ("cross", "cross-attention"),
)
# Parts of a writer that every token of the source passes once
OF_MEMORY = (".cross.memory", ".cross.score.key", ".cross.around")


class Use(NamedTuple):
    """A parameter at one place of a model."""

    side: str  # reader or writer
    part: str  # one of PARTS
    of_source: bool  # whether it works on the tokens that are read
    parameter: nn.Parameter
    is_matrix: bool
    share: float  # of it that a token passes: of experts, those that are chosen; more than 1 before cells are made


def on_meta(recipe: Recipe, *, vocabulary: int | None = None) -> Model:
    """The model of a recipe without its numbers: its size costs nothing."""
    own = [part.kind for part in (recipe.reader, recipe.writer) if part.is_custom]
    if own:
        raise SaccadeError(f"plan knows only the kinds that come with saccade, got '{own[0]}'")
    size = recipe.tokenizer.size if vocabulary is None else vocabulary
    with torch.device("meta"), Undrawn():
        told = CLASSES if recipe.writer.predicts_classes else size
        model = build(recipe, source_size=size, target_size=told)
    freeze(model, recipe.freeze)
    return model.train()


def uses(model: nn.Module) -> Iterator[Use]:
    """Every parameter wherever it is used: what is tied or shared by layers comes more than once."""
    for path, owner in model.named_modules(remove_duplicate=False):
        for name, parameter in owner.named_parameters(recurse=False):
            side = path.partition(".")[0]
            of_source = side == "reader" or any(place in f".{path}" for place in OF_MEMORY)
            share = declared(owner, "share_per_token", times_of(model, path))
            is_matrix = parameter.dim() > 1 and "bias" not in name
            yield Use(side, part_of(model, path, owner), of_source, parameter, is_matrix, share)


def times_of(model: nn.Module, path: str) -> float:
    """How often a cell of a picture passes what is at this place: convolutions before it see more of them."""
    around = [model.get_submodule(path.rsplit(".", n)[0]) for n in (1, 2)]
    return declared(around[0], "times", declared(around[1], "times", 1.0))


def declared(module: nn.Module, name: str, default: float) -> float:
    """What a module declares of its cost; most modules, among them all of PyTorch, declare nothing."""
    return float(getattr(module, name, default))


def part_of(model: nn.Module, path: str, owner: nn.Module) -> str:
    """What a module at this place of a model does."""
    names = path.split(".")
    if isinstance(owner, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm):
        return "norms"
    if "positions" in names and ("embedding" in names or "stack" not in names):
        return "positions"
    if "embedding" in names:
        return "embedding"
    if names[0] == "reader" and "stack" not in names:
        return "input"
    for name, part in NAMED:
        if name in names:
            return part
    if "feedforward" in names or "between" in names:
        return "feed-forward"
    if "stack" not in names:
        return "head" if OF_HEADS & set(names) else "other"
    operation = str(model.get_submodule(".".join(names[: names.index("stack") + 1])).operation)
    return operation if operation in PARTS else "other"


def by_part(model: nn.Module) -> dict[str, dict[str, int]]:
    """{part: {side: numbers}} for the parts that there are; what is tied is counted where it comes first."""
    met: set[nn.Parameter] = set()
    found: dict[str, dict[str, int]] = {part: {} for part in PARTS}
    for use in uses(model):
        sides = found[use.part]
        sides[use.side] = sides.get(use.side, 0) + (0 if use.parameter in met else use.parameter.numel())
        met.add(use.parameter)
    return {part: sides for part, sides in found.items() if sides}


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def trained(model: nn.Module) -> int:
    """Those that are not frozen."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def passed(model: nn.Module, *, of_source: bool) -> float:
    """Numbers that a token of the source, or one of the target, is multiplied with: all but tables, and the head."""
    return sum(
        use.share * use.parameter.numel()
        for use in uses(model)
        if use.of_source == of_source and use.part not in LOOKED_UP
    )


def products(model: nn.Module) -> int:
    """Numbers of the matrices in products, each once, without the head: what autocast makes narrow copies of."""
    found = {u.parameter for u in uses(model) if u.part not in (*LOOKED_UP, "head") and u.is_matrix}
    return sum(parameter.numel() for parameter in found)


def stack_of(part: Any) -> TransformerStack | None:
    """The stack of a reader or writer, where it is a Transformer's with attention as everybody has it."""
    stack = part.stack
    plain = isinstance(stack, TransformerStack) and all(isinstance(block.self, SelfAttention) for block in stack.blocks)
    return stack if plain else None


def is_head(part: Any) -> bool:
    """Whether a part has no stack of its own."""
    return part is not None and part.stack is None


def written_share(recipe: Recipe, model: Model) -> float | None:
    """Tokens that pass the writer for each that is read, where it is a head; None where it has a stack."""
    if not is_head(model.writer) or model.reader is None:
        return None
    rates = (objective.predicted_share for objective in recipe.objectives)
    return next(filter(None, rates), 0.0) if model.writer.output is not None else 0.0
