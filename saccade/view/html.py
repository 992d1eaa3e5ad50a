"""The attention page: one HTML file with everything in it, which opens from disk and asks nothing of the network."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from saccade.errors import SaccadeError
from saccade.view.codec import packed

ENTRY = "main.js"
SCHEMA = 1
# The browser itself then refuses whatever the page might ask of anybody.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body class="saccade-alone">
<main id="saccade"></main>
<noscript>This page draws with JavaScript, which is switched off here.</noscript>
<script type="application/json" id="document">{data}</script>
<script type="module">
{script}
{entry}.mount(document.getElementById("saccade"), JSON.parse(document.getElementById("document").textContent));
</script>
</body>
</html>
"""


def page(document: Mapping[str, Any]) -> str:
    """The whole page for an attention document, weights as nested lists or arrays."""
    if document.get("schema") != SCHEMA:
        raise SaccadeError(f"the page shows attention documents of schema {SCHEMA}, got {document.get('schema')!r}")
    return _alone(packed(document), title=document.get("title") or "attention", styles=["page.css"])


def training_page(history: Mapping[str, Any]) -> str:
    """The whole page for the history of a run, with the attention of all its moments."""
    title = f"{history['name']}, training"
    return _alone(history, title=title, styles=["page.css", "watch.css"], entry="watch_saved.js")


def _alone(data: Mapping[str, Any], *, title: str, styles: Sequence[str], entry: str = ENTRY) -> str:
    """A page with its data, which the function `mount` of a module draws."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return PAGE.format(
        policy=POLICY, title=escape(f"{title} · saccade"), style="\n".join(map(_read, styles)), data=text,
        script=bundle(entry), entry=f"${_stem(entry)}",
    )  # fmt: skip


def frame(document: Mapping[str, Any], *, height: int = 720) -> str:
    """The page in a frame of its own, for notebooks: neither can touch the other."""
    return (
        f'<iframe title="attention page" sandbox="allow-scripts" srcdoc="{escape(page(document))}" '
        f'style="width:100%;height:{height}px;border:0;border-radius:8px"></iframe>'
    )


def bundle(entry: str = ENTRY) -> str:
    """All modules of the page as one script, each in a scope of its own named after it: `$main` is the entry.

    Browsers load no module files from disk. Only the two forms that the page uses are understood:
    `import { a, b } from "./file.js";` on one line, and `export` before a function, class or const.
    """
    order: list[str] = []
    _visit(entry, order, above=())
    return "\n".join(_scoped(name) for name in order)


def _visit(name: str, order: list[str], *, above: tuple[str, ...]) -> None:
    """Adds a module after those that it imports."""
    if name in above:
        raise SaccadeError(f"modules of the page import each other in a circle: {' -> '.join([*above, name])}")
    if name not in order:
        for found in IMPORT.finditer(_read(name)):
            _visit(found[2], order, above=(*above, name))
        order.append(name)


def _scoped(name: str) -> str:
    text = IMPORT.sub(lambda found: f"const {{{found[1]}}} = ${_stem(found[2])};\n", _read(name))
    exports = [found[1] for found in EXPORT.finditer(text)]
    return f"const ${_stem(name)} = (() => {{\n{EXPORT.sub('', text)}return {{ {', '.join(exports)} }};\n}})();"


def _stem(name: str) -> str:
    return name.removesuffix(".js")


def _read(name: str) -> str:
    return files(__package__).joinpath("page", name).read_text("utf-8")
