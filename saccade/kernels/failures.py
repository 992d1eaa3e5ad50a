"""What becomes of a kernel or engine that fails: it is counted and warned about, and the reference goes on.

Where the environment says SACCADE_STRICT_ENGINES=1, as in our tests, the failure is raised instead.
"""

import os
import warnings
from collections import Counter

STRICT = "SACCADE_STRICT_ENGINES"

FAILURES: Counter[tuple[str, str]] = Counter()  # by the name of what failed and of the exception


def report_failure(name: str, error: Exception, message: str) -> None:
    """Count a failure and warn about it; the caller calls this once for what it then does without."""
    if os.environ.get(STRICT) == "1":
        raise error
    FAILURES[name, type(error).__name__] += 1
    warnings.warn(message, RuntimeWarning, stacklevel=3)
