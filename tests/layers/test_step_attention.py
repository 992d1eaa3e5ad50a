import pytest
import torch

from saccade.layers import kernels
from saccade.layers.step_attention import FEW_KEYS, covers, few_queries, one_query

B, Q, K, H, E = 3, 2, 7, 5, 11


def reference(query, key, value, *, scale, keep=None):
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    allowed = None if keep is None else keep[:, None, None]
    return kernels.explicit(q, k, v, scale=scale, allowed=allowed)[0].transpose(1, 2)


@pytest.mark.parametrize("length", [1, K, FEW_KEYS + 3])
def test_one_query_is_attention(length: int) -> None:
    query, (key, value) = torch.randn(B, 1, H, E), torch.randn(2, B, length, H, E)
    torch.testing.assert_close(one_query(query, key, value, scale=0.3), reference(query, key, value, scale=0.3))


@pytest.mark.parametrize("masked", [False, True])
def test_few_queries_are_attention(masked: bool) -> None:
    query, (key, value) = torch.randn(B, Q, H, E), torch.randn(2, B, K, H, E)
    keep = torch.arange(K) < torch.tensor([[7], [3], [0]]) if masked else None
    got = few_queries(query, key, value, scale=0.3, keep=keep)
    torch.testing.assert_close(got, reference(query, key, value, scale=0.3, keep=keep))
    if masked:
        assert (got[2] == 0).all()


def test_they_serve_inference_only() -> None:
    query = torch.randn(B, 1, H, E)
    assert not covers(query)
    with torch.inference_mode():
        assert covers(query)
