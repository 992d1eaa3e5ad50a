"""The page as a file: content, size, and precision of the weights."""

import json
import re
import zlib
from base64 import b64decode
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from saccade.errors import SaccadeError
from saccade.view import html
from saccade.view.codec import MAX_CODES, pack_document, pack_weights
from saccade.view.html import build_iframe, build_page, bundle

PAGE = Path(html.__file__).parent / "page"
KINDS = {"u8-deflate": "u1", "u16-deflate": "<u2", "f32-deflate": "<f4"}


def unpack(entry: dict) -> np.ndarray:
    """Decode weights as page/codec.js and page/plane.js do."""
    kept = entry["weights"]
    numbers = np.frombuffer(zlib.decompress(b64decode(kept["data"])), KINDS[kept["codec"]]).reshape(entry["shape"])
    if kept["codec"] == "f32-deflate":
        return numbers
    return np.array(kept["tops"])[:, None, None] * (numbers / MAX_CODES[kept["codec"]]) ** 2


def long(count: int, *, heads: int, maps: int) -> dict:
    """Build a document of `count` tokens whose weights compress as badly as those of an untrained model."""
    numbers = np.random.default_rng(0)
    labels = [f"word{i}" for i in range(count)]
    entries = []
    for layer in range(maps):
        scores = np.exp(numbers.normal(size=(heads, count, count)) * 2)
        entries.append({
            "address": f"reader.{layer}", "name": f"layer {layer + 1}", "part": "reader", "layer": layer + 1,
            "rows": "source", "columns": "source", "heads": heads, "shape": [heads, count, count],
            "weights": (scores / scores.sum(-1, keepdims=True)).astype(np.float32),
        })  # fmt: skip
    return {
        "schema": 1,
        "title": "long",
        "input": "",
        "output": "",
        "labels": {"source": labels, "target": []},
        "maps": entries,
    }


def test_weights_of_a_small_document_stay_as_they_are(make_document):
    document = make_document()
    for before, after in zip(document["maps"], pack_document(document)["maps"], strict=True):
        assert after["weights"]["codec"] == "f32-deflate"
        assert (unpack(after) == before["weights"]).all()


@pytest.mark.parametrize("codec", MAX_CODES)
def test_the_quantization_error_is_within_its_bound(codec):
    weights = np.random.default_rng(1).dirichlet(np.full(113, 0.1), (5, 101)).astype(np.float32)
    weights[2] = 0  # a fully masked head
    after = unpack({"weights": pack_weights(weights, codec), "shape": weights.shape})
    most, tops = MAX_CODES[codec], weights.max((1, 2), keepdims=True)
    off = np.abs(after - weights)
    assert (off <= np.sqrt(weights * tops) / most + tops / (4 * most**2) + 1e-7).all()
    assert off.max() > 1e-7  # the bound is not trivial
    assert ((after == 0) == (np.rint(most * np.sqrt(weights / np.where(tops > 0, tops, 1))) == 0)).all()


def test_nested_lists_and_arrays_give_the_same_page(make_document):
    document = make_document()
    listed = {**document, "maps": [{**entry, "weights": entry["weights"].tolist()} for entry in document["maps"]]}
    assert build_page(listed) == build_page(document)


def test_twelve_by_twelve_heads_of_128_tokens_stay_below_three_megabytes():
    assert len(build_page(long(128, heads=12, maps=12)).encode()) < 3_000_000


def test_larger_documents_have_fewer_bits_per_weight():
    codecs = [pack_document(long(n, heads=2, maps=1))["maps"][0]["weights"]["codec"] for n in (50, 300, 600)]
    assert codecs == ["f32-deflate", "u16-deflate", "u8-deflate"]


def test_other_document_is_packed_too(make_document):
    other = pack_document({**make_document(), "other": make_document(seed=1)})["other"]
    assert other["maps"][0]["weights"]["codec"] == "f32-deflate"


def test_page_has_no_urls_and_a_policy_without_network(make_document):
    text = build_page(make_document())
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "default-src 'none'" in text
    assert " src=" not in text


def test_text_of_a_document_is_never_markup(make_document):
    nasty = "</script><script>alert(1)</script><!--"
    document = {**make_document(), "title": nasty, "input": nasty}
    text = build_page(document)
    assert "alert(1)</script>" not in text
    held = re.search(r'id="document">(.*?)</script>', text, re.DOTALL)
    assert held
    assert json.loads(held[1])["input"] == nasty


def test_frame_holds_the_whole_page(make_document):
    found = re.fullmatch(
        r'<iframe title="attention page" sandbox="allow-scripts" srcdoc="([^"]*)" .*</iframe>',
        build_iframe(make_document()),
    )
    assert found
    assert unescape(found[1]) == build_page(make_document(), place="saccade-alone saccade-frame")


def test_every_module_is_in_a_bundle_once():
    text = bundle("watch_saved.js")  # which shows attention too
    assert "$watch = (" not in bundle()
    for path in PAGE.glob("*.js"):
        assert text.count(f"const ${path.stem} = (") == 1, path.name
    assert not re.search(r"^(?:import|export) ", text, re.MULTILINE)
    assert "</script" not in text


def test_modules_that_import_each_other_are_refused(monkeypatch):
    files = {"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'}
    monkeypatch.setattr(html, "_read", files.__getitem__)
    with pytest.raises(SaccadeError, match=re.escape("in a circle: a.js -> b.js -> a.js")):
        bundle("a.js")


def test_files_of_the_page_stay_small():
    for path in [*PAGE.glob("*.js"), *PAGE.glob("*.css")]:
        assert len(path.read_text("utf-8").splitlines()) <= 300, path.name


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros((3, 7, 4)), "must have shape (heads, 7, 5) as its labels, got (3, 7, 4)"),
        (np.full((3, 7, 5), np.nan), "must be finite and not negative"),
        (-np.ones((3, 7, 5)), "must be finite and not negative"),
        ([[[0.5], [0.5, 0.5]]], "must be numbers (heads, rows, columns)"),
    ],
)
def test_weights_that_cannot_be_shown_are_refused(make_document, weights, message):
    document = make_document(parts=("cross",), layers=1)
    document["maps"][0]["weights"] = weights
    with pytest.raises(SaccadeError, match=re.escape(f"weights of cross.1 {message}")):
        build_page(document)


def test_a_document_of_another_schema_is_refused(make_document):
    with pytest.raises(SaccadeError, match="schema 1, got 2"):
        build_page({**make_document(), "schema": 2})
