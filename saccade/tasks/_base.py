"""What tasks have in common."""

from __future__ import annotations


class BaseTask:
    """A task with its defaults: learns from pairs of texts, writes the second one given the first."""

    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BaseTask) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<task {self.name}>"
