"""Hook of mkdocs: how pages of the site rank in its search, beside how well they match. mkdocs.yml names this file.

The search of the theme weighs a title a thousand times as much as text, so a glossary or a list of all settings would
come before the page that explains a term. A factor below 1 puts a page behind others with a similar match.
"""

from typing import Any

BOOST = {"glossary.md": 0.01, "configuration.md": 0.1, "cli.md": 0.1, "results.md": 0.01, "log.md": 0.01}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Set `search.boost` of a page, as its front matter would."""
    if page.file.src_path in BOOST:
        page.meta["search"] = {"boost": BOOST[page.file.src_path]}
    return markdown
