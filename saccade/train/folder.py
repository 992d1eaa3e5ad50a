"""What the folder of a run has before the first step: tokenizers, lexicon, recipe; or what is cut off to resume."""

from __future__ import annotations

from collections.abc import Callable

from saccade.config.load import save
from saccade.data.prepare import training_pairs
from saccade.data.tokenization.lexicon import LEXICON, dump_lexicon, learn_lexicon
from saccade.errors import SaccadeError
from saccade.files import atomic_write
from saccade.runs import CHECKPOINTS, METRICS, RECIPE, SAMPLES
from saccade.train import checkpoint
from saccade.train.log import cut_metrics
from saccade.train.session import Session
from saccade.view import moments


def write_beginning(session: Session, *, resumed: bool, warn: Callable[[str], None]) -> None:
    """The recipe comes last: a folder with a recipe is a run that can be resumed."""
    run = session.run
    try:
        for leftover in run.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        checkpoint.tidy(run / CHECKPOINTS)
        if resumed:
            checkpoint.cut(run / CHECKPOINTS, step=session.progress.step, warn=warn)
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
