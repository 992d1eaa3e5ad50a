"""Generated data are what they were when their version was set: cached data and runs to resume depend on it."""

from hashlib import sha256
from importlib.metadata import version

import pytest

from saccade.data.synthetic import embedded, media
from saccade_worlds.navigation import generated_worlds

CHANGED = "other examples than before: give the generator another version (the text is arbitrary), and update this hash"
BABEL = "2.18.0"  # whose patterns and names the dates below are made of


def hash_examples(examples) -> str:
    return sha256("\n".join(map(repr, examples)).encode()).hexdigest()[:16]


def generate_examples(name: str) -> list:
    if name in generated_worlds.DEFAULT_EXAMPLES:
        return [(text, world, *map(tuple, path)) for text, world, path in generated_worlds.generate_routes(name, 50)]
    if name in media.GENERATORS:  # texts alone: pixels depend on the version of Pillow
        return [text for _, text in media.GENERATORS[name].generate(20)]
    if name in embedded.LABELLED:
        return list(embedded.read_labelled(name, 50, kind=embedded.LABELLED[name][0]))
    return list(embedded.read_texts(name, 50))


EXPECTED = {
    "dates": "0490289673c0098e",
    "copy": "51d56aaf2da62468",
    "reverse": "49bdd11f07ed0763",
    "numbers": "bcc0d35729111812",
    "sentences": "319d708a0882d0d1",
    "stories": "67f15d77b5466143",
    "sessions": "16e9ba507528581a",
    "molecules": "24b91d24a1a4f39e",
    "opinions": "eca9b15f322e7745",
    "judgements": "5553ed5ac1255943",
    "subjects": "d2415324c25f2873",
    "paraphrases": "0f52e5f465f192fa",
    "amounts": "c33a8a6c1f4637ed",
    "roles": "4281754552700768",
    "sums": "9cad7e49b859e0c0",
    "shapes": "62c05a16072b1cc5",
    "scenes": "ab9cbf98f5a32683",
    "questions": "5277bfe66333e5e0",
    "words": "f363dce31e8775ba",
    "tones": "f9255742a164dbc0",
    "worlds": "2ee85e7292ad7272",
}
VERSIONS = {
    "embedded": embedded.VERSION,
    "routes": generated_worlds.VERSION,
    **{name: generator.version for name, generator in media.GENERATORS.items()},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_version_belongs_to_its_examples(name):
    if name.startswith("dates") and version("babel") != BABEL:
        pytest.skip("another version of babel")
    assert hash_examples(generate_examples(name)) == EXPECTED[name], CHANGED


def test_all_generators_are_tested():
    names = {
        *embedded.PAIRS,
        *embedded.TEXTS,
        *embedded.LABELLED,
        *media.GENERATORS,
        *generated_worlds.DEFAULT_EXAMPLES,
    }
    assert {name for name in names if not name.endswith(("-heldout", "-test"))} == EXPECTED.keys()


def test_versions_are_those_of_0_8():
    """Cached data and runs of 0.8 are found by them."""
    assert hash_examples(VERSIONS.items()) == "3db5046cd877598d", CHANGED
