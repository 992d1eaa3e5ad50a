"""`saccade view`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import Json
from saccade.cli.predict import Fields, together
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.view.viewing import View

THEMES = ("light", "dark")

Run = Annotated[str, typer.Argument(metavar="RUN", help="Folder or name of a run.")]
Text = Annotated[
    str | None, typer.Argument(metavar="TEXT", help="What the model reads, or goes on from; or a file. See --field.")
]
Target = Annotated[str | None, typer.Option("--target", help="What it writes; without it, its own prediction.")]
Png = Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Draw all heads to a .png or .svg file.")]
Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="The same to an .svg file.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page that shows all of it.")]
Part = Annotated[
    str | None,
    typer.Option(
        "--part",
        help="cross: output to input; writer, reader: to itself. Without it, the first that there is.",
    ),
]
Layer = Annotated[int | None, typer.Option("--layer", min=1, help="Counted from 1; without it, the last.")]
Head = Annotated[int | None, typer.Option("--head", min=1, help="Counted from 1; without it, the mean of all.")]
Words = Annotated[bool, typer.Option("--words", help="Put the pieces of each word together.")]
Theme = Annotated[str, typer.Option("--theme", help="Of pictures: light or dark.")]
Compare = Annotated[str | None, typer.Option("--compare", metavar="RUN", help="One more run, shown beside.")]


def view(  # noqa: PLR0913  # the options of a verb are its parameters
    run: Run,
    text: Text = None,
    field: Fields = [],  # noqa: B006  # typer copies it
    target: Target = None,
    png: Png = None,
    svg: Svg = None,
    html: Html = None,
    part: Part = None,
    layer: Layer = None,
    head: Head = None,
    words: Words = False,
    theme: Theme = "light",
    compare: Compare = None,
    as_json: Json = False,
) -> None:
    """Show where the model looked: in the terminal, as a picture, as a page, or as JSON."""
    check_suffix(png, "--png", (".png", ".svg"))
    check_suffix(svg, "--svg", (".svg",))
    check_suffix(html, "--html", (".html",))
    if theme not in THEMES:
        raise SaccadeError(f"--theme must be one of {', '.join(THEMES)}, got '{theme}'")
    text = one_input(text, field)
    shown = looked(run, text, target, field)
    if compare is not None:
        shown = shown.beside(looked(compare, text, target, field))
    for path in (png, svg, html):
        if path is not None:
            print(shown.save(path, part=part, layer=layer, head=head, words=words, theme=theme))
    if as_json:
        print(shown.only(part=part, layer=layer, head=head).json())
    elif png is svg is html is None:
        width = shutil.get_terminal_size((100, 24)).columns
        print(shown.text(width=width, part=part, layer=layer, head=head, words=words))


def one_input(text: str | None, fields: Sequence[str]) -> str:
    """The argument, or what --field gives together."""
    given = [*([] if text is None else [text]), *together(fields)]
    if len(given) != 1:
        raise SaccadeError(f"attention is shown for one TEXT, or for what --field gives; got {len(given)} of them")
    return given[0]


def looked(run: str, text: str, target: str | None, fields: Sequence[str]) -> View:
    from saccade.cli.predict import check_fields, load

    predictor = load([run])
    check_fields(predictor, fields)
    found = list(predictor.inputs([text]))
    if len(found) != 1:
        raise SaccadeError(f"attention is shown for one file at a time, got the {len(found):,} of {text}; name one")
    return predictor.view(found[0], target, title=Path(run).name)


def check_suffix(path: Path | None, option: str, suffixes: tuple[str, ...]) -> None:
    """Told before the model is loaded and has looked."""
    if path is not None and path.suffix.lower() not in suffixes:
        raise SaccadeError(f"the file of {option} must end in {' or '.join(suffixes)}, got {path.name!r}; rename it")
