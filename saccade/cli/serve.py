"""`saccade serve`."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer

from saccade.cli.predict import Engine, Precision, load
from saccade.errors import SaccadeError

NEEDED = ("fastapi", "uvicorn")
FORMS = "python-multipart"  # by which files are sent

Runs = Annotated[
    list[str],
    typer.Argument(metavar="RUN", help="Folders or names of runs; without any, the model of `saccade demo`."),
]
Host = Annotated[str, typer.Option("--host", help="Address to listen at; other than this machine: with a token.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen at; 0 is any free one.")]
Token = Annotated[
    str, typer.Option("--token", envvar="SACCADE_TOKEN", help="What clients must send as bearer token.", metavar="TEXT")
]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, max=86400, help="Seconds until an answer must be there.")]
Queue = Annotated[int, typer.Option("--queue", min=1, help="Requests that may wait for a model.")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Texts that are decoded together at most.")]
MaxBody = Annotated[
    int | None,
    typer.Option("--max-body", min=1, help="Kilobytes that a request may have; without it 1000, with files 20000."),
]
MaxPixels = Annotated[  # of more than 178 million, Pillow reads none
    int, typer.Option("--max-pixels", min=1, max=178, help="Millions of pixels that a picture may have.")
]


def serve(  # noqa: PLR0913  # the options of a verb are its parameters
    runs: Runs = [],  # noqa: B006  # typer copies it
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = "",
    engine: Engine = "auto",
    precision: Precision = "auto",
    timeout: Timeout = 60.0,
    queue: Queue = 512,
    batch: Batch = 64,
    max_body: MaxBody = None,
    max_pixels: MaxPixels = 50,
) -> None:
    """Serve models over HTTP: a page to try them, and an API for programs."""
    check_installed("serve", FORMS)
    from saccade.serve.app import make_app, named
    from saccade.serve.limits import Limits, body_for
    from saccade.serve.served import form_of
    from saccade.serve.server import address, bind, check_address, make_server, run, to_try

    check_address(host, token)
    names = named(runs)
    with bind(host, port) as place:  # first, for it is soon known whether that can be
        text = "Two dogs are running ."
        if not runs:
            from saccade.demo.dates import SHOWN, ready_demo

            runs, names, text = [str(ready_demo())], ["demo"], SHOWN[0]
        loaded = [load(each.split(","), engine=engine, precision=precision) for each in runs]
        body = body_for(loaded) if max_body is None else max_body * 1000
        limits = Limits(seconds=timeout, queue=queue, batch=batch, body=body, pixels=max_pixels * 1_000_000)
        app = make_app(dict(zip(names, loaded, strict=True)), token=token, limits=limits)
        url = address(place)
        print(f"serving {', '.join(names)} at {url} (end with Ctrl+C)")
        print(to_try(url, text, token=bool(token), form=form_of(loaded[0])), flush=True)
        run(make_server(app, limits), place)


def check_installed(verb: str, *more: str) -> None:
    missing = [name for name in (*NEEDED, *more) if importlib.util.find_spec(name.replace("-", "_")) is None]
    if missing:
        raise SaccadeError(f"{verb} needs {' and '.join(missing)}; install with: pip install 'saccade[serve]'")
