"""Reward instead of likelihood: outputs that the model draws itself, weighed by how good they are (Wu et al. 2016).

The second stage of training of GNMT: a sentence that is as good as the reference is worth as much, which likelihood
does not know.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from saccade.config.protocols import StepwiseWriter
from saccade.data.batching.batch import Batch
from saccade.data.tokenization.tokenizers import END, PAD, START
from saccade.errors import SaccadeError
from saccade.layers.memory import Memory
from saccade.model.model import Model
from saccade.model.writers.tokens import shift_right
from saccade.predict.search.greedy import sampling
from saccade.predict.search.likelihood import chosen
from saccade.train.objectives.terms import Term, token_sums

LONGEST = 4  # tokens of an n-gram
ASK_EVERY = 8  # tokens after which the device is asked whether all samples have ended
LOGITS = 4096  # positions whose logits are held at once
MORE, AT_LEAST = 1.5, 5  # a sample has at most so many times the tokens of the longest reference, and some more


def reward(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    samples: int = 8,
    alpha: float = 0.017,
    smoothing: float = 0.0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """The expected reward of what the model writes, and a little likelihood (Wu et al. 2016, equations 8 and 9).

    Per sentence -sum over Y of P(Y | X) r(Y) - alpha log P(reference | X), summed and divided by the tokens of the
    references, so that both weigh as in the paper. r is the GLEU of token ids. The gradient of the first is the mean
    over samples of -(r(Y) - mean of r) grad log P(Y | X); its value, as reported, is minus the mean of r. Dropout
    is that of training for samples too; the paper has none in this stage.
    """
    if not hasattr(model.writer, "step"):
        raise SaccadeError(
            'the objective "reward" draws outputs token by token, which this writer does not write; '
            'take a writer of kind "tokens", or another objective'
        )
    reference = batch["target"]
    real, count = reference.mask, reference.mask.sum()
    with torch.no_grad():
        drawn = sample(model.writer, model.read(batch).repeated(samples), reference.ids, generator)
        written = drawn.unflatten(0, (-1, samples))
        rewards = gleu(written, reference.ids)
    of_reference, of_written = both_states(model, batch, written)
    smoothed, nll = token_sums(model.writer, of_reference, reference.ids, real, smoothing)
    likely = (log_probs(model.writer.head, of_written, written) * (written != PAD)).sum(2)
    better = rewards - rewards.mean(1, keepdim=True)
    climb = -(better * likely).mean(1).sum()
    expected = -rewards.mean(1).sum()
    return {
        "expected-reward": Term(expected + climb - climb.detach(), count, weight),
        "likelihood": Term(smoothed, count, weight * alpha),
        "nll": Term(nll, count, 0.0),
        "reward": Term(rewards.sum(), real.any(1).sum() * samples, 0.0),
    }


reward.writes = True  # type: ignore[attr-defined]  # see `lets_write` in terms.py


def sample(
    writer: StepwiseWriter, memory: Memory, reference: Int[Tensor, "B T"], generator: torch.Generator
) -> Int[Tensor, "R L"]:
    """One output for each row of memory, drawn from the model; END is part of it, and PAD stands behind END.

    One that has not ended when it is much longer than every reference is left as it is.
    """
    rows, device = len(memory.states), reference.device
    limit = int(MORE * reference.shape[1]) + AT_LEAST
    state, choose = writer.start(memory, capacity=limit), sampling((), generator)
    token, ended = torch.full((rows,), START, device=device), torch.zeros(rows, dtype=torch.bool, device=device)
    written = []
    for length in range(1, limit + 1):
        step = writer.step(token[:, None], state)
        logits, state = step.logits.float(), step.state
        for never in (PAD, START):  # by number: a list would be copied to the device at every step
            logits[:, never] = -torch.inf
        token = choose(logits).masked_fill(ended, PAD)
        ended = ended | (token == END)
        written.append(token)
        if length % ASK_EVERY == 0 and bool(ended.all()):
            break
    drawn = torch.stack(written, 1)
    return drawn[:, : int((drawn != PAD).sum(1).max())]  # what nobody wrote would cost the writer as much again


def gleu(written: Int[Tensor, "B N L"], reference: Int[Tensor, "B T"]) -> Float[Tensor, "B N"]:
    """The GLEU of N outputs for each reference, on their ids; END and what stands behind it are no words.

    It is that of `saccade.score.gleu`, for all at once: an n-gram is right as long as fewer like it came before in the
    output than the reference has.
    """
    ours, theirs = written, reference[:, None]
    to_theirs, to_ours = same(ours, theirs), same(ours, ours)
    earlier = torch.ones_like(to_ours[0, 0]).tril(-1)
    alike, again = to_theirs, to_ours
    right = torch.zeros_like(ours[..., 0])
    for n in range(LONGEST):
        if n:  # n-grams are alike where those that are one shorter are, and the last tokens
            alike, again = alike[..., :-1, :-1] & to_theirs[..., n:, n:], again[..., :-1, :-1] & to_ours[..., n:, n:]
        before = (again & earlier[: again.shape[-2], : again.shape[-1]]).sum(-1)
        right = right + (before < alike.sum(-1)).sum(-1)
    return right / torch.maximum(ngrams(ours), ngrams(theirs)).clamp(min=1)


def same(a: Int[Tensor, "B N L"], b: Int[Tensor, "B M T"]) -> Tensor:
    """(B, N, L, T) bool, which words of both are the same."""
    return (a[..., :, None] == b[..., None, :]) & (a > END)[..., :, None]


def ngrams(ids: Int[Tensor, "B N L"]) -> Int[Tensor, "B N"]:
    """How many sequences of 1 to 4 words there are."""
    words = (ids > END).sum(-1)
    return torch.stack([(words - n).clamp(min=0) for n in range(LONGEST)]).sum(0)


def both_states(
    model: Model, batch: Batch, written: Int[Tensor, "B N L"]
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N L D"]]:
    """The writer's states for the reference and for each sample, in one pass: a recurrence takes no longer for more."""
    reference, (_, samples, long) = batch["target"].ids, written.shape
    width = max(long, reference.shape[1])
    parts = (F.pad(part, (0, width - part.shape[2]), value=PAD) for part in (reference[:, None], written))
    ids = torch.cat(tuple(parts), 1).flatten(0, 1)
    hidden, _ = model.write(shift_right(ids, START), ids != PAD, model.read(batch).repeated(1 + samples))
    hidden = hidden.unflatten(0, (-1, 1 + samples))
    return hidden[:, 0, : reference.shape[1]], hidden[:, 1:, :long]


def log_probs(
    head: Callable[[Tensor], Tensor], hidden: Float[Tensor, "B N L D"], ids: Int[Tensor, "B N L"]
) -> Float[Tensor, "B N L"]:
    """The log-probability of each token; logits are made piece by piece, and once more for the gradients."""
    parts = [
        checkpoint(chosen, head, *part, use_reentrant=False, preserve_rng_state=False)
        for part in zip(hidden.flatten(0, 2).split(LOGITS), ids.flatten().split(LOGITS), strict=True)
    ]
    return torch.cat(parts).view(ids.shape)
