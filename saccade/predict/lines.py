"""Group input lines: those that are available without waiting, and those of similar length."""

import threading
from collections.abc import Iterable, Iterator, Sequence

MIN_COUNTED_LENGTH = 8  # tokens; shorter inputs count as this long, because each needs a row of logits too


def group_available(lines: Iterable[str], *, max_lines: int) -> Iterator[list[str]]:
    """Yield groups of 1 to `max_lines` lines: all that have arrived so far, waiting only when there is none.

    A thread reads ahead. A file therefore gives large groups, while an interactive user, or a program that writes a few
    lines and waits for the answers, gets each output immediately.
    """
    ahead = _ReadAhead(lines, max_lines)
    try:
        while group := ahead.take():
            yield group
    finally:
        ahead.close()


class _ReadAhead:
    """Reads lines in a background thread and buffers at most `max_lines` of them."""

    def __init__(self, lines: Iterable[str], max_lines: int) -> None:
        self.max_lines, self.condition = max_lines, threading.Condition()
        self.lines: list[str] = []
        self.is_exhausted, self.is_closed = False, False
        self.error: BaseException | None = None
        # A daemon thread, because one that waits for a keyboard cannot be stopped and must not keep the program alive.
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def take(self) -> list[str]:
        """Return all buffered lines, at least one; an empty list at the end. Raises the error of the source, if any."""
        with self.condition:
            self.condition.wait_for(lambda: self.lines or self.is_exhausted)
            group, self.lines = self.lines, []
            self.condition.notify_all()
        if not group and self.error is not None:
            raise self.error
        return group

    def close(self) -> None:
        """Stop reading."""
        with self.condition:
            self.is_closed = True
            self.condition.notify_all()

    def _read(self, lines: Iterable[str]) -> None:
        try:
            for line in lines:
                with self.condition:
                    self.condition.wait_for(lambda: len(self.lines) < self.max_lines or self.is_closed)
                    if self.is_closed:
                        return
                    self.lines.append(line)
                    self.condition.notify_all()
        except BaseException as error:  # raised again in `take`
            self.error = error
        finally:
            with self.condition:
                self.is_exhausted = True
                self.condition.notify_all()


def group_by_length(lengths: Sequence[int], *, budget: int) -> Iterator[list[int]]:
    """Yield groups of indices with similar lengths, longest first.

    The padded size of a group (rows times longest) is at most `budget` tokens; a single row is always allowed.
    """
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if group and max(lengths[group[0]], MIN_COUNTED_LENGTH) * (len(group) + 1) > budget:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
