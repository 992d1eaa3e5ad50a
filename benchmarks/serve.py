"""Throughput of the server with concurrent clients: requests per second and latencies with one and with several
clients, for the same server and model in one run.

The clients run in another process than the server. Each sends its next request when the previous one is answered.
Rounds with one and with many clients alternate, so that other load of the machine affects both.

    python benchmarks/serve.py RUN [--clients 32] [--seconds 4] [--rounds 5]
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from results import save

TEXTS = ["Tuesday, 5 March 1024", "14 juillet 1789", "31 de diciembre de 1999", "9 września 2145", "3 сентября 1812 г."]


@dataclass
class Measured:
    """The latencies of some clients over all rounds, in seconds."""

    clients: int
    seconds: float = 0.0
    waited: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return len(self.waited) / self.seconds

    def rows(self) -> list[dict[str, Any]]:
        """Return the median and the 99th percentile of the latencies."""
        cuts = statistics.quantiles(self.waited, n=100)
        what = f"time to an answer, {self.clients} {'client' if self.clients == 1 else 'clients'}"
        return [
            {"what": f"{what}, {name}", "value": round(cuts[at - 1] * 1000, 2), "unit": "ms", "detail": True}
            for name, at in (("median", 50), ("99th percentile", 99))
        ]


def request(text: str) -> bytes:
    body = json.dumps({"input": text}).encode()
    head = (
        f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    return f"{head}\r\n\r\n".encode() + body


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str) -> dict[str, Any]:
    writer.write(request(text))
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
    assert " 200 " in head, head
    assert length is not None, head
    answer: dict[str, Any] = json.loads(await reader.readexactly(int(length[1])))
    return answer


async def client(port: int, number: int, until: float, answers: dict[str, str]) -> list[float]:
    """One client's waiting times; every answer must be the one that a lone client gets."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    waited = []
    while time.perf_counter() < until:
        text = TEXTS[(number + len(waited)) % len(TEXTS)]
        begin = time.perf_counter()
        answer = await ask(reader, writer, text)
        waited.append(time.perf_counter() - begin)
        found = answer["results"][0]["output"]
        assert answers.setdefault(text, found) == found, (text, found, answers[text])
    writer.close()
    return waited


async def round_of(port: int, measured: Measured, seconds: float, answers: dict[str, str]) -> None:
    begin = time.perf_counter()
    each = [client(port, number, begin + seconds, answers) for number in range(measured.clients)]
    for waited in await asyncio.gather(*each):
        measured.waited += waited
    measured.seconds += time.perf_counter() - begin


def measure(port: int, many: int, *, seconds: float, rounds: int) -> list[Measured]:
    one, several, answers = Measured(1), Measured(many), dict[str, str]()
    asyncio.run(round_of(port, Measured(1), 1.0, answers))  # what is done once is done
    for _ in range(rounds):
        for measured in (one, several):
            asyncio.run(round_of(port, measured, seconds, answers))
    return [one, several]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "results")
    chosen = parser.parse_args(words)
    begin = time.perf_counter()
    command = [sys.executable, "-P", "-m", "saccade", "serve", chosen.run, "--port", "0"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=one_thread) as server:
        assert server.stdout is not None
        found = re.search(r":(\d+) ", server.stdout.readline())
        assert found is not None, "the server did not start"
        one, several = measure(int(found[1]), chosen.clients, seconds=chosen.seconds, rounds=chosen.rounds)
        server.terminate()
        assert server.wait(30) == 0
    first = {
        "what": f"`saccade serve`, {several.clients} clients at once: requests",
        "value": round(several.rate, 1),
        "unit": "requests/s",
        "peer": "one client of the same server",
        "peer_value": round(one.rate, 1),
        "ratio": round(several.rate / one.rate, 3),
    }
    rows = [first, *one.rows(), *several.rows()]
    notes = (
        "Ratio: requests in a second with many clients over those with one, of the same server, which has one thread "
        "for the model; clients are in another process. The model of `saccade demo`, greedy search, one text a request."
    )
    save("serve", rows, minutes=(time.perf_counter() - begin) / 60, folder=chosen.folder, notes=notes)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
