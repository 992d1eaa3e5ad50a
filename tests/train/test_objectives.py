import functools
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from saccade.config.load import validate
from saccade.config.protocols import Capabilities, get_capabilities
from saccade.data.batching.batch import Batch, Tokens
from saccade.data.tokenization.tokenizers import PAD, START
from saccade.model.writers.tokens import TokenWriter, shift_right
from saccade.train.objectives.objectives import build_objectives, compute_terms, next_token_loss, r_drop_loss
from saccade.train.objectives.terms import Term

DRAW = torch.Generator()


def compute_logits(model, batch):
    target = batch["target"]
    return model.writer.head(model.writer(shift_right(target.ids, START), target.mask, model.read(batch)))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.37])
def test_next_token_is_the_smoothed_cross_entropy_of_torch(model, batch, smoothing):
    model.eval()
    logits, ids = compute_logits(model, batch), batch["target"].ids

    term = next_token_loss(model, batch, DRAW, label_smoothing=smoothing, weight=2.0)["next-token"]

    expected = F.cross_entropy(
        logits.flatten(0, 1), ids.flatten(), label_smoothing=smoothing, ignore_index=PAD, reduction="sum"
    )
    torch.testing.assert_close(term.sum, expected)
    assert (term.count, term.weight) == (9, 2.0)


def test_label_smoothing_by_hand():
    from saccade.train.objectives.terms import compute_smoothed_losses

    logs = torch.tensor([[[0.5, 0.25, 0.25]]]).log()
    target = Tokens(torch.tensor([[0]]), torch.tensor([[True]]))

    smoothed, plain = compute_smoothed_losses(logs, target.ids, target.mask, 0.3)

    # (1 - 0.3 + 0.1) log 2 + 2 * 0.1 log 4
    assert smoothed.item() == pytest.approx(0.8 * 0.693147 + 0.2 * 1.386294, rel=1e-5)
    assert plain.item() == pytest.approx(0.693147, rel=1e-5)


@pytest.mark.parametrize("linear", [True, False])
def test_label_smoothing_does_not_count_tokens_that_an_imported_model_lacks(linear):
    """Their logits of -10,000 would be most of the loss."""
    from saccade.train.objectives.terms import compute_smoothed_losses, compute_token_losses

    output, hidden, ids = nn.Linear(5, 7), torch.randn(2, 3, 5), torch.tensor([[2, 6, 4], [3, 3, 0]])
    output.bias = nn.Parameter(output.bias.detach().clone(), requires_grad=False)
    output.bias[[0, 1]] = -1e4
    keep, there = ids != 0, output(hidden)[..., 2:]
    expected = F.cross_entropy(there[keep], ids[keep] - 2, label_smoothing=0.1, reduction="sum")
    if linear:
        writer = SimpleNamespace(output=output, output_scale=1.0, capabilities=Capabilities(linear_head=True))
        smoothed, _ = compute_token_losses(writer, hidden, ids, keep, 0.1)
    else:
        smoothed, _ = compute_smoothed_losses(output(hidden).log_softmax(-1), ids, keep, 0.1)
    torch.testing.assert_close(smoothed, expected)


def test_padding_changes_neither_sum_nor_count(model, batch):
    model.eval()
    wider = Batch(
        {
            name: Tokens(F.pad(tokens.ids, (0, 3), value=PAD), F.pad(tokens.mask, (0, 3), value=False))
            for name, tokens in batch.fields.items()
        }
    )

    term, same = next_token_loss(model, batch, DRAW)["next-token"], next_token_loss(model, wider, DRAW)["next-token"]

    torch.testing.assert_close(term.sum, same.sum)
    assert term.count == same.count


def test_sums_are_float32_under_bf16(model, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = next_token_loss(model, batch, DRAW) | r_drop_loss(model, batch, DRAW)

    assert all(term.sum.dtype == torch.float32 for term in terms.values())


def test_r_drop_without_dropout_is_next_token(model, batch):
    model.eval()

    plain, terms = next_token_loss(model, batch, DRAW), r_drop_loss(model, batch, DRAW, alpha=5.0)

    torch.testing.assert_close(terms["next-token"].sum, plain["next-token"].sum)
    torch.testing.assert_close(terms["nll"].sum, plain["nll"].sum)
    assert terms["consistency"].sum.item() == pytest.approx(0.0, abs=1e-6)
    assert terms["next-token"].count == plain["next-token"].count


def test_r_drop_is_the_mean_of_both_passes_and_their_divergence(model, batch):
    model.train()
    torch.manual_seed(5)
    terms = r_drop_loss(model, batch, DRAW, label_smoothing=0.0, alpha=3.0)

    torch.manual_seed(5)
    twice = Batch({name: Tokens(x.ids.repeat(2, 1), x.mask.repeat(2, 1)) for name, x in batch.fields.items()})
    first, second = compute_logits(model, twice).log_softmax(-1).chunk(2)
    mask, ids = batch["target"].mask, batch["target"].ids
    kl = F.kl_div(second, first, log_target=True, reduction="none") + F.kl_div(
        first, second, log_target=True, reduction="none"
    )
    nll = -(first + second).gather(-1, ids[..., None])[..., 0]
    torch.testing.assert_close(terms["consistency"].sum, (kl.sum(-1) * mask).sum() / 2)
    torch.testing.assert_close(terms["next-token"].sum, (nll * mask).sum() / 2)
    assert terms["consistency"].weight == 1.5
    assert terms["consistency"].sum > 0.01


class OwnHead(TokenWriter):
    """The same head without the declaration `linear_head`."""

    def head(self, hidden):
        return hidden @ self.output.weight.T


@pytest.mark.parametrize("objective", [next_token_loss, r_drop_loss])
def test_head_of_the_users_own_has_the_same_terms_and_gradients(model, batch, objective):
    def outcome():
        torch.manual_seed(3)
        terms = objective(model, batch, DRAW)
        total = sum(term.weight * term.sum for term in terms.values())
        return {name: term.sum.detach() for name, term in terms.items()}, torch.autograd.grad(total, weights)

    model.train()
    weights = list(model.parameters())
    expected = outcome()
    model.writer.__class__ = OwnHead
    assert not get_capabilities(model.writer).linear_head

    torch.testing.assert_close(outcome(), expected, rtol=1e-4, atol=1e-5)


def shrink(model, batch, generator, *, strength: float = 0.5):
    return {"shrink": Term(model.writer.output.weight.square().sum(), 1, strength)}


def test_recipe_lists_objectives_and_those_of_the_user():
    tables = [{"kind": "r-drop", "alpha": 2.0}, {"kind": "shrink", "strength": 0.25}]
    recipe = validate({"objectives": tables}, kinds={"shrink": shrink})

    first, second = build_objectives(recipe)

    assert isinstance(first, functools.partial)
    assert (first.func, first.keywords) == (r_drop_loss, {"label_smoothing": 0.1, "alpha": 2.0, "weight": 1.0})
    assert (second.func, second.keywords) == (shrink, {"strength": 0.25})


def test_terms_of_one_name_get_numbers(model, batch):
    terms = compute_terms([next_token_loss, shrink, functools.partial(next_token_loss, weight=3.0)], model, batch, DRAW)

    assert list(terms) == ["next-token", "nll", "shrink", "next-token-3", "nll-3"]
    assert terms["next-token-3"].weight == 3.0
