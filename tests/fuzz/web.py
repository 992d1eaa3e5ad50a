"""Requests to a server that nobody thought of: mutated bytes over raw sockets, and requests from its OpenAPI schema.

No request may be answered with an internal error, be kept waiting for 20 seconds, or stop the server.
`python tests/fuzz/web.py --rounds 2000 --examples 200`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import secrets
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from mutate import mutate_bytes, mutate_value, mutate_word
from tallies import Tally

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "SACCADE_DEVICE": "cpu"}
TRACEBACK = "Traceback (most recent call last)"
MAX_SECONDS = 20.0
MAX_ANSWER_BYTES = 10_000_000
TOKEN = "sesame"
BODIES: dict[str, list[Any]] = {
    "/v1/predict": [
        {"input": "3 May 1999"},
        {"input": ["3 May", "21 June 2008"], "model": "dates", "settings": {"beam": 3, "n_best": 2, "max_length": 9}},
        {"input": "Once", "model": "gpt2", "stream": True, "settings": {"sample": True, "top_k": 3, "stop": ["."]}},
        {"input": "a.png", "model": "vit"},
    ],
    "/v1/attention": [{"input": "3 May", "target": "1999"}, {"input": "Once", "model": "gpt2", "packed": True}],
}
PATHS = (
    "/",
    "/health",
    "/metrics",
    "/v1/models",
    "/openapi.json",
    "/docs",
    "/favicon.ico",
    "/v1/",
    "/../../etc/passwd",
)


@contextmanager
def serve_models(folder: Path, token: str) -> Iterator[int]:
    """A server of three models in a thread of this process; yields its port."""
    from saccade.predict.predictors.predictor import Predictor
    from saccade.serve.app import create_app
    from saccade.serve.limits import Limits
    from saccade.serve.server import bind, create_server, run_in_background

    limits = Limits(timeout=15, header_timeout=0.3, client_timeout=0.3, max_decode_seconds=5)
    models = {name: Predictor.load(folder / "runs" / name) for name in ("dates", "gpt2", "vit")}
    with bind("127.0.0.1", 0) as listener:
        app = create_app(models, token=token, limits=limits)
        with run_in_background(create_server(app, limits), listener):
            yield listener.getsockname()[1]


def draw_request(random: Random, picture: bytes) -> bytes:
    """The bytes of one request: a valid one with a changed body, head, or anything."""
    choice = random.random()
    path = random.choice([*BODIES])
    kind, body = "application/json", json.dumps(random.choice(BODIES[path])).encode()
    if choice < 0.5:
        value = mutate_value(random, random.choice(BODIES[path]))
        body = json.dumps(value).encode() if random.random() < 0.7 else mutate_bytes(random, body)
    elif choice < 0.6:
        part = (
            f'--x\r\nContent-Disposition: form-data; name="{random.choice(("input", "model", "x"))}"; filename="a.png"'
        )
        kind, body = "multipart/form-data; boundary=x", part.encode() + b"\r\n\r\n" + picture + b"\r\n--x--\r\n"
        body = mutate_bytes(random, body)
    elif choice < 0.7:
        return (
            f"{random.choice(('GET', 'HEAD', 'PUT', 'X'))} {random.choice(PATHS)} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
        )
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    lines += [f"Authorization: Bearer {TOKEN}"] if random.random() < 0.95 else []
    if random.random() < 0.2:
        at = random.randrange(len(lines))
        lines[at] = mutate_word(random, lines[at])
    request = "\r\n".join([*lines, "Connection: close", "\r\n"]).encode("utf-8", "surrogateescape") + body
    return mutate_bytes(random, request) if random.random() < 0.15 else request


def send(port: int, request: bytes) -> tuple[str, float]:
    """The status of the answer, or how the connection ended, and the seconds that it took."""
    begin, answer = time.monotonic(), b""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=MAX_SECONDS + 5) as connection:
        with suppress(OSError):
            connection.sendall(request)
        while not is_complete(answer, request) and (more := connection.recv(1 << 16)):
            answer += more
    found = re.match(rb"HTTP/1.1 (\d{3})", answer)
    return found[1].decode() if found else "closed", time.monotonic() - begin


def is_complete(answer: bytes, request: bytes) -> bool:
    """Whether an answer has its whole body; a server that keeps the connection open does not say it by closing."""
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end or len(answer) > MAX_ANSWER_BYTES:
        return bool(end)
    if request.startswith(b"HEAD ") or re.match(rb"HTTP/1.1 (1\d\d|204|304)", head):
        return True
    if length := re.search(rb"(?im)^content-length: *(\d+)", head):
        return len(body) >= int(length[1])
    return body.endswith(b"0\r\n\r\n") if re.search(rb"(?im)^transfer-encoding: *chunked", head) else False


def run_raw(port: int, rounds: int, seconds: float, seed: int, picture: bytes) -> tuple[Counter[str], list[str]]:
    statuses, faults, begin = Counter[str](), list[str](), time.monotonic()
    for number in range(rounds):
        if time.monotonic() - begin > seconds:
            break
        request = draw_request(Random(f"{seed}-{number}"), picture)
        status, took = send(port, request)
        statuses[status] += 1
        if status in ("500", "502") or took > MAX_SECONDS:
            faults.append(f"{status} after {took:.0f} s in round {number}: {request[:300]!r}")
    if send(port, b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")[0] != "200":
        faults.append("the server does not answer any more")
    return statuses, faults


def run_schema(port: int, examples: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Requests made by schemathesis, as described and otherwise."""
    import hypothesis
    import schemathesis
    from schemathesis import GenerationMode

    statuses, faults = Counter[str](), list[str]()
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json")
    for operation in (found.ok() for found in schema.get_all_operations()):
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @hypothesis.seed(seed)
            @hypothesis.settings(
                max_examples=examples, deadline=None, database=None,
                suppress_health_check=list(hypothesis.HealthCheck),
            )  # fmt: skip
            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            def try_one(case: Any) -> None:
                response = case.call(timeout=60)
                statuses[str(response.status_code)] += 1
                if response.status_code in (500, 502):
                    faults.append(f"{response.status_code} to {case.as_curl_command()[:300]}")

            with suppress(hypothesis.errors.Unsatisfiable):
                try_one()
    return statuses, faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=2000, help="requests over raw sockets")
    parser.add_argument("--examples", type=int, default=100, help="requests by schemathesis of each operation")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--tally", type=Path, default=None, help="file to which the counts are added, see tallies.py")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    from world import enter, train_runs, write_media

    log, sys.stderr = sys.stderr, io.StringIO()
    with tempfile.TemporaryDirectory(prefix="saccade-web-") as name, enter(Path(name)):
        for run in ("dates", "gpt2", "vit"):
            train_runs(only=run)
        Path("data").mkdir()
        write_media(Path("data"))
        picture = Path("data/pictures/red circle/a.png").read_bytes()
        with serve_models(Path.cwd(), TOKEN) as port:
            raw, faults = run_raw(port, options.rounds, options.seconds, seed, picture)
        with serve_models(Path.cwd(), "") as port:
            described, more = run_schema(port, options.examples, seed) if options.examples else (Counter(), [])
    printed, sys.stderr = sys.stderr.getvalue(), log
    faults += more + ([f"the server printed {printed[-2000:]}"] if TRACEBACK in printed else [])
    print(f"raw sockets    {raw.total():>8,} requests: {dict(sorted(raw.items()))}")
    print(f"schemathesis   {described.total():>8,} requests: {dict(sorted(described.items()))}")
    print("\n".join(f"FAULT {fault}" for fault in faults) or "0 faults")
    if options.tally:
        counts = Counter({"raw sockets": raw.total(), "schemathesis": described.total()})
        Tally("web", seed, "1/1", counts, Counter(faults)).append_to(options.tally)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
