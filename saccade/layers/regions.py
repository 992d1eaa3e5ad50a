"""Parts of a model that are compiled once and used many times.

Compiling a whole model takes minutes, and again for every new depth. A region is a function, such as one block over a
whole text, that is compiled by itself: all layers of one kind share one graph, for all lengths and batch sizes.
"""

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, ParamSpec, TypeVar

import torch

from saccade.layers.record import recording

BACKEND = "SACCADE_COMPILE_BACKEND"  # an environment variable; the default is inductor
Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

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


class Region(Generic[Parameters, Returned]):
    """A function that may run compiled; its arguments are tensors and modules, and every shape may change."""

    def __init__(self, function: Callable[Parameters, Returned]) -> None:
        self.function = function
        self._compiled: dict[bool, Callable[Parameters, Returned]] = {}
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Parameters.args, **named: Parameters.kwargs) -> Returned:
        return self.select()(*arguments, **named)

    def select(self) -> Callable[Parameters, Returned]:
        """The function itself or, inside `compiled_regions`, its compiled form."""
        # A graph that was made when nobody recorded would leave no weights, so recording is always plain.
        dynamic = _threads.get(threading.get_ident()) if _threads else None
        if dynamic is None or recording():
            return self.function
        if dynamic not in self._compiled:
            backend = os.environ.get(BACKEND, "inductor")
            self._compiled[dynamic] = torch.compile(self.function, dynamic=dynamic, fullgraph=True, backend=backend)
        return self._compiled[dynamic]


def region(function: Callable[Parameters, Returned]) -> Region[Parameters, Returned]:
    return Region(function)
