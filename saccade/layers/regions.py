"""Parts of a model that are compiled once and used many times.

Compiling a whole model takes minutes, and again for every new depth. A region is a function, such as one block over a
whole text, that is compiled by itself: all layers of one kind share one graph, for all lengths and batch sizes.
"""

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from saccade.layers.record import recording

BACKEND = "SACCADE_COMPILE_BACKEND"  # an environment variable; the default is inductor
Function = TypeVar("Function", bound=Callable[..., Any])

_threads: dict[int, bool] = {}  # those in which regions run compiled, and whether for all shapes at once


@contextmanager
def compiled_regions(on: bool = True, *, dynamic: bool = True) -> Iterator[None]:
    """Inside the block, and in this thread, regions run compiled; elsewhere they are plain functions.

    One graph serves all shapes, or with dynamic=False one for each shape: faster where all batches have the same.
    """
    me = threading.get_ident()
    if not on or me in _threads:
        yield
        return
    import torch._dynamo.config as dynamo  # here, since it takes a second, which prediction should not pay
    import torch.fx.experimental._config as shapes

    _threads[me] = dynamic
    try:
        # Lengths that happen to be equal in the first batch are not always equal; settings such as dropout are.
        with shapes.patch(use_duck_shape=False), dynamo.patch(specialize_float=True):  # type: ignore[attr-defined]
            yield
    finally:
        _threads.pop(me)


def region(function: Function) -> Function:
    """A function that may run compiled; its arguments are tensors and modules, and every shape may change."""
    compiled: dict[bool, Callable[..., Any]] = {}

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        # A graph that was made when nobody looked would leave no weights, so looking is always plain.
        dynamic = _threads.get(threading.get_ident()) if _threads else None
        if dynamic is None or recording():
            return function(*arguments)
        if dynamic not in compiled:
            backend = os.environ.get(BACKEND, "inductor")
            compiled[dynamic] = torch.compile(function, dynamic=dynamic, fullgraph=True, backend=backend)
        return compiled[dynamic](*arguments)

    return call  # type: ignore[return-value]
