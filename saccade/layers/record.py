"""Recording attention weights: inside `with record(model) as maps:` every attention layer computes its weights
explicitly, in eval mode, and stores them under its module name."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import SaccadeError

Maps = dict[str, Tensor]


class _Recorder:
    def __init__(self, model: nn.Module) -> None:
        self.names = {id(module): name for name, module in model.named_modules()}
        self.maps: Maps = {}
        self.count = 0  # recorded weights

    def add(self, module: nn.Module, weights: Tensor) -> None:
        name = self.names.get(id(module))
        if name is None:
            return
        self.count += weights.numel()
        limit = _max_weights.get(threading.get_ident(), self.count)
        if self.count > limit:
            raise SaccadeError(
                f"attention has more than {limit:,} weights here, which is too much; give a shorter text"
            )
        key, call = name, 1
        while key in self.maps:  # a shared layer or another step: every call gets its own name
            key, call = f"{name}#{call}", call + 1
        self.maps[key] = weights.detach()


# By thread, so that a server can record one request while it answers another; a list, because blocks can be nested.
_recorders: dict[int, list[_Recorder]] = {}
_max_weights: dict[int, int] = {}  # by thread


@contextmanager
def limit_weights(weights: int) -> Iterator[None]:
    """Inside, recording raises an error as soon as there are more than this many attention weights."""
    thread = threading.get_ident()
    _max_weights[thread] = weights
    try:
        yield
    finally:
        del _max_weights[thread]


@contextmanager
def record(model: nn.Module) -> Iterator[Maps]:
    """Yields a dict of attention weights (B, H, Q, K) by module name, filled by the forward passes inside the block."""
    thread, training = threading.get_ident(), [module for module in model.modules() if module.training]
    recorder = _Recorder(model)
    _recorders.setdefault(thread, []).append(recorder)
    model.eval()
    try:
        yield recorder.maps
    finally:
        for module in training:  # not model.train(): some modules may have been in eval mode
            module.training = True
        _recorders[thread].pop()
        if not _recorders[thread]:
            del _recorders[thread]


def is_recording() -> bool:
    """Whether attention weights are being recorded in this thread."""
    return bool(_recorders) and threading.get_ident() in _recorders


def record_weights(module: nn.Module, weights: Float[Tensor, "B H Q K"]) -> None:
    """Store the attention weights of `module` in the recorders of this thread."""
    for recorder in _recorders[threading.get_ident()]:
        recorder.add(module, weights)
