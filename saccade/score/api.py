"""`saccade.evaluate` and `saccade.compare`: score runs on test data, from Python and from the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from saccade.config.decoding import DecodingSettings
from saccade.config.load import change_decoding
from saccade.config.schema import Corpus
from saccade.data.sources.given import Files, to_corpora
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import find_run
from saccade.score import MAX_EMBEDDED_PAIRS
from saccade.score.compare import Comparison, check_comparable
from saccade.score.compare import compare as compare_runs
from saccade.score.evaluate import evaluate_corpora
from saccade.score.pairs import choose_corpora, load_recipe_of_run, read_text_pairs
from saccade.score.result import Result


def evaluate(
    run: str | Path | Predictor,
    data: Files | None = None,
    *,
    columns: Sequence[str] | str | None = None,
    metrics: Sequence[str] | str | None = None,
    lowercase: bool = False,
    kinds: Mapping[str, Any] | None = None,
    device: str = "auto",
    **settings: Unpack[DecodingSettings],
) -> Result:
    """Score a run on test data, or on its validation data where none is given.

    `data` is one file, two line-aligned files, or a list of these; `columns` are those of a file with columns,
    "source,target" or a list. `metrics` are names, "bleu,chrf" or a list; default: those of the task. Other keywords
    are decoding settings, such as `beam=5`.
    """
    predictor = run if isinstance(run, Predictor) else Predictor.load(find_run(run), kinds=kinds, device=device)
    return evaluate_corpora(
        predictor,
        choose_corpora(predictor.path, to_corpora(data, columns), predictor.recipe.kinds),
        metrics=metrics.split(",") if isinstance(metrics, str) else metrics,
        lowercase=lowercase,
        decoding=change_decoding(predictor.recipe, settings) if settings else None,
        synthetic_count=MAX_EMBEDDED_PAIRS,
    )


def compare(
    runs: Sequence[str | Path | Predictor],
    data: Files | None = None,
    *,
    columns: Sequence[str] | str | None = None,
    metric: str | None = None,
    kinds: Mapping[str, Any] | None = None,
    device: str = "auto",
) -> Comparison:
    """Compare runs on the same data (default: the first run's validation data), with confidence intervals and speed.

    Each run is decoded with its own settings; runs that differ only in their seed are one row.
    """
    folders = [run.path if isinstance(run, Predictor) else find_run(run) for run in runs]
    check_comparable(folders, kinds=kinds)
    pairs = read_test_pairs(folders[0], to_corpora(data, columns), kinds) if folders else []
    return compare_runs(folders, pairs, metric=metric, kinds=kinds, device=device)


def read_test_pairs(run: Path, data: Sequence[Corpus], kinds: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Read the inputs and references of the test data in the form of the run's task."""
    recipe, chosen = load_recipe_of_run(run, kinds=kinds), choose_corpora(run, data, kinds)
    if recipe is None:
        return read_text_pairs(chosen, synthetic_count=MAX_EMBEDDED_PAIRS)
    return recipe.task.read_pairs(recipe, chosen, synthetic_count=MAX_EMBEDDED_PAIRS)
