"""The process that trains trials one after another; `workers.Worker` starts this module as a program.

Requests and replies are lines of JSON on stdin and stdout. What a training prints goes to the log of its trial. When
stdin ends, the sweep has ended: a training saves a checkpoint and stops.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from saccade.bounds import parse_toml
from saccade.config.load import validate
from saccade.config.plugins import Kinds, load_plugins
from saccade.errors import Diverged, SaccadeError
from saccade.runs import is_training
from saccade.train.api import train_until
from saccade.train.signals import Interrupted

PAUSED, INTERRUPTED = "paused", "interrupted"
SAVING_SECONDS = 60.0  # that a process of a sweep that was killed may take to save its checkpoint


def train_trial(request: dict[str, Any], kinds: Kinds) -> dict[str, Any]:
    """Train a trial to its end or to a step; a failure is an outcome like others."""
    until = request["until"]
    try:
        recipe = validate(parse_toml(request["recipe"], "the recipe"), kinds=kinds)
        wait_for_other_process(Path(request["run"]))
        train_until(recipe, Path(request["run"]), pause_step=until)
    except Interrupted as error:
        return {"state": PAUSED if until is not None and error.step >= until else INTERRUPTED}
    except SaccadeError as error:
        return {"state": "failed", "reason": str(error), "diverged": isinstance(error, Diverged)}
    except Exception as error:  # a fault of ours or of a plugin; its traceback is in the log, other trials go on
        sys.excepthook(*sys.exc_info())
        return {"state": "failed", "reason": f"{type(error).__name__}: {error}"}
    return {"state": "finished"}


def wait_for_other_process(run: Path) -> None:
    """Wait while a process of an earlier start of the sweep saves its checkpoint."""
    end = time.monotonic() + SAVING_SECONDS
    while is_training(run) and time.monotonic() < end:
        time.sleep(0.2)


def read_requests(lines: TextIO, requests: queue.Queue[str | None]) -> None:
    """Pass lines on until stdin ends; then stop the training that may be going on."""
    for line in lines:
        requests.put(line)
    requests.put(None)
    os.kill(os.getpid(), signal.SIGTERM)


def main(plugins: list[str]) -> None:
    """Train trials until stdin ends."""
    replies, requests = os.fdopen(os.dup(1), "w", encoding="utf-8"), queue.Queue[str | None]()
    threading.Thread(target=read_requests, args=(sys.stdin, requests), daemon=True).start()
    kinds = load_plugins(*plugins)
    while (line := requests.get()) is not None:
        request = json.loads(line)
        with open(request["log"], "a", encoding="utf-8") as log:
            for number in (1, 2):
                os.dup2(log.fileno(), number)
        outcome = train_trial(request, kinds)
        print(json.dumps(outcome), file=replies, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
