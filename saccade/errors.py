"""The exceptions that users are meant to see."""


class SaccadeError(ValueError):
    """A user's mistake or a failure of the machine, told in one line: what, expected, got, what to do."""


class Diverged(SaccadeError):
    """The loss of a training is no longer a finite number."""
