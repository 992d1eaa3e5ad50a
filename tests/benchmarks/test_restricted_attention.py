import json

import pytest
import torch


@pytest.fixture
def attention(script):
    return script("restricted_attention")


SMALL = {"batch": 1, "heads": 2, "shortest": 64, "longest": 256, "seconds": 5.0, "bytes": 1e9}


def test_slope_of_a_power_is_its_exponent(attention):
    assert attention.slope([(n, 3 * n**1.5) for n in (2, 4, 8, 16)]) == pytest.approx(1.5)


@pytest.mark.parametrize(("way", "expected"), [("naive", 2), ("full", 1), ("windowed", 1)])
def test_memory_grows_as_it_should(attention, way, expected):
    """Exact, since it is counted by the allocator: at lengths where constant parts matter little."""
    limits = attention.Limits(**{**SMALL, "heads": 4})
    found = []
    for n in (1024, 2048):
        parts = attention.inputs(n, limits, torch.device("cpu"))

        def step(parts=parts):
            torch.autograd.grad(attention.attention(way, *parts).sum(), parts)

        found.append((n, attention.memory(step, torch.device("cpu"))))

    assert attention.slope(found) == pytest.approx(expected, abs=0.2)


def test_texts_grow_until_the_limit(attention, monkeypatch):
    monkeypatch.setattr(attention, "seconds", lambda step, device: 1.0)
    limits = attention.Limits(**{**SMALL, "longest": 512})

    lengths = [n for n, *_ in attention.points("full", limits, torch.device("cpu"))]
    stopped = attention.points("full", limits._replace(seconds=3.0), torch.device("cpu"))

    assert lengths == [64, 128, 256, 512][: len(lengths)] and len(lengths) == 4
    assert len(stopped) == 1  # the next one would take 4 seconds


def test_picture_is_drawn_from_results(attention, tmp_path):
    points = [(n, float(n), 1000 * n) for n in (512, 1024, 2048)]
    rows = [row for way in attention.WAYS for row in attention.build_rows(way, points)]
    for device in ("cpu", "gpu"):
        result = {"hardware": f"one {device}, 1 threads", "rows": rows}
        (tmp_path / f"restricted_attention_{device}.json").write_text(json.dumps(result))

    attention.draw(tmp_path, tmp_path / "pictures")

    text = (tmp_path / "pictures" / "restricted-attention.svg").read_text()
    assert text.count("axes_") >= 4  # time and memory of two machines
    assert (tmp_path / "pictures" / "restricted-attention.png").stat().st_size > 10_000
