"""Small models for text, images and audio, and servers for them."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

import saccade
from saccade.config.load import load, save
from saccade.data.tokenization.tokenizers import train_tokenizers
from saccade.model.build.model import build
from saccade.model.run import named_weights, write_tensors
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import EXAMPLES, RECIPE, WEIGHTS
from saccade.serve.app import create_app
from saccade.serve.limits import Limits
from saccade.serve.server import bind, create_server
from saccade_worlds.playing.predictor import Player

PAIRS = [("3 May 1999", "1999-05-03"), ("21 June 2008", "2008-06-21"), ("the dog and the cat", "47")]
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
STACK = ("dim=24", "heads=2", "ff=31", "layers=1")
FEW = ("train.steps=1", "train.schedule.warmup_steps=1", "train.valid_predictions=2", "train.metric=loss")
FEWER = (*FEW, "data.train.0.examples=100", "data.valid.0.examples=5", "train.batch_tokens=1024")


def make_run(folder: Path, name: str) -> Path:
    """An untrained run whose output distributions are peaked, so that outputs do not depend on rounding."""
    parts = ("writer",) if name == "shakespeare" else ("reader", "writer")
    small = [f"{part}.stack.{key}" for part in parts for key in STACK]
    recipe = load(name, overrides=[*small, "data.max_length=40", "predict.max_length=8", "predict.min_length=2"])
    texts = [(text, text) for pair in PAIRS for text in pair] if name == "shakespeare" else PAIRS
    tokenizers = train_tokenizers(recipe.tokenizer, lambda: texts)
    torch.manual_seed(3)
    model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target.size)
    with torch.no_grad():
        model.writer.output.weight.mul_(4.0)
    folder.mkdir(parents=True)
    tokenizers.save(folder)
    write_tensors(named_weights(model), folder / WEIGHTS)
    save(recipe, folder / RECIPE)
    if name == "dates":
        examples = [{"input": source, "reference": target} for source, target in PAIRS[1::-1]]
        (folder / EXAMPLES).write_text(json.dumps(examples))
    return folder


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("serve") / "dates", "dates")


@pytest.fixture(scope="session")
def language_run(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("serve") / "writer", "shakespeare")


@pytest.fixture(scope="session")
def translator(run) -> Predictor:
    return Predictor.load(run)


@pytest.fixture(scope="session")
def writer(language_run) -> Predictor:
    return Predictor.load(language_run)


@pytest.fixture(scope="session")
def looker(tmp_path_factory) -> Predictor:
    """An image classifier."""
    return saccade.train("vit", tiny=True, run=tmp_path_factory.mktemp("serve") / "shapes", overrides=FEWER)


@pytest.fixture
def masked_autoencoder(tmp_path) -> Predictor:
    """A masked autoencoder, which has no output for an image."""
    return saccade.train("vit-masked", tiny=True, run=tmp_path / "masked", overrides=FEWER)


@pytest.fixture(scope="session")
def teller(tmp_path_factory) -> Predictor:
    """An image captioner."""
    changes = [*FEWER, "predict.max_length=6", "predict.min_length=2"]
    return saccade.train(
        "show-attend-tell", tiny=True, run=tmp_path_factory.mktemp("serve") / "scenes", overrides=changes
    )


@pytest.fixture(scope="session")
def listener(tmp_path_factory) -> Predictor:
    """A speech recognizer for dialled digits."""
    changes = [*FEWER, "predict.max_length=6", "predict.min_length=2"]
    return saccade.train(
        "listen-attend-spell", tiny=True, run=tmp_path_factory.mktemp("serve") / "tones", overrides=changes
    )


@pytest.fixture(scope="session")
def answerer(tmp_path_factory) -> Predictor:
    """A model for visual question answering."""
    run = tmp_path_factory.mktemp("serve") / "questions"
    return saccade.train("show-ask-attend-answer", tiny=True, run=run, overrides=FEWER)


@pytest.fixture(scope="session")
def player(tmp_path_factory) -> Player:
    """An agent that acts on images."""
    run = tmp_path_factory.mktemp("serve") / "greeting"
    made = saccade.train("show-attend-interact", tiny=True, run=run, overrides=FEWER)
    assert isinstance(made, Player)
    return made


@pytest.fixture(scope="session")
def media_models(looker, teller, listener, answerer, translator) -> dict[str, Predictor]:
    """Models of all modalities; the first, which is the default, is the image classifier."""
    return {"shapes": looker, "scenes": teller, "tones": listener, "questions": answerer, "dates": translator}


@pytest.fixture(scope="session")
def media_server(media_models) -> Iterator[int]:
    """The port of a server for these models."""
    with running(media_models, max_body_bytes=2_000_000, max_pixels=1_000_000) as port:
        yield port


@pytest.fixture
def make_client(translator, writer) -> Iterator[Callable[..., TestClient]]:
    """Create a client of a server in this process."""
    opened: list[TestClient] = []

    def make(*, token: str = "", **limits: Any) -> TestClient:
        app = create_app({"dates": translator, "writer": writer}, token=token, limits=Limits(**limits))
        client = TestClient(app, base_url="http://127.0.0.1")
        opened.append(client)
        return client.__enter__()

    yield make
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture
def client(make_client) -> TestClient:
    return make_client()


@contextmanager
def running(predictors: dict[str, Predictor], *, token: str = "", **limits: Any) -> Iterator[int]:
    """The port of a real server in a thread."""
    bounds = Limits(**limits)
    server, place = create_server(create_app(predictors, token=token, limits=bounds), bounds), bind("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
    port = place.getsockname()[1]
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield port
    finally:
        server.should_exit = True
        thread.join(30)
    assert not thread.is_alive()


@pytest.fixture(scope="session")
def real_server(translator, writer) -> Iterator[int]:
    """The port of a server that disconnects slow clients after half a second."""
    with running({"dates": translator, "writer": writer}, client_timeout=0.5, header_timeout=0.5) as port:
        yield port


@pytest.fixture
def guarded_server(translator) -> Iterator[int]:
    """The port of a server whose token is `sesame`."""
    with running({"dates": translator}, token="sesame") as port:
        yield port


@pytest.fixture
def violations() -> Callable[[Any], list[tuple[str, list[str]]]]:
    """Find the accessibility violations of a page with axe."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()

    def find_violations(page: Any) -> list[tuple[str, list[str]]]:
        violations = axe.run(page, options={"runOnly": {"type": "tag", "values": RULES}}).response["violations"]
        return [(one["id"], [node["html"][:120] for node in one["nodes"][:3]]) for one in violations]

    return find_violations


class Connection:
    """An HTTP client on a raw socket."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(source, 0))
        self.file = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(self, body: dict[str, Any]) -> None:
        self.send(post(body))

    def head(self) -> tuple[int, dict[str, str]]:
        """Read the status code and headers of a response; 0 if the connection was closed."""
        lines = []
        while (line := self.file.readline().decode().strip()) != "":
            lines.append(line)
        pairs = (line.lower().split(": ", 1) for line in lines[1:])
        return (int(lines[0].split()[1]) if lines else 0), dict(pairs)  # type: ignore[arg-type]

    def answer(self) -> tuple[int, Any]:
        status, headers = self.head()
        return status, json.loads(self.file.read(int(headers["content-length"]))) if status else None

    def wait_until_closed(self) -> bool:
        """Wait until the server closes the connection; False if it sends data instead."""
        try:
            return self.file.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def post(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    lines = ["POST /v1/predict HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data


@pytest.fixture
def connect(real_server) -> Iterator[Callable[..., Connection]]:
    opened: list[Connection] = []

    def make(port: int = real_server, source: str = "127.0.0.1") -> Connection:
        opened.append(Connection(port, source))
        return opened[-1]

    yield make
    for connection in opened:
        connection.close()


class Servers:
    """Starts servers with limits; each call returns a function that opens connections to a new server."""

    def __init__(self, predictors: dict[str, Predictor], connect: Callable[..., Connection]) -> None:
        self.predictors, self.connect, self.opened = predictors, connect, ExitStack()
        self.port = 0  # of the last server

    def __call__(self, **limits: Any) -> Callable[..., Connection]:
        self.port = port = self.opened.enter_context(running(self.predictors, **limits))

        def open_connection(source: str = "127.0.0.1", send: bytes = b"") -> Connection:
            connection = self.connect(port, source)
            connection.send(send)
            return connection

        return open_connection

    def stop(self) -> None:
        self.opened.close()


@pytest.fixture
def serve(translator, writer, connect) -> Iterator[Servers]:
    servers = Servers({"dates": translator, "writer": writer}, connect)
    yield servers
    servers.stop()
