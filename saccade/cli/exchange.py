"""`saccade import` and `saccade export`: models from and to the formats of Hugging Face and GGUF."""

from __future__ import annotations

from typing import Annotated

import typer

from saccade.cli.arguments import Plugins
from saccade.config.plugins import load_plugins

Source = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER|FILE|NAME", help="Folder with config.json, .gguf file, or model name on the Hugging Face Hub."
    ),
]
RunName = Annotated[
    str | None, typer.Option("--run", metavar="NAME", help="Name of the new run; default: name of the source.")
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="Folder or name of a run.")]
Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="New or empty folder to write to.")]


def import_model(source: Source, run: RunName = None, plugin: Plugins = []) -> None:  # noqa: B006  # typer copies it
    """Convert a Hugging Face model (a folder, or a name on the Hub to download) or a GGUF file to a run."""
    from saccade.exchange.api import get_default_name
    from saccade.exchange.importing import import_folder

    imported = import_folder(source, run or get_default_name(source), kinds=load_plugins(*plugin))
    print(f"{imported.path}: {imported.family}, {imported.parameters:,} parameters")
    if imported.ignored_keys:
        print(f"ignored keys of config.json, which do not affect the outputs: {', '.join(imported.ignored_keys)}")


def export_model(run: Run, folder: Folder, plugin: Plugins = []) -> None:  # noqa: B006  # typer copies it
    """Convert a run to a Hugging Face folder that transformers can load."""
    from saccade.exchange.exporting import export_run

    path, family = export_run(run, folder, kinds=load_plugins(*plugin))
    print(f"{path}: {family}")
