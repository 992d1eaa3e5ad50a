"""For every check of the lectures, an implementation that is wrong in one place: row -> what breaks it."""

from broken import attending, models, networks, sizes  # noqa: F401  (each notes its own)
from broken.registry import BREAKS

__all__ = ["BREAKS"]
