"""The layer of lecture S0, in which items are columns (rows 49-55)."""

import pytest
import torch
from torch import Tensor, nn

from saccade.layers.attention.columns import ColumnLayer, argmax, head_forward, softmax
from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.attention.scores import attend, dot
from saccade.layers.record import record

D, N, H = 6, 5, 3


def items() -> Tensor:
    return torch.randn(D, N, dtype=torch.float64)


def layer(hard: bool = False) -> ColumnLayer:
    made = ColumnLayer(D, heads=H, hard=hard).double()
    nn.init.normal_(made.bias)  # zeros would hide mistakes
    return made


def in_rows(made: ColumnLayer) -> SelfAttention:
    """Our own self-attention with the same numbers: heads of full width, no scaling, one bias at the end."""
    rows = SelfAttention(D, heads=H, form="full", scale=False).double()
    with torch.no_grad():
        rows.project.weight.copy_(made.stacked.unflatten(1, (3, D)))
        rows.heads.out.weight.copy_(made.weight)
        rows.heads.out.bias.copy_(made.bias[:, 0])
    return rows


def by_autograd(made: ColumnLayer, h: Tensor) -> Tensor:
    """The formulas of the notes, with torch's own softmax."""
    heads = []
    for q, k, v in (matrices.chunk(3) for matrices in made.stacked):
        scores = (k @ h).T @ (q @ h)
        heads.append(v @ h @ (argmax(scores) if made.hard else torch.softmax(scores, 0)))
    return torch.sigmoid(made.weight @ torch.cat(heads) + made.bias)


def test_columns_are_the_transpose_of_rows() -> None:
    """Rows 49 and 50: the whole layer, and its gradients, against self-attention with items as rows."""
    made, h = layer(), items().requires_grad_()
    rows, x = in_rows(made), h.detach().T[None].clone().requires_grad_()
    ours, theirs = made(h), torch.sigmoid(rows(x))[0].T
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    grad = items()
    ours.backward(grad), theirs.backward(grad)
    torch.testing.assert_close(h.grad, x.grad[0].T, atol=1e-12, rtol=0)
    torch.testing.assert_close(made.stacked.grad, rows.project.weight.grad.flatten(1, 2), atol=1e-12, rtol=0)
    torch.testing.assert_close(made.weight.grad, rows.heads.out.weight.grad, atol=1e-12, rtol=0)
    with record(rows) as maps:
        rows(x)
    torch.testing.assert_close(made.compute_weights(h), maps[""][0].transpose(1, 2), atol=1e-12, rtol=0)


def test_one_head_is_attend_with_a_plain_dot_product() -> None:
    """Row 50: H_h = V H SoftMax((K H)^T Q H), without 1 / sqrt(d)."""
    h, matrices = items(), layer().stacked[1]
    q, k, v = matrices.chunk(3)
    expected = attend((q @ h).T, (k @ h).T, (v @ h).T, score=dot)[0].T
    torch.testing.assert_close(head_forward(h, matrices, False).output, expected)


def test_softmax_normalises_columns() -> None:
    """Row 51: exp(M) / (1^T exp(M)) for M in R^{J x N}."""
    m = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(softmax(m), m.exp() / (torch.ones(1, 4).double() @ m.exp()))
    torch.testing.assert_close(softmax(m).sum(0), torch.ones(3).double())
    assert softmax(m + 1e4).isfinite().all()


def test_one_product_makes_queries_keys_and_values() -> None:
    """Row 52: [Q; K; V] H."""
    h, matrices = items(), layer().stacked[0]
    made = head_forward(h, matrices, False)
    for part, matrix in zip((made.query, made.key, made.value), matrices.chunk(3), strict=True):
        torch.testing.assert_close(part, matrix @ h)


def test_concatenation_is_a_sum_of_kronecker_products() -> None:
    """Row 53: heads keep all D features, so that h D rows go into the last layer."""
    made, h = layer(), items()
    outputs = [head_forward(h, matrices, False).output for matrices in made.stacked]
    joined = sum(torch.kron(one[:, None], output) for one, output in zip(torch.eye(H).double(), outputs, strict=True))
    assert joined.shape == (H * D, N)
    torch.testing.assert_close(torch.sigmoid(made.weight @ joined + made.bias), made(h))


def test_hard_attention_selects_one_item_for_each_head() -> None:
    """Row 54: the item whose key fits best; soft attention looks there most."""
    made, h = layer(hard=True), items()
    weights = made.compute_weights(h)
    assert ((weights == 0) | (weights == 1)).all() and (weights.sum(1) == 1).all()
    soft = ColumnLayer(D, heads=H).double()
    soft.load_state_dict(made.state_dict())
    assert torch.equal(weights.argmax(1), soft.compute_weights(h).argmax(1))
    q, k, v = made.stacked[0].chunk(3)
    best = ((k @ h).T @ (q @ h)).argmax(0)
    torch.testing.assert_close(head_forward(h, made.stacked[0], True).output, v @ h[:, best])


@pytest.mark.parametrize("hard", [False, True])
def test_the_backward_pass_by_hand_is_that_of_autograd(hard: bool) -> None:
    """Row 55."""
    made, h = layer(hard), items().requires_grad_()
    wanted = [h, *made.parameters()]
    grad = items()
    ours = torch.autograd.grad(made(h), wanted, grad)
    theirs = torch.autograd.grad(by_autograd(made, h), wanted, grad)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_the_backward_pass_is_the_slope() -> None:
    """Row 55, against finite differences."""
    made = layer()
    assert torch.autograd.gradcheck(lambda h: made(h), (items().requires_grad_(),))
