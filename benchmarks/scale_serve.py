"""Throughput of `saccade serve` with one and with two workers: requests per second of the same clients.

Both servers run at the same time; rounds with one and the other alternate, so that other load of the machine affects
both. The clients run in this process (see serve.py), each with a connection of its own.

    python benchmarks/scale_serve.py RUN [--clients 32] [--seconds 4] [--rounds 5] [--workers 2]
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from results import save
from serve import Measured, round_of


@contextmanager
def start_server(run: str, workers: int) -> Iterator[int]:
    """Start a server whose models have one thread; yield its port."""
    command = [sys.executable, "-P", "-m", "saccade", "serve", run, "--port", "0", "--workers", str(workers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        found = re.search(r":(\d+) ", server.stdout.readline())
        assert found is not None, "the server did not start"
        try:
            yield int(found[1])
        finally:
            server.terminate()
            assert server.wait(120) == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    chosen = parser.parse_args()
    begin, answers = time.perf_counter(), dict[str, str]()
    one, several = Measured(chosen.clients), Measured(chosen.clients)
    with start_server(chosen.run, 1) as first, start_server(chosen.run, chosen.workers) as second:
        for port in (first, second):
            asyncio.run(round_of(port, Measured(4), 1.0, answers))  # what is done once is done
        for _ in range(chosen.rounds):
            for port, measured in ((first, one), (second, several)):
                asyncio.run(round_of(port, measured, chosen.seconds, answers))
    row = {
        "what": f"`saccade serve --workers {chosen.workers}`, {chosen.clients} clients at once: requests",
        "value": round(several.rate, 1),
        "unit": "requests/s",
        "peer": "--workers 1",
        "peer_value": round(one.rate, 1),
        "ratio": round(several.rate / one.rate, 3),
    }
    print(row)
    notes = (
        f"Both servers on {os.cpu_count()} cores, which the clients and other programs shared: load average "
        f"{os.getloadavg()[0]:.1f} at the end. All answers were equal."
    )
    print(save("scale_serve", [row], minutes=(time.perf_counter() - begin) / 60, folder=chosen.out, notes=notes))


if __name__ == "__main__":
    main()
