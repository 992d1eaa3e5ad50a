"""A real server: streams, slow clients, many clients, and shutdown."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

TEXTS = [f"{day} May {year}" for day in (3, 21, 9) for year in (1999, 2008)]
HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


def test_chunks_of_a_stream_arrive_before_it_ends(connect, writer, monkeypatch):
    """The model generates the next chunk only after the client has read the last one: nothing is buffered."""
    read = threading.Semaphore(1)

    def write(text, *, decoding):
        for letter in text:
            assert read.acquire(timeout=20)
            yield letter

    monkeypatch.setattr(writer, "write", write)
    connection = connect()
    connection.post({"model": "writer", "input": "abc", "stream": True})
    status, headers = connection.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    events = []
    while not events or "output" not in events[-1]:
        line = connection.file.readline()
        if line.startswith(b"data: "):
            events.append(json.loads(line[6:]))
            read.release()
    assert events == [{"text": "a"}, {"text": "b"}, {"text": "c"}, {"output": "abc"}]


def test_a_stream_stops_when_its_client_goes(connect, writer, monkeypatch):
    left = threading.Event()

    def write(text, *, decoding):
        try:
            while True:
                time.sleep(0.01)
                yield "a"
        finally:
            left.set()

    monkeypatch.setattr(writer, "write", write)
    connection = connect()
    connection.post({"model": "writer", "input": "abc", "stream": True})
    assert connection.head()[0] == 200
    connection.close()
    assert left.wait(20)


@pytest.mark.parametrize("begun", [b"", HEAD[:20]], ids=["nothing", "headers"])
def test_a_client_that_does_not_finish_its_headers_is_disconnected(connect, begun):
    connection, begin = connect(), time.monotonic()
    connection.send(begun)
    assert connection.wait_until_closed()
    assert 0.4 < time.monotonic() - begin < 10


@pytest.mark.parametrize(
    "begun", [b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n3\r\n{"], ids=["body", "chunks"]
)
def test_a_client_that_does_not_finish_its_body_is_answered_and_disconnected(connect, begun):
    connection, begin = connect(), time.monotonic()
    connection.send(HEAD + begun)
    error = "the body has not arrived within 0.5 s; send less, or send it faster"
    assert connection.answer() == (408, {"error": error})
    assert connection.wait_until_closed()
    assert 0.4 < time.monotonic() - begin < 10


def test_a_client_that_sends_byte_by_byte_is_disconnected(connect):
    connection, begin = connect(), time.monotonic()
    with pytest.raises(ConnectionError):
        for letter in HEAD * 10:
            connection.send(bytes([letter]))
            time.sleep(0.02)
    assert time.monotonic() - begin < 10


def test_an_idle_keep_alive_connection_is_not_closed(connect):
    connection = connect()
    for pause in (0.0, 0.8):
        time.sleep(pause)
        connection.post({"input": "3 May"})
        assert connection.answer()[0] == 200


def test_a_connection_is_closed_when_no_request_has_come_for_the_idle_timeout(serve):
    connection = serve(idle_timeout=1)()
    for pause in (0.0, 0.5):
        time.sleep(pause)
        connection.post({"input": "3 May"})
        assert connection.answer()[0] == 200
    begin = time.monotonic()
    assert connection.wait_until_closed()
    assert 0.9 < time.monotonic() - begin < 4.5  # uvicorn's own limit is 5 s


def test_a_client_that_does_not_read_is_disconnected(connect, writer, monkeypatch):
    left = threading.Event()

    def write(text, *, decoding):
        try:
            while True:
                time.sleep(0.005)
                yield "a" * 100_000
        finally:
            left.set()

    monkeypatch.setattr(writer, "write", write)
    connection = connect()
    connection.post({"model": "writer", "input": "abc", "stream": True})
    assert left.wait(20)


def test_requests_one_after_another_on_one_connection(connect, translator):
    connection = connect()
    connection.send(b"".join([HEAD + b"Content-Length: 16\r\n\r\n" + b'{"input": "3 M"}'] * 3))
    assert [connection.answer()[1]["results"][0]["output"] for _ in range(3)] == translator.predict(["3 M"]) * 3


def test_a_large_body_is_answered_and_not_kept(connect):
    connection = connect()
    connection.send(HEAD + b"Content-Length: 50000000\r\n\r\n")
    status, answer = connection.answer()
    assert (status, answer["error"][:32]) == (413, "a request has at most 1000000 by")
    assert connection.wait_until_closed()


def load(connect: Callable, port: int, *, clients: int, seconds: float, expected: dict[str, str]) -> int:
    """Send requests from several clients in parallel; return the number of responses, all of which were right."""
    until = time.monotonic() + seconds

    def one(number: int) -> int:
        connection, count = connect(port), 0
        while time.monotonic() < until:
            text = TEXTS[(number + count) % len(TEXTS)]
            connection.post({"input": text, "settings": {"beam": 1 + number % 2}})
            status, answer = connection.answer()
            assert (status, answer["results"][0]["output"]) == (200, expected[f"{text} {1 + number % 2}"])
            count += 1
        return count

    with ThreadPoolExecutor(clients) as pool:
        return sum(pool.map(one, range(clients)))


def expected_answers(connect: Callable, port: int) -> dict[str, str]:
    """The responses to a single client."""
    connection, found = connect(port), {}
    for text in TEXTS:
        for beam in (1, 2):
            connection.post({"input": text, "settings": {"beam": beam}})
            found[f"{text} {beam}"] = connection.answer()[1]["results"][0]["output"]
    return found


def test_twenty_clients_lose_nothing(connect, real_server):
    expected = expected_answers(connect, real_server)
    assert load(connect, real_server, clients=20, seconds=5, expected=expected) >= 20


# ---- a program of its own


class Program:
    """`saccade serve` in another process."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, "-m", "saccade", "serve", *map(str, words), "--port", "0"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"SACCADE_TOKEN": ""}
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        self.said = first + self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", first)
        assert found is not None, first + self.process.communicate()[1]
        self.port = int(found[1])

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal and return the exit code and the output on stderr."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@pytest.fixture
def program(run, language_run):
    server = Program(run, language_run)
    yield server
    server.process.kill()
    server.process.communicate()


def test_a_server_that_is_asked_to_stop_answers_first(program, connect):
    assert program.said.startswith("serving dates, writer at http://127.0.0.1:")
    assert f"curl http://127.0.0.1:{program.port}/v1/predict -H 'Content-Type: application/json' -d" in program.said
    connections = [connect(program.port) for _ in range(3)]
    many = {"input": TEXTS * 12, "settings": {"beam": 16, "max_length": 39}}  # takes half a second or more
    for connection in connections:
        connection.post(many)
    idle = connect(program.port)
    time.sleep(0.3)  # all requests are in flight, and none is finished
    ending = ThreadPoolExecutor(1).submit(program.end, signal.SIGTERM)
    for connection in connections:
        status, answer = connection.answer()
        assert status == 200
        assert len(answer["results"]) == 72
    assert idle.wait_until_closed()
    assert ending.result() == (0, "")
    with pytest.raises(ConnectionError):
        connect(program.port)


# ---- slow


def memory(process: int) -> float:
    """Resident memory of a process in MB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.slow
def test_two_hundred_clients_for_a_minute_lose_nothing(program, connect):
    expected = expected_answers(connect, program.port)
    assert load(connect, program.port, clients=200, seconds=60, expected=expected) >= 200
    assert program.end(signal.SIGINT) == (0, "")


@pytest.mark.slow
def test_memory_stays_level_over_twenty_thousand_requests(program, connect):
    connections = [connect(program.port) for _ in range(10)]

    def thousand() -> float:
        for number in range(100):
            for connection in connections:
                connection.post({"input": TEXTS[number % len(TEXTS)], "settings": {"seed": number}})
            assert {connection.answer()[0] for connection in connections} == {200}
        return memory(program.process.pid)

    used = [thousand() for _ in range(20)]
    assert used[-1] < used[4] * 1.05 + 5, used
