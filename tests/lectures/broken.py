"""For every check of the lectures, a deliberately broken implementation: row -> function that patches it in."""

import broken_attention  # noqa: F401  # each module registers its own
import broken_captions  # noqa: F401
import broken_models  # noqa: F401
import broken_navigation  # noqa: F401
import broken_networks  # noqa: F401
import broken_sets  # noqa: F401
import broken_sizes  # noqa: F401
import broken_vision  # noqa: F401
from broken_registry import BREAKS

__all__ = ["BREAKS"]
