"""Looking at attention weights without keeping them: inside `with record(model) as maps:` every attention layer takes
the explicit path, in eval mode, and leaves its weights under its address."""

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
        self.count = 0  # weights

    def keep(self, module: nn.Module, weights: Tensor) -> None:
        name = self.names.get(id(module))
        if name is None:
            return
        self.count += weights.numel()
        most = _most.get(threading.get_ident(), self.count)
        if self.count > most:
            raise SaccadeError(f"attention has more than {most:,} weights here, which is too much; give a shorter text")
        address, call = name, 1
        while address in self.maps:  # a shared layer, or one more step: every call has its own address
            address, call = f"{name}#{call}", call + 1
        self.maps[address] = weights.detach()


# By thread, so that a server may look at one request while it answers another; several where blocks are nested.
_recorders: dict[int, list[_Recorder]] = {}
_most: dict[int, int] = {}  # weights that may be kept, by thread


@contextmanager
def at_most(weights: int) -> Iterator[None]:
    """Inside, who looks is stopped at the layer with which there are more weights than that."""
    me = threading.get_ident()
    _most[me] = weights
    try:
        yield
    finally:
        del _most[me]


@contextmanager
def record(model: nn.Module) -> Iterator[Maps]:
    """Yields {address: weights (B, H, Q, K)}, filled by every forward pass inside the block."""
    me, training = threading.get_ident(), [module for module in model.modules() if module.training]
    recorder = _Recorder(model)
    _recorders.setdefault(me, []).append(recorder)
    model.eval()
    try:
        yield recorder.maps
    finally:
        for module in training:  # not model.train(): parts of it may have been in eval mode
            module.training = True
        _recorders[me].pop()
        if not _recorders[me]:
            del _recorders[me]


def recording() -> bool:
    """Whether somebody is looking in this thread."""
    return bool(_recorders) and threading.get_ident() in _recorders


def keep(module: nn.Module, weights: Float[Tensor, "B H Q K"]) -> None:
    """Leaves the weights of `module` with whoever is looking."""
    for recorder in _recorders[threading.get_ident()]:
        recorder.keep(module, weights)
