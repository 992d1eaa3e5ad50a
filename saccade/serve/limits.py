"""How much a server takes on, and what it answers where that is too much."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from saccade.predict.predictors.predictor import Predictor

WITH_FILES = 20_000_000  # bytes of a request to a server whose models read pictures or sound


@dataclass(frozen=True)
class Limits:
    """What is above them is refused with an honest status code."""

    body: int = 1_000_000  # bytes of a request; more: 413
    bodies: int = 400_000_000  # bytes of all requests that are being answered; more: 429
    texts: int = 128  # of one request; more: 422
    queue: int = 512  # requests that wait for one model; more: 429
    streams: int = 32  # outputs of one model that are sent token by token at the same time; more: 429
    seconds: float = 60.0  # until an answer must be there; later: 503
    patience: float = 20.0  # seconds for a client to send its request, or to take what was sent; then it is cut off
    batch: int = 64  # texts that are decoded together
    weights: int = 4_000_000  # of attention in one answer; more: 422
    files: int = 16  # of one request; more: 400
    pixels: int = 50_000_000  # of a picture; more: 422
    uploads: int = 64  # files that wait to be decoded; more: 429


def body_for(predictors: Iterable[Predictor]) -> int:
    """How many bytes a request may have, where nobody says it: more where files are sent."""
    return WITH_FILES if any(predictor.names_inputs for predictor in predictors) else Limits.body


class Refused(Exception):
    """A request that is not answered: the status code, and why in one line."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


@dataclass
class Pace:
    """How long a request takes of late, for telling clients when to come again."""

    seconds: float = 0.05
    weight: float = field(default=0.1, repr=False)  # of the newest

    def note(self, seconds: float) -> None:
        self.seconds += self.weight * (seconds - self.seconds)
