"""The training loop."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext

import torch

from saccade.data.batching.batch import Batch
from saccade.train.attention_watch import record_attention, should_record_attention
from saccade.train.average import select_steps
from saccade.train.capture import CudaGraphs, GraphRecorder, UpdateGraph
from saccade.train.distributed.gradients import GradientBuckets, clip_gradients
from saccade.train.distributed.parts import get_local
from saccade.train.folder import write_skipped_rows
from saccade.train.loss import LossSums, Step
from saccade.train.optimizer import set_learning_rate
from saccade.train.out_of_memory import StepBatches, report_out_of_memory
from saccade.train.pace import Pace
from saccade.train.profiling.table import write_profile
from saccade.train.session import Session, build_diverged_error, save_checkpoint, wait_for_checkpoint
from saccade.train.signals import Interrupted, InterruptHandler
from saccade.train.validate import validate, write_model_weights

SYNC_EVERY = 10  # steps between two checks of all processes whether to stop


def run_loop(s: Session) -> None:
    """Train until the step, epoch or time budget is used up, early stopping ends it, or a signal asks to stop."""
    settings, progress = s.recipe.train, s.progress
    s.last_tick = s.report_start = time.perf_counter()
    s.profiler.plan(steps_left=settings.steps and settings.steps - progress.step)
    with InterruptHandler() as interrupts, closing(s.prefetcher), closing(s.profiler), hold_cuda_graphs(s):
        ending = should_stop(s)
        if progress.step == 0:
            record_attention(s)
        pace = Pace(s)
        while not ending:
            with s.profiler.profile_step():
                optimizer_step(s)
            pace.update(s)
            if result := s.profiler.get_result():
                with exclude_from_speed(s):
                    write_profile(s, result)
            s.log.advance(progress.step)
            stop = is_interrupted(s, interrupts) or progress.step == s.pause_step
            ending = should_stop(s)
            if ending or progress.step % settings.report_every == 0:
                report(s)
            if s.valid is not None and (ending or progress.step % settings.valid_every == 0):
                check_finite_loss(s)
                with exclude_from_speed(s):
                    validate(s)
                if not ending and should_stop(s):  # early stopping, or validation used up the time budget
                    ending = True
                    report(s)
            if ending or should_record_attention(s):
                with exclude_from_speed(s):
                    record_attention(s)
            if ending or stop or progress.step % settings.save_every == 0 or should_keep_for_average(s):
                check_finite_loss(s)
                with exclude_from_speed(s):
                    save_checkpoint(s)
                    if s.recipe.data.stream and s.ranks.is_main:
                        write_skipped_rows(s)
                    if progress.best is None:  # without validation the newest weights are those of the run
                        write_model_weights(s, s.eval_weights)
            if stop and not ending:
                wait_for_checkpoint(s)
                raise Interrupted(s.run, step=progress.step, signal_number=interrupts.signal_number)
    wait_for_checkpoint(s)
    if s.profiler.enabled:
        s.log.print_line(
            f"no profile was written: this took {s.profiler.steps_done} steps, a profile takes "
            f"{s.profiler.steps_needed}"
        )


@contextmanager
def hold_cuda_graphs(s: Session) -> Iterator[None]:
    """Capture steps inside the block, and drop the graphs at its end: a process group cannot end before they do."""
    prepare_cuda_graphs(s)
    graphs = [one for one in (s.cuda_graphs, s.update_graph) if one is not None]
    try:
        yield
    finally:
        s.cuda_graphs = s.update_graph = None
        for one in graphs:
            one.release()


def prepare_cuda_graphs(s: Session) -> None:
    """Prepare the capture of whole steps or, with buckets of gradients, of passes and updates."""
    if not s.use_cuda_graphs:
        return
    recorder = GraphRecorder(s.generator)
    step = compute_step if s.buckets is None else compute_passes
    # Graphs of a sharded model hold collective operations.
    agree = s.ranks.all_equal if s.ranks.mesh is not None else None
    s.cuda_graphs = CudaGraphs(functools.partial(step, s), recorder, agree=agree)
    s.update_graph = None if s.buckets is None else UpdateGraph(functools.partial(apply_gradients, s), recorder)


def optimizer_step(s: Session) -> None:
    """One optimizer step: forward, backward, clip, update; as CUDA graphs where the model supports it.

    Gradients are summed over micro-batches and processes and divided by the number of target tokens of all of them. If
    memory runs out before the update, the step is taken again, without graphs or with smaller micro-batches.
    """
    progress = s.progress
    set_learning_rate(s.optimizer, s.learning_rate(progress.step + 1))
    batches, done = StepBatches(s), False
    losses: LossSums | None = None
    if s.buckets is None and (graphs := get_cuda_graphs(s)):
        done = run_captured_step(s, graphs, batches)
    while not done:
        graphs = get_cuda_graphs(s)
        zero_gradients(s)
        sums = torch.zeros(2, device=s.device)  # of the loss and of its count
        results = []
        with batches.attempt():
            for batch in batches:
                if graphs:
                    losses = graphs(batch).clone()  # the next batch of the same shape overwrites the sums
                else:
                    with s.ranks.skip_sync_unless_last(s.ddp_loss, last=batches.is_last):
                        with s.profiler.profile_part("forward"):
                            losses = s.ddp_loss(batch, s.generator)
                        with s.profiler.profile_part("backward"):
                            losses.total.backward()
                results.append((losses.terms, sum(batch.counts.values())))
                sums += torch.stack((losses.total.detach(), losses.count))
        if s.splits_on_out_of_memory and s.ranks.any_rank(batches.failed, s.device):
            losses = None  # releases the activations
            if graphs:
                drop_cuda_graphs(s, batches)
            else:
                batches.split_further()
            continue
        if lacks_exchanged_gradients(s):
            exchange_after_backward(s, batches)
            continue
        for terms, tokens in results:
            s.meter.add(terms, tokens=tokens)
        update_weights(s, sums)
        done = True
    progress.epoch = s.prefetcher.epoch
    if s.recipe.data.stream and s.recipe.train.epochs is not None:  # shares of a stream end at different steps
        progress.epoch = min(s.ranks.gather(progress.epoch))
    progress.step += 1
    s.memory.completed_step = True
    if s.average is not None:
        s.average.update(step=progress.step)


def get_cuda_graphs(s: Session) -> Step | None:
    """Return the CUDA graphs of this step; None if there are none, its parts are timed, or its batches are split."""
    return None if s.progress.split > 1 or s.profiler.needs_eager else s.cuda_graphs


def zero_gradients(s: Session) -> None:
    if s.buckets is None:
        s.optimizer.zero_grad(set_to_none=True)
    else:
        s.buckets.zero()


def lacks_exchanged_gradients(s: Session) -> bool:
    """Whether DistributedDataParallel has not exchanged all gradients of the first step of this process.

    It leaves out those that are exchanged together with one of a parameter that the loss does not depend on, and fails
    in the next step.
    """
    if s.ddp_loss is s.loss or s.memory.completed_step:
        return False
    return s.ranks.any_rank(any(one.grad is None for one in s.loss.parameters() if one.requires_grad), s.device)


def exchange_after_backward(s: Session, batches: StepBatches) -> None:
    """Go on without DistributedDataParallel; the step is taken again."""
    s.ddp_loss, s.buckets = s.loss, GradientBuckets(s.loss)
    batches.undo_attempt()


def update_weights(s: Session, sums: torch.Tensor) -> None:
    """Update the weights by the gradients of all micro-batches; `sums` are those of the loss and of its count."""
    loss, count = s.ranks.all_reduce(sums)
    if s.buckets is None or s.ranks.mesh is not None:
        # DistributedDataParallel and FSDP2 have averaged over processes in the backward pass.
        scale = s.ranks.batch_world / count.clamp(min=1)
    else:
        s.buckets.sum_over_ranks(s.ranks)
        scale = 1 / count.clamp(min=1)
    if s.device.type == "cpu":  # on a GPU this would synchronize; reports, validations and checkpoints check there
        if not math.isfinite(loss):
            raise build_diverged_error(s, s.progress.step + 1)
        s.checked_step = s.progress.step + 1
    with s.profiler.profile_part("optimizer"):
        if s.update_graph is not None and get_cuda_graphs(s):
            s.update_graph(scale)
        else:
            apply_gradients(s, scale)


def drop_cuda_graphs(s: Session, batches: StepBatches) -> None:
    """Go on without CUDA graphs after memory has run out for them."""
    s.cuda_graphs = s.update_graph = None
    batches.undo_attempt()
    s.log.print_line(f"step {s.progress.step + 1:,}: out of memory for CUDA graphs; training goes on without them")


def run_captured_step(s: Session, graphs: Step, batches: StepBatches) -> bool:
    """Run `compute_step` on the batch of this step as a CUDA graph; False if memory ran out, which ends their use."""
    with batches.attempt():
        for batch in batches:
            losses = graphs(batch)
            s.meter.add(losses.terms, tokens=sum(batch.counts.values()))
    if batches.failed:
        drop_cuda_graphs(s, batches)
    return not batches.failed


def compute_step(s: Session, batch: Batch) -> LossSums:
    """Forward, backward and update of a single batch without synchronization, so that a CUDA graph can hold it."""
    s.optimizer.zero_grad(set_to_none=True)
    losses = s.loss(batch, s.generator)
    losses.total.backward()
    captures = s.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    # An update that fails halfway cannot be taken again; while it is captured, nothing is updated.
    with nullcontext() if captures else report_out_of_memory(s):
        apply_gradients(s, 1 / losses.count.clamp(min=1))
    return LossSums(losses.total.detach(), losses.count, losses.terms)


def compute_passes(s: Session, batch: Batch) -> LossSums:
    """Forward and backward pass of a micro-batch, which add to the gradients, so that a CUDA graph can hold them."""
    with s.buckets.add_backward():
        losses: LossSums = s.loss(batch, s.generator)
        losses.total.backward()
    return losses._replace(total=losses.total.detach())


@torch.no_grad()
def apply_gradients(s: Session, scale: torch.Tensor) -> None:
    """Scale and clip the gradients and take one step of the optimizer.

    The gradient of a parameter that the loss of this step does not depend on is 0, in all layouts.
    """
    trained = [parameter for group in s.optimizer.param_groups for parameter in group["params"]]
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    torch._foreach_mul_([get_local(parameter.grad) for parameter in trained], scale)
    if s.recipe.train.clip:
        clip_gradients(trained, s.recipe.train.clip, ranks=s.ranks)
    s.optimizer.step()


@contextmanager
def exclude_from_speed(s: Session) -> Iterator[None]:
    """Exclude the time of the block from the speed in the next report; the GPU must be synchronized before it."""
    begin = time.perf_counter()
    yield
    seconds = time.perf_counter() - begin
    s.report_start += seconds
    s.excluded_seconds += seconds


def report(s: Session) -> None:
    """Log the mean losses and the speed since the last report, at most once per step."""
    progress = s.progress
    if s.reported_step == progress.step:
        return
    check_finite_loss(s)
    values = s.meter.read(s.ranks)
    now = time.perf_counter()
    seconds, tokens = max(now - s.report_start, 1e-9), values.pop("tokens")
    progress.tokens += int(tokens)
    values |= {
        "lr": s.learning_rate(progress.step),
        "tokens_per_second": round(tokens / seconds, 1),
        "data_wait": round(s.prefetcher.wait_seconds / seconds, 4),
        "padding": round(s.prefetcher.padding, 4),
        "epoch": round(progress.epoch, 4),
        "seconds": round(s.update_seconds(), 2),
    }
    s.prefetcher.wait_seconds, s.report_start, s.reported_step = 0.0, now, progress.step
    s.log.report(progress.step, values, left=estimate_seconds_left(s))


def check_finite_loss(s: Session) -> None:
    """Raise Diverged if the loss since the last check is not finite in any process."""
    if s.checked_step < s.progress.step:
        finite = all(bool(pair.isfinite().all()) for pair in s.meter.sums.values())
        if s.ranks.any_rank(not finite, s.device):  # all ranks stop: the others would wait forever
            raise build_diverged_error(s, s.progress.step)
        s.checked_step = s.progress.step


def should_stop(s: Session) -> bool:
    """Whether a budget is used up or patience has run out; all processes get the same answer."""
    settings, progress = s.recipe.train, s.progress
    if settings.patience is not None and progress.misses >= settings.patience:
        return True
    if settings.steps is not None and progress.step >= settings.steps:
        return True
    if settings.epochs is not None and progress.epoch >= settings.epochs:
        return True
    return s.total_steps is not None and settings.minutes is not None and progress.step >= s.total_steps


def is_interrupted(s: Session, interrupts: InterruptHandler) -> bool:
    checks_now = s.ranks.world_size == 1 or s.progress.step % SYNC_EVERY == 0
    return checks_now and s.ranks.any_rank(interrupts.signal_number != 0, s.device)


def should_keep_for_average(s: Session) -> bool:
    """Whether the weights that were just validated are among the best n, which are averaged at the end."""
    settings, ranking = s.recipe.train, s.progress.ranking
    lower_is_better = not s.recipe.metric.higher_is_better
    best = select_steps(settings.average, saved=[*ranking], ranking=ranking, lower_is_better=lower_is_better)
    return settings.average.uses_best and s.progress.step in best


def estimate_seconds_left(s: Session) -> float | None:
    """Estimate the seconds until the first budget is used up, at the speed so far; None without a budget."""
    settings, progress = s.recipe.train, s.progress
    estimates = []
    for steps in (settings.steps, progress.planned_steps):
        if steps is not None:
            estimates.append(progress.seconds * (steps / progress.step - 1))
    if settings.epochs is not None and progress.epoch > 0:
        estimates.append(progress.seconds * (settings.epochs / progress.epoch - 1))
    if settings.minutes is not None and progress.planned_steps is None:
        estimates.append(60 * settings.minutes - progress.seconds)
    return max(0.0, min(estimates)) if estimates else None
