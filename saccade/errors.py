"""Exceptions whose messages are meant for users."""


class SaccadeError(ValueError):
    """A user's mistake or a failure of the machine, in one line: what, expected, got, what to do."""


class Diverged(SaccadeError):
    """The training loss is no longer a finite number."""


class MemoryExhausted(SaccadeError):
    """A batch does not fit into memory; a smaller one may."""


class LocalError(SaccadeError):
    """An error of one process of a distributed training, which reports it itself; other errors rank 0 reports."""


class ProcessLost(SaccadeError):
    """Another process of a distributed training has ended or hangs; started again, all may go on."""


class HungProcess(LocalError, ProcessLost):
    """Other processes hang; the first of those that noticed it reports it."""
