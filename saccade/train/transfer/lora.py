"""LoRA (Hu et al. 2022): adds trainable low-rank matrices to a frozen model, and merges them into its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from saccade.config.schema import Lora, Recipe
from saccade.errors import SaccadeError
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.blocks.feedforward import FeedForward
from saccade.layers.blocks.lowrank import attach_lora, merge_lora
from saccade.model.model import Model

# Names of the matrices in each class of module, by the entry of `train.lora.target_modules`
MATRICES: dict[str, dict[type[nn.Module], tuple[str, ...]]] = {
    "attention": {SelfAttention: ("project", "heads.out"), CrossAttention: ("query", "memory", "heads.out")},
    "feedforward": {FeedForward: ("up", "gate", "down")},
}


def add_lora(model: Model, recipe: Recipe) -> list[str]:
    """Freeze the model and add low-rank matrices to it; a classification head stays trainable."""
    settings = recipe.train.lora
    if settings is None:
        return []
    init_runs = [recipe.init, recipe.reader.init_run, recipe.writer.init_run]
    if not any(init_runs):
        raise SaccadeError("train.lora adapts weights that were trained before; give init=RUN, or leave it out")
    if recipe.freeze:
        raise SaccadeError("train.lora freezes all weights that were trained before; leave freeze out")
    for name, parameter in model.named_parameters():
        if not (recipe.writer.is_label_head and name.startswith("writer.")):
            parameter.requires_grad_(False)
    found = list(find_matrices(model, settings))
    if not found:
        raise SaccadeError(
            f"train.lora.target_modules = {', '.join(settings.target_modules)}: this model has no such matrices; it "
            "needs a Transformer"
        )
    for module in found:
        attach_lora(module, rank=settings.rank, scale=get_scale(settings))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return [f"train.lora: {trained:,} parameters are trained, beside {len(found)} frozen matrices"]


def find_matrices(model: nn.Module, settings: Lora) -> Iterator[nn.Module]:
    """Yield the modules of all target matrices, each once even if layers share it."""
    seen: set[int] = set()
    for owner in model.modules():
        for target in settings.target_modules:
            for name in MATRICES[target].get(type(owner), ()):
                module = owner.get_submodule(name) if has_matrix(owner, name) else None
                if module is not None and getattr(module, "weight", None) is not None and id(module.weight) not in seen:
                    seen.add(id(module.weight))
                    yield module


def has_matrix(owner: nn.Module, name: str) -> bool:
    """Whether a module has this submodule: a gate is optional, and split heads have no output matrix."""
    parent, _, last = name.rpartition(".")
    return getattr(owner.get_submodule(parent) if parent else owner, last, None) is not None


def get_scale(settings: Lora) -> float:
    return settings.alpha / settings.rank


def merge_lora_weights(weights: Mapping[str, Tensor], recipe: Recipe) -> Mapping[str, Tensor]:
    """Merge low-rank matrices into the weights they belong to, so that names are those of the model without LoRA."""
    lora = recipe.train.lora
    return weights if lora is None else merge_lora(weights, scale=get_scale(lora))
