import numpy as np
import pytest

from saccade.errors import SaccadeError
from saccade.view.maps import AttentionMap, select_map

LABELS = {"source": list("abc"), "target": list("xy"), "seen": ["<start>", "x"]}
SIDES = {"cross": ("target", "source"), "writer": ("target", "seen"), "reader": ("source", "source")}


def attention(part: str, layer: int, *, heads: int = 2) -> AttentionMap:
    rows, columns = SIDES[part]
    weights = np.full((heads, len(LABELS[rows]), len(LABELS[columns])), layer / 10, dtype=np.float32)
    return AttentionMap(f"{part}.{layer}", part, layer, weights, rows, columns, LABELS)


MAPS = [attention(part, layer) for part in ("reader", "writer", "cross") for layer in (1, 2)]


def test_axes_and_labels_have_names():
    entry = attention("cross", 1, heads=5)
    assert entry.axes == ("head", "target", "source")
    assert [len(entry.labels[axis]) for axis in entry.axes[1:]] == [2, 3]
    assert np.asarray(entry).shape == (5, 2, 3)
    assert repr(entry) == "<cross-attention, layer 1 at cross.1: head 5, target 2, source 3>"


def test_a_copy_is_a_copy():
    entry = attention("cross", 1)
    np.array(entry)[:] = 7.0
    assert np.asarray(entry, dtype=np.float64).max() == pytest.approx(0.1)


def test_without_a_choice_it_is_the_last_cross_attention():
    assert select_map(MAPS).address == "cross.2"
    assert select_map(MAPS[:4]).address == "writer.2"
    assert select_map(MAPS[:2]).address == "reader.2"


def test_part_and_layer_are_chosen():
    assert select_map(MAPS, part="reader", layer=1).address == "reader.1"


def test_one_head_is_a_map_of_its_own():
    entry = attention("cross", 1, heads=3)
    entry.weights[1] = 0.5
    assert entry.head(2).weights.tolist() == [[[0.5] * 3] * 2]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"part": "crss"}, "--part must be one of cross, writer, reader, got 'crss'"),
        ({"layer": 3}, "--layer must be at most 2, got 3"),
    ],
)
def test_what_is_not_there_is_reported(choice, message):
    with pytest.raises(SaccadeError, match=message):
        select_map(MAPS, **choice)


@pytest.mark.parametrize(("maps", "rest"), [([], "none"), (MAPS[4:], "cross.1, cross.2")])
def test_a_model_without_such_attention_is_reported(maps, rest):
    with pytest.raises(SaccadeError, match=f"this model has no attention of --part reader; it has {rest}$"):
        select_map(maps, part="reader")


def test_a_head_that_is_not_there_is_reported():
    with pytest.raises(SaccadeError, match="--head must be at most 2, got 3"):
        MAPS[0].head(3)


@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 2), (0, 2, 3)])
def test_weights_that_do_not_fit_their_labels_are_refused(shape):
    with pytest.raises(SaccadeError, match=r"weights of w must be \(heads, target, source\) = \(heads, 2, 3\)"):
        AttentionMap("w", "cross", 1, np.zeros(shape, dtype=np.float32), "target", "source", LABELS)
