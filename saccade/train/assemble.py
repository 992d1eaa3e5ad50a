"""The parts of a training session, put together: loss, optimizer, feed of batches, log, and what watches them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from saccade.config.schema import Recipe
from saccade.data.prepare import Prepared
from saccade.model.model import Model
from saccade.train.augment.augment import changes_of
from saccade.train.average import MovingAverage
from saccade.train.batches.feed import Feed, Stream
from saccade.train.batches.layout import choose_layout
from saccade.train.batches.replay import Replay
from saccade.train.distributed.ranks import Ranks
from saccade.train.log import Log
from saccade.train.looking import Looks
from saccade.train.loss import Meter, MicroLoss
from saccade.train.machine import MemoryWatch
from saccade.train.objectives.objectives import objectives_from
from saccade.train.optimizer import optimizer_from
from saccade.train.profiling.profile import Watch
from saccade.train.schedule import schedule_from, total_steps
from saccade.train.session import Session
from saccade.train.validate import short_enough

Kinds = Mapping[str, Any]


def assemble(
    recipe: Recipe, run: Path, *, data: Prepared, model: Model, stream: Stream, ranks: Ranks, kinds: Kinds | None
) -> Session:
    settings = recipe.train
    device = next(model.parameters()).device
    optimizer = optimizer_from(settings.optimizer, model)
    average = MovingAverage(model, decay=settings.ema) if settings.ema else None
    objectives = objectives_from(recipe, tokenizer=data.tokenizers.source, average=average, kinds=kinds)
    loss = MicroLoss(model, objectives=objectives, settings=settings, device=device, change=changes_of(recipe))
    layout = choose_layout(recipe, model, objectives, device=device, world=ranks.world)
    plays = isinstance(stream, Replay)  # with the weights of the moment
    feed = Feed(stream, device=device, shape=None if plays else layout.shape, ahead=not plays)
    return Session(
        recipe=recipe,
        run=run,
        tokenizers=data.tokenizers,
        model=model,
        loss=loss,
        shared=ranks.wrap(loss, device),
        optimizer=optimizer,
        rate=schedule_from(
            settings.schedule, dim=model.dim, total=total_steps(settings, data.train, world=ranks.world)
        ),
        feed=feed,
        valid=data.valid,
        valid_pairs=short_enough(recipe, data),
        ranks=ranks,
        device=device,
        log=Log(run, total=settings.steps, tensorboard=settings.tensorboard, quiet=not ranks.main),
        meter=Meter(device),
        memory=MemoryWatch(settings, model, device),
        generator=torch.Generator(device),
        average=average,
        watch=Watch(settings.profile, feed=feed, device=device),
        looks=Looks() if settings.watch else None,
        captures=layout.captures,
        notes=list(data.notes),
    )
