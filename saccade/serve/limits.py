"""Limits of the server, and the error for requests that exceed them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from saccade.predict.predictors.predictor import Predictor

MAX_BODY_BYTES_WITH_FILES = 20_000_000  # where a model reads images or audio
BYTES_PER_PIXEL = 30  # while a picture is decoded: of floats, 4 in Pillow, two arrays of 8, and 3 to 8 in RGB
MAX_MESSAGE = 600  # characters of an error message; our own are shorter
QUOTED = re.compile(r"'[^']{120,}'|\"[^\"]{120,}\"")
UNBROKEN = re.compile(r"\S{120,}")


@dataclass(frozen=True)
class Limits:
    """Limits of a server; the comments name the HTTP status of a request that exceeds them."""

    max_body_bytes: int = 1_000_000  # of one request: 413
    max_total_bytes: int = 400_000_000  # of the bodies of all requests in flight, as far as they have arrived: 429
    max_client_bytes: int = 100_000_000  # the same for one client address: 429
    max_connections: int = 800  # open at a time; beyond, the oldest without a complete request is closed
    max_client_connections: int = 256  # the same for one client address; 429 if all of them are being answered
    max_inputs: int = 128  # of one request: 422
    max_queue: int = 512  # requests waiting for one model: 429
    max_streams: int = 32  # concurrent streams of one model: 429
    timeout: float = 60.0  # seconds until the result must be there: 503
    header_timeout: float = 10.0  # seconds for a client to send the headers of a request; then it is disconnected
    idle_timeout: int = 75  # seconds between two requests of a connection; longer than the 60 of common proxies
    client_timeout: float = 20.0  # seconds for a client to send a body (then 408), or to receive data (disconnected)
    min_body_rate: int = 50_000  # bytes per second that a body may take beyond client_timeout
    max_discarded_bytes: int = 100_000_000  # read and discarded of a body that was refused, so that the answer arrives
    max_token_delay: float = 2.0  # seconds that a client with wrong tokens waits for the comparison of the next
    max_batch: int = 64  # inputs decoded together; more wait for the next batch
    max_weights: int = 4_000_000  # attention weights in one response: 422
    max_files: int = 16  # of one request: 400
    max_pixels: int = 50_000_000  # of one image: 422
    max_waiting_files: int = 64  # uploads waiting to be decoded: 429
    decoders: int = 3  # processes that decode uploads; they are started when they are needed
    max_decode_seconds: float = 10.0  # of one file: 422
    max_decode_bytes: int = 1_000_000_000  # of memory to decode a file, besides BYTES_PER_PIXEL: 422

    @property
    def decode_seconds(self) -> float:
        """The time limit for one file, at most that of a request."""
        return min(self.max_decode_seconds, self.timeout)

    @property
    def decode_bytes(self) -> int:
        """The memory limit for one file."""
        return self.max_decode_bytes + BYTES_PER_PIXEL * self.max_pixels


def get_max_body_bytes(predictors: Iterable[Predictor]) -> int:
    """Get the default maximum size of a request: larger where a model reads uploaded files."""
    return (
        MAX_BODY_BYTES_WITH_FILES
        if any(predictor.shows_input_names for predictor in predictors)
        else Limits.max_body_bytes
    )


class RequestError(Exception):
    """A request that is refused: HTTP status, message on one line, and headers."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


def shorten_message(message: str) -> str:
    """Shorten what an error message quotes of a request to at most 200 characters."""
    message = QUOTED.sub(lambda found: f"{found[0][:57]}...{found[0][-1]}", message)
    message = UNBROKEN.sub(lambda found: f"{found[0][:57]}...", message)
    return message if len(message) <= MAX_MESSAGE else f"{message[:147]} ... {message[-48:]}"


@dataclass
class MovingAverage:
    """Exponential moving average of the seconds per request, from which Retry-After is estimated."""

    value: float = 0.05
    weight: float = field(default=0.1, repr=False)  # of the newest value

    def update(self, value: float) -> None:
        self.value += self.weight * (value - self.value)
