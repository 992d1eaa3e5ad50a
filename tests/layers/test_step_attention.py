import pytest
import torch
from torch import Tensor

from saccade.kernels.cpu import step_attention
from saccade.kernels.cpu.step_attention import (
    MAX_ELEMENTWISE_KEYS,
    MAX_HEAD_DIM,
    attend_few_queries,
    attend_one_query,
    can_use_kernel,
    supports,
)
from saccade.layers.attention import backends as kernels
from saccade.layers.attention.cache import KeyValue

B, Q, K, H, E = 3, 2, 7, 5, 11


@pytest.fixture(params=["C", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to compute it, where both are there."""
    if request.param == "torch":
        monkeypatch.setattr(step_attention, "load_kernel", lambda: None)
    elif step_attention.load_kernel() is None:
        pytest.skip("needs AVX-512 and a compiler")
    return request.param


def reference(query: Tensor, key: Tensor, value: Tensor, *, scale: float, keep: Tensor | None = None) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    allowed = None if keep is None else keep[:, None, None]
    return kernels.explicit_attention(q, k, v, scale=scale, allowed=allowed)[0].transpose(1, 2)


@pytest.mark.parametrize("width", [1, E, 16, 40, 64, MAX_HEAD_DIM, MAX_HEAD_DIM + 1])
@pytest.mark.parametrize("length", [1, K, MAX_ELEMENTWISE_KEYS + 3])
def test_one_query_is_attention(length: int, width: int, way: str) -> None:
    query, (key, value) = torch.randn(B, 1, H, width), torch.randn(2, B, length, H, width)
    assert can_use_kernel(query, key, value) == (way == "C" and width <= MAX_HEAD_DIM)
    torch.testing.assert_close(attend_one_query(query, key, value, scale=0.3), reference(query, key, value, scale=0.3))


@pytest.mark.parametrize("masked", [False, True])
def test_few_queries_are_attention(masked: bool, way: str) -> None:
    query, (key, value) = torch.randn(B, Q, H, E), torch.randn(2, B, K, H, E)
    keep = torch.arange(K) < torch.tensor([[7], [3], [0]]) if masked else None
    got = attend_few_queries(query, key, value, scale=0.3, keep=keep)
    torch.testing.assert_close(got, reference(query, key, value, scale=0.3, keep=keep))
    if masked:
        assert (got[2] == 0).all()


@pytest.mark.usefixtures("way")
def test_keys_and_values_may_lie_in_any_order() -> None:
    query = torch.randn(B, Q, 3, H, E)[:, :, 1]
    memory = KeyValue(*torch.randn(B, K, 2, H, E).unbind(2))
    expected = reference(query, memory.keys, memory.values, scale=1.0)
    own = KeyValue.allocate(B, K + 2, H, E, like=query)
    own.write_range(memory.keys, memory.values, K)
    first = KeyValue(own.keys[:, :K], own.values[:, :K])
    for laid_out in (memory, memory.to_head_major(), memory.to_feature_major(), first):
        got = attend_few_queries(query, laid_out.keys, laid_out.values, scale=1.0, keep=None)
        torch.testing.assert_close(got, expected)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("size", [1e-20, 1e3, 1e30])
def test_scores_of_any_size_give_weights(size: float) -> None:
    torch.manual_seed(0)
    query, (key, value) = size * torch.randn(B, 1, H, E), torch.randn(2, B, K, H, E)
    got = attend_one_query(query, key, value, scale=1.0)
    torch.testing.assert_close(got, reference(query, key, value, scale=1.0), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("way")
def test_what_is_not_a_number_stays_in_its_row() -> None:
    query, (key, value) = torch.randn(B, 1, H, E), torch.randn(2, B, K, H, E)
    query[0, 0, 0, 0], key[1, K - 1, 2, E - 1] = torch.nan, torch.nan
    bad = attend_few_queries(query, key, value, scale=1.0, keep=None).isnan()
    assert bad.any(-1)[:, 0].nonzero().tolist() == bad.all(-1)[:, 0].nonzero().tolist() == [[0, 0], [1, 2]]


@pytest.mark.usefixtures("way")
def test_other_numbers_than_float32_are_attended_to() -> None:
    query, (key, value) = torch.randn(B, 1, H, E).double(), torch.randn(2, B, K, H, E).double()
    got = attend_few_queries(query, key, value, scale=1.0, keep=None)
    torch.testing.assert_close(got, reference(query, key, value, scale=1.0))


@pytest.mark.usefixtures("way")
def test_threads_share_the_work() -> None:
    query, (key, value) = torch.randn(64, 1, 8, 64), torch.randn(2, 64, 9, 8, 64)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = attend_few_queries(query, key, value, scale=1.0, keep=None)
        torch.set_num_threads(3)
        torch.testing.assert_close(attend_few_queries(query, key, value, scale=1.0, keep=None), alone)
    finally:
        torch.set_num_threads(before)


def test_they_serve_inference_only() -> None:
    query = torch.randn(B, 1, H, E)
    assert not supports(query)
    with torch.inference_mode():
        assert supports(query)


def test_the_kernel_gives_zeros_where_there_is_no_memory() -> None:
    """It must not divide by the number of memories, whoever calls it."""
    if step_attention.load_kernel() is None:
        pytest.skip("needs AVX-512 and a compiler")
    query, (key, value) = torch.randn(0, 1, H, E), torch.randn(2, 0, K, H, E)
    assert step_attention._attend_in_c(query, key, value, scale=1.0, keep=None).shape == (0, 1, H, E)
    part = step_attention.TensorView(torch.randn(2, H, E).data_ptr(), H * E, 0, E)
    y, arguments = torch.ones(2, H, E), step_attention.AttentionArgs(part, part, part, None, 2, 0, H, K, E, 1.0)
    step_attention.load_kernel()(arguments, y.data_ptr(), y.data_ptr(), 1)
    assert torch.equal(y, torch.zeros(2, H, E))
