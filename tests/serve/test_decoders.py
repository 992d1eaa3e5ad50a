"""Uploads are decoded in processes with limits: one that is slow, large or hostile does not keep others waiting."""

import asyncio
import io
import os
import signal
import struct
import sys
import threading
import time
import wave
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from saccade.serve import decoders
from saccade.serve.app import create_app
from saccade.serve.limits import Limits, RequestError
from saccade.serve.uploads import Upload


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (60, 50), "red").save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def slow_picture() -> bytes:
    """A small file with many pixels: a black PNG with one bit per pixel."""
    side = 12_000

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(side * (side // 8 + 1)), 1))
    return b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b"")


@contextmanager
def open_client(model, **limits) -> Iterator[SimpleNamespace]:
    app = create_app({"model": model}, limits=Limits(**{"max_body_bytes": 20_000_000, "decoders": 2, **limits}))
    with TestClient(app, base_url="http://127.0.0.1") as client:

        def send(*files: bytes) -> tuple[int, str]:
            answer = client.post("/v1/predict", files=[("file", (f"{i}.png", data)) for i, data in enumerate(files)])
            return answer.status_code, answer.json().get("error", "")

        yield SimpleNamespace(send=send, decoders=app.app.state.decoders)


def test_a_slow_file_is_ended_and_the_process_replaced(looker, slow_picture):
    with open_client(looker, max_pixels=178_000_000, max_decode_seconds=0.2) as client:
        assert client.send(picture()) == (200, "")
        [first] = client.decoders.processes
        expected = "0.png takes more than 0.2 s to decode; make it smaller, or save it again"
        assert client.send(slow_picture) == (422, expected)
        assert not first.is_alive
        assert client.send(picture()) == (200, "")
        assert first not in client.decoders.processes
        assert client.decoders.waiting == 0 and not looker.codec.registered


def test_others_do_not_wait_for_slow_files(looker, slow_picture):
    """Before, all files of all clients were decoded one after the other."""
    ended: dict[str, float] = {}
    with open_client(looker, max_pixels=178_000_000) as client:

        def send(name: str, *files: bytes) -> None:
            assert client.send(*files) == (200, "")
            ended[name] = time.monotonic()

        slow = threading.Thread(target=send, args=("slow", *[slow_picture] * 2))
        slow.start()
        while not client.decoders.running:
            time.sleep(0.01)
        send("quick", picture())
        assert "slow" not in ended
        slow.join()
    assert ended["quick"] < ended["slow"]


def test_the_time_limit_covers_decoding(looker, slow_picture):
    with open_client(looker, max_pixels=178_000_000, timeout=0.3, max_decode_seconds=20) as client:
        begin = time.monotonic()
        status, error = client.send(*[slow_picture] * 8)
        assert time.monotonic() - begin < 3
        assert status in (422, 503) and "0.3 s" in error
        assert client.decoders.waiting == 0 and not client.decoders.requests


def test_a_file_that_needs_too_much_memory_is_refused(listener):
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 96_000, 0, "NONE", ""))
        sound.writeframes(bytes(2 * 96_000 * 60))
    with open_client(listener, max_decode_bytes=40_000_000, max_pixels=1) as client:
        expected = (422, "0.png needs too much memory to be decoded; make it smaller")
        assert client.send(file.getvalue()) == expected
        assert client.send(file.getvalue()) == expected
        assert len(client.decoders.processes) == 1  # it goes on
    with open_client(listener) as client:
        assert client.send(file.getvalue()) == (200, "")


def test_a_process_that_dies_is_one_line_and_replaced(looker, slow_picture):
    with open_client(looker, max_pixels=178_000_000) as client:
        assert client.send(picture()) == (200, "")
        [process] = client.decoders.processes
        killer = threading.Timer(0.1, os.kill, (process.process.pid, signal.SIGKILL))
        killer.start()
        expected = "0.png ended the process that decoded it; make it smaller, or save it again"
        assert client.send(slow_picture) == (422, expected)
        assert client.send(picture()) == (200, "")
        [process] = client.decoders.processes
        process.process.kill()  # while it has nothing to do
        process.process.wait()
        assert client.send(picture()) == (200, "")
    assert not any(each.is_alive for each in client.decoders.processes)


def test_processes_import_nothing_from_the_working_folder_and_have_no_token(looker, tmp_path, monkeypatch):
    for name in ("PIL", "numpy", "pydantic"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("SACCADE_TOKEN", "sesame")
    with open_client(looker) as client:
        assert client.send(picture()) == (200, "")
        [process] = client.decoders.processes
        with open(f"/proc/{process.process.pid}/environ", "rb") as file:
            assert b"SACCADE_TOKEN" not in file.read()


@pytest.mark.parametrize("program", ["/bin/false", "/nothing"])
def test_a_process_that_does_not_start_is_reported(looker, monkeypatch, caplog, program):
    monkeypatch.setattr(sys, "executable", program)
    decoder = decoders.FileDecoder(Limits())
    decoder.start([looker])
    with pytest.raises(RequestError, match="files cannot be decoded now; see the log of the server"):
        decoder._run(SimpleNamespace(is_custom=False), Upload("a.png", b""))
    assert "a process that decodes files does not start" in caplog.text
    assert not decoder.processes
    decoder.stop()
    with pytest.raises(RequestError, match="the server is shutting down"):
        decoder._run(SimpleNamespace(is_custom=False), Upload("a.png", b""))


def test_one_client_never_has_all_processes_and_who_took_least_goes_first(monkeypatch):
    started, proceed = list[str](), threading.Event()

    def run(reader, file):
        started.append(file.name)
        assert proceed.wait(20)

    async def decode() -> None:
        decoder = decoders.FileDecoder(Limits(decoders=3))
        monkeypatch.setattr(decoder, "_run", run)
        for number, client in enumerate(["a", "a", "a", "b"]):
            request = decoders.FileRequest(client, None, seconds=-number)
            request.waiting.append((Upload(f"{client}{number}", b""), asyncio.get_running_loop().create_future()))
            decoder.requests.append(request)
        decoder._dispatch()
        await asyncio.sleep(0.1)
        assert sorted(started) == ["a1", "a2", "b3"]
        proceed.set()
        while decoder.running:
            await asyncio.sleep(0.01)
        assert started[3:] == ["a0"]
        decoder.stop()

    asyncio.run(decode())
