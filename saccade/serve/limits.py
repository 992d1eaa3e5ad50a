"""Limits of the server, and the error for requests that exceed them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from saccade.predict.predictors.predictor import Predictor

MAX_BODY_BYTES_WITH_FILES = 20_000_000  # where a model reads images or audio


@dataclass(frozen=True)
class Limits:
    """Limits of a server; the comments name the HTTP status of a request that exceeds them."""

    max_body_bytes: int = 1_000_000  # of one request: 413
    max_total_bytes: int = 400_000_000  # of the bodies of all requests in flight: 429
    max_inputs: int = 128  # of one request: 422
    max_queue: int = 512  # requests waiting for one model: 429
    max_streams: int = 32  # concurrent streams of one model: 429
    timeout: float = 60.0  # seconds until the result must be there: 503
    client_timeout: float = 20.0  # seconds for a client to send a request or to receive data; then it is disconnected
    max_batch: int = 64  # inputs decoded together; more wait for the next batch
    max_weights: int = 4_000_000  # attention weights in one response: 422
    max_files: int = 16  # of one request: 400
    max_pixels: int = 50_000_000  # of one image: 422
    max_waiting_files: int = 64  # uploads waiting to be decoded: 429


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


@dataclass
class MovingAverage:
    """Exponential moving average of the seconds per request, from which Retry-After is estimated."""

    value: float = 0.05
    weight: float = field(default=0.1, repr=False)  # of the newest value

    def update(self, value: float) -> None:
        self.value += self.weight * (value - self.value)
