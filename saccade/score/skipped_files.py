"""Summary of files that were skipped because they cannot be read."""

from collections.abc import Sequence

MAX_NAMED_FILES = 3  # messages that are printed in full


def format_skipped_files(skipped: Sequence[str]) -> str:
    """Return a line about skipped files; empty if there are none."""
    if not skipped:
        return ""
    more = f"; and {len(skipped) - MAX_NAMED_FILES} more" if len(skipped) > MAX_NAMED_FILES else ""
    return f"\nskipped {len(skipped):,} that cannot be read: {'; '.join(skipped[:MAX_NAMED_FILES])}{more}"
