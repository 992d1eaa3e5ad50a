"""The one exception that users are meant to see."""


class SaccadeError(ValueError):
    """A user's mistake or a failure of the machine, told in one line: what, expected, got, what to do."""
