"""`saccade watch`, and what `saccade train --watch` serves."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.serve import check_installed
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    import socket

HOST, PORT = "127.0.0.1", 8010

Run = Annotated[str, typer.Argument(metavar="RUN", help="Folder or name of a run, in training or not.")]
Port = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help="Port to listen at; without it, 8010 or a free one.")
]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write the page to one file that needs no server.")
]


def watch(run: Run, port: Port = None, html: Html = None) -> None:
    """Show how a run learns: curves, what it writes, and what it attends to."""
    from saccade.runs import RECIPE, find_run, not_a_run

    path = find_run(run)
    if not (path / RECIPE).is_file():
        raise not_a_run(path)
    if html is not None:
        write_page(path, html)
        return
    check_installed("watch")
    from saccade.serve.server import address, make_server
    from saccade.serve.server import run as serve
    from saccade.serve.watch import LIMITS, make_watch_app

    with listening(port) as place:
        print(f"{path.name} is shown at {address(place)} (end with Ctrl+C)", flush=True)
        serve(make_server(make_watch_app(lambda: path), LIMITS), place)


def write_page(run: Path, file: Path) -> None:
    from saccade.files import atomic_write
    from saccade.serve.history import whole
    from saccade.view.html import training_page

    if file.suffix.lower() != ".html":
        raise SaccadeError(f"the file of --html must end in .html, got {file.name!r}; rename it")
    atomic_write(file, training_page(whole(run)).encode())
    print(file)


@contextmanager
def shown_while_training() -> Iterator[None]:
    """Serves the page of the run that is trained inside it, for as long as that takes."""
    check_installed("train --watch")
    if os.environ.get("RANK", "0") != "0":  # of several processes, the first one writes and talks
        yield
        return
    from saccade.runs import hearing_of_runs
    from saccade.serve.server import address, make_server, running
    from saccade.serve.watch import LIMITS, make_watch_app

    known: list[Path] = []
    app = make_watch_app(lambda: known[-1] if known else None)
    with listening(None) as place, running(make_server(app, LIMITS), place), hearing_of_runs(known.append):
        print(f"watch it at {address(place)}", file=sys.stderr, flush=True)
        yield
    print(f"look at it again with: saccade watch {known[-1]}", file=sys.stderr)


def listening(port: int | None) -> socket.socket:
    """A socket at the port; where none is asked for, at the usual one or, if it is taken, at any free one."""
    from saccade.serve.server import bind

    if port is not None:
        return bind(HOST, port)
    try:
        return bind(HOST, PORT)
    except SaccadeError:
        return bind(HOST, 0)
