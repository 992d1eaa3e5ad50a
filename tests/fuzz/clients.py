"""200 clients for a minute, hostile and slow ones among them; then the memory of the server over many requests.

Honest clients must get the right answer to each request and no refusal. Hostile ones send headers only, bodies byte by
byte, wrong or no tokens, sizes that are not true, garbage, and uploads that are no pictures; each comes from an address
of its own (127.0.0.x), as honest ones do. `python tests/fuzz/clients.py --seconds 60 --requests 20000`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from execute import read_memory

TOKEN = "correct-horse-battery"
INPUTS = [f"{day} {month} {1950 + day}" for day in range(1, 29) for month in ("May", "June", "March")]
HONEST, HOSTILE = 150, 50
PATIENCE = 120.0  # seconds that an honest client waits for an answer, on a busy machine
GOOD = ("right", "sent again")
SCORE_DIGITS = 1e-3  # difference of log-probabilities that other rows of a batch may cause
MAX_GROWTH = 0.10  # of the memory, from the first quarter of the requests to the end


def start_server(run: Path) -> tuple[subprocess.Popen[str], int]:
    """Start `saccade serve` on a free port with a token."""
    command = [sys.executable, "-m", "saccade", "serve", str(run), "--port", "0", "--timeout", str(PATIENCE)]
    server = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "SACCADE_TOKEN": TOKEN},
    )
    assert server.stdout is not None
    found = re.search(r":(\d+)", server.stdout.readline().partition("http")[2])
    if found is None:
        raise RuntimeError("the server did not start")
    return server, int(found[1])


def build_request(
    body: bytes, *, token: str | None = TOKEN, length: int | None = None, kind: str = "application/json"
) -> bytes:
    lines = ["POST /v1/predict HTTP/1.1", "Host: 127.0.0.1", f"Content-Type: {kind}"]
    lines += [f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"Authorization: Bearer {token}"] if token is not None else []
    return "\r\n".join([*lines, "\r\n"]).encode() + body


class Clients:
    """All clients of one server, and what they got."""

    def __init__(self, port: int, seed: int) -> None:
        self.port, self.random = port, Random(seed)
        self.answers: dict[str, Any] = {}
        self.examples: list[str] = []  # of wrong answers
        self.honest: Counter[str] = Counter()
        self.hostile: Counter[str] = Counter()
        self.end = 0.0

    async def connect(self, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(f"127.0.{1 + number // 200}.{2 + number % 200}", 0)
        )

    async def read_answer(self, reader: asyncio.StreamReader) -> tuple[int, Any]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = int(re.search(r"content-length: (\d+)", head, re.IGNORECASE)[1])  # type: ignore[index]
        return int(head.split()[1]), json.loads(await reader.readexactly(length) or b"null")

    async def predict(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str) -> tuple[int, Any]:
        writer.write(build_request(json.dumps({"input": text}).encode()))
        await writer.drain()
        return await asyncio.wait_for(self.read_answer(reader), PATIENCE)

    async def learn_answers(self) -> None:
        """The answer to each input, asked one after the other on an idle server."""
        reader, writer = await self.connect(0)
        for text in INPUTS:
            status, value = await self.predict(reader, writer, text)
            assert status == 200, f"the first requests are answered, got {status}: {value}"
            self.answers[text] = value
        writer.close()

    async def ask_honestly(self, number: int, requests: int = 10**9) -> None:
        reader, writer = await self.connect(number)
        random = Random(f"{number}-{self.random.random()}")
        is_new = True
        for _ in range(requests):
            if time.monotonic() > self.end:
                break
            text = random.choice(INPUTS)
            try:
                status, value = await self.predict(reader, writer, text)
                is_new = False
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                # A server may close a connection that was idle; then clients send the request again on a new one.
                self.honest[f"no answer ({type(error).__name__})" if is_new else "sent again"] += 1
                writer.close()
                (reader, writer), is_new = await self.connect(number), True
                continue
            right = status == 200 and is_same(value, self.answers[text])
            self.honest["right" if right else "WRONG" if status == 200 else f"refused {status}"] += 1
            if status == 200 and not right:
                self.examples.append(f"{text!r}: {value} instead of {self.answers[text]}")
        writer.close()

    async def attack(self, number: int) -> None:
        """Do one hostile thing after the other, each on a new connection."""
        ways: list[Callable[..., Awaitable[None]]] = [
            self.send_headers_only, self.send_slowly, self.guess_token, self.send_garbage, self.lie_about_size,
            self.send_no_picture, self.leave_early, self.never_read,
        ]  # fmt: skip
        random = Random(f"hostile-{number}")
        while time.monotonic() < self.end:
            way = random.choice(ways)
            self.hostile[way.__name__.replace("_", " ")] += 1
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError, ValueError):
                reader, writer = await self.connect(1000 + number)
                try:
                    await asyncio.wait_for(way(reader, writer, random), 30)
                finally:
                    writer.close()

    async def send_headers_only(self, reader: Any, writer: Any, random: Random) -> None:
        token = random.choice((TOKEN, None, "x"))
        writer.write(build_request(b"", token=token, length=random.choice((900_000, 20_000_000, 10**15))))
        await reader.read(1000)

    async def send_slowly(self, reader: Any, writer: Any, random: Random) -> None:
        request = build_request(b'{"input": "3 May"}' + b" " * 2000)
        for at in range(0, len(request), 7):
            writer.write(request[at : at + 7])
            await writer.drain()
            await asyncio.sleep(random.uniform(0.05, 0.3))

    async def guess_token(self, reader: Any, writer: Any, random: Random) -> None:
        writer.write(build_request(b'{"input": "a"}', token=random.choice(("", "x" * 5000, "correct", "é"))))
        status, _ = await self.read_answer(reader)
        self.hostile["let in without the token" if status == 200 else "wrong token refused"] += 1

    async def send_garbage(self, reader: Any, writer: Any, random: Random) -> None:
        writer.write(
            random.choice((random.randbytes(3000), b"GET " + b"/" * 100_000, b"\r\n" * 5000, b"POST / HTTP/9\r\n\r\n"))
        )
        await reader.read(1000)

    async def lie_about_size(self, reader: Any, writer: Any, random: Random) -> None:
        writer.write(build_request(b'{"input": "a"}' * 50, length=random.choice((3, 5000))))
        await reader.read(1000)

    async def send_no_picture(self, reader: Any, writer: Any, random: Random) -> None:
        body = (
            b'--x\r\nContent-Disposition: form-data; name="input"; filename="a.png"\r\n\r\n'
            + random.randbytes(20_000)
            + b"\r\n--x--\r\n"
        )
        writer.write(build_request(body, kind="multipart/form-data; boundary=x"))
        await reader.read(1000)

    async def leave_early(self, reader: Any, writer: Any, random: Random) -> None:
        writer.write(build_request(json.dumps({"input": ["3 May"] * 100}).encode()))
        await writer.drain()

    async def never_read(self, reader: Any, writer: Any, random: Random) -> None:
        for _ in range(20):
            writer.write(build_request(json.dumps({"input": ["21 June 2008"] * 20}).encode()))
        await asyncio.sleep(10)


def is_same(answer: Any, expected: Any) -> bool:
    """Whether two answers are equal up to the last digits of scores, which depend on the batch, and to durations."""
    if isinstance(expected, dict):
        keys = [key for key in expected if "second" not in key and "time" not in key]
        return isinstance(answer, dict) and all(is_same(answer.get(key), expected[key]) for key in keys)
    if isinstance(expected, list):
        same_length = isinstance(answer, list) and len(answer) == len(expected)
        return same_length and all(map(is_same, answer, expected))
    if isinstance(expected, float):
        return isinstance(answer, float) and abs(answer - expected) < SCORE_DIGITS
    return bool(answer == expected)


async def run_minute(clients: Clients, seconds: float) -> None:
    await clients.learn_answers()
    clients.end = time.monotonic() + seconds
    work = [clients.ask_honestly(number) for number in range(1, HONEST + 1)]
    await asyncio.gather(*work, *(clients.attack(number) for number in range(HOSTILE)))


async def run_requests(clients: Clients, requests: int, server: int) -> list[int]:
    """Send many requests from eight clients; the memory of the server after each twentieth of them."""
    clients.end = time.monotonic() + 10**6
    sizes = []
    for _ in range(20):
        await asyncio.gather(*(clients.ask_honestly(number, requests // 160) for number in range(1, 9)))
        sizes.append(read_memory(server))
        print(f"{clients.honest.total():>8,} requests, {sizes[-1] / 1e6:.0f} MB", flush=True)
    return sizes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--requests", type=int, default=20_000, help="over which memory must stay level")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "SACCADE_DEVICE": "cpu"}
    with tempfile.TemporaryDirectory(prefix="saccade-clients-") as name:
        from world import enter, train_runs

        with enter(Path(name)):
            train_runs(only="dates")
        server, port = start_server(Path(name, "runs", "dates"))
        try:
            return report(server.pid, Clients(port, seed), options)
        finally:
            server.kill()
            server.wait()


def report(server: int, clients: Clients, options: argparse.Namespace) -> int:
    asyncio.run(run_minute(clients, options.seconds))
    print(f"{HONEST} honest and {HOSTILE} hostile clients for {options.seconds:.0f} s")
    print(f"honest requests: {dict(clients.honest)}\nhostile deeds: {dict(clients.hostile)}", flush=True)
    wrong = sum(count for name, count in clients.honest.items() if name not in GOOD)
    wrong += clients.hostile["let in without the token"]
    after_minute, clients.honest = read_memory(server), Counter()
    sizes = asyncio.run(run_requests(clients, options.requests, server))
    wrong += sum(count for name, count in clients.honest.items() if name not in GOOD)
    growth = sizes[-1] / sizes[len(sizes) // 4] - 1
    megabytes = f"{after_minute / 1e6:.0f} MB after the minute, {sizes[5] / 1e6:.0f} to {sizes[-1] / 1e6:.0f} MB"
    print(f"{clients.honest.total():,} more requests {dict(clients.honest)}; memory {megabytes}, growth {growth:.1%}")
    print("\n".join(f"WRONG {line}" for line in clients.examples[:5]))
    return 1 if wrong or growth > MAX_GROWTH else 0


if __name__ == "__main__":
    sys.exit(main())
