"""Exceptions whose messages are meant for users."""


class SaccadeError(ValueError):
    """A user's mistake or a failure of the machine, in one line: what, expected, got, what to do."""


class Diverged(SaccadeError):
    """The training loss is no longer a finite number."""
