"""`saccade serve --workers N`: shares of the limits, one port, metrics of all, and workers that end."""

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from saccade.errors import SaccadeError
from saccade.serve import workers
from saccade.serve.limits import Limits
from saccade.serve.metrics import MULTIPROCESS_VARIABLE
from saccade.serve.server import bind
from saccade.serve.workers import Supervisor, WorkerSettings, divide_limits, reserve_port

SETTINGS = WorkerSettings([["run"]], ["run"], "127.0.0.1", 0, "secret", Limits())


@pytest.mark.parametrize("count", [2, 3, 7])
def test_the_limits_of_all_workers_together_are_those_of_the_server(count):
    whole = Limits(max_queue=512, max_body_bytes=1000)
    each = divide_limits(whole, count)
    for name in (
        "max_total_bytes", "max_client_bytes", "max_connections", "max_client_connections", "max_queue", "max_streams",
        "decoders",
    ):  # fmt: skip
        total = count * getattr(each, name)
        assert total <= max(getattr(whole, name), count), name
        assert total > getattr(whole, name) - count, name
    assert each.max_token_delay == count * whole.max_token_delay  # each compares tokens by itself
    assert (each.timeout, each.max_inputs, each.max_body_bytes) == (whole.timeout, whole.max_inputs, 1000)


def test_a_share_admits_one_request_of_the_largest_size():
    each = divide_limits(Limits(max_body_bytes=20_000_000), 16)
    assert each.max_client_bytes >= 20_000_000 and each.max_waiting_files >= each.max_files


def test_a_port_is_reserved_for_sockets_that_share_it():
    with reserve_port("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
        with bind("127.0.0.1", port, shares_port=True), bind("127.0.0.1", port, shares_port=True):
            with pytest.raises(SaccadeError, match=f"cannot listen on 127.0.0.1 port {port}: address already in use"):
                bind("127.0.0.1", port)
            with pytest.raises(SaccadeError, match="address already in use"), reserve_port("127.0.0.1", port):
                pass  # a second server, whose workers would get half of the requests of the first


def test_a_system_without_shared_ports_is_one_line(monkeypatch):
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    with pytest.raises(SaccadeError, match="--workers needs sockets that share a port"), reserve_port("127.0.0.1", 0):
        pass


class FakeWorker:
    """A worker whose replies a test gives; None: it has ended. Later ones of the same number are ready at once."""

    replies: dict[int, list[dict[str, object] | None]]
    started: list[int]

    def __init__(self, number: int, settings: WorkerSettings, events: queue.Queue, folder: str, count: int) -> None:
        self.number, self.is_ready, self.pid, self.returncode = number, False, 1000 + len(self.started), -9
        self.process = self
        self.started.append(number)
        for reply in self.replies.pop(number, [{"form_fields": []}]):
            events.put((self, reply))

    def stop(self, seconds: float) -> None:
        pass


@pytest.fixture
def supervise(monkeypatch):
    def run(replies: dict[int, list[dict[str, object] | None]], count: int = 2) -> tuple[list[str], list[object]]:
        monkeypatch.setattr(FakeWorker, "replies", replies, raising=False)
        monkeypatch.setattr(FakeWorker, "started", [], raising=False)
        monkeypatch.setattr(workers, "WorkerProcess", FakeWorker)
        warnings: list[str] = []
        ready: list[object] = []
        supervisor = Supervisor(SETTINGS, count, warn=warnings.append)

        def stop(reply: object) -> None:
            ready.append({**reply, "started": len(FakeWorker.started)})
            os.kill(os.getpid(), signal.SIGTERM)

        try:
            supervisor.run(stop)
        finally:
            supervisor.close()
        assert not Path(supervisor.folder.name).exists()
        return warnings, ready

    return run


def test_all_workers_are_ready_before_the_address_is_printed(supervise):
    handler = signal.getsignal(signal.SIGTERM)
    assert supervise({}) == ([], [{"form_fields": [], "started": 2}])
    assert signal.getsignal(signal.SIGTERM) is handler
    _, [reply] = supervise({1: [None]})  # the second one ends before it serves: the one that replaces it counts
    assert reply["started"] == 3


def test_a_worker_that_ends_is_replaced_and_named(supervise):
    warnings, ready = supervise({0: [{"form_fields": []}, None]})
    assert warnings == ["worker 1 (process 1000) ended with exit code -9; process 1002 replaces it"] and len(ready) == 1


def test_the_mistake_of_a_user_is_reported_once(supervise):
    with pytest.raises(SaccadeError, match="^'run' is not a run$"):
        supervise({0: [{"error": "'run' is not a run"}], 1: [{"error": "'run' is not a run"}]})


def test_workers_that_never_serve_are_an_error(supervise, monkeypatch):
    class BrokenWorker(FakeWorker):
        def __init__(self, number, *rest):
            self.replies.setdefault(number, [None])
            super().__init__(number, *rest)

    monkeypatch.setattr(sys.modules[__name__], "FakeWorker", BrokenWorker)
    with pytest.raises(SaccadeError, match=r"workers end before they serve \(exit code -9\); the messages above"):
        supervise({})


COUNTING = """
import os, sys
from saccade.serve.metrics import Metrics, forget_process

def count(requests):
    metrics.requests.labels("/x", 200).inc(requests)
    metrics.requests_in_flight.set(1)
    metrics.request_seconds.labels("/x").observe(0.02)

metrics = Metrics()
if not (child := os.fork()):
    count(2)
    os._exit(0)
os.waitpid(child, 0)
count(3)
forget_process(sys.argv[1], child)
print(metrics.render().decode())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork is the fastest second process")
def test_metrics_are_summed_over_processes(tmp_path):
    """Two processes count, one of which has ended; the other one renders. The variable is read at import."""
    environment = {**os.environ, MULTIPROCESS_VARIABLE: str(tmp_path)}
    command = [sys.executable, "-c", COUNTING, str(tmp_path)]
    found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout
    assert 'saccade_requests_total{route="/x",status="200"} 5.0' in found
    assert 'saccade_request_seconds_count{route="/x"} 2.0' in found
    assert "saccade_requests_in_flight 1.0" in found


# ---- slow


def request(port: int, path: str, body: object = None) -> str:
    headers = {"Authorization": "Bearer secret", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)) as answer:
        return str(answer.read().decode())


def wait_until(holds, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def list_children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_two_workers_serve_one_port_until_they_are_stopped(tmp_path, run):
    for name in ("torch", "numpy", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working folder')")
    environment = {**os.environ, "SACCADE_TOKEN": "secret", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "saccade", "serve", str(run), "--port", "0", "--workers", "2"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        port = int(re.search(r":(\d+) ", server.stdout.readline())[1])
        before = list_children(server.pid)
        answers = {request(port, "/v1/predict", {"input": "3 May 1999"}) for _ in range(12)}
        assert len(before) == 2 and len(answers) == 1
        assert 'saccade_texts_total{model="dates"} 12.0' in request(port, "/metrics")  # whichever worker answers
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models")
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: len(set(list_children(server.pid)) - {before[0]}) == 2)
        assert re.match(
            rf"worker [12] \(process {before[0]}\) ended with exit code -9; process \d+", server.stderr.readline()
        )
        wait_until(lambda: "saccade_texts_total" in request(port, "/metrics"))
        server.terminate()
        assert server.wait(120) == 0
        assert server.stderr.read() == ""
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_workers_end_with_the_process_that_started_them(run):
    command = [sys.executable, "-m", "saccade", "serve", str(run), "--port", "0", "--workers", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline().startswith("serving dates at ")
        children = list_children(server.pid)
        server.kill()
    assert len(children) == 2
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
