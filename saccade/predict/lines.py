"""Lines of a file, a pipe or a keyboard, in groups: of what is there, and of about equal lengths."""

import threading
from collections.abc import Iterable, Iterator, Sequence

SHORT = 8  # tokens; shorter texts count as if they had so many, for each takes a row of logits too


def available(lines: Iterable[str], *, most: int) -> Iterator[list[str]]:
    """Groups of 1 to `most` lines: all that have come by now, never waiting for another line once there is one.

    A thread reads ahead. So a fast file gives large groups, and whoever types a line, or a program that writes a few
    and waits for the answers, gets them at once.
    """
    ahead = _Ahead(lines, most)
    try:
        while group := ahead.take():
            yield group
    finally:
        ahead.leave()


class _Ahead:
    """At most `most` lines that were read and not yet taken."""

    def __init__(self, lines: Iterable[str], most: int) -> None:
        self.most, self.change = most, threading.Condition()
        self.lines: list[str] = []
        self.ended, self.left = False, False
        self.error: BaseException | None = None
        # A daemon: one that waits for a keyboard cannot be stopped, and must not keep the program alive.
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def take(self) -> list[str]:
        """All lines that are there, at least one; none at the end. An error of the source is raised here."""
        with self.change:
            self.change.wait_for(lambda: self.lines or self.ended)
            group, self.lines = self.lines, []
            self.change.notify_all()
        if not group and self.error is not None:
            raise self.error
        return group

    def leave(self) -> None:
        with self.change:
            self.left = True
            self.change.notify_all()

    def _read(self, lines: Iterable[str]) -> None:
        try:
            for line in lines:
                with self.change:
                    self.change.wait_for(lambda: len(self.lines) < self.most or self.left)
                    if self.left:
                        return
                    self.lines.append(line)
                    self.change.notify_all()
        except BaseException as error:  # belongs to whoever takes the lines
            self.error = error
        finally:
            with self.change:
                self.ended = True
                self.change.notify_all()


def groups_by_length(lengths: Sequence[int], *, budget: int) -> Iterator[list[int]]:
    """Indices of about equal lengths, longest first; rows x longest is within the budget, but one row always fits."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if group and max(lengths[group[0]], SHORT) * (len(group) + 1) > budget:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
