"""Training of low-rank additions alone: which matrices have one, and how a run becomes an ordinary one again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from saccade.config.schema import Lora, Recipe
from saccade.errors import SaccadeError
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.blocks.feedforward import FeedForward
from saccade.layers.blocks.lowrank import attach, merged
from saccade.model.model import Model

# Where our own blocks keep their matrices, by what `on` calls them
MATRICES: dict[str, dict[type[nn.Module], tuple[str, ...]]] = {
    "attention": {SelfAttention: ("project", "heads.out"), CrossAttention: ("query", "memory", "heads.out")},
    "feedforward": {FeedForward: ("up", "gate", "down")},
}


def add_low_rank(model: Model, recipe: Recipe) -> list[str]:
    """Freezes the model and puts additions beside its matrices; a head over what was read is trained whole."""
    settings = recipe.train.lora
    if settings is None:
        return []
    starts = [recipe.init, recipe.reader.init_run, recipe.writer.init_run]
    if not any(starts):
        raise SaccadeError("train.lora trains beside weights that were trained before; give init=RUN, or leave it out")
    if recipe.freeze:
        raise SaccadeError("train.lora freezes all matrices that were trained before by itself; leave freeze out")
    for name, parameter in model.named_parameters():
        if not (recipe.writer.is_label_head and name.startswith("writer.")):
            parameter.requires_grad_(False)
    found = list(matrices(model, settings))
    if not found:
        raise SaccadeError(
            f"train.lora.on = {', '.join(settings.on)}: this model has no such matrices; it needs a Transformer"
        )
    for module in found:
        attach(module, rank=settings.rank, scale=scale_of(settings))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return [f"train.lora: {trained:,} numbers are trained, beside {len(found)} frozen matrices"]


def matrices(model: nn.Module, settings: Lora) -> Iterator[nn.Module]:
    """Those of the blocks that are meant, each once, also where layers share them."""
    met: set[int] = set()
    for owner in model.modules():
        for what in settings.on:
            for name in MATRICES[what].get(type(owner), ()):
                part = owner.get_submodule(name) if has(owner, name) else None
                if part is not None and getattr(part, "weight", None) is not None and id(part.weight) not in met:
                    met.add(id(part.weight))
                    yield part


def has(owner: nn.Module, name: str) -> bool:
    """A gate may be missing, and an output where heads are split."""
    place, _, last = name.rpartition(".")
    return getattr(owner.get_submodule(place) if place else owner, last, None) is not None


def scale_of(settings: Lora) -> float:
    return settings.alpha / settings.rank


def plain_weights(weights: Mapping[str, Tensor], recipe: Recipe) -> Mapping[str, Tensor]:
    """Weights under the names that the recipe's model has without additions: these are joined with them."""
    lora = recipe.train.lora
    return weights if lora is None else merged(weights, scale=scale_of(lora))
