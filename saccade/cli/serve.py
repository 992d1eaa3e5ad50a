"""`saccade serve`: serve models over HTTP."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated

import typer

from saccade.cli.arguments import Plugins
from saccade.cli.predict import Engine, Precision, load_predictor
from saccade.errors import SaccadeError
from saccade.extras import get_install_command

REQUIRED_PACKAGES = ("fastapi", "uvicorn", "prometheus-client")
MAX_EXAMPLE_CHARACTERS = 80  # of the input in the command that is printed
FORM_PACKAGE = "python-multipart"  # parses file uploads

Runs = Annotated[
    list[str],
    typer.Argument(metavar="RUN", help="Folders or names of runs to serve; default: the model of `saccade demo`."),
]
Host = Annotated[str, typer.Option("--host", help="Address to listen on; other than localhost only with a token.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 picks a free one.")]
Token = Annotated[
    str, typer.Option("--token", envvar="SACCADE_TOKEN", help="Bearer token that clients must send.", metavar="TEXT")
]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, max=86400, help="Seconds until a request fails.")]
Queue = Annotated[int, typer.Option("--queue", min=1, help="Maximum number of requests waiting for a model.")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Maximum number of inputs in a batch.")]
MaxBody = Annotated[
    int | None,
    typer.Option("--max-body", min=1, help="Maximum size of a request in kB; default 1000, with file uploads 20000."),
]
MaxPixels = Annotated[  # Pillow refuses images of more than 178 million pixels
    int, typer.Option("--max-pixels", min=1, max=178, help="Maximum size of an image in million pixels.")
]
Workers = Annotated[
    int, typer.Option("--workers", min=1, max=256, help="Number of processes that serve on the same port.")
]
NoExamples = Annotated[
    bool, typer.Option("--no-examples", help="Do not show validation examples of the runs to those who use the page.")
]


def serve(  # noqa: PLR0913  # the options of a command are its parameters
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
    plugin: Plugins = [],  # noqa: B006
    workers: Workers = 1,
    no_examples: NoExamples = False,
) -> None:
    """Serve models over HTTP: a web page to try them, and a JSON API."""
    check_installed("serve", FORM_PACKAGE)
    from saccade.serve.app import create_app, get_model_names
    from saccade.serve.limits import Limits, get_max_body_bytes
    from saccade.serve.served import list_form_fields
    from saccade.serve.server import bind, check_address, create_server, format_url, run_server

    check_address(host, token)
    names, text = get_model_names(runs), "" if no_examples else choose_example(runs)
    limits = Limits(timeout=timeout, max_queue=queue, max_batch=batch, max_pixels=max_pixels * 1_000_000)
    max_body_bytes = None if max_body is None else max_body * 1000
    with bind(host, port) if workers == 1 else nullcontext() as listener:  # a port in use is reported at once
        if not runs:
            from saccade.demo.dates import EXAMPLES, find_or_train_demo

            runs, names, text = [str(find_or_train_demo())], ["demo"], EXAMPLES[0]
        text = text or "Two dogs are running ."
        if listener is None:
            from saccade.serve.workers import WorkerSettings, divide_limits, run_workers

            settings = WorkerSettings(
                [find_folders(run) for run in runs], names, host, port, token, divide_limits(limits, workers),
                max_body_bytes, engine, precision, [os.path.abspath(name) for name in plugin], not no_examples,
            )  # fmt: skip
            run_workers(
                settings, workers, lambda ready: print_start(names, ready["url"], text, token, ready["form_fields"])
            )
            return
        predictors = [
            load_predictor(each.split(","), engine=engine, precision=precision, plugins=plugin) for each in runs
        ]
        limits = replace(limits, max_body_bytes=max_body_bytes or get_max_body_bytes(predictors))
        app = create_app(
            dict(zip(names, predictors, strict=True)), token=token, limits=limits, examples=not no_examples
        )
        print_start(names, format_url(listener), text, token, list_form_fields(predictors[0]))
        run_server(create_server(app, limits), listener)


def find_folders(run: str) -> list[str]:
    """Find the folders of a run, or of those of an ensemble."""
    from saccade.runs import find_run

    return [str(find_run(name).absolute()) for name in run.split(",") if name]


def choose_example(runs: Sequence[str]) -> str:
    """Choose an input for the command that is printed: a short validation example of the first run; or none."""
    from saccade.runs import find_run, read_examples

    first = find_run(runs[0].split(",")[0]) if runs else None
    texts = [item.get("input", "") for item in (read_examples(first) if first else [])]
    return next((text for text in texts if 0 < len(text) <= MAX_EXAMPLE_CHARACTERS and text.isprintable()), "")


def print_start(names: Sequence[str], url: str, text: str, token: str, form_fields: Sequence[str]) -> None:
    from saccade.serve.server import format_curl_command

    print(f"serving {', '.join(names)} at {url} (stop with Ctrl+C)")
    print(format_curl_command(url, text, token=bool(token), form_fields=form_fields), flush=True)


def check_installed(command: str, *more: str) -> None:
    missing = [name for name in (*REQUIRED_PACKAGES, *more) if importlib.util.find_spec(name.replace("-", "_")) is None]
    if missing:
        raise SaccadeError(f"{command} needs {' and '.join(missing)}; install with: {get_install_command('serve')}")
