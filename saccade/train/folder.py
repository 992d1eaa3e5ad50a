"""Prepares the folder of a run before the first step: writes its files, or truncates those of a resumed run."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable

from saccade.config.load import save
from saccade.config.plugins import write_requirements
from saccade.data.prepare import iter_training_pairs
from saccade.data.sources.bad_rows import list_rows
from saccade.data.tokenization.lexicon import LEXICON_FILE, dump_lexicon, learn_lexicon
from saccade.errors import SaccadeError
from saccade.files import atomic_write
from saccade.runs import CARD, CHECKPOINTS, FILTER_REPORT, METRICS, RECIPE, SAMPLES, SKIPPED_ROWS
from saccade.train import checkpoint
from saccade.train.log import truncate_metrics
from saccade.train.session import Session
from saccade.view import moments


def check_disk_space(session: Session) -> None:
    """Refuse to begin a run whose checkpoints and weights cannot fit on the disk."""
    settings, sizes = session.recipe.train, session.state_sizes
    each = sizes.parameters + sizes.optimizer + sizes.average
    saves = math.inf if settings.steps is None else 1 + settings.steps // settings.save_every
    kept = max(settings.keep_checkpoints, settings.average.n if settings.average.is_enabled else 0)
    count = int(min(kept + 1, saves))  # a new checkpoint is complete before an old one is removed
    needed = count * each + 2 * sizes.parameters  # the model of the run, and the best weights so far
    present = sum(path.stat().st_size for path in (session.run / CHECKPOINTS).glob("**/*") if path.is_file())
    free = shutil.disk_usage(session.run).free
    if needed - present > free:
        raise SaccadeError(
            f"{count} checkpoints of this run take {needed / 1e9:.1f} GB ({each / 1e9:.1f} GB each), and the disk of "
            f"'{session.run}' has {free / 1e9:.1f} GB left; free some, lower train.keep_checkpoints or "
            "train.average.n, or choose another disk with --run"
        )


def initialize_folder(session: Session, *, resumed: bool, warn: Callable[[str], None]) -> None:
    """Write tokenizers, lexicon and recipe; the recipe last, since a folder with a recipe counts as a run.

    For a resumed run, truncate logs and remove checkpoints after the step it resumes from.
    """
    run = session.run
    try:
        for leftover in run.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        (run / CHECKPOINTS).mkdir(exist_ok=True)
        checkpoint.remove_leftovers(run / CHECKPOINTS)
        if resumed:
            (run / CARD).unlink(missing_ok=True)  # the run is no longer finished
            checkpoint.remove_newer(run / CHECKPOINTS, step=session.progress.step, warn=warn)
            truncate_metrics(run / METRICS, step=session.progress.step)
            truncate_metrics(run / SAMPLES, step=session.progress.step)
            moments.remove_after(run, last_step=session.progress.step)
        else:
            session.tokenizers.save(run)
            write_lexicon(session)
        write_requirements(session.recipe.kinds, run)
        write_filter_report(session)
        write_skipped_rows(session)
        save(session.recipe, run / RECIPE)
    except OSError as error:
        raise SaccadeError(f"cannot write to '{run}': {error.strerror or error}") from None


def write_filter_report(session: Session) -> None:
    """Write what `data.filter` has dropped, if there is a filter."""
    reports = {name: [report.to_json() for report in found] for name, found in session.filtered.items() if found}
    if reports:
        content = json.dumps(reports, ensure_ascii=False, indent=1)
        atomic_write(session.run / FILTER_REPORT, content.encode("utf-8", "backslashreplace"))


def write_skipped_rows(session: Session) -> None:
    """List the rows that `data.on_error = "skip"` skipped, if any; of a resumed stream also those of earlier parts."""
    path, rows = session.run / SKIPPED_ROWS, list_rows(session.bad_rows)
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    if session.recipe.data.stream and path.exists():
        lines = [*path.read_text("utf-8").splitlines(), *lines]
    if lines:
        content = "".join(f"{line}\n" for line in dict.fromkeys(lines))
        atomic_write(path, content.encode("utf-8", "backslashreplace"))


def write_lexicon(session: Session) -> None:
    """Learn and write a lexicon for words outside the target vocabulary, if `predict.replace_unknown` needs one."""
    recipe = session.recipe
    lexicon = (
        learn_lexicon(iter_training_pairs(recipe), session.tokenizers.target) if recipe.predict.replace_unknown else {}
    )
    if lexicon:
        atomic_write(session.run / LEXICON_FILE, dump_lexicon(lexicon))
