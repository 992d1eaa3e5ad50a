"""`saccade.view(...)`: the attention weights of a run for one input."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import find_run
from saccade.view.viewing import View


def view(
    run: str | Path | Predictor,
    source: str,
    target: str | None = None,
    *,
    kinds: Mapping[str, Any] | None = None,
    device: str = "auto",
) -> View:
    """Return the attention weights of a run for one input, for display in a notebook or as a file with `save`.

    `source` is a text, or the path of a file for models that read pictures or sound. `target` is the output to
    force-decode; default: the model's own.
    """
    predictor = run if isinstance(run, Predictor) else Predictor.load(find_run(run), kinds=kinds, device=device)
    inputs = list(predictor.expand_inputs([source]))
    if len(inputs) != 1:
        raise SaccadeError(f"attention is shown for one file at a time, got the {len(inputs):,} of {source}; name one")
    return predictor.view(inputs[0], target, title=predictor.name)
