"""The training loop: one function that calls named ones."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import torch

from saccade.config.training import LOWER
from saccade.data.batching.batch import Batch
from saccade.train.average import chosen_steps
from saccade.train.capture import Graphs
from saccade.train.looking import due, look
from saccade.train.loss import Sums
from saccade.train.machine import reseed
from saccade.train.optimizer import set_rate
from saccade.train.profiling.table import write_profile
from saccade.train.session import Session, save_checkpoint, spoiled
from saccade.train.signals import Interrupted, Interrupts
from saccade.train.validate import validate, write_usable

AGREE_EVERY = 10  # steps after which several processes ask each other whether to stop


def run_loop(s: Session) -> None:
    """Train until the step, epoch or time budget is used up, early stopping ends it, or a signal asks to stop."""
    settings, progress = s.recipe.train, s.progress
    s.mark = s.since = time.perf_counter()
    if s.captures:
        s.graphs = Graphs(functools.partial(whole_step, s), generator=s.generator)
    s.watch.begin(left=settings.steps and settings.steps - progress.step)
    with Interrupts() as interrupts, closing(s.feed), closing(s.watch):
        ending = over(s)
        if progress.step == 0:
            look(s)
        while not ending:
            with s.watch.step():
                optimizer_step(s)
            if found := s.watch.findings():
                with aside(s):
                    write_profile(s, found)
            s.log.advance(progress.step)
            stop, ending = asked_to_stop(s, interrupts), over(s)
            if ending or progress.step % settings.report_every == 0:
                report(s)
            if s.valid is not None and (ending or progress.step % settings.valid_every == 0):
                check_loss(s)
                with aside(s):
                    validate(s)
                if not ending and over(s):  # patience may be at its end, and validation takes its time
                    ending = True
                    report(s)
            if ending or due(s):
                with aside(s):
                    look(s)
            if ending or stop or progress.step % settings.save_every == 0 or worth_keeping(s):
                check_loss(s)
                with aside(s):
                    save_checkpoint(s)
                    if progress.best is None:  # nothing to choose by: the newest weights are the ones to use
                        write_usable(s, s.usable)
            if stop and not ending:
                raise Interrupted(s.run, step=progress.step, signal_number=interrupts.number)
    if s.watch.on:
        s.log.say(f"no profile was written: this took {s.watch.taken} steps, a profile takes {s.watch.wanted}")


def optimizer_step(s: Session) -> None:
    """One optimizer step: forward, backward, clip, update; one CUDA graph where the model supports it.

    Gradients are those of all micro-batches, divided by the targets of all of them and of all processes.
    """
    settings, progress = s.recipe.train, s.progress
    set_rate(s.optimizer, s.rate(progress.step + 1))
    if s.graphs is not None and not s.watch.apart:
        captured_step(s, s.graphs)
    else:
        s.optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(2, device=s.device)  # the loss and its count
        for micro in range(settings.accumulate):
            batch = next_batch(s, micro=micro)
            with s.ranks.quiet(s.shared, last=micro == settings.accumulate - 1):
                with s.watch.part("forward"):
                    part = s.shared(batch, s.generator)
                with s.watch.part("backward"):
                    part.total.backward()
            s.meter.add(part.terms, tokens=sum(batch.counts.values()))
            sums += torch.stack((part.total.detach(), part.count))
        loss, count = s.ranks.total(sums)
        if s.device.type == "cpu":  # elsewhere asking would make the GPU wait; reports, validations and saves do it
            if not math.isfinite(loss):
                raise spoiled(s, progress.step + 1)
            s.checked = progress.step + 1
        with s.watch.part("optimizer"):
            update(s, s.ranks.world / count.clamp(min=1))
    progress.epoch = s.feed.epoch
    progress.step += 1
    s.memory.fitted = True
    if s.average is not None:
        s.average.update(step=progress.step)


def captured_step(s: Session, graphs: Graphs) -> None:
    """Gradients and update of a single batch by a CUDA graph of `whole_step`."""
    batch = next_batch(s, micro=0)
    part = graphs(batch)
    s.meter.add(part.terms, tokens=sum(batch.counts.values()))


def next_batch(s: Session, *, micro: int) -> Batch:
    """The next micro-batch; all random numbers that are drawn from now on belong to it."""
    settings = s.recipe.train
    with s.watch.part("data"):
        batch = s.feed.take()
    s.memory.trying(max(field.places for field in batch.fields.values()))
    number = (s.progress.step * settings.accumulate + micro) * s.ranks.world + s.ranks.rank
    reseed(s.generator, seed=settings.seed, number=number)
    return batch


def whole_step(s: Session, batch: Batch) -> Sums:
    """Gradients and update of a single batch, without asking the device for anything: what a CUDA graph can hold."""
    s.optimizer.zero_grad(set_to_none=True)
    part = s.loss(batch, s.generator)
    part.total.backward()
    update(s, 1 / part.count.clamp(min=1))
    return Sums(part.total.detach(), part.count, part.terms)


@torch.no_grad()
def update(s: Session, scale: torch.Tensor) -> None:
    """Scales and clips the gradients and takes one step of Adam."""
    trained = [parameter for group in s.optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
    torch._foreach_mul_(gradients, scale)
    if s.recipe.train.clip:
        torch.nn.utils.clip_grad_norm_(trained, s.recipe.train.clip)
    s.optimizer.step()


@contextmanager
def aside(s: Session) -> Iterator[None]:
    """Time that is not training's, for the speed in the next report; the GPU has done all it was given before."""
    begin = time.perf_counter()
    yield
    s.since += time.perf_counter() - begin


def report(s: Session) -> None:
    """Reads what was summed up since the last report, writes and shows it, once a step."""
    progress = s.progress
    if s.reported == progress.step:
        return
    check_loss(s)
    values = s.meter.read(s.ranks)
    now = time.perf_counter()
    seconds, tokens = max(now - s.since, 1e-9), values.pop("tokens")
    progress.tokens += int(tokens)
    values |= {
        "lr": s.rate(progress.step),
        "tokens_per_second": round(tokens / seconds, 1),
        "data_wait": round(s.feed.waited / seconds, 4),
        "padding": round(s.feed.padding, 4),
        "epoch": round(progress.epoch, 4),
        "seconds": round(s.tick(), 2),
    }
    s.feed.waited, s.since, s.reported = 0.0, now, progress.step
    s.log.report(progress.step, values, left=time_left(s))


def check_loss(s: Session) -> None:
    """Stops the run where the loss since the last check is no number in any process."""
    if s.checked < s.progress.step:
        sound = all(bool(pair.isfinite().all()) for pair in s.meter.sums.values())
        if s.ranks.any(not sound, s.device):  # all stop: those that went on would wait for the others
            raise spoiled(s, s.progress.step)
        s.checked = s.progress.step


def over(s: Session) -> bool:
    """Whether a budget is used up or patience is at its end; all processes come to the same answer."""
    settings, progress = s.recipe.train, s.progress
    if settings.patience is not None and progress.misses >= settings.patience:
        return True
    if settings.steps is not None and progress.step >= settings.steps:
        return True
    if settings.epochs is not None and progress.epoch >= settings.epochs:
        return True
    if settings.minutes is None:
        return False
    asking = s.ranks.world == 1 or progress.step % AGREE_EVERY == 0
    return asking and s.ranks.any(s.tick() >= 60 * settings.minutes, s.device)


def asked_to_stop(s: Session, interrupts: Interrupts) -> bool:
    asking = s.ranks.world == 1 or s.progress.step % AGREE_EVERY == 0
    return asking and s.ranks.any(interrupts.number != 0, s.device)


def worth_keeping(s: Session) -> bool:
    """Whether the mean of the best n will want the weights that were just validated."""
    settings, ranking = s.recipe.train, s.progress.ranking
    best = chosen_steps(settings.average, saved=[*ranking], ranking=ranking, lower=settings.metric in LOWER)
    return settings.average.takes_best and s.progress.step in best


def time_left(s: Session) -> float | None:
    """Seconds until the first budget is used up, if all goes on as before."""
    settings, progress = s.recipe.train, s.progress
    guesses = []
    if settings.steps is not None:
        guesses.append(progress.seconds * (settings.steps / progress.step - 1))
    if settings.epochs is not None and progress.epoch > 0:
        guesses.append(progress.seconds * (settings.epochs / progress.epoch - 1))
    if settings.minutes is not None:
        guesses.append(60 * settings.minutes - progress.seconds)
    return max(0.0, min(guesses)) if guesses else None
