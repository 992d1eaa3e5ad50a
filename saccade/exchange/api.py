"""`saccade.import_model` and `saccade.export`: models from and to Hugging Face, in one call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saccade.exchange.exporting import export_run
from saccade.exchange.importing import import_folder
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import find_run


def import_model(
    source: str | Path, run: str | None = None, *, kinds: Mapping[str, Any] | None = None, device: str = "auto"
) -> Predictor:
    """Convert a Hugging Face folder, a model of the Hub or a GGUF file to a run, and load it.

    The default name of the run is that of the source.
    """
    imported = import_folder(str(source), run or get_default_name(source), kinds=kinds)
    return Predictor.load(imported.path, kinds=kinds, device=device)


def get_default_name(source: str | Path) -> str:
    return Path(os.path.realpath(source)).name.removesuffix(".gguf")


def export(run: str | Path | Predictor, folder: str | Path, *, kinds: Mapping[str, Any] | None = None) -> Path:
    """Convert a run to a Hugging Face folder that transformers can load; return the folder."""
    path = run.path if isinstance(run, Predictor) else find_run(run)
    return export_run(path, folder, kinds=kinds)[0]
