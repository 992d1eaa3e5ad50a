"""Builds a training session from its parts: loss, optimizer, schedule, prefetcher, log and profiler."""

from __future__ import annotations

from collections.abc import Sized
from pathlib import Path

import torch

from saccade.config.schema import Recipe
from saccade.data.prepare import PreparedData
from saccade.model.model import Model
from saccade.train.attention_watch import WatchedExamples
from saccade.train.augment.augment import build_augmentation
from saccade.train.average import MovingAverage
from saccade.train.batches.layout import choose_layout
from saccade.train.batches.prefetch import Prefetcher, Stream
from saccade.train.distributed.gradients import GradientBuckets
from saccade.train.distributed.ranks import Ranks
from saccade.train.log import Log
from saccade.train.loss import Meter, MicroBatchLoss
from saccade.train.machine import MemoryTracker
from saccade.train.objectives.objectives import build_objectives
from saccade.train.optimizer import build_optimizer
from saccade.train.profiling.profile import StepProfiler
from saccade.train.schedule import build_schedule, compute_total_steps
from saccade.train.session import Session
from saccade.train.validate import select_decodable_pairs


def build_session(
    recipe: Recipe, run: Path, *, data: PreparedData, model: Model, stream: Stream, ranks: Ranks
) -> Session:
    settings = recipe.train
    device = next(model.parameters()).device
    optimizer = build_optimizer(settings.optimizer, model)
    average = MovingAverage(model, decay=settings.ema) if settings.ema else None
    objectives = build_objectives(recipe, tokenizer=data.tokenizers.source, average=average, rows=data.train)
    augmentation = build_augmentation(recipe)
    loss = MicroBatchLoss(model, objectives=objectives, settings=settings, device=device, augmentation=augmentation)
    layout = choose_layout(recipe, model, objectives, device=device, ranks=ranks)
    live = recipe.task.batches_depend_on_model
    total = compute_total_steps(settings, data.train)
    prefetcher = Prefetcher(stream, device=device, transform=None if live else layout.transform, prefetch=not live)
    session = Session(
        recipe=recipe,
        run=run,
        tokenizers=data.tokenizers,
        model=model,
        loss=loss,
        ddp_loss=loss,
        optimizer=optimizer,
        learning_rate=build_schedule(settings.schedule, dim=model.dim, total=total, by_time=bool(settings.minutes)),
        total_steps=total,
        num_examples=len(data.train) if isinstance(data.train, Sized) else None,
        prefetcher=prefetcher,
        valid=data.valid,
        valid_pairs=select_decodable_pairs(recipe, data),
        ranks=ranks,
        device=device,
        log=Log(run, total=settings.steps, recipe=recipe, quiet=not ranks.is_main),
        meter=Meter(device),
        memory=MemoryTracker(settings, model, device),
        generator=torch.Generator(device),
        average=average,
        profiler=StepProfiler(settings.profile, prefetcher=prefetcher, device=device),
        watched_examples=WatchedExamples() if settings.watch else None,
        use_cuda_graphs=layout.use_cuda_graphs,
        hint=layout.hint,
        notes=list(data.notes),
        filtered=data.filtered,
        bad_rows=data.bad_rows,
    )
    captures_passes = layout.use_cuda_graphs and (ranks.is_distributed or settings.accumulate > 1)
    if captures_passes or (session.splits_on_out_of_memory and ranks.is_distributed):
        session.buckets = GradientBuckets(loss)
        if ranks.mesh is None:
            ranks.broadcast_module(loss)
    else:
        session.ddp_loss = ranks.wrap_ddp(loss, device)
    return session
