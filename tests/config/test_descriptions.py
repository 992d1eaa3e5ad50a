"""Every key of a recipe has a complete description."""

from saccade.config import schema
from saccade.config.descriptions import get_descriptions, list_recipe_tables

MIN_CHARACTERS = 25


def test_every_key_has_a_description() -> None:
    tables = list_recipe_tables()
    short = [
        f"{table.__name__}.{key}: {text!r}"
        for table in tables
        for key, text in get_descriptions(table).items()
        if len(text) < MIN_CHARACTERS or not text.endswith((".", '"'))
    ]
    assert len(tables) > 60 and not short, "\n".join(short)


def test_every_table_says_what_it_is() -> None:
    assert [table.__name__ for table in list_recipe_tables() if not table.__doc__] == []


def test_descriptions_are_inherited_and_one_paragraph() -> None:
    found = get_descriptions(schema.PatchReader)
    assert found["size"].startswith("Height of the images") and found["patch_size"].startswith("Side of a patch")
    assert "Stochastic depth" in get_descriptions(schema.TransformerStack)["drop_path"]
    assert not any("\n" in text or "  " in text for text in found.values())
