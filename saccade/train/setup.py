"""Opens a training session for a recipe and a folder, new or resumed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch

from saccade.config.schema import Optimizer, Recipe, Train
from saccade.data.prepare import prepare
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.runs import CARD, CHECKPOINTS, RECIPE, WEIGHTS
from saccade.train import checkpoint
from saccade.train.assemble import build_session
from saccade.train.checkpoint import Checkpoint
from saccade.train.distributed import mesh
from saccade.train.distributed.ranks import Ranks
from saccade.train.folder import check_disk_space, initialize_folder
from saccade.train.log import format_banner, open_notebook
from saccade.train.pace import adopt_planned_steps, warn_of_days
from saccade.train.session import Session, get_data_position, restore_session
from saccade.train.transfer.model import build_checked_model, build_on_meta


def open_session(recipe: Recipe, run: Path, *, ranks: Ranks, device: torch.device, resumed: bool) -> Session:
    """Prepare data, model and optimizer; a resumed run is restored from its last intact checkpoint."""
    notebook = open_notebook() if ranks.is_main else None
    report = notebook.print_line if notebook else print_message if ranks.is_main else ignore_message
    check_settings(recipe)
    recipe.train.check_loggers()
    data = ranks.run_main_first(
        lambda: prepare(recipe, tokenizers=Tokenizers.load(run) if resumed else None, report=report)
    )
    if data.valid is None:
        check_without_validation(recipe.train)
    found = find_checkpoint(run, ranks, report) if resumed else None
    if resumed and found is None:
        check_unfinished(run)
        report(f"{run} has no checkpoint yet and begins anew")
    if found and mesh.accumulates_per_process(run):
        settings = {"accumulate": recipe.train.accumulate * ranks.world_size}
        recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update=settings)})
    ranks = arrange_processes(recipe, data.tokenizers, ranks=ranks, device=device, report=report)
    if ranks.mesh is None:
        model, notes = build_checked_model(recipe, data.tokenizers, found=found, device=device, report=report)
    else:
        from saccade.train.distributed.shard import build_sharded_model

        model, notes = build_sharded_model(recipe, data.tokenizers, ranks=ranks, device=device, fresh=found is None)
    stream = recipe.task.open_stream(recipe, data.train, model, rank=ranks.batch_rank, world=ranks.batch_world)
    if found:
        stream.restore(get_data_position(found.state["data"], recipe.train, report))
    session = build_session(recipe, run, data=data, model=model.to(device), stream=stream, ranks=ranks)
    session.log.notebook = notebook
    session.notes += notes
    for note in notes:
        report(note)
    if found:
        restore_session(session, found)
        report(f"{run} resumes from step {found.step}")
        adopt_planned_steps(session)
    check_disk_space(session)
    if ranks.is_main:
        initialize_folder(session, resumed=resumed, warn=report)
        for line in format_banner(session):
            report(line)
        if warning := warn_of_days(session, data.train):
            report(warning)
    ranks.barrier()
    return session


def find_checkpoint(run: Path, ranks: Ranks, report: Callable[[str], None]) -> Checkpoint | None:
    """Find the newest intact checkpoint; rank 0 verifies all digests and tells the others which one it is."""
    found = checkpoint.load_latest(run / CHECKPOINTS, warn=report) if ranks.is_main else None
    step = ranks.broadcast(None if found is None else found.step)
    return found if found or step is None else checkpoint.load_step(run / CHECKPOINTS, step)


def arrange_processes(
    recipe: Recipe, tokenizers: Tokenizers, *, ranks: Ranks, device: torch.device, report: Callable[[str], None]
) -> Ranks:
    """Choose the layout of several processes, report it and the memory it takes, and return the ranks in it.

    A model that cannot fit into the memory of the devices is refused before it is built.
    """
    is_alone = ranks.world_size == 1
    if is_alone and device.type != "cuda":
        return ranks
    sizes = mesh.measure_states(build_on_meta(recipe, tokenizers), recipe.train)
    memory = mesh.get_device_memory(device, ranks)
    layout = mesh.ParallelLayout()
    if not is_alone:
        layout = mesh.choose_parallel_layout(recipe.train, world=ranks.world_size, sizes=sizes, memory=memory)
        mesh.check_settings(recipe.train, layout)
    if isinstance(recipe.train.optimizer, Optimizer):  # the state of a user's own is not known before its first step
        mesh.check_memory(sizes, layout, memory=memory)
    if is_alone:
        return ranks
    report(mesh.describe_layout(layout, recipe.train, sizes, memory=memory))
    return mesh.join_mesh(ranks, layout, device)


def check_unfinished(run: Path) -> None:
    """Refuse to begin a run anew whose checkpoints were removed: its weights would be overwritten.

    A run that was killed before its first checkpoint has an empty folder for them.
    """
    if (run / WEIGHTS).exists() and ((run / CARD).exists() or not (run / CHECKPOINTS).is_dir()):
        raise SaccadeError(
            f"run '{run}' has no checkpoints to resume from, only weights, which would be overwritten; train another "
            f"run that begins with them: saccade train {run / RECIPE} init={run} --run NAME"
        )


def check_settings(recipe: Recipe) -> None:
    settings = recipe.train
    if settings.steps is None and settings.epochs is None and settings.minutes is None:
        raise SaccadeError("training has no end: set train.steps, train.epochs or train.minutes")
    if recipe.writer.gives_states:
        raise SaccadeError(
            'writer.kind = "states" has no outputs to train; set writer.kind = "masked", or train another '
            "recipe with init=RUN"
        )
    if settings.metric != "loss" and not settings.valid_predictions:
        raise SaccadeError(
            f'train.metric = "{settings.metric}" needs outputs to score, but train.valid_predictions is 0; '
            'set it to 500, or train.metric = "loss"'
        )
    recipe.metric.check_available()


def check_without_validation(settings: Train) -> None:
    """Raise a SaccadeError if a setting needs validation data, of which there is none."""
    needs = {
        "train.patience": settings.patience is not None,
        f"train.metric={settings.metric}": settings.metric != "loss",
        "train.average.kind=best": settings.average.uses_best,
    }
    for setting, is_set in needs.items():
        if is_set:
            raise SaccadeError(
                f"{setting} needs validation data; give --valid FILES, or data.valid=0.01 to hold some out"
            )


def print_message(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def ignore_message(text: str) -> None:
    pass
