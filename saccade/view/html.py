"""The attention page and the training page as self-contained HTML files, which open from disk without any network."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from saccade.errors import SaccadeError
from saccade.view.codec import pack_document

ENTRY_MODULE = "main.js"
SCHEMA = 1
FRAME_HEIGHT = 960  # pixels of a frame in a notebook: the heads of 18 tokens and all controls fit
ROW_HEIGHT = 30  # pixels of a token
MAX_FRAME_HEIGHT = 1320  # pixels; more than 30 tokens scroll
# The browser then blocks every network request of the page.
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
<body class="{place}">
<main id="saccade"></main>
<noscript>This page needs JavaScript, which is disabled.</noscript>
<script type="application/json" id="document">{data}</script>
<script type="module">
{script}
{entry}.mount(document.getElementById("saccade"), JSON.parse(document.getElementById("document").textContent));
</script>
</body>
</html>
"""


def build_page(document: Mapping[str, Any], *, place: str = "saccade-alone") -> str:
    """Build the page of an attention document, whose weights are nested lists or arrays."""
    if document.get("schema") != SCHEMA:
        raise SaccadeError(f"the page shows attention documents of schema {SCHEMA}, got {document.get('schema')!r}")
    title = document.get("title") or "attention"
    return _build_standalone(pack_document(document), title=title, styles=["page.css"], place=place)


def build_training_page(history: Mapping[str, Any]) -> str:
    """Build the page of a run's training history with all its attention snapshots."""
    title = f"{history['name']}, training"
    return _build_standalone(history, title=title, styles=["page.css", "watch.css"], entry="watch_saved.js")


def _build_standalone(
    data: Mapping[str, Any],
    *,
    title: str,
    styles: Sequence[str],
    entry: str = ENTRY_MODULE,
    place: str = "saccade-alone",
) -> str:
    """Build a self-contained page that calls `mount` of the entry module with the data."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return PAGE.format(
        policy=POLICY, title=escape(f"{title} · saccade"), style="\n".join(map(_read, styles)), data=text,
        script=bundle(entry), entry=f"${_stem(entry)}", place=place,
    )  # fmt: skip


def build_iframe(document: Mapping[str, Any]) -> str:
    """Build the page as a sandboxed iframe for notebooks, isolated from the notebook's own scripts and styles.

    It is as high as its tokens need, up to a limit. Its lower edge can be pulled down.
    """
    longest = max(map(len, document["labels"].values()), default=0)
    height = min(max(FRAME_HEIGHT + (longest - 18) * ROW_HEIGHT, FRAME_HEIGHT), MAX_FRAME_HEIGHT)
    page = escape(build_page(document, place="saccade-alone saccade-frame"))
    return (
        f'<iframe title="attention page" sandbox="allow-scripts" srcdoc="{page}" '
        f'style="width:100%;height:{height}px;border:0;border-radius:8px;resize:vertical"></iframe>'
    )


def bundle(entry: str = ENTRY_MODULE) -> str:
    """Bundle all modules of the page into one script, each in a scope named after it: `$main` is the entry module.

    Browsers load no module files from disk. Only the two forms that the page uses are supported:
    `import { a, b } from "./file.js";` on one line, and `export` before a function, class or const.
    """
    order: list[str] = []
    _visit(entry, order, parents=())
    return "\n".join(_wrap_module(name) for name in order)


def _visit(name: str, order: list[str], *, parents: tuple[str, ...]) -> None:
    """Append a module to `order` after the modules that it imports."""
    if name in parents:
        raise SaccadeError(f"modules of the page import each other in a circle: {' -> '.join([*parents, name])}")
    if name not in order:
        for match in IMPORT.finditer(_read(name)):
            _visit(match[2], order, parents=(*parents, name))
        order.append(name)


def _wrap_module(name: str) -> str:
    text = IMPORT.sub(lambda match: f"const {{{match[1]}}} = ${_stem(match[2])};\n", _read(name))
    exports = [match[1] for match in EXPORT.finditer(text)]
    return f"const ${_stem(name)} = (() => {{\n{EXPORT.sub('', text)}return {{ {', '.join(exports)} }};\n}})();"


def _stem(name: str) -> str:
    return name.removesuffix(".js")


def _read(name: str) -> str:
    return files(__package__).joinpath("page", name).read_text("utf-8")
