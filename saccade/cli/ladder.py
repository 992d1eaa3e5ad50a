"""`saccade ladder`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import Data, Json, Valid, corpora, overrides
from saccade.cli.train import validation
from saccade.errors import SaccadeError
from saccade.runs import runs_folder

if TYPE_CHECKING:
    from saccade.ladder.ground import Ground
    from saccade.ladder.results import Ladder

WIDTH = 160  # characters that the table may take: its cells are never cut

Changes = Annotated[list[str], typer.Argument(metavar="KEY=VALUE", help="For all rungs, such as train.steps=2000.")]
Rungs = Annotated[str, typer.Option("--rungs", metavar="A,B,...", help="Only these; without it, all of them.")]
Test = Annotated[
    list[str], typer.Option("--test", metavar="SRC [TGT]", help="The pairs that all rungs are compared on.")
]
Size = Annotated[str, typer.Option("--size", metavar="class|full", help="class without --data, full with it.")]
Length = Annotated[int | None, typer.Option("--length", metavar="N", help="Longest row of letters; default 20.")]
Seeds = Annotated[int, typer.Option("--seeds", metavar="N", help="Train each rung with seeds 1 to N.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Runs and report; default runs/ladder.")]


def ladder(  # noqa: PLR0913  # the options of a verb are its parameters
    changes: Changes = [],  # noqa: B006  # typer copies it
    rungs: Rungs = "",
    data: Data = [],  # noqa: B006
    valid: Valid = [],  # noqa: B006
    test: Test = [],  # noqa: B006
    size: Size = "",
    length: Length = None,
    seeds: Seeds = 1,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Train the ladder of architectures, from no attention to the Transformer, on the same data, and compare them."""
    from saccade.ladder.climb import climb
    from saccade.ladder.report import write_report
    from saccade.ladder.rungs import choose

    size = size or ("full" if data else "class")
    chosen = choose([name.strip() for name in rungs.split(",") if name.strip()], size=size)
    same = ground(data, valid, test, size=size, length=length)
    folder = out or runs_folder() / "ladder"
    found = climb(same, chosen, folder, seeds=seeds, changes=overrides(changes), say=tell)
    page = write_report(found, folder)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        show(found, page)


def tell(text: str) -> None:
    print(text, file=sys.stderr)


def ground(data: Sequence[str], valid: list[str], test: Sequence[str], *, size: str, length: int | None) -> Ground:
    """The data of all rungs: rows of letters, or files."""
    from saccade.ladder.ground import LETTERS, files_ground, letters_ground

    if not data and not valid and not test:
        return letters_ground(LETTERS if length is None else length, size=size)
    if length is not None:
        raise SaccadeError("--length is for the embedded rows of letters; your own text has the lengths that it has")
    files, share = validation(valid)
    held_out = float(share[0].partition("=")[2]) if share else files
    return files_ground(corpora(data), held_out, corpora(test), size=size)


def show(found: Ladder, page: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from saccade.ladder.report import cells, note

    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
    titles, *rows = cells(found)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(f"\n{note(found)}\nreport, picture and all numbers: {page}", soft_wrap=True, markup=False)
