"""The worker thread of a model: batching, order of requests, and limits."""

import threading
import time
from concurrent.futures import CancelledError
from concurrent.futures import wait as finished

import pytest

from saccade.config.load import override
from saccade.errors import SaccadeError
from saccade.serve.limits import Limits, RequestError
from saccade.serve.metrics import Metrics
from saccade.serve.worker import Worker


class Gate:
    """A predictor that waits for an event before its first batch, and records its batches."""

    continues_prompts = True

    def __init__(self, inner) -> None:
        self.engines = inner.engines
        self.inner, self.batches, self.open, self.reached = inner, [], threading.Event(), threading.Event()

    def candidates(self, texts, *, decoding):
        self.reached.set()
        assert self.open.wait(20)
        self.batches.append(list(texts))
        return self.inner.candidates(texts, decoding=decoding)

    def write(self, text, *, decoding):
        for letter in text:
            self.batches.append(letter)
            yield letter


@pytest.fixture
def gate(translator):
    return Gate(translator)


@pytest.fixture
def make_worker(gate):
    made = []

    def make(**limits) -> Worker:
        made.append(Worker("m", gate, limits=Limits(**limits), metrics=Metrics()))
        made[-1].start()
        return made[-1]

    yield make
    gate.open.set()
    for worker in made:
        worker.stop()


def setting(translator, *changes):
    return override(translator.recipe, [f"predict.{change}" for change in changes]).predict


def busy(worker, gate, decoding):
    """Keep the worker busy with a first request, so that others queue up."""
    first = worker.submit(["9"], decoding)
    assert gate.reached.wait(20)
    return first


def test_waiting_requests_share_a_batch_and_get_the_same_outputs(make_worker, gate, translator):
    worker, decoding = make_worker(), setting(translator)
    busy(worker, gate, decoding)
    texts = [["3 May"], ["21", "6"], ["June 2008"]]
    futures = [worker.submit(each, decoding) for each in texts]
    gate.open.set()
    outputs = [[found[0].text for found in future.result(20)] for future in futures]
    assert gate.batches == [["9"], ["3 May", "21", "6", "June 2008"]]
    assert outputs == [[translator.predict([text])[0] for text in each] for each in texts]


def test_other_settings_and_sampling_are_not_batched_together(make_worker, gate, translator):
    worker = make_worker()
    greedy, beam, drawn = setting(translator), setting(translator, "beam=2"), setting(translator, "sample=true")
    busy(worker, gate, greedy)
    asked = [("1", greedy), ("2", beam), ("3", drawn), ("4", drawn), ("5", greedy), ("6", beam)]
    futures = [worker.submit([text], decoding) for text, decoding in asked]
    gate.open.set()
    finished(futures, 20)
    assert gate.batches == [["9"], ["1", "5"], ["2", "6"], ["3"], ["4"]]


def test_the_batch_size_is_limited(make_worker, gate, translator):
    worker, decoding = make_worker(max_batch=3), setting(translator)
    busy(worker, gate, decoding)
    futures = [worker.submit(["1"] * count, decoding) for count in (2, 2, 1, 5)]
    gate.open.set()
    finished(futures, 20)
    assert [len(batch) for batch in gate.batches] == [1, 3, 2, 5]


def test_an_invalid_request_does_not_fail_others_in_its_batch(make_worker, gate, translator):
    worker, decoding = make_worker(), setting(translator)
    busy(worker, gate, decoding)
    good = [worker.submit([text], decoding) for text in ("1", "2")]
    bad = worker.submit(["3", "1" * 50], decoding)
    good += [worker.submit([text], decoding) for text in ("4", "5")]
    gate.open.set()
    assert [future.result(20)[0][0].text for future in good] == [
        translator.predict([t])[0] for t in ("1", "2", "4", "5")
    ]
    with pytest.raises(SaccadeError, match="line 2 has 51 tokens"):
        bad.result(20)


def test_a_full_queue_gives_429_with_retry_after(make_worker, gate, translator):
    worker, decoding = make_worker(max_queue=2), setting(translator)
    busy(worker, gate, decoding)
    waiting = [worker.submit(["1"], decoding) for _ in range(2)]
    with pytest.raises(RequestError, match="2 requests are waiting for model 'm', which is the maximum") as refused:
        worker.submit(["1"], decoding)
    assert refused.value.status == 429
    assert int(refused.value.headers["retry-after"]) >= 1
    gate.open.set()
    finished(waiting, 20)
    assert worker.submit(["1"], decoding).result(20)


def test_cancelled_requests_are_not_decoded(make_worker, gate, translator):
    worker, decoding = make_worker(), setting(translator)
    busy(worker, gate, decoding)
    gone, there = worker.submit(["1"], decoding), worker.submit(["2"], decoding)
    assert gone.cancel()
    gate.open.set()
    there.result(20)
    assert gate.batches == [["9"], ["2"]]
    with pytest.raises(CancelledError):
        gone.result(20)


def test_streams_take_turns_with_each_other_and_with_requests(make_worker, gate, translator):
    worker, decoding, said, ended = make_worker(), setting(translator), [], threading.Semaphore(0)

    def tell(piece):
        said.append(piece)
        if piece is None:
            ended.release()

    busy(worker, gate, decoding)
    worker.start_stream("abc", decoding, tell)
    worker.start_stream("xy", decoding, tell)
    request = worker.submit(["1"], decoding)
    gate.open.set()
    request.result(20)
    assert ended.acquire(timeout=20)
    assert ended.acquire(timeout=20)
    assert gate.batches == [["9"], "a", "x", ["1"], "b", "y", "c"]
    assert said == ["a", "x", "b", "y", "c", None, None]


def test_a_cancelled_stream_is_removed(make_worker, gate, translator):
    worker, decoding = make_worker(max_streams=1), setting(translator)
    busy(worker, gate, decoding)
    stream = worker.start_stream("abcdefgh", decoding, lambda piece: None)
    with pytest.raises(RequestError, match="1 streams are being sent"):
        worker.start_stream("x", decoding, lambda piece: None)
    stream.cancelled = True
    gate.open.set()
    while worker.streams:
        time.sleep(0.001)
    assert "h" not in gate.batches


def test_a_stream_times_out(make_worker, gate, translator):
    worker, decoding, said, ended = make_worker(timeout=0.2), setting(translator), [], threading.Event()
    busy(worker, gate, decoding)
    worker.start_stream("abc", decoding, lambda piece: (said.append(piece), ended.set()))
    threading.Timer(0.4, gate.open.set).start()
    assert ended.wait(20)
    assert [(piece.status, str(piece)) for piece in said] == [
        (503, "no result within 0.2 s; send less, or try again when the server is less busy")
    ]


def test_a_stopping_worker_finishes_its_queue_and_refuses_more(make_worker, gate, translator):
    worker, decoding = make_worker(), setting(translator)
    futures = [busy(worker, gate, decoding), worker.submit(["1"], decoding)]
    ending = threading.Thread(target=worker.stop)
    ending.start()
    while not worker.stopping:
        time.sleep(0.001)
    with pytest.raises(RequestError, match="shutting down") as refused:
        worker.submit(["2"], decoding)
    assert refused.value.status == 503
    gate.open.set()
    ending.join(20)
    assert all(future.done() for future in futures)


def test_a_slow_request_times_out(make_client, translator, monkeypatch):
    wait = threading.Event()
    full = translator.candidates
    monkeypatch.setattr(translator, "candidates", lambda *a, **k: (wait.wait(1), full(*a, **k))[1])
    client = make_client(timeout=0.2)
    answer = client.post("/v1/predict", json={"input": "1"})
    wait.set()
    assert answer.status_code == 503
    assert answer.json() == {"error": "no result within 0.2 s; send less, or try again when the server is less busy"}
    assert answer.headers["retry-after"] == "5"


def test_a_worker_that_has_died_is_not_healthy(make_client, monkeypatch):
    def dying(worker):
        return None

    monkeypatch.setattr(Worker, "_work", dying)
    answer = make_client().get("/health")
    assert answer.status_code == 503
    assert answer.json() == {"error": "model 'dates' has stopped working; restart the server"}


def test_labels_of_metrics_are_escaped():
    metrics = Metrics()
    metrics.texts.labels('a"b\\c\nd').inc(2)
    assert r'saccade_texts_total{model="a\"b\\c\nd"} 2.0' in metrics.render().decode().splitlines()


def test_sums_of_a_long_run_keep_their_precision():
    """A rate over minutes is the difference of two large sums."""
    metrics = Metrics()
    for value in (1_234_567, 1):
        metrics.batch_texts.labels("m").observe(value)
    assert 'saccade_batch_texts_sum{model="m"} 1.234568e+06' in metrics.render().decode().splitlines()


def test_two_servers_of_one_process_count_for_themselves():
    one, other = Metrics(), Metrics()
    one.requests_in_flight.set(3)
    assert b"saccade_requests_in_flight 3.0" in one.render()
    assert b"saccade_requests_in_flight 0.0" in other.render()
