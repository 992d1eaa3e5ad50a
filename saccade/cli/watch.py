"""`saccade watch` and `saccade train --watch`: a page with the learning curves, samples and attention of a run."""

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

HOST, DEFAULT_PORT = "127.0.0.1", 8010

Run = Annotated[str, typer.Argument(metavar="RUN", help="Folder or name of a run, in training or finished.")]
Port = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help="Port to listen on; default: 8010, or a free one.")
]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write a self-contained page to FILE instead of serving it."),
]


def watch(run: Run, port: Port = None, html: Html = None) -> None:
    """Show the learning curves, sample outputs and attention of a run on a web page."""
    from saccade.runs import RECIPE, build_not_a_run_error, find_run

    path = find_run(run)
    if not (path / RECIPE).is_file():
        raise build_not_a_run_error(path)
    if html is not None:
        write_page(path, html)
        return
    check_installed("watch")
    from saccade.serve.server import create_server, format_url, run_server
    from saccade.serve.watch import LIMITS, create_watch_app

    with open_socket(port) as listener:
        print(f"{path.name} is shown at {format_url(listener)} (stop with Ctrl+C)", flush=True)
        run_server(create_server(create_watch_app(lambda: path), LIMITS), listener)


def write_page(run: Path, file: Path) -> None:
    from saccade.files import atomic_write
    from saccade.serve.history import read_history_with_attention
    from saccade.view.html import build_training_page

    if file.suffix.lower() != ".html":
        raise SaccadeError(f"the file of --html must end in .html, got {file.name!r}; rename it")
    atomic_write(file, build_training_page(read_history_with_attention(run)).encode())
    print(file)


@contextmanager
def serve_training_page() -> Iterator[None]:
    """Serve the page of the run that is trained inside this context."""
    check_installed("train --watch")
    if os.environ.get("RANK", "0") != "0":  # in distributed training, rank 0 alone reports
        yield
        return
    from saccade.runs import notify_of_runs
    from saccade.serve.server import create_server, format_url, run_in_background
    from saccade.serve.watch import LIMITS, create_watch_app

    runs: list[Path] = []
    app = create_watch_app(lambda: runs[-1] if runs else None)
    with (
        open_socket(None) as listener,
        run_in_background(create_server(app, LIMITS), listener),
        notify_of_runs(runs.append),
    ):
        print(f"watch the training at {format_url(listener)}", file=sys.stderr, flush=True)
        yield
    print(f"show the page again with: saccade watch {runs[-1]}", file=sys.stderr)


def open_socket(port: int | None) -> socket.socket:
    """Listen on the port; without one, on the default port or, if it is in use, on any free one."""
    from saccade.serve.server import bind

    if port is not None:
        return bind(HOST, port)
    try:
        return bind(HOST, DEFAULT_PORT)
    except SaccadeError:
        return bind(HOST, 0)
