"""Decode the parts of a corpus with Ray Data: actors of a cluster load the model and write parts to a shared folder."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from saccade.data.sources.paths import is_url
from saccade.errors import SaccadeError
from saccade.extras import get_install_command
from saccade.predict.corpora.parts import Part
from saccade.predict.corpora.process import CorpusSettings, PartPredictor

CONNECT_SECONDS = 10.0
LOCAL = "local"  # address of a cluster of this process alone


class PartActor:
    """Decodes parts that Ray Data gives as batches of one row."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.predictor: PartPredictor | None = None
        self.error = ""
        try:
            self.predictor = PartPredictor(CorpusSettings(**settings))
        except SaccadeError as error:  # as a result, since Ray would start the actor again and again
            self.error = str(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Decode a part; what a user has done wrong is a result too, which the other side raises."""
        part = decode_part(batch)
        if self.predictor is None:
            return encode_reply(part, "error", self.error)
        try:
            return encode_reply(part, "done", self.predictor.predict_part(part))
        except SaccadeError as error:
            return encode_reply(part, "error", str(error))


def encode_part(part: Part) -> dict[str, Any]:
    """A part as a row of a data set; its path is absolute, a missing `stop` is -1, since columns have one type."""
    file = part.file if is_url(part.file) else os.path.abspath(part.file)
    return {**asdict(part), "file": file, "stop": -1 if part.stop is None else part.stop}


def decode_part(batch: dict[str, Any]) -> Part:
    number, start, stop, num_bytes = (int(batch[name][0]) for name in ("number", "start", "stop", "num_bytes"))
    return Part(number, str(batch["file"][0]), start, None if stop < 0 else stop, num_bytes)


def encode_reply(part: Part, name: str, value: Any) -> dict[str, Any]:
    return {"reply": [json.dumps({"part": part.number, name: value})]}


def run_on_ray(
    settings: CorpusSettings, parts: Sequence[Part], *, processes: int, address: str
) -> Iterator[dict[str, Any]]:
    """Decode parts by `processes` actors of a Ray cluster; yield a reply for each, in the order in which they end.

    All machines of the cluster need saccade, and the run, the corpus and the output at the same paths.
    """
    ray = connect(address, processes, settings.output)
    try:
        rows = ray.data.from_items([encode_part(part) for part in parts], override_num_blocks=len(parts))
        replies = rows.map_batches(
            PartActor, fn_constructor_args=(settings._asdict(),), batch_size=1, num_cpus=1,
            compute=ray.data.ActorPoolStrategy(size=processes),
        )  # fmt: skip
        for row in replies.iter_rows():
            reply = json.loads(row["reply"])
            if "error" in reply:
                raise SaccadeError(reply["error"])
            yield reply
    finally:
        if address == LOCAL:
            ray.shutdown()


def connect(address: str, processes: int, folder: str) -> Any:
    """Connect to a cluster, or start one that listens on 127.0.0.1 alone; nothing is reported to Ray's authors.

    Actors import modules from the working folder of the process that connects; for that time it is `folder`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == LOCAL:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = (
            "0"  # on Linux too: the loopback address instead of the host's
        )
    try:
        import ray
        import ray.data
    except ImportError:
        raise SaccadeError(f"--ray needs the package ray; install it with: {get_install_command('ray')}") from None
    check_reachable(address)
    local: dict[str, Any] = {"num_cpus": processes, "include_dashboard": False} if address == LOCAL else {}
    try:
        with contextlib.chdir(folder):
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise build_connection_error(address, str(error).splitlines()[0]) from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray


def check_reachable(address: str) -> None:
    """Raise if nothing listens at the address of a cluster, for which Ray would wait for minutes."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if separator and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            raise build_connection_error(address, error.strerror or str(error)) from None


def build_connection_error(address: str, reason: str) -> SaccadeError:
    return SaccadeError(
        f"cannot connect to Ray at {address} ({reason}); start one with `ray start --head`, or give --ray local"
    )
