"""Cost of chunked attention: keys per position, independent of the length."""

import pytest

from saccade.config.load import load
from saccade.plan.counts import build_on_meta, count_by_part
from saccade.plan.flops import count_flops

CHUNK, HASHES, WIDTH = 64, 4, 2 * 64


@pytest.mark.parametrize(
    ("length", "local", "hashing"),
    [(32, 32, 32), (100, 100, 2 * CHUNK * HASHES), (16384, 2 * CHUNK, 2 * CHUNK * HASHES)],
)
def test_keys_are_those_of_two_chunks_in_each_round(length: int, local: int, hashing: int) -> None:
    assert count_flops(build_on_meta(load("reformer")), length=length).attention == 4 * WIDTH * 3 * (local + hashing)


def test_its_attention_is_counted_as_such() -> None:
    parts = count_by_part(build_on_meta(load("reformer")))
    assert "other" not in parts
    assert parts["self-attention"] == {"writer": 3 * 256 * WIDTH * (3 + 1) + 3 * 256 * WIDTH * (2 + 1)}
