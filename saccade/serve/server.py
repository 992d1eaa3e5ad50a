"""Running the application with uvicorn: listening socket, URL, start and shutdown."""

import json
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from saccade.errors import SaccadeError
from saccade.serve.connections import build_limited_protocol
from saccade.serve.guard import App, is_local
from saccade.serve.limits import Limits

TOKEN_VARIABLE = "SACCADE_TOKEN"  # environment variable, which a list of processes does not show
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def check_address(host: str, token: str) -> None:
    """Raise if the server would be reachable from other machines without a token, or if the token is invalid."""
    if not token and not is_local(host):
        raise SaccadeError(
            f"host {host} is reachable from other machines, but no token is set; set {TOKEN_VARIABLE} or use 127.0.0.1"
        )
    if not token.isascii() or token != token.strip():
        raise SaccadeError("the token must be ASCII without leading or trailing spaces; change it")


def bind(host: str, port: int, *, shares_port: bool = False, listens: bool = True) -> socket.socket:
    """Open a listening socket; port 0 picks a free one. With `shares_port`, several sockets may have the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets with an explicit protocol; without it, a response takes 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shares_port:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
        if listens:
            listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        why = getattr(error, "strerror", None) or str(error)
        raise SaccadeError(
            f"cannot listen on {host} port {port}: {why.lower()}; choose another --port (0 picks a free one) or --host"
        ) from None
    return listener


def create_server(app: App, limits: Limits) -> uvicorn.Server:
    """Create the uvicorn server for an application."""
    config = uvicorn.Config(
        app,
        http=build_limited_protocol(limits),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=limits.idle_timeout,
        timeout_graceful_shutdown=int(limits.timeout) + 5,
    )
    return uvicorn.Server(config)


def run_server(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM, then finish the requests in flight."""
    with suppress_stop_signals():
        server.run(sockets=[listener])


@contextmanager
def run_in_background(server: uvicorn.Server, listener: socket.socket) -> Iterator[None]:
    """Serve in a background thread, which receives no signals, until the context ends."""
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(server.config.timeout_graceful_shutdown)


@contextmanager
def suppress_stop_signals() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM outside of uvicorn, which raises them again after its shutdown."""
    before = {number: signal.signal(number, lambda *_: None) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def format_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def format_curl_command(url: str, text: str, *, token: bool, form_fields: Sequence[str] = ()) -> str:
    """Format a curl command that requests a prediction, with a JSON body or with form fields."""
    header = f' -H "Authorization: Bearer ${TOKEN_VARIABLE}"' if token else ""
    if form_fields:
        return f"curl {url}/v1/predict{header}{''.join(f' -F {field}' for field in form_fields)}"
    body = json.dumps({"input": text}, ensure_ascii=False).replace("'", r"'\''")
    return f"curl {url}/v1/predict{header} -H 'Content-Type: application/json' -d '{body}'"
