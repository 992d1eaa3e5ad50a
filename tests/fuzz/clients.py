"""200 clients for a minute, hostile and slow ones among them; then the memory of the server over many requests.

Honest clients must get the right answer to each request and no refusal. Hostile ones send headers only, bodies byte by
byte, wrong or no tokens, sizes that are not true, garbage, and uploads that are no pictures; each comes from an address
of its own (127.0.0.x), as honest ones do. `python tests/fuzz/clients.py --seconds 60 --requests 20000`.

Right is what the model computes in float64 in this process. The model has learned enough that each input has an output
of its own, so an answer to another request, a row of another batch or a stale one is wrong. Outputs must be equal;
scores may differ by the rounding of float32, whose size is measured on the same inputs, alone and in batches.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import re
import secrets
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import redirect_stderr, suppress
from pathlib import Path
from random import Random
from typing import Any

from execute import read_memory

TOKEN = "correct-horse-battery"
INPUTS = [f"{day} {month} {1950 + day}" for day in range(1, 29) for month in ("May", "June", "March")]
SETTINGS: tuple[dict[str, Any], ...] = ({}, {"beam": 3, "n_best": 3})  # those of the run, and others
MAX_INPUTS = 4  # of one honest request
HONEST, HOSTILE = 150, 50
PATIENCE = 120.0  # seconds that an honest client waits for an answer, on a busy machine
GOOD = ("right", "connection closed while idle")
STEPS = 250  # of training, after which the outputs differ
BATCHES = (1, 2, 7, 64)  # sizes with which rounding is measured
ROUNDING_FACTOR = 4.0  # of the largest rounding that was measured: other batches round in other orders
MAX_ROUNDING = 1e-4  # more than this is no rounding of log-probabilities
MAX_GROWTH = 0.10  # of the memory, from the first quarter of the requests to the end


def train_model(folder: Path) -> Path:
    """Train the model that is served; its outputs for the inputs differ from each other."""
    from world import enter

    from saccade.train import api

    changes = [f"train.{key}={STEPS}" for key in ("steps", "valid_every", "save_every")]
    with enter(folder), redirect_stderr(io.StringIO()):
        api.train("dates", tiny=True, run="dates", overrides=changes)
    return folder / "runs" / "dates"


class Answers:
    """The answer to each input with each settings, computed in float64, and how far float32 may be from it."""

    def __init__(self, run: Path) -> None:
        from saccade.predict.predictors.predictor import Predictor
        from saccade.serve.decoding import DecodingSettings

        predictor, reference = Predictor.load([str(run)]), Predictor.load([str(run)])
        reference.model.double()
        self.results: list[dict[str, Any]] = []  # by settings; of each input
        self.rounding = 0.0
        for settings in SETTINGS:
            decoding = DecodingSettings(reference.recipe).build_decoding(settings)
            expected = [reference.candidates([text], decoding=decoding)[0] for text in INPUTS]
            for size in BATCHES:
                groups = [INPUTS[at : at + size] for at in range(0, len(INPUTS), size)]
                found = [row for group in groups for row in predictor.candidates(group, decoding=decoding)]
                self.rounding = max(self.rounding, measure_rounding(found, expected))
            self.results.append(
                {text: reference.describe(text, row) for text, row in zip(INPUTS, expected, strict=True)}
            )
        if self.rounding > MAX_ROUNDING:
            raise RuntimeError(f"float32 is {self.rounding:.1e} from float64, which is no rounding")
        if any(len({result["output"] for result in results.values()}) < len(INPUTS) for results in self.results):
            raise RuntimeError("two inputs have the same output; train longer, so that a swap can be seen")

    def is_right(self, answer: Any, inputs: list[str], number: int) -> bool:
        """Whether the answer to a request with these inputs and the settings of this number is right."""
        results = answer.get("results") if isinstance(answer, dict) else None
        return is_same(results, [self.results[number][text] for text in inputs], ROUNDING_FACTOR * self.rounding)


def measure_rounding(found: list[Any], expected: list[Any]) -> float:
    """The largest difference of the scores of outputs; the outputs have to be equal."""
    if [[each.text for each in row] for row in found] != [[each.text for each in row] for row in expected]:
        raise RuntimeError("float32 and float64 have other outputs: two candidates are too near to each other")
    pairs = [pair for rows in zip(found, expected, strict=True) for pair in zip(*rows, strict=True)]
    return max(max(abs(ours.log_prob - theirs.log_prob), abs(ours.score - theirs.score)) for ours, theirs in pairs)


def start_server(run: Path, token: str | None) -> tuple[subprocess.Popen[str], int]:
    """Start `saccade serve` on a free port."""
    command = [sys.executable, "-m", "saccade", "serve", str(run), "--port", "0", "--timeout", str(PATIENCE)]
    server = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **({} if token is None else {"SACCADE_TOKEN": token})},
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

    def __init__(self, port: int, answers: Answers, seed: int, token: str | None = TOKEN) -> None:
        self.port, self.answers, self.random, self.token = port, answers, Random(seed), token
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

    async def predict(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inputs: list[str], number: int
    ) -> tuple[int, Any]:
        body = json.dumps({"input": inputs, "settings": SETTINGS[number]})
        writer.write(build_request(body.encode(), token=self.token))
        await writer.drain()
        return await asyncio.wait_for(self.read_answer(reader), PATIENCE)

    async def ask_all(self) -> None:
        """Ask for each input with each settings, one after the other, while the server does nothing else."""
        reader, writer = await self.connect(0)
        for number in range(len(SETTINGS)):
            for text in INPUTS:
                self.count([text], number, *await self.predict(reader, writer, [text], number))
        writer.close()

    async def ask_honestly(self, client: int, requests: int = 10**9) -> None:
        """Send one request after the other on one connection; a new one where the server has closed it before."""
        reader, writer = await self.connect(client)
        random = Random(f"{client}-{self.random.random()}")
        for _ in range(requests):
            if time.monotonic() > self.end:
                break
            inputs, number = random.sample(INPUTS, random.randint(1, MAX_INPUTS)), random.randrange(len(SETTINGS))
            if is_closed(writer):
                self.honest["connection closed while idle"] += 1
                writer.close()
                reader, writer = await self.connect(client)
            try:
                status, value = await self.predict(reader, writer, inputs, number)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self.honest[f"NO ANSWER ({type(error).__name__})"] += 1
                writer.close()
                reader, writer = await self.connect(client)
                continue
            self.count(inputs, number, status, value)
        writer.close()

    def count(self, inputs: list[str], number: int, status: int, value: Any) -> None:
        """Judge an answer."""
        right = status == 200 and self.answers.is_right(value, inputs, number)
        self.honest["right" if right else "WRONG" if status == 200 else f"refused {status}"] += 1
        if not right:
            self.examples.append(f"{status} to {inputs} with {SETTINGS[number]}: {value}")

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
        allowed = self.token is None
        self.hostile["let in without the token" if status == 200 and not allowed else "token judged"] += 1

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


def is_closed(writer: asyncio.StreamWriter) -> bool:
    """Whether the other side has closed the connection by now: what is sent later gets no answer, rightly."""
    if writer.is_closing():
        return True
    watch = select.poll()
    watch.register(writer.get_extra_info("socket").fileno(), select.POLLRDHUP)
    return bool(watch.poll(0))


def is_same(answer: Any, expected: Any, rounding: float) -> bool:
    """Whether two answers are equal, numbers up to their rounding."""
    if isinstance(expected, dict):
        same_keys = isinstance(answer, dict) and answer.keys() == expected.keys()
        return same_keys and all(is_same(answer[key], expected[key], rounding) for key in expected)
    if isinstance(expected, list):
        same_length = isinstance(answer, list) and len(answer) == len(expected)
        return same_length and all(is_same(*pair, rounding) for pair in zip(answer, expected, strict=True))
    if isinstance(expected, float):
        return isinstance(answer, float) and abs(answer - expected) <= rounding
    return bool(answer == expected)


async def run_minute(clients: Clients, seconds: float) -> None:
    await clients.ask_all()
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
    parser.add_argument("--no-token", action="store_true", help="start the server without a token")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    token = None if options.no_token else TOKEN
    print(f"seed {seed}", flush=True)
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "SACCADE_DEVICE": "cpu"}
    os.environ.pop("SACCADE_TOKEN", None)
    with tempfile.TemporaryDirectory(prefix="saccade-clients-") as name:
        run = train_model(Path(name))
        answers = Answers(run)
        print(f"{len(INPUTS)} outputs, all different; float32 is up to {answers.rounding:.1e} from float64", flush=True)
        server, port = start_server(run, token)
        try:
            return report(server.pid, Clients(port, answers, seed, token), options)
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
