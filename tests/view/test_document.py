import json

import numpy as np
import pytest

from saccade.view.document import build_document, to_lists
from saccade.view.maps import AttentionMap

LABELS = {"source": ["a", "<end>"], "target": ["x", "y", "<end>"], "seen": ["<start>", "x", "y"]}
WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(2), (5, 3)).astype(np.float32)
CROSS = AttentionMap("writer.cross", "cross", 1, WEIGHTS, "target", "source", LABELS)


def make_document(**more):
    return build_document([CROSS], LABELS, title="t", texts=("a", "xy"), **more)


def test_the_document_has_all_keys():
    found = make_document(words={"source": [[0], [1]]}, steps=[{"token": "x"}])
    assert {name: found[name] for name in ("schema", "title", "input", "output", "background")} == {
        "schema": 1, "title": "t", "input": "a", "output": "xy", "background": None
    }  # fmt: skip
    [entry] = found["maps"]
    assert entry["name"] == "cross-attention, layer 1"
    assert (entry["rows"], entry["columns"], entry["heads"], entry["shape"]) == ("target", "source", 5, [5, 3, 2])
    assert found["words"] == {"source": [[0], [1]]}
    assert found["steps"] == [{"token": "x"}]
    assert "other" not in found


def test_every_head_has_its_statistics():
    numbers = make_document()["statistics"]["writer.cross"]
    assert {name: len(values) for name, values in numbers.items()} == {"entropy": 5, "distance": 5, "diagonal": 5}


def test_json_has_the_weights_to_seven_digits():
    other = make_document()
    found = json.loads(json.dumps(to_lists(make_document(other=other))))
    for some in (found, found["other"]):
        np.testing.assert_allclose(some["maps"][0]["weights"], WEIGHTS, rtol=0, atol=6e-8)


def test_the_document_itself_is_left_as_it_is():
    first = make_document()
    to_lists(first)
    assert isinstance(first["maps"][0]["weights"], np.ndarray)


@pytest.mark.parametrize("name", ["source", "target", "seen"])
def test_labels_are_plain_lists(name):
    assert make_document()["labels"][name] == LABELS[name]
