"""`saccade import` and `saccade export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Source = Annotated[
    str,
    typer.Argument(metavar="FOLDER|FILE|NAME", help="A folder with config.json, a .gguf file, or a name of the Hub."),
]
RunName = Annotated[str | None, typer.Option("--run", metavar="NAME", help="Name of the run; default that of FOLDER.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="Folder or name of a run.")]
Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="A new or empty folder.")]


def import_model(source: Source, run: RunName = None) -> None:
    """Make a run of a Hugging Face model (a folder, or a name of the Hub, which is then downloaded) or a GGUF file."""
    from saccade.exchange.importing import import_folder

    made = import_folder(source, run or Path(source).resolve().name.removesuffix(".gguf"))
    print(f"{made.path}: {made.family}, {made.parameters:,} numbers")
    if made.harmless:
        print(f"settings that change no number and were left out: {', '.join(made.harmless)}")


def export_model(run: Run, folder: Folder) -> None:
    """Write a run as a Hugging Face folder, which transformers loads."""
    from saccade.exchange.exporting import export_run

    path, family = export_run(run, folder)
    print(f"{path}: {family}")
