"""How evenly a trained model uses its experts."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from saccade.data.batching.batch import Batch
from saccade.errors import SaccadeError
from saccade.layers.auxiliary import merge_aux
from saccade.layers.blocks.experts import Experts, Uses, relative_load, sum_use
from saccade.model.model import Model
from saccade.predict.search.likelihood import seen_while_writing


@torch.no_grad()
def expert_loads(model: Model, batches: Iterable[Batch]) -> dict[str, list[float]]:
    """Of each group of experts, by its name in the model: how many tokens each expert gets, in units of their mean.

    The model reads the sources and writes the targets of all batches, without noise.
    """
    names = {part: name for name, part in model.named_modules() if isinstance(part, Experts)}
    if not names:
        raise SaccadeError("this model has no experts; give one with stack.experts, such as that of the recipe moe")
    training, total = model.training, Uses()
    model.eval()
    for batch in batches:
        target = batch["target"]
        with model.collect_aux() as reports:
            model.write(seen_while_writing(model.writer, target), target.mask, model.read(batch))
        uses = sum_use(merge_aux(*reports).get("routing", ()))
        total = {part: used + total.get(part, 0) for part, used in uses.items()}
    model.train(training)
    return {names[part]: relative_load(used).tolist() for part, used in total.items()}
