"""Models whose first numbers are not drawn, as others take their place at once."""

from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

DRAWN = ("normal_", "uniform_", "kaiming_uniform_")  # the last one draws by another inside of it


class Undrawn(TorchFunctionMode):
    """Leaves parameters as memory has them: to draw 124 million numbers takes a second.

    Where they have no memory either, even a drawing of nothing would load torch's compiler, which takes seconds.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in DRAWN:
            given = kwargs["tensor"] if "tensor" in kwargs else args[0]
            if isinstance(given, nn.Parameter):
                return given
        return func(*args, **kwargs)
