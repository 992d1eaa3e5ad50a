"""From a recipe and a folder to a session that is ready to train."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from saccade.config.schema import Recipe, Train
from saccade.data.prepare import prepare
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.runs import CHECKPOINTS
from saccade.train import checkpoint
from saccade.train.assemble import assemble
from saccade.train.batches.replay import stream_of
from saccade.train.distributed.ranks import Ranks
from saccade.train.folder import write_beginning
from saccade.train.session import Session, restore
from saccade.train.transfer.model import make_model

Kinds = Mapping[str, Any]


def open_session(
    recipe: Recipe, run: Path, *, ranks: Ranks, device: torch.device, resumed: bool, kinds: Kinds | None
) -> Session:
    """Prepares data, model and optimizer; a resumed run is put back to its last whole checkpoint."""
    say = tell if ranks.main else silent
    check_settings(recipe)
    check_tensorboard(recipe.train)
    data = ranks.first(lambda: prepare(recipe, tokenizers=Tokenizers.load(run) if resumed else None, report=say))
    if data.valid is None:
        check_without_validation(recipe.train)
    found = checkpoint.latest(run / CHECKPOINTS, warn=say) if resumed else None
    model, notes = make_model(recipe, data.tokenizers, fresh=found is None, kinds=kinds)
    stream = stream_of(recipe, data.train, model, ranks)
    if found:
        stream.restore(place_in_data(found.state["data"], recipe.train, say))
    session = assemble(recipe, run, data=data, model=model.to(device), stream=stream, ranks=ranks, kinds=kinds)
    session.notes += notes
    for note in notes:
        say(note)
    if found:
        restore(session, found)
        say(f"{run} goes on from step {found.step}")
    if ranks.main:
        write_beginning(session, resumed=resumed, warn=say)
    ranks.wait()
    return session


def place_in_data(position: dict[str, Any], settings: Train, say: Callable[[str], None]) -> dict[str, Any]:
    """Where the stream of batches goes on; batches of another size begin the epoch again."""
    before = position.get("made_for", {}).get("batch_tokens", settings.batch_tokens)
    if before == settings.batch_tokens:
        return position
    say(f"train.batch_tokens was {before} and is {settings.batch_tokens}: epoch {position['epoch'] + 1} begins again")
    return {
        **position,
        "pool": 0,
        "batch": 0,
        "made_for": {**position["made_for"], "batch_tokens": settings.batch_tokens},
    }


def check_settings(recipe: Recipe) -> None:
    settings = recipe.train
    if settings.steps is None and settings.epochs is None and settings.minutes is None:
        raise SaccadeError("training has no end: set train.steps, train.epochs or train.minutes")
    if recipe.writer.gives_states:
        raise SaccadeError(
            'writer.kind = "states" writes nothing that could be learned; set writer.kind = "masked", or train another '
            "recipe with init=RUN"
        )
    if settings.metric != "loss" and not settings.valid_predictions:
        raise SaccadeError(
            f'train.metric = "{settings.metric}" needs outputs to score, but train.valid_predictions is 0; '
            'set it to 500, or train.metric = "loss"'
        )


def check_tensorboard(settings: Train) -> None:
    if settings.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise SaccadeError("train.tensorboard=true needs the package tensorboard: pip install tensorboard")


def check_without_validation(settings: Train) -> None:
    """Refuses what needs validation data where there is none."""
    wants = {
        "train.patience": settings.patience is not None,
        f"train.metric={settings.metric}": settings.metric != "loss",
        "train.average.kind=best": settings.average.takes_best,
    }
    for what, wanted in wants.items():
        if wanted:
            raise SaccadeError(f"{what} needs validation data; give --valid FILES, or data.valid=0.01 to hold some out")


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def silent(text: str) -> None:
    pass
