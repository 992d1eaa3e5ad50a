"""What is told of files that were not measured, as they could not be read."""

from collections.abc import Sequence

NAMED = 3  # of them, by their names


def told_of(left_out: Sequence[str]) -> str:
    """A line behind the others, where there are such files."""
    if not left_out:
        return ""
    more = f"; and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
    return f"\nleft out {len(left_out):,} that cannot be read: {'; '.join(left_out[:NAMED])}{more}"
