"""The chunked loss equals the loss of all logits at once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from saccade.layers.losses import cross_entropy
from saccade.layers.losses.cross_entropy import get_chunk_rows, rdrop_cross_entropy, smoothed_cross_entropy

N, D, V = 29, 7, 13


@pytest.fixture
def small_pieces(monkeypatch):
    """Pieces of 16 rows, so that small tests have several and a last one that is not full."""
    monkeypatch.setattr(cross_entropy, "CPU_CHUNK_BYTES", 1)
    monkeypatch.setattr(cross_entropy, "GPU_CHUNK_BYTES", 1)
    monkeypatch.setattr(cross_entropy, "MIN_CHUNK_ROWS", 16)


def example(rows=N, width=D, vocabulary=V, *, passes=1, dtype=torch.float64, device="cpu", seed=0):
    """Hidden states, matrix, targets, and a mask that keeps about two thirds."""
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(passes, rows, width, generator=draw, dtype=torch.float64)
    weight = torch.randn(vocabulary, width, generator=draw, dtype=torch.float64)
    targets = torch.randint(vocabulary, (rows,), generator=draw)
    keep = torch.rand(rows, generator=draw) < 0.67
    hidden = hidden if passes == 2 else hidden[0]
    floats = (x.to(device, dtype).requires_grad_() for x in (hidden, weight))
    return *floats, targets.to(device), keep.to(device)


def reference(hidden, weight, targets, keep, smoothing):
    """Sums of the smoothed and the plain cross-entropy, and of half of KL(P1 || P2) + KL(P2 || P1), by definition."""
    logits = hidden.reshape(-1, *hidden.shape[-2:]) @ weight.T
    logs = torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    nll = -logs.gather(-1, targets.expand(len(logs), -1)[..., None])[..., 0]
    plain = (nll * keep).sum()
    uniform = (-logs.mean(-1) * keep).sum()
    first, second = logs[0], logs[-1]
    there, back = (first.exp() * (first - second)).sum(-1), (second.exp() * (second - first)).sum(-1)
    return (1 - smoothing) * plain + smoothing * uniform, plain, ((there + back) * keep).sum() / 2


def gradients(value, hidden, weight):
    return torch.autograd.grad(value, (hidden, weight))


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 41), width=st.integers(1, 9), vocabulary=st.integers(2, 19),
    smoothing=st.sampled_from([0.0, 0.1, 0.37]), seed=st.integers(0, 9),
)  # fmt: skip
def test_any_size_has_the_values_and_gradients_of_the_definition(rows, width, vocabulary, smoothing, seed):
    hidden, weight, targets, keep = example(rows, width, vocabulary, seed=seed)

    smoothed, nll = smoothed_cross_entropy(hidden, weight, targets, keep, smoothing)

    expected, plain, _ = reference(hidden, weight, targets, keep, smoothing)
    torch.testing.assert_close((smoothed, nll), (expected, plain.detach()))
    got, wanted = gradients(smoothed, hidden, weight), gradients(expected, hidden, weight)
    torch.testing.assert_close(got, wanted)


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 41), vocabulary=st.integers(2, 19), weight_of=st.sampled_from([0.0, 1.0, 5.0]))
def test_two_passes_have_the_gradients_of_the_weighted_sum(rows, vocabulary, weight_of):
    hidden, weight, targets, keep = example(rows, D, vocabulary, passes=2)

    smoothed, nll, apart = rdrop_cross_entropy(hidden, weight, targets, keep, 0.1, weight_of)

    expected = reference(hidden, weight, targets, keep, 0.1)
    torch.testing.assert_close((smoothed, nll, apart), (expected[0], expected[1].detach(), expected[2].detach()))
    total = expected[0] + weight_of * expected[2]
    torch.testing.assert_close(gradients(smoothed, hidden, weight), gradients(total, hidden, weight))


@pytest.mark.parametrize("rows", [15, 16, 17, 48, 49])
@pytest.mark.parametrize("passes", [1, 2])
def test_pieces_change_nothing(small_pieces, rows, passes):
    hidden, weight, targets, keep = example(rows, passes=passes)
    assert get_chunk_rows(rows, row_bytes=V * 8, chunk_bytes=cross_entropy.CPU_CHUNK_BYTES) == 16

    smoothed, *others = loss_of(hidden, weight, targets, keep)

    expected = reference(hidden, weight, targets, keep, 0.1)
    torch.testing.assert_close([smoothed, *others], [expected[0], *(x.detach() for x in expected[1:])][: passes + 1])
    total = expected[0] + 3.0 * expected[2]
    torch.testing.assert_close(gradients(smoothed, hidden, weight), gradients(total, hidden, weight))


@pytest.mark.parametrize("passes", [1, 2])
def test_a_wider_matrix_for_the_products_changes_nothing(small_pieces, monkeypatch, passes):
    hidden, weight, targets, keep = example(48, passes=passes)
    values = []
    for width in (V, V + 3):
        monkeypatch.setattr(cross_entropy, "get_padded_vocabulary", lambda *_, width=width: width)
        sums = cross_entropy._compute_sums(
            hidden.reshape(passes, 48, D), weight, targets, keep, cross_entropy.LossSettings(0.1, 2.0)
        )
        values.append((*sums, *gradients(sums[0], hidden, weight)))
    torch.testing.assert_close(*values)


def loss_of(hidden, weight, targets, keep):
    if hidden.ndim == 2:
        return smoothed_cross_entropy(hidden, weight, targets, keep, 0.1)
    return rdrop_cross_entropy(hidden, weight, targets, keep, 0.1, 3.0)


def test_gradcheck(small_pieces):
    hidden, weight, targets, keep = example(19)

    assert torch.autograd.gradcheck(lambda h, w: smoothed_cross_entropy(h, w, targets, keep, 0.1)[0], (hidden, weight))


@pytest.mark.parametrize("passes", [1, 2])
def test_rows_that_are_not_kept_add_nothing_whatever_they_hold(passes):
    hidden, weight, targets, keep = example(passes=passes, dtype=torch.float32)
    wild = hidden.detach().clone()
    wild[..., ~keep, :] = 3e38  # logits overflow
    wild.requires_grad_()

    value, same = loss_of(hidden, weight, targets, keep)[0], loss_of(wild, weight, targets, keep)[0]

    torch.testing.assert_close(same, value)
    of_wild, of_weight = gradients(same, wild, weight)
    assert not of_wild[..., ~keep, :].any()
    torch.testing.assert_close((of_wild, of_weight), gradients(value, hidden, weight))


@pytest.mark.parametrize("rows", [0, 5])
def test_nothing_kept_is_zero(rows):
    hidden, weight, targets, keep = example(rows)

    smoothed, nll = smoothed_cross_entropy(hidden, weight, targets, torch.zeros_like(keep), 0.1)

    assert (smoothed.item(), nll.item()) == (0.0, 0.0)
    assert not any(gradient.any() for gradient in gradients(smoothed, hidden, weight))


def test_only_the_first_sum_has_gradients_and_what_comes_from_above_scales_them():
    hidden, weight, targets, keep = example(passes=2)

    smoothed, nll, apart = rdrop_cross_entropy(hidden, weight, targets, keep, 0.1, 2.0)

    assert smoothed.requires_grad and not nll.requires_grad and not apart.requires_grad
    plain = torch.autograd.grad(smoothed, (hidden, weight), retain_graph=True)
    scaled = torch.autograd.grad(-2.5 * smoothed, (hidden, weight))
    torch.testing.assert_close(scaled, tuple(-2.5 * gradient for gradient in plain))


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_what_is_frozen_gets_no_gradient(frozen):
    hidden, weight, targets, keep = example()
    trained, other = (weight, hidden) if frozen == "hidden" else (hidden, weight)
    other.requires_grad_(False)

    smoothed_cross_entropy(hidden, weight, targets, keep, 0.1)[0].backward()

    expected = reference(hidden, weight, targets, keep, 0.1)[0]
    torch.testing.assert_close(trained.grad, *torch.autograd.grad(expected, trained))
    assert other.grad is None


def test_autocast_computes_in_bf16_and_sums_in_float32(small_pieces):
    hidden, weight, targets, keep = example(dtype=torch.float32)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        smoothed, nll = smoothed_cross_entropy(hidden, weight, targets, keep, 0.1)
        expected = reference(hidden, weight, targets, keep, 0.1)[0]

    assert smoothed.dtype == nll.dtype == torch.float32
    torch.testing.assert_close(smoothed, expected, rtol=1e-5, atol=0)  # the logits are rounded alike
    got = gradients(smoothed, hidden, weight)
    assert [gradient.dtype for gradient in got] == [torch.float32, torch.float32]
    torch.testing.assert_close(got, gradients(expected, hidden, weight), rtol=0.05, atol=0.05)


def test_bf16_model_gets_bf16_gradients():
    hidden, weight, targets, keep = example(dtype=torch.bfloat16)

    got = gradients(smoothed_cross_entropy(hidden, weight, targets, keep, 0.1)[0], hidden, weight)

    assert [gradient.dtype for gradient in got] == [torch.bfloat16, torch.bfloat16]
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    expected = gradients(reference(*exact, targets, keep, 0.1)[0], *exact)
    torch.testing.assert_close([gradient.double() for gradient in got], list(expected), rtol=0.05, atol=0.05)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation gives."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = function(*args, **(kwargs or {}))
        for tensor in given if isinstance(given, tuple | list) else [given]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return given


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("learning", [True, False])
def test_no_tensor_has_the_logits_of_all_rows(small_pieces, passes, learning):
    rows, vocabulary = 300, 101
    hidden, weight, targets, keep = example(rows, D, vocabulary, passes=passes)

    with Largest() as largest, torch.set_grad_enabled(learning):
        value = loss_of(hidden, weight, targets, keep)[0]
        if learning:
            value.backward()

    assert largest.elements == max(passes * 16 * vocabulary, hidden.numel())
    with Largest() as largest:
        reference(hidden, weight, targets, keep, 0.1)
    assert largest.elements == passes * rows * vocabulary


@pytest.mark.parametrize(
    ("count", "row_bytes", "room", "expected"),
    [
        (25_600, 32_000 * 2, 2**28, 3_664),  # seven pieces of at most 4,194 rows
        (2_000, 8_000 * 4, 2**24, 512),
        (100, 8_000 * 4, 2**24, 112),
        (256, 256_000 * 4, 2**24, 64),
        (0, 8, 2**24, 16),
    ],
)
def test_pieces_are_about_equal_and_not_too_small(count, row_bytes, room, expected):
    assert get_chunk_rows(count, row_bytes=row_bytes, chunk_bytes=room) == expected


@pytest.mark.cuda
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("vocabulary", [V, 50_257])
def test_gpu_has_the_values_and_gradients_of_the_definition(small_pieces, passes, vocabulary):
    hidden, weight, targets, keep = example(41, 32, vocabulary, passes=passes, dtype=torch.float32, device="cuda")

    smoothed, *others = loss_of(hidden, weight, targets, keep)

    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    expected = reference(*exact, targets, keep, 0.1)
    assert [x.item() for x in others] == pytest.approx([x.item() for x in expected[1:]][:passes], rel=1e-4)
    assert smoothed.item() == pytest.approx(expected[0].item(), rel=1e-5)
    got, wanted = gradients(smoothed, hidden, weight), gradients(expected[0] + 3.0 * expected[2], *exact)
    torch.testing.assert_close(got, tuple(x.float() for x in wanted), rtol=1e-3, atol=1e-4)


@pytest.mark.cuda
@pytest.mark.parametrize("passes", [1, 2])
def test_gpu_in_bf16_is_near_the_definition_and_holds_no_float32_logits(passes):
    rows, width, vocabulary = 4096, 64, 32_000
    hidden, weight, targets, keep = example(rows, width, vocabulary, passes=passes, dtype=torch.float32, device="cuda")
    weight.data /= 8
    with torch.autocast("cuda", dtype=torch.bfloat16):
        expected = reference(hidden, weight, targets, keep, 0.1)
        wanted = gradients(expected[0] + 3.0 * expected[2], hidden, weight)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        smoothed = loss_of(hidden, weight, targets, keep)[0]
        got = gradients(smoothed, hidden, weight)

    assert torch.cuda.max_memory_allocated() - before < passes * rows * vocabulary * 4
    assert smoothed.item() == pytest.approx(expected[0].item(), rel=1e-3)
    for one, other in zip(got, wanted):
        assert (one - other).norm() < 0.02 * other.norm()


@pytest.mark.cuda
def test_gpu_gives_the_same_bits_again():
    hidden, weight, targets, keep = example(2000, 64, 8000, dtype=torch.float32, device="cuda")
    first = gradients(smoothed_cross_entropy(hidden, weight, targets, keep, 0.1)[0], hidden, weight)

    again = gradients(smoothed_cross_entropy(hidden, weight, targets, keep, 0.1)[0], hidden, weight)

    assert all(torch.equal(one, other) for one, other in zip(first, again))
