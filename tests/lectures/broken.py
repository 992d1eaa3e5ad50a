"""For every check of the lectures, an implementation that is wrong in one place: row -> what breaks it."""

import broken_attending  # noqa: F401  # each of them notes its own
import broken_elsewhere  # noqa: F401
import broken_models  # noqa: F401
import broken_networks  # noqa: F401
import broken_showing  # noqa: F401
import broken_sizes  # noqa: F401
import broken_vision  # noqa: F401
import broken_walking  # noqa: F401
from broken_registry import BREAKS

__all__ = ["BREAKS"]
