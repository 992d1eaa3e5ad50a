"""The clients of `make clients` see every wrong or missing answer; here their server is a few lines of this file."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest
from clients import INPUTS, SETTINGS, Answers, Clients, is_closed, is_same

ROUNDING = 2e-6
REQUESTS = 40


@pytest.fixture
def answers() -> Answers:
    """An output of its own for each input and settings; scores differ by more than their rounding."""
    answers = Answers.__new__(Answers)
    answers.rounding = ROUNDING
    answers.results = [
        {
            text: {"input": text, "output": text[::-1], "score": -at / 100 - number, "candidates": [at, number]}
            for at, text in enumerate(INPUTS)
        }
        for number in range(len(SETTINGS))
    ]
    return answers


def ask(answers: Answers, change: Callable[[list[Any], int], list[Any] | None]) -> Counter[str]:
    """Let a client send requests to a server whose results are changed; None closes the connection instead."""
    count = itertools.count()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError), closing(writer):
            await answer(reader, writer)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.partition("Content-Length: ")[2].split()[0])
            body = json.loads(await reader.readexactly(length))
            results = [answers.results[SETTINGS.index(body["settings"])][text] for text in body["input"]]
            changed = change(json.loads(json.dumps(results)), next(count))
            if changed is None:
                return
            content = json.dumps({"results": changed}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content))

    async def run() -> Counter[str]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        clients = Clients(server.sockets[0].getsockname()[1], answers, seed=1)
        clients.end = float("inf")
        await clients.ask_honestly(1, REQUESTS)
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.05)  # until the other ends have noticed too
        return clients.honest

    return asyncio.run(run())


def shift_scores(results: list[Any], difference: float) -> list[Any]:
    return [{**result, "score": result["score"] + difference} for result in results]


def test_answers_that_are_right_up_to_rounding(answers):
    assert ask(answers, lambda results, at: shift_scores(results, ROUNDING)) == {"right": REQUESTS}


def test_scores_that_are_further_off_than_by_rounding_are_wrong(answers):
    assert ask(answers, lambda results, at: shift_scores(results, 10 * ROUNDING)) == {"WRONG": REQUESTS}


def test_rows_of_a_request_in_another_order_are_wrong(answers):
    found = ask(answers, lambda results, at: results[1:] + results[:1])
    assert found["WRONG"] > REQUESTS / 2 and found.total() == REQUESTS  # requests of one input have no order


def test_answers_to_another_request_are_wrong(answers):
    """Also where they have the right input beside them, and the text of the input is not looked at."""
    other = answers.results[0][INPUTS[7]]
    found = ask(answers, lambda results, at: [{**other, "input": result["input"]} for result in results])
    assert found["WRONG"] > REQUESTS * 0.9


def test_answers_with_other_settings_are_wrong(answers):
    stale = answers.results[0]
    found = ask(answers, lambda results, at: [stale[result["input"]] for result in results])
    assert 0 < found["WRONG"] < REQUESTS and found.total() == REQUESTS


def test_a_request_without_an_answer_is_counted(answers):
    found = ask(answers, lambda results, at: None if at == 5 else results)
    assert found == {"right": REQUESTS - 1, "NO ANSWER (IncompleteReadError)": 1}


def test_a_connection_that_was_closed_before_the_request_is_no_missing_answer(answers, monkeypatch):
    """The server closes it while it is idle; the client notices before it sends."""
    closed = iter([False, True, *[False] * REQUESTS])
    monkeypatch.setattr("clients.is_closed", lambda writer: next(closed))
    found = ask(answers, lambda results, at: results)
    assert found == {"right": REQUESTS, "connection closed while idle": 1}


def test_a_connection_is_closed_when_the_other_side_has_closed_it():
    async def run() -> list[bool]:
        accepted = asyncio.Queue[asyncio.StreamWriter]()
        server = await asyncio.start_server(lambda _, writer: accepted.put_nowait(writer), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        other = await accepted.get()
        found = [is_closed(writer)]
        other.close()
        await other.wait_closed()
        found.append(is_closed(writer))
        writer.close()
        server.close()
        return found

    assert asyncio.run(run()) == [False, True]


@pytest.mark.parametrize("changed", [{"a": [1.0, "x"]}, {"a": [1.0]}, {"a": [1.0, "y"], "b": 1}, {"a": [1, "y"]}, {}])
def test_other_keys_lengths_and_types_are_other_answers(changed):
    assert is_same({"a": [1.0, "y"]}, {"a": [1.0, "y"]}, 0.0)
    assert not is_same(changed, {"a": [1.0, "y"]}, 0.0)
