"""The glossary: every entry leads to the page that uses the word, and readers find the glossary."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text("utf-8")
ENTRIES = re.findall(r"^\* \*\*([^*]+)\*\*: (.+(?:\n  .+)*)", GLOSSARY, re.MULTILINE)


def test_entries_are_found():
    assert len(ENTRIES) == GLOSSARY.count("* **") >= 60


def test_every_word_is_explained_once():
    words = [word.lower() for words, _ in ENTRIES for word in words.split(", ")]
    assert not {word for word in words if words.count(word) > 1}


@pytest.mark.parametrize(("word", "text"), ENTRIES, ids=lambda part: part[:20])
def test_entry_is_short_and_links_to_a_page(word, text):
    assert re.search(r"\]\([\w-]+\.md", text)
    assert len(text) <= 330


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/index.md", "mkdocs.yml"])
def test_glossary_is_linked(page):
    assert "glossary.md" in (ROOT / page).read_text("utf-8")
