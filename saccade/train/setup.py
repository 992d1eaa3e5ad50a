"""From a recipe and a folder to a session that is ready to train."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from saccade.config.load import save
from saccade.config.schema import Recipe, StatesWriter, Train
from saccade.data.batching.batches import Rows, batches_in_epoch
from saccade.data.prepare import Prepared, prepare, training_pairs
from saccade.data.store.streaming import Streamed
from saccade.data.tokenization.encode import encode_lines
from saccade.data.tokenization.lexicon import LEXICON, dump_lexicon, learn_lexicon
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.data.worlds.episodes import Episodes
from saccade.errors import SaccadeError
from saccade.files import atomic_write
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.runs import CHECKPOINTS, METRICS, RECIPE, SAMPLES
from saccade.train import checkpoint
from saccade.train.augment.augment import changes_of
from saccade.train.average import MovingAverage
from saccade.train.batches.feed import Feed, Stream
from saccade.train.batches.layout import choose_layout
from saccade.train.batches.replay import Replay, stream_of
from saccade.train.distributed.ranks import Ranks
from saccade.train.log import Log, cut_metrics
from saccade.train.looking import Looks
from saccade.train.loss import Meter, MicroLoss
from saccade.train.machine import MemoryWatch
from saccade.train.objectives.objectives import objectives_from
from saccade.train.optimizer import freeze, optimizer_from
from saccade.train.profiling.profile import Watch
from saccade.train.schedule import schedule_from
from saccade.train.session import Session, restore
from saccade.train.transfer.lora import add_low_rank
from saccade.train.transfer.start import draw
from saccade.train.transfer.warm import warm_start
from saccade.view import moments

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
        write_beginning(session, resumed=resumed)
    ranks.wait()
    return session


def make_model(recipe: Recipe, tokenizers: Tokenizers, *, fresh: bool, kinds: Kinds | None) -> tuple[Model, list[str]]:
    """The model with first weights that follow from the seed, or from the run to start from."""
    torch.manual_seed(recipe.train.seed)
    model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target_size, kinds=kinds)
    draw(model, recipe.train.start)
    notes = warm_start(model, recipe, tokenizers, kinds=kinds) if fresh else []
    freeze(model, recipe.freeze)
    notes += add_low_rank(model, recipe)
    return model.train(), notes


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


def short_enough(recipe: Recipe, data: Prepared) -> list[tuple[str, str]]:
    """The pairs to decode in validation, without those that the model is not made for."""
    pairs = data.valid_pairs[: recipe.train.valid_predictions]
    sources = recipe.task.get_source_texts(recipe, pairs)
    if sources is None:
        return pairs
    rows = encode_lines(data.tokenizers, sources, cut=recipe.data.max_length * recipe.data.cut)
    short = [pair for pair, row in zip(pairs, rows, strict=True) if len(row) <= recipe.data.max_length]
    if not short and recipe.train.metric != "loss":
        raise SaccadeError(
            f"train.metric={recipe.train.metric}: none of the {len(pairs)} validation pairs to decode has at most "
            f'data.max_length = {recipe.data.max_length} tokens; raise it, or set train.metric="loss"'
        )
    return short


def total_steps(settings: Train, store: Rows | Streamed | Episodes, *, world: int) -> int | None:
    """Where `linear` and `cosine` end: at the last step, or with the last epoch if that comes first."""
    if settings.epochs is None or settings.schedule.kind not in ("linear", "cosine"):
        return settings.steps
    if isinstance(store, Streamed):
        raise SaccadeError(
            f'how long an epoch of a stream is nobody knows, but train.schedule.kind = "{settings.schedule.kind}" ends '
            "with the last one; set train.steps in the place of train.epochs"
        )
    assert not isinstance(store, Episodes), "a recipe that plays has no epochs"
    batches = batches_in_epoch(store, batch_tokens=settings.batch_tokens, seed=settings.seed)
    steps = math.ceil(settings.epochs * batches / (world * settings.accumulate))
    return steps if settings.steps is None else min(steps, settings.steps)


def place_in_data(state: dict[str, Any], settings: Train, say: Callable[[str], None]) -> dict[str, Any]:
    """Where the stream of batches goes on; batches of another size begin the epoch again."""
    before = state.get("made_for", {}).get("batch_tokens", settings.batch_tokens)
    if before == settings.batch_tokens:
        return state
    say(f"train.batch_tokens was {before} and is {settings.batch_tokens}: epoch {state['epoch'] + 1} begins again")
    return {**state, "pool": 0, "batch": 0, "made_for": {**state["made_for"], "batch_tokens": settings.batch_tokens}}


def check_settings(recipe: Recipe) -> None:
    settings = recipe.train
    if settings.steps is None and settings.epochs is None and settings.minutes is None:
        raise SaccadeError("training has no end: set train.steps, train.epochs or train.minutes")
    if isinstance(recipe.writer, StatesWriter):
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
        "train.average.kind=best": settings.average.kind == "best",
    }
    for what, wanted in wants.items():
        if wanted:
            raise SaccadeError(f"{what} needs validation data; give --valid FILES, or data.valid=0.01 to hold some out")


def write_beginning(session: Session, *, resumed: bool) -> None:
    """The recipe comes last: a folder with a recipe is a run that can be resumed."""
    run = session.run
    try:
        for leftover in run.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        checkpoint.tidy(run / CHECKPOINTS)
        if resumed:
            checkpoint.cut(run / CHECKPOINTS, step=session.progress.step, warn=tell)
            cut_metrics(run / METRICS, step=session.progress.step)
            cut_metrics(run / SAMPLES, step=session.progress.step)
            moments.cut(run, after=session.progress.step)
        else:
            session.tokenizers.save(run)
            write_lexicon(session)
        save(session.recipe, run / RECIPE)
    except OSError as error:
        raise SaccadeError(f"cannot write to '{run}': {error.strerror or error}") from None


def write_lexicon(session: Session) -> None:
    """Words that the target's vocabulary lacks, where unknown words of outputs are to be replaced."""
    recipe = session.recipe
    lexicon = learn_lexicon(training_pairs(recipe), session.tokenizers.target) if recipe.predict.replace_unknown else {}
    if lexicon:
        atomic_write(session.run / LEXICON, dump_lexicon(lexicon))


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def silent(text: str) -> None:
    pass
