"""Regional compilation with torch.compile.

Compiling a whole model takes minutes, and again for every new depth. A region is a function, such as the forward pass
of one block, that is compiled on its own: all layers of one kind share one graph, for all lengths and batch sizes.
"""

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, ParamSpec, TypeVar

import torch

from saccade.layers.record import is_recording

BACKEND = "SACCADE_COMPILE_BACKEND"  # an environment variable; the default is inductor
Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

_threads: dict[int, bool] = {}  # threads in which regions run compiled, and whether with dynamic shapes


@contextmanager
def compiled_regions(enabled: bool = True, *, dynamic: bool = True) -> Iterator[None]:
    """Inside the block, in this thread, regions run compiled; elsewhere they are plain functions.

    One graph serves all shapes; with dynamic=False there is one per shape, which is faster if batches have few shapes.
    """
    thread = threading.get_ident()
    if not enabled or thread in _threads:
        yield
        return
    import torch._dynamo.config as dynamo  # slow to import, and prediction does not need it
    import torch.fx.experimental._config as shapes

    _threads[thread] = dynamic
    try:
        # Sizes that are equal in the first batch are not always equal; floats such as dropout rates are constant.
        with shapes.patch(use_duck_shape=False), dynamo.patch(specialize_float=True):  # type: ignore[attr-defined]
            yield
    finally:
        _threads.pop(thread)


class Region(Generic[Parameters, Returned]):
    """A function of tensors and modules that may run compiled, with dynamic shapes."""

    def __init__(self, function: Callable[Parameters, Returned]) -> None:
        self.function = function
        self._compiled: dict[bool, Callable[Parameters, Returned]] = {}
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Parameters.args, **named: Parameters.kwargs) -> Returned:
        return self.select()(*arguments, **named)

    def select(self, can_compile: bool = True) -> Callable[Parameters, Returned]:
        """The function itself or, inside `compiled_regions`, its compiled form where that is possible."""
        # A graph compiled without recording would record nothing, so recording always uses the plain function.
        dynamic = _threads.get(threading.get_ident()) if _threads else None
        if dynamic is None or not can_compile or is_recording():
            return self.function
        if dynamic not in self._compiled:
            backend = os.environ.get(BACKEND, "inductor")
            self._compiled[dynamic] = torch.compile(self.function, dynamic=dynamic, fullgraph=True, backend=backend)
        return self._compiled[dynamic]


def region(function: Callable[Parameters, Returned]) -> Region[Parameters, Returned]:
    return Region(function)
