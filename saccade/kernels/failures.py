"""Failures of kernels and engines: they are counted and reported as warnings, and the reference implementation is used.

With SACCADE_STRICT_ENGINES=1 in the environment, as in our tests, the error is raised instead.
"""

import os
import warnings
from collections import Counter

STRICT = "SACCADE_STRICT_ENGINES"

FAILURES: Counter[tuple[str, str]] = Counter()  # by the name of the kernel or engine and of the exception


def report_failure(name: str, error: Exception, message: str) -> None:
    """Count a failure and warn about it; callers report each failing kernel or engine once."""
    if os.environ.get(STRICT) == "1":
        raise error
    FAILURES[name, type(error).__name__] += 1
    warnings.warn(message, RuntimeWarning, stacklevel=3)
