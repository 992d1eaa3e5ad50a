"""Settings that imported models need: each has its effect in training and in decoding."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch
from saccade.data.tokenization.tokenizers import END, PAD, START
from saccade.errors import SaccadeError
from saccade.model.writers.tokens import shift_right
from saccade.predict.decode import decode
from saccade.predict.engines import graphs
from saccade.predict.search.request import Request
from saccade.train.objectives.terms import compute_r_drop_losses, compute_token_losses

Make = Callable[..., Any]
FORMS = [
    ("reader.stack.head_dim=5", "writer.stack.head_dim=7"),
    ("reader.stack.norm_epsilon=0.1", "writer.stack.norm_epsilon=0.3"),
    ("reader.embedding_norm=true", "writer.embedding_norm=true"),
    ("writer.output_scale=true",),
    ("writer.output_bias=true",),
    ("writer.start_token=end",),
    ("writer.tie=input",),
]


def logits(model: Any, batch: Batch) -> torch.Tensor:
    target = batch["target"]
    return model.writer.head(model.writer(shift_right(target.ids, START), target.mask, model.read(batch)))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form[-1])
def test_steps_on_both_kinds_of_buffers_equal_whole_sequences(model: Make, batch: Batch, form: Any) -> None:
    made = model(*form)
    whole, target = logits(made, batch), batch["target"]
    with torch.inference_mode():
        state, inputs = made.writer.start(made.read(batch), capacity=6), shift_right(target.ids, START)
        for at in range(target.ids.shape[1]):
            step, state, _ = made.writer.step(inputs[:, at : at + 1], state)
            torch.testing.assert_close(step[target.mask[:, at]], whole[:, at][target.mask[:, at]])
        settings = Decoding(beam=2)
        plain = decode(made, Request([5, 5, 5], settings, batch)).hypotheses
        fixed = graphs.decode_static(made.writer, made.read(batch), Request([5, 5, 5], settings, batch))
    assert [found[0].ids for found in fixed] == [found[0].ids for found in plain]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form[-1])
def test_the_loss_sees_it_and_gives_the_gradients_of_the_head(model: Make, batch: Batch, form: Any) -> None:
    made, target = model(*form).double(), batch["target"]
    hidden = made.writer(shift_right(target.ids, START), target.mask, made.read(batch)).detach().requires_grad_()
    smoothed, nll = compute_token_losses(made.writer, hidden, target.ids, target.mask, 0.1)
    plain = nn.functional.cross_entropy(
        made.writer.head(hidden)[target.mask], target.ids[target.mask], label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(smoothed, plain)
    learned = [hidden, made.writer.output.weight]
    torch.testing.assert_close(torch.autograd.grad(smoothed, learned), torch.autograd.grad(plain, learned))
    twice = torch.cat((hidden, hidden)).detach()
    _, double, apart = compute_r_drop_losses(
        made.writer, twice, target.ids.repeat(2, 1), target.mask.repeat(2, 1), 0.1, 1.0
    )
    torch.testing.assert_close(double, 2 * nll)
    torch.testing.assert_close(apart, torch.zeros_like(apart))


def test_heads_may_have_any_width(model: Make) -> None:
    made = model("reader.stack.head_dim=5")
    assert made.reader.stack.blocks[0].self.project.weight.shape == (3, 3, 5, 12)
    assert made.reader.stack.blocks[0].self.heads.out.weight.shape == (12, 15)
    assert model("reader.stack.heads=5", "reader.stack.head_dim=2").reader.stack.blocks[0].self.project.shape == (
        5,
        3,
        2,
    )
    with pytest.raises(
        SaccadeError, match='head_dim is for head_projection = "paper", got "full"; leave one of them out'
    ):
        model("reader.stack.head_dim=5", "reader.stack.head_projection=full")


def test_what_is_tied_at_the_input_has_an_output_of_its_own(model: Make) -> None:
    made = model("writer.tie=input")
    assert made.writer.embedding.tokens is made.reader.embedding.tokens
    assert made.writer.output.weight is not made.writer.embedding.tokens.weight
    with pytest.raises(SaccadeError, match='writer.tie = "input" needs one vocabulary for source and target'):
        model("writer.tie=input", "tokenizer.shared=false")


@pytest.mark.parametrize(("start", "row"), [("pad", PAD), ("end", END), ("5", 5)])
def test_start_may_share_the_vector_of_another_token(model: Make, start: str, row: int) -> None:
    embedding = model(f"writer.start_token={start}").writer.embedding
    first = torch.tensor([[START, 7]])
    assert torch.equal(embedding(first), embedding(torch.tensor([[row, 7]])))
    assert not torch.equal(embedding(first)[:, 0], embedding(torch.tensor([[4, 7]]))[:, 0])


def test_a_start_token_that_does_not_exist_is_refused(model: Make) -> None:
    with pytest.raises(SaccadeError, match="start_token = 9999 is not the id of a token; the vocabulary has .* tokens"):
        model("writer.start_token=9999")
    with pytest.raises(SaccadeError, match="start_token"):
        model("writer.start_token=2")


def test_a_bias_of_the_logits_is_not_trained(model: Make, batch: Batch) -> None:
    made = model("writer.output_bias=true")
    bias = made.writer.output.bias
    assert not bias.requires_grad and "writer.output.bias" in dict(made.named_parameters())
    before = logits(made, batch)
    with torch.no_grad():
        bias[5] += 2.0
    torch.testing.assert_close(logits(made, batch)[..., 5], before[..., 5] + 2.0)


def test_norms_have_the_epsilon_that_is_asked_for(model: Make) -> None:
    for kind, least in (("layer", 1e-5), ("rms", 1e-6)):
        plain, other = (
            model(f"reader.stack.norm_kind={kind}", *more) for more in ((), ("reader.stack.norm_epsilon=0.2",))
        )
        assert plain.reader.stack.blocks[0].residuals[0].norm.eps == least
        assert other.reader.stack.blocks[0].residuals[0].norm.eps == 0.2
