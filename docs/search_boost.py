"""Hook of mkdocs, named in mkdocs.yml: what the search of the site finds, and how pages rank.

The search of the theme weighs a title a thousand times as much as text, so a glossary or a list of all settings would
come before the page that explains a term. A factor below 1 puts a page behind others with a similar match, one above 1
before them.
"""

import re
from typing import Any

BOOST = {
    **dict.fromkeys(("glossary.md", "results.md", "log.md"), 0.01),
    **dict.fromkeys(("configuration.md", "cli.md", "papers.md", "reliability.md"), 0.1),
    **dict.fromkeys(("data.md", "training.md", "predicting.md", "install.md"), 4),
    "serve.md": 2,
    "faq.md": 0.5,
}
DECISIONS = 0.1  # docs/decisions/*.md
SETTINGS = "configuration.md"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Set `search.boost` of a page, as its front matter would; let all settings be found by their whole names."""
    path = page.file.src_path
    boost = BOOST.get(path, DECISIONS if path.startswith("decisions/") else 1)
    if boost != 1:
        page.meta["search"] = {"boost": boost}
    return name_settings(markdown) if path == SETTINGS else markdown


def name_settings(markdown: str) -> str:
    """Add to each key of a table, such as `lr` of [train.schedule], its whole name, hidden: train.schedule.lr."""
    tables: list[str] = []
    lines = []
    for line in markdown.splitlines():
        if line.startswith("## "):
            tables = re.findall(r"`\[([\w.]+)\]`", line)
        if tables and (key := re.match(r"\| `(\w+)` \|", line)):
            names = " ".join(f"{table}.{key[1]}" for table in tables)
            line = f"| `{key[1]}`<span hidden> {names}</span> |{line[key.end() :]}"
        lines.append(line)
    return "\n".join(lines)
