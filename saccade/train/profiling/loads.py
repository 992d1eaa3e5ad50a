"""Measures how evenly a trained model distributes tokens among its experts."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from saccade.data.batching.batch import Batch
from saccade.errors import SaccadeError
from saccade.layers.auxiliary import merge_aux
from saccade.layers.blocks.experts import Experts, ExpertUsage, relative_load, sum_usage
from saccade.model.model import Model
from saccade.predict.search.likelihood import build_writer_inputs


@torch.no_grad()
def compute_expert_loads(model: Model, batches: Iterable[Batch]) -> dict[str, list[float]]:
    """Return the load of each expert relative to the mean, by the name of its mixture-of-experts layer.

    The model runs in eval mode on all batches with teacher forcing.
    """
    names = {part: name for name, part in model.named_modules() if isinstance(part, Experts)}
    if not names:
        raise SaccadeError("this model has no experts; give one with stack.experts, such as that of the recipe moe")
    training, total = model.training, ExpertUsage()
    model.eval()
    for batch in batches:
        target = batch["target"]
        with model.collect_aux() as reports:
            memory = model.read(batch)
            model.write(build_writer_inputs(model.writer, target, memory), target.mask, memory)
        uses = sum_usage(merge_aux(*reports).get("routing", ()))
        total = {part: used + total.get(part, 0) for part, used in uses.items()}
    model.train(training)
    return {names[part]: relative_load(used).tolist() for part, used in total.items()}
