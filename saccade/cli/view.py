"""`saccade view`: show the attention weights of a run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import Json, Plugins
from saccade.cli.predict import Fields, join_fields
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.view.viewing import View

THEMES = ("light", "dark")

Run = Annotated[str, typer.Argument(metavar="RUN", help="Folder or name of a run.")]
Text = Annotated[
    str | None, typer.Argument(metavar="TEXT", help="Input or prompt of the model, or a file. See --field.")
]
Target = Annotated[
    str | None, typer.Option("--target", help="Target to force-decode; default: the model's own output.")
]
Png = Annotated[
    Path | None, typer.Option("--png", metavar="FILE", help="Plot all heads of a layer to a .png or .svg file.")
]
Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Plot all heads of a layer to an .svg file.")]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write an interactive page with all layers and heads.")
]
AttentionPart = Annotated[
    str | None,
    typer.Option(
        "--part",
        help="cross: cross-attention; writer, reader: self-attention of the decoder or encoder. "
        "Default: the first of these that the model has.",
    ),
]
Layer = Annotated[int | None, typer.Option("--layer", min=1, help="Layer, counted from 1; default: the last.")]
Head = Annotated[
    int | None, typer.Option("--head", min=1, help="Head, counted from 1; default: the mean of all heads.")
]
Words = Annotated[bool, typer.Option("--words", help="Merge the subword tokens of each word.")]
Theme = Annotated[str, typer.Option("--theme", help="Color theme of plots: light or dark.")]
Compare = Annotated[str | None, typer.Option("--compare", metavar="RUN", help="Second run, shown next to the first.")]


def view(  # noqa: PLR0913  # the options of a command are its parameters
    run: Run,
    text: Text = None,
    field: Fields = [],  # noqa: B006  # typer copies it
    target: Target = None,
    png: Png = None,
    svg: Svg = None,
    html: Html = None,
    part: AttentionPart = None,
    layer: Layer = None,
    head: Head = None,
    words: Words = False,
    theme: Theme = "light",
    compare: Compare = None,
    plugin: Plugins = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Show attention weights: in the terminal, as a plot, as an interactive page, or as JSON."""
    check_suffix(png, "--png", (".png", ".svg"))
    check_suffix(svg, "--svg", (".svg",))
    check_suffix(html, "--html", (".html",))
    if theme not in THEMES:
        raise SaccadeError(f"--theme must be one of {', '.join(THEMES)}, got '{theme}'")
    text = get_single_input(text, field)
    result = compute_view(run, text, target, field, plugin)
    if compare is not None:
        result = result.beside(compute_view(compare, text, target, field, plugin))
    for path in (png, svg, html):
        if path is not None:
            print(result.save(path, part=part, layer=layer, head=head, words=words, theme=theme))
    if as_json:
        print(result.only(part=part, layer=layer, head=head).json())
    elif png is svg is html is None:
        width = shutil.get_terminal_size((100, 24)).columns
        print(result.text(width=width, part=part, layer=layer, head=head, words=words))


def get_single_input(text: str | None, fields: Sequence[str]) -> str:
    """Return the TEXT argument, or the values of `--field` as one JSON line; exactly one of the two must be given."""
    inputs = [*([] if text is None else [text]), *join_fields(fields)]
    if len(inputs) != 1:
        raise SaccadeError(f"attention is shown for one input: expected TEXT or --field, got {len(inputs)} inputs")
    return inputs[0]


def compute_view(run: str, text: str, target: str | None, fields: Sequence[str], plugins: Sequence[str] = ()) -> View:
    from saccade.cli.predict import check_fields, load_predictor
    from saccade.predict.view import view as view_run

    predictor = load_predictor([run], plugins=plugins)
    check_fields(predictor, fields)
    return view_run(predictor, text, target)


def check_suffix(path: Path | None, option: str, suffixes: tuple[str, ...]) -> None:
    """Check the file name before the model is loaded."""
    if path is not None and path.suffix.lower() not in suffixes:
        raise SaccadeError(f"the file of {option} must end in {' or '.join(suffixes)}, got {path.name!r}; rename it")
