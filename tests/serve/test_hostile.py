"""Clients that try to silence the server: held connections, announced bodies, guessed tokens; and early answers."""

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from saccade.serve.clients import TokenCheck, get_client_key

OTHER_ADDRESS = "127.0.0.2"  # of this machine too, but another client


def head(path: str = "/v1/predict", *, length: int, token: str = "") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {length}"]
    return "\r\n".join([*lines, *([f"Authorization: Bearer {token}"] if token else []), "", ""]).encode()


def ask(connection: Any, token: str = "") -> int:
    body = b'{"input": "3 M"}'
    connection.send(head(length=len(body), token=token) + body)
    return connection.answer()[0]


def test_a_request_that_is_not_complete_does_not_delay_the_shutdown(serve):
    """The shutdown after the test would take the time limit for bodies, 20 s."""
    begin = time.monotonic()
    held = [serve()(send=begun) for begun in (b"POST", head(length=100))]
    time.sleep(0.1)
    serve.stop()
    assert [each.wait_until_closed() for each in held] == [True] * 2
    assert time.monotonic() - begin < 10


# ---- bodies


@pytest.mark.parametrize(("path", "token"), [("/v1/predict", "sesame"), ("/v1/predict", ""), ("/health", "")])
def test_announced_bodies_reserve_nothing(serve, path, token):
    open_connection = serve(token="sesame", max_total_bytes=1_800_000)
    begun = head(path, length=900_000, token=token) + b"{"
    held = [open_connection(send=begun) for _ in range(20)]
    time.sleep(0.1)
    assert ask(open_connection(), "sesame") == 200
    assert len(held) == 20


def test_the_largest_unfinished_body_makes_room_for_others(serve):
    open_connection = serve(max_client_bytes=500_000)
    small, large = (open_connection(send=head(length=900_000) + b" " * sent) for sent in (100_000, 350_000))
    time.sleep(0.1)
    assert ask(open_connection(send=head(length=200_000) + b" " * 200_000)) in (200, 422)
    assert large.answer()[0] == 429
    large.close()
    small.send(b" " * 799_900 + b'{"input": "3 M"}'.rjust(100))
    assert small.answer()[0] == 429  # alone, it is larger than a client's room
    assert ask(open_connection()) == 200


def test_a_body_may_take_longer_if_it_arrives_steadily(serve):
    open_connection = serve(client_timeout=0.3, min_body_rate=1000)
    connection = open_connection(send=head(length=500))
    for part in (b'{"input": "3 M"}', b" " * 184, b" " * 200, b" " * 100):
        time.sleep(0.12)
        connection.send(part)
    assert connection.answer()[0] == 200


# ---- connections


@pytest.mark.parametrize("begun", [b"", b"POST /v1/pre", head(length=100)], ids=["nothing", "headers", "body"])
def test_held_connections_make_way_for_new_ones(serve, begun):
    open_connection = serve(max_client_connections=4)
    held = [open_connection(send=begun) for _ in range(6)]
    assert ask(open_connection()) == 200
    assert [each.wait_until_closed() for each in held[:3]] == [True] * 3
    held[-1].socket.settimeout(0.05)
    with pytest.raises(TimeoutError):
        held[-1].file.read(1)


def test_a_crowd_of_one_client_does_not_keep_out_another(serve):
    open_connection = serve(max_connections=4)
    held = [open_connection(OTHER_ADDRESS) for _ in range(4)]
    first = open_connection()
    assert ask(first) == ask(open_connection()) == ask(first) == 200
    assert [each.wait_until_closed() for each in held[:2]] == [True] * 2


def test_connections_that_are_being_answered_are_kept(serve, writer, monkeypatch):
    proceed = threading.Event()

    def write(text, *, decoding):
        yield "a"
        assert proceed.wait(20)

    monkeypatch.setattr(writer, "write", write)
    open_connection = serve(max_client_connections=1)
    first = open_connection()
    first.post({"model": "writer", "input": "a", "stream": True})
    assert first.head()[0] == 200
    status, answer = open_connection().answer()
    assert (status, answer["error"][:40]) == (429, "too many connections from this address; ")
    proceed.set()
    assert any(line.startswith(b"event: done") for line in first.file)


def test_clients_differ_by_address():
    pairs = {"10.0.0.1": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "2001:db8::1": "2001:db8::/64", "": ""}
    assert {address: get_client_key(address) for address in pairs} == pairs


# ---- tokens


def test_wrong_tokens_are_slowed_for_their_client_alone(serve):
    open_connection = serve(token="sesame", max_token_delay=0.4)
    begin = time.monotonic()
    assert [ask(open_connection(), f"wrong {number}") for number in range(5)] == [401] * 5
    assert time.monotonic() - begin > 0.7  # 0.05 + 0.1 + 0.2 + 0.4
    guessing = open_connection(send=head(length=2, token="sesame") + b"{}")
    begin = time.monotonic()
    assert ask(open_connection(OTHER_ADDRESS), "sesame") == 200
    assert ask(open_connection(), "") == 401  # not a guess
    assert time.monotonic() - begin < 0.3
    assert guessing.answer()[0] == 422  # the right token waits as long as a wrong one
    assert time.monotonic() - begin > 0.3


def test_wrong_tokens_are_forgotten(monkeypatch):
    check = TokenCheck("sesame", 2.0)
    check._count_failure("a")
    check._count_failure("a")
    assert (check.get_delay("a"), check.get_delay("b")) == (0.1, 0.0)
    monkeypatch.setattr("saccade.serve.clients.FORGET_SECONDS", 0.0)
    time.sleep(0.001)
    assert check.get_delay("a") == 0.0
    monkeypatch.setattr("saccade.serve.clients.MAX_REMEMBERED_CLIENTS", 3)
    for client in "abcd":
        check._count_failure(client)
    assert [*check.failures] == ["b", "c", "d"]


# ---- answers that are sent before the body has arrived


@pytest.mark.parametrize(("token", "status"), [("sesame", 413), ("", 401)])
def test_an_early_answer_reaches_urllib_and_curl(serve, tmp_path, token, status):
    serve(token="sesame")
    url = f"http://127.0.0.1:{serve.port}/v1/predict"
    body = tmp_path / "body"
    body.write_bytes(b" " * 20_000_000)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}".strip()}
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, body.read_bytes(), headers), timeout=20)
    assert caught.value.code == status
    assert caught.value.headers["connection"] == "close"
    assert "error" in json.load(caught.value)
    if shutil.which("curl"):
        options = [part for pair in headers.items() for part in ("-H", ": ".join(pair))]
        command = ["curl", "-s", "-w", " %{http_code}", "-H", "Expect:", *options, "--data-binary", f"@{body}", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        assert (done.returncode, done.stdout[-4:], done.stdout[:9]) == (0, f" {status}", '{"error":')


def test_what_is_discarded_is_bounded(serve):
    open_connection = serve(max_discarded_bytes=1_000_000)
    connection = open_connection(send=head(length=900_000_000))
    assert connection.answer()[0] == 413
    with pytest.raises((ConnectionError, socket.timeout)):
        for _ in range(100):
            connection.send(b" " * 1_000_000)
