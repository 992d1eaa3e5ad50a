"""The loss of a micro-batch, eager or compiled, and the running sums for the next report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saccade.config.schema import Train
from saccade.data.batching.batch import Batch
from saccade.errors import SaccadeError
from saccade.layers.regions import compiled_regions
from saccade.model.model import Model
from saccade.train.augment.augment import Augmentation
from saccade.train.checkpoint import Json
from saccade.train.distributed.ranks import Ranks
from saccade.train.machine import autocast, get_accumulation_dtype
from saccade.train.objectives.objectives import compute_terms
from saccade.train.objectives.terms import Objective, Term


class LossSums(NamedTuple):
    total: Tensor  # call backward on it; gradients are then divided by the count of all micro-batches and processes
    count: Tensor  # type: ignore[assignment]  # hides a method of tuples
    terms: dict[str, Term]  # detached, for reports

    def clone(self) -> LossSums:
        """Return a copy that shares no memory."""
        terms = {name: Term(one.sum.clone(), one.count + 0, one.weight) for name, one in self.terms.items()}
        return LossSums(self.total.clone(), self.count.clone(), terms)


Step = Callable[[Batch], LossSums]


class MicroBatchLoss(nn.Module):
    """Model and objectives as one module, which DistributedDataParallel can wrap.

    The loss of a step is the sum over its micro-batches m and terms of n_m / n * weight * sum_m / count_m, where n_m is
    the count of the first term and n its sum over all micro-batches and processes. For terms counted like the first
    this is weight * (sum of sums / sum of counts), however a batch is split; any other is a mean in its micro-batch.
    """

    def __init__(
        self,
        model: Model,
        *,
        objectives: Sequence[Objective],
        settings: Train,
        device: torch.device,
        augmentation: Augmentation | None = None,
    ) -> None:
        """`augmentation` is applied to batches in training mode only."""
        super().__init__()
        self.model, self.objectives, self.settings, self.device = model, objectives, settings, device
        self.augmentation = augmentation

    def forward(self, batch: Batch, generator: torch.Generator) -> LossSums:
        if self.augmentation is not None and self.training:
            batch = self.augmentation(batch, generator)
        with autocast(self.settings, self.device), report_compile_errors(self.settings.compile and self.training):
            if self.model.runs_hooks:
                terms = self.model(lambda: compute_terms(self.objectives, self.model, batch, generator))
            else:
                terms = compute_terms(self.objectives, self.model, batch, generator)
        first = next(iter(terms.values()))
        count = torch.as_tensor(first.count, device=self.device)
        total = torch.zeros((), device=self.device)
        for term in terms.values():
            if term.weight:
                share = count / torch.as_tensor(term.count).clamp(min=1)  # 1 for terms with the same count as the first
                total = total + term.weight * term.sum * share
        return LossSums(total, count, {name: term._replace(sum=term.sum.detach()) for name, term in terms.items()})


@contextmanager
def report_compile_errors(on: bool) -> Iterator[None]:
    """Compile regions inside the block if `on`; a failure of torch.compile becomes a SaccadeError."""
    try:
        with compiled_regions(on):
            yield
    except torch._dynamo.exc.TorchDynamoException as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise SaccadeError(f"torch.compile failed ({reason}); go on with train.compile=false") from error


class Meter:
    """Sums of loss terms since the last `read`, kept on the device so that nothing synchronizes before it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.clear()

    def clear(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.weights: dict[str, float] = {}
        self.tokens = 0  # real tokens of all fields in this process

    def add(self, terms: dict[str, Term], *, tokens: int = 0) -> None:
        for name, term in terms.items():
            count = torch.as_tensor(term.count, device=self.device)
            pair = torch.stack((term.sum.to(get_accumulation_dtype(self.device)), count))
            self.sums[name] = self.sums[name] + pair if name in self.sums else pair
            self.weights[name] = term.weight
        self.tokens += tokens

    def state(self, ranks: Ranks) -> dict[str, Any]:
        """Return the sums over all processes, as JSON."""
        pairs = [
            *self.sums.values(),
            torch.tensor([self.tokens, 0], device=self.device, dtype=get_accumulation_dtype(self.device)),
        ]
        *totals, (tokens, _) = ranks.all_reduce(torch.stack(pairs)).tolist()
        return {"sums": dict(zip(self.sums, totals, strict=True)), "weights": self.weights, "tokens": int(tokens)}

    def restore(self, state: Json) -> None:
        """Restore the sums of all processes (on rank 0 only, since `state` adds them up)."""
        kind = get_accumulation_dtype(self.device)
        self.sums = {name: torch.tensor(pair, device=self.device, dtype=kind) for name, pair in state["sums"].items()}
        self.weights, self.tokens = dict(state["weights"]), state["tokens"]

    def read(self, ranks: Ranks) -> dict[str, float]:
        """Return the mean of each term over all processes, their weighted sum `loss`, and `tokens`; reset the sums."""
        state = self.state(ranks)
        means = {name: total / max(count, 1) for name, (total, count) in state["sums"].items()}
        loss = sum(self.weights[name] * mean for name, mean in means.items() if self.weights[name])
        self.clear()
        return {"loss": loss, **means, "tokens": state["tokens"]}
