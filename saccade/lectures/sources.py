"""The code behind a check, for the page of the report: links to lines, and the files that they lead to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import saccade
from saccade.lectures.claims import Measured

ROOT = Path(saccade.__file__).parent


class Sources:
    """Collects the files that were linked to."""

    def __init__(self) -> None:
        self.files: dict[str, Path] = {}

    def links(self, measure: Callable[[], Measured], code: Sequence[Any]) -> str:
        """Where the blocks are that a check measures, and the check itself, whole."""
        text, _ = inspect.getsourcelines(measure)
        own = self._link(measure)
        blocks = [self._link(item) for item in code if _is_ours(item)]
        listing = escape("".join(text))
        return (
            f'<p class="code">Blocks: {", ".join(dict.fromkeys(blocks)) or "of PyTorch"}</p>'
            f"<details><summary>How it is measured: {own}</summary><pre>{listing}</pre></details>"
        )

    def _link(self, item: Any) -> str:
        item = inspect.unwrap(item)
        path = Path(inspect.getsourcefile(item) or "")
        line = inspect.getsourcelines(item)[1]
        name = str(path.relative_to(ROOT.parent))
        self.files[name] = path
        return f'<a href="#{name}-{line}">{name}:{line}</a> {escape(item.__qualname__)}'

    def section(self) -> str:
        """All of these files with their lines numbered."""
        parts = []
        for name, path in sorted(self.files.items()):
            lines = path.read_text("utf-8").splitlines()
            numbered = "\n".join(
                f'<span id="{name}-{i}"><a href="#{name}-{i}">{i}</a>{escape(line)}</span>'
                for i, line in enumerate(lines, 1)
            )
            parts.append(f"<details><summary>{name}</summary><pre>{numbered}</pre></details>")
        return f'<section id="code" class="sources"><h2>Code</h2>{"".join(parts)}</section>'


def _is_ours(item: Any) -> bool:
    """Whether this is code of saccade, whose files the page can show."""
    return str(inspect.unwrap(item).__module__).startswith("saccade.")
