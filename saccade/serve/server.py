"""From an application to a running server: its address, what is told about it, and how it ends."""

import json
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from saccade.errors import SaccadeError
from saccade.serve.connections import patient
from saccade.serve.guard import App, is_local
from saccade.serve.limits import Limits

TOKEN = "SACCADE_TOKEN"  # in the environment, where it is not seen in a list of processes
ENDING = (signal.SIGINT, signal.SIGTERM)


def check_address(host: str, token: str) -> None:
    """Only who has a token may ask from another machine."""
    if not token and not is_local(host):
        raise SaccadeError(
            f"host {host} can be reached from other machines, and there is no token; set {TOKEN}, or keep to 127.0.0.1"
        )
    if not token.isascii() or token != token.strip():
        raise SaccadeError("the token must be ASCII letters, digits and signs without spaces around them; change it")


def bind(host: str, port: int) -> socket.socket:
    """A socket at the address; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By its protocol asyncio knows that it may send at once; else a client waits 40 ms for the body of an answer.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(2048)
    except (OSError, OverflowError) as error:
        made.close()
        why = getattr(error, "strerror", None) or str(error)
        raise SaccadeError(
            f"cannot listen at {host} port {port}: {why.lower()}; choose another --port (0 is any free one) or --host"
        ) from None
    return made


def make_server(app: App, limits: Limits) -> uvicorn.Server:
    """The server, which is still to be given a socket and run."""
    config = uvicorn.Config(
        app,
        http=patient(limits.patience),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(limits.seconds) + 5,
    )
    return uvicorn.Server(config)


def run(server: uvicorn.Server, place: socket.socket) -> None:
    """Serves until it is told to end by SIGINT or SIGTERM, and then answers what it has been asked."""
    with ending_well():
        server.run(sockets=[place])


@contextmanager
def running(server: uvicorn.Server, place: socket.socket) -> Iterator[None]:
    """Serves beside something else, in a thread that no signal reaches, and ends with it."""
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(server.config.timeout_graceful_shutdown)


@contextmanager
def ending_well() -> Iterator[None]:
    """uvicorn raises again the signal that ended it; here that is no accident."""
    before = {number: signal.signal(number, lambda *_: None) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def address(place: socket.socket) -> str:
    host, port = place.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def to_try(url: str, text: str, *, token: bool, form: Sequence[str] = ()) -> str:
    """A command that asks the server for a prediction: of a text, or by the fields of a form."""
    header = f' -H "Authorization: Bearer ${TOKEN}"' if token else ""
    if form:
        return f"curl {url}/v1/predict{header}{''.join(f' -F {field}' for field in form)}"
    body = json.dumps({"input": text}, ensure_ascii=False).replace("'", r"'\''")
    return f"curl {url}/v1/predict{header} -H 'Content-Type: application/json' -d '{body}'"
