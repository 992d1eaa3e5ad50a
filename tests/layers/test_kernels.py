"""Every way to compute attention equals the explicit one, forward and backward."""

import pytest
import torch
from devices import DEVICES
from torch import Tensor

from saccade.layers.attention import backends as kernels
from saccade.layers.attention.masks import (
    Band,
    Mask,
    causal,
    causal_window,
    dense,
    make_positions,
    padding,
    prefix,
    window,
)

B, H, E, V = 2, 3, 5, 7
SCALE = 5**-0.5
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2}

Results = tuple[Tensor, Tensor, Tensor, Tensor]


def inputs(
    n: int,
    *,
    keys: int | None = None,
    widths: tuple[int, int] = (E, V),
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> list[Tensor]:
    shapes = ((B, H, n, widths[0]), (B, H, keys or n, widths[0]), (B, H, keys or n, widths[1]))
    return [torch.randn(shape).to(device, dtype).requires_grad_() for shape in shapes]


def keep(n: int) -> Tensor:
    """Row 0 is whole, row 1 has two real keys."""
    return torch.arange(n) < torch.tensor([[n], [2]])


def masks(n: int, device: str = "cpu") -> dict[str, Mask | None]:
    real = padding(keep(n).to(device))
    return {
        "nothing": None,
        "causal": causal(),
        "padding": real,
        "causal and padding": causal() & real,
        "prefix": prefix(torch.tensor([2, 3], device=device)) | causal(),
        "window": window(2),
        "banded": causal_window(3),
        "window and padding": window(1) & real,
        "all": causal() & real & window(3),
    }


def where(n: int, x: Tensor) -> Tensor:
    return make_positions(n, x.device)


def gradients(y: Tensor, parts: list[Tensor]) -> Results:
    """The output and the gradients of a function of it that treats all its numbers differently."""
    weights = torch.linspace(-1, 2, y.numel(), device=y.device, dtype=torch.float64).reshape(y.shape)
    (y.double() * weights).sum().backward()
    results = (y.detach(), *(part.grad.clone() for part in parts))
    for part in parts:
        part.grad = None
    return results


def explicit(parts: list[Tensor], mask: Mask | None) -> Results:
    q, k, _ = parts
    allowed = None if mask is None else mask.to_dense(where(q.shape[2], q), where(k.shape[2], k))[:, None]
    return gradients(kernels.explicit_attention(*parts, scale=SCALE, allowed=allowed)[0], parts)


def run_sdpa(parts: list[Tensor], mask: Mask | None) -> Results:
    q, k, _ = parts
    y = kernels.sdpa_attention(*parts, scale=SCALE, mask=mask, q_pos=where(q.shape[2], q), k_pos=where(k.shape[2], k))
    return gradients(y, parts)


def run_window(parts: list[Tensor], mask: Mask) -> Results:
    return gradients(kernels.window_attention(*parts, scale=SCALE, band=kernels.get_window_band(mask)), parts)


def assert_same(ours: Results, reference: Results, tolerance: float) -> None:
    for name, a, b in zip(("output", "query", "key", "value"), ours, reference, strict=True):
        assert a.isfinite().all(), name
        torch.testing.assert_close(
            a.double(), b.double(), atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", masks(11))
def test_fused_equals_explicit(name: str, dtype: torch.dtype, device: str) -> None:
    """bfloat16 is compared with the explicit path in float32 on the same numbers: 8 bits are good for 3e-2."""
    parts = inputs(11, dtype=dtype, device=device)
    wide = [part.detach().to(torch.float64).requires_grad_() for part in parts]
    mask = masks(11, device)[name]
    assert_same(run_sdpa(parts, mask), explicit(wide, mask), TOLERANCE[dtype])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", ["window", "banded", "window and padding", "all"])
@pytest.mark.parametrize("n", [1, 2, 11, 64, 67])
def test_windowed_equals_explicit(n: int, name: str, dtype: torch.dtype, device: str) -> None:
    """Also for lengths that are shorter than a block, and for several blocks, whole and not."""
    parts = inputs(n, dtype=dtype, device=device)
    wide = [part.detach().to(torch.float64).requires_grad_() for part in parts]
    mask = masks(n, device)[name]
    assert_same(run_window(parts, mask), explicit(wide, mask), TOLERANCE[dtype])


@pytest.mark.parametrize("reach", [0, 1, 10, 11, 33, 1000])
@pytest.mark.parametrize("n", [11, 131])
@pytest.mark.parametrize("is_causal", [False, True])
def test_windowed_takes_any_reach(n: int, reach: int, is_causal: bool) -> None:
    parts = inputs(n)
    mask = window(reach) & causal() if is_causal else window(reach)
    assert_same(run_window(parts, mask), explicit(parts, mask), 1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mask", [window(0), window(5), causal_window(40), window(1000)], ids=str)
def test_windowed_in_bfloat16_is_as_exact_as_explicit(mask: Mask, device: str) -> None:
    """On a GPU this is flash attention, which rounds attention weights and their gradients to bfloat16.

    With 300 keys no fixed tolerance fits all elements: errors against float64 are compared with those of the explicit
    path in bfloat16, as flash attention's own tests do.
    """
    parts = inputs(300, widths=(64, 64), dtype=torch.bfloat16, device=device)
    assert kernels.supports_flash(parts[0], parts[2]) == (device == "cuda")
    wide = [part.detach().to(torch.float64).requires_grad_() for part in parts]
    results = zip(run_window(parts, mask), explicit(parts, mask), explicit(wide, mask), strict=True)
    for name, (ours, theirs, reference) in zip(("output", "query", "key", "value"), results, strict=True):
        errors, usual = ((found.double() - reference).abs() for found in (ours, theirs))
        assert errors.max() <= 2 * usual.max() + 1e-5, name
        assert errors.mean() <= usual.mean() + 1e-5, name


def test_reach_0_gives_each_position_its_own_value() -> None:
    parts = inputs(5)
    torch.testing.assert_close(run_window(parts, window(0))[0], parts[2].detach())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("path", [explicit, run_sdpa, run_window])
@pytest.mark.parametrize("widths", [(E, V), (64, 64)])  # GPUs have other kernels for multiples of 8
def test_rows_that_may_attend_to_nothing_give_zeros_and_finite_gradients(
    widths: tuple[int, int], path: object, dtype: torch.dtype, device: str
) -> None:
    """Row 1 has no key at all, and in row 0 the last queries have none within their window."""
    parts = inputs(11, widths=widths, dtype=dtype, device=device)
    real = torch.tensor([[True] * 3 + [False] * 8, [False] * 11], device=device)
    y, *grads = path(parts, window(2) & padding(real))
    assert (y[1] == 0).all() and (y[0, :, 5:] == 0).all()
    assert (y[0, :, :5] != 0).all()
    assert all(grad.isfinite().all() for grad in grads)
    assert all((grad[1] == 0).all() for grad in grads)


@pytest.mark.parametrize("device", DEVICES)
def test_fused_zeros_a_row_of_a_dense_mask(device: str) -> None:
    parts = inputs(6, keys=13, device=device)
    allowed = torch.rand(B, 6, 13, device=device) > 0.5
    allowed[0, 3] = False
    y, *grads = run_sdpa(parts, dense(allowed))
    assert_same((y, *grads), explicit(parts, dense(allowed)), 1e-5)
    assert (y[0, :, 3] == 0).all()


def test_a_causal_step_of_2_queries_and_5_keys_sees_4_and_5() -> None:
    """SDPA's own is_causal would show them 1 and 2 keys."""
    q, k, v = inputs(2, keys=5)
    y = kernels.sdpa_attention(q, k, v, scale=SCALE, mask=causal(), q_pos=torch.tensor([[3, 4]]), k_pos=where(5, q))
    for i, seen in enumerate((4, 5)):
        alone = kernels.explicit_attention(q[:, :, [i]], k[:, :, :seen], v[:, :, :seen], scale=SCALE, allowed=None)[0]
        torch.testing.assert_close(y[:, :, [i]], alone)


def test_which_masks_are_windows() -> None:
    real, fewer = keep(7), keep(7).roll(1, 1)
    assert kernels.get_window_band(None) is None
    assert kernels.get_window_band(causal() & padding(real)) is None
    assert kernels.get_window_band(window(3) & (prefix(torch.tensor([2])) | causal())) is None
    assert kernels.get_window_band(window(0)) == (0, False, None)
    assert kernels.get_window_band(window(5) & window(3) & causal()) == (3, True, None)
    reach, is_causal, both = kernels.get_window_band(padding(real) & window(2) & padding(fewer))
    assert (reach, is_causal) == (2, False) and torch.equal(both, real & fewer)


def test_a_window_costs_memory_in_proportion_to_the_length() -> None:
    """O(r n d): no matrix of n x n is made; the largest tensor grows with n, not with its square."""

    def largest(n: int) -> int:
        sizes: list[int] = []

        class Watch(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func: object, types: object, args: tuple = (), kwargs: dict | None = None):
                out = func(*args, **(kwargs or {}))
                sizes.extend(x.numel() for x in (out if isinstance(out, tuple) else (out,)) if isinstance(x, Tensor))
                return out

        with Watch(), torch.no_grad():
            kernels.window_attention(*inputs(n), scale=SCALE, band=Band(radius=4, causal=True))
        return max(sizes)

    assert largest(1280) / largest(320) == pytest.approx(4.0, rel=0.1)


def test_a_score_term_is_added_before_the_softmax() -> None:
    q, k, v = inputs(5)
    term = torch.randn(1, H, 5, 5)
    y, weights = kernels.explicit_attention(q, k, v, scale=SCALE, allowed=None, score_term=term)
    torch.testing.assert_close(weights, (q @ k.mT * SCALE + term).softmax(-1))
    torch.testing.assert_close(y, weights @ v)
