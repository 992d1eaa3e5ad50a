"""What one micro-batch adds to the loss, eager or compiled, and what is summed up for the next report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saccade.config.schema import Train
from saccade.data.batching.batch import Batch
from saccade.errors import SaccadeError
from saccade.layers.regions import compiled_regions
from saccade.model.model import Model
from saccade.train.augment.augment import Change
from saccade.train.checkpoint import Json
from saccade.train.distributed.ranks import Ranks
from saccade.train.machine import autocast, widest
from saccade.train.objectives.objectives import all_terms
from saccade.train.objectives.terms import Objective, Term


class Sums(NamedTuple):
    total: Tensor  # to be differentiated, and divided by the count of all micro-batches and processes of the step
    count: Tensor  # type: ignore[assignment]  # hides a method of tuples
    terms: dict[str, Term]  # for reports, without gradients


class MicroLoss(nn.Module):
    """Model and objectives as one module, so that it can be distributed as a whole.

    The loss of a step is the sum over its micro-batches m and terms of n_m / n * weight * sum_m / count_m, where n_m is
    the count of the first term and n its sum over all micro-batches and processes. For terms counted like the first
    this is weight * (sum of sums / sum of counts), however a batch is cut; any other is a mean in its micro-batch.
    """

    def __init__(
        self,
        model: Model,
        *,
        objectives: Sequence[Objective],
        settings: Train,
        device: torch.device,
        change: Change | None = None,
    ) -> None:
        """`change` is what is done to batches of training alone, at random."""
        super().__init__()
        self.model, self.objectives, self.settings, self.device = model, objectives, settings, device
        self.change = change

    def forward(self, batch: Batch, generator: torch.Generator) -> Sums:
        if self.change is not None and self.training:
            batch = self.change(batch, generator)
        with autocast(self.settings, self.device), compiled(self.settings.compile and self.training):
            terms = all_terms(self.objectives, self.model, batch, generator)
        first = next(iter(terms.values()))
        count = torch.as_tensor(first.count, device=self.device)
        total = torch.zeros((), device=self.device)
        for term in terms.values():
            if term.weight:
                share = count / torch.as_tensor(term.count).clamp(min=1)  # 1 where it counts what the first one does
                total = total + term.weight * term.sum * share
        return Sums(total, count, {name: term._replace(sum=term.sum.detach()) for name, term in terms.items()})


@contextmanager
def compiled(on: bool) -> Iterator[None]:
    """Regions run as graphs; one that cannot be compiled is the user's to hear of."""
    try:
        with compiled_regions(on):
            yield
    except torch._dynamo.exc.TorchDynamoException as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise SaccadeError(f"torch.compile failed ({reason}); go on with train.compile=false") from error


class Meter:
    """Sums of the terms since the last reading, kept on the device: nothing waits for it before `read`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.clear()

    def clear(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.weights: dict[str, float] = {}
        self.tokens = 0  # real tokens of all fields of this process

    def add(self, terms: dict[str, Term], *, tokens: int = 0) -> None:
        for name, term in terms.items():
            count = torch.as_tensor(term.count, device=self.device)
            pair = torch.stack((term.sum.to(widest(self.device)), count))
            self.sums[name] = self.sums[name] + pair if name in self.sums else pair
            self.weights[name] = term.weight
        self.tokens += tokens

    def state(self, ranks: Ranks) -> dict[str, Any]:
        """The sums over all processes, as JSON."""
        pairs = [*self.sums.values(), torch.tensor([self.tokens, 0], device=self.device, dtype=widest(self.device))]
        *totals, (tokens, _) = ranks.total(torch.stack(pairs)).tolist()
        return {"sums": dict(zip(self.sums, totals, strict=True)), "weights": self.weights, "tokens": int(tokens)}

    def restore(self, state: Json) -> None:
        """The first process goes on with the sums of all."""
        kind = widest(self.device)
        self.sums = {name: torch.tensor(pair, device=self.device, dtype=kind) for name, pair in state["sums"].items()}
        self.weights, self.tokens = dict(state["weights"]), state["tokens"]

    def read(self, ranks: Ranks) -> dict[str, float]:
        """The mean of every term over all processes, `loss` as their weighted sum, and the number of tokens."""
        state = self.state(ranks)
        means = {name: total / max(count, 1) for name, (total, count) in state["sums"].items()}
        loss = sum(self.weights[name] * mean for name, mean in means.items() if self.weights[name])
        self.clear()
        return {"loss": loss, **means, "tokens": state["tokens"]}
