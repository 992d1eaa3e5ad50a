"""Expected-reward training (GNMT, Wu et al. 2016): outputs sampled from the model, weighted by their GLEU.

It is the second stage of training: likelihood gives no credit to outputs that are as good as the reference.
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
from saccade.predict.search.greedy import build_sampler
from saccade.predict.search.likelihood import gather_log_probs
from saccade.train.objectives.terms import Term, compute_token_losses

MAX_NGRAM = 4  # maximum length of n-grams in tokens
CHECK_EVERY = 8  # tokens between two checks whether all samples have ended, which synchronize with the device
LOGIT_CHUNK = 4096  # positions whose logits are in memory at once
MAX_LENGTH_RATIO, EXTRA_TOKENS = 1.5, 5  # maximum length of a sample: ratio * length of the longest reference + extra


def reward_loss(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    samples: int = 8,
    alpha: float = 0.017,
    label_smoothing: float = 0.0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Negative expected reward of sampled outputs, plus `alpha` times the cross-entropy (Wu et al. 2016, eq. 8 and 9).

    For each sentence -sum_Y P(Y | X) r(Y) - alpha log P(reference | X), summed and divided by the number of reference
    tokens. r is the GLEU of token ids. The gradient of the first term is the mean over samples of
    -(r(Y) - mean of r) grad log P(Y | X); its reported value is minus the mean of r. Samples are taken with dropout,
    unlike in the paper.
    """
    if not hasattr(model.writer, "step"):
        raise SaccadeError(
            'the objective "reward" samples outputs token by token, which this writer does not support; '
            'take a writer of kind "tokens", or another objective'
        )
    reference = batch["target"]
    real, count = reference.mask, reference.mask.sum()
    with torch.no_grad():
        flat = sample_outputs(model.writer, model.read(batch).repeat_rows(samples), reference.ids, generator)
        outputs = flat.unflatten(0, (-1, samples))
        rewards = compute_gleu(outputs, reference.ids)
    reference_states, output_states = compute_states(model, batch, outputs)
    smoothed, nll = compute_token_losses(model.writer, reference_states, reference.ids, real, label_smoothing)
    log_probs = (compute_log_probs(model.writer.head, output_states, outputs) * (outputs != PAD)).sum(2)
    advantages = rewards - rewards.mean(1, keepdim=True)
    policy_loss = -(advantages * log_probs).mean(1).sum()
    expected = -rewards.mean(1).sum()
    return {
        "expected-reward": Term(expected + policy_loss - policy_loss.detach(), count, weight),
        "likelihood": Term(smoothed, count, weight * alpha),
        "nll": Term(nll, count, 0.0),
        "reward": Term(rewards.sum(), real.any(1).sum() * samples, 0.0),
    }


reward_loss.writes = True  # type: ignore[attr-defined]  # see `generates_outputs` in terms.py


def sample_outputs(
    writer: StepwiseWriter, memory: Memory, reference: Int[Tensor, "B T"], generator: torch.Generator
) -> Int[Tensor, "R L"]:
    """Sample one output for each row of memory, including END and padded with PAD.

    Outputs that have not ended at the maximum length are returned without END.
    """
    rows, device = len(memory.states), reference.device
    limit = int(MAX_LENGTH_RATIO * reference.shape[1]) + EXTRA_TOKENS
    state, sample = writer.start(memory, capacity=limit), build_sampler((), generator)
    token, ended = torch.full((rows,), START, device=device), torch.zeros(rows, dtype=torch.bool, device=device)
    tokens = []
    for length in range(1, limit + 1):
        step = writer.step(token[:, None], state)
        logits, state = step.logits.float(), step.state
        for never in (PAD, START):  # one at a time: a list of indices would be copied to the device at every step
            logits[:, never] = -torch.inf
        token = sample(logits).masked_fill(ended, PAD)
        ended = ended | (token == END)
        tokens.append(token)
        if length % CHECK_EVERY == 0 and bool(ended.all()):
            break
    outputs = torch.stack(tokens, 1)
    return outputs[:, : int((outputs != PAD).sum(1).max())]  # without columns that are padding in all rows


def compute_gleu(outputs: Int[Tensor, "B N L"], reference: Int[Tensor, "B T"]) -> Float[Tensor, "B N"]:
    """GLEU of N outputs for each reference, on token ids without END and padding.

    It equals `saccade.score.metrics.gleu`, vectorized: the k-th occurrence of an n-gram in the output is a match if the
    reference has at least k of them.
    """
    references = reference[:, None]
    token_matches, token_repeats = match_tokens(outputs, references), match_tokens(outputs, outputs)
    earlier = torch.ones_like(token_repeats[0, 0]).tril(-1)
    matches, repeats = token_matches, token_repeats
    right = torch.zeros_like(outputs[..., 0])
    for n in range(MAX_NGRAM):
        if n:  # two n-grams are equal if their first n - 1 tokens and their last tokens are
            matches = matches[..., :-1, :-1] & token_matches[..., n:, n:]
            repeats = repeats[..., :-1, :-1] & token_repeats[..., n:, n:]
        occurrences_before = (repeats & earlier[: repeats.shape[-2], : repeats.shape[-1]]).sum(-1)
        right = right + (occurrences_before < matches.sum(-1)).sum(-1)
    return right / torch.maximum(count_ngrams(outputs), count_ngrams(references)).clamp(min=1)


def match_tokens(a: Int[Tensor, "B N L"], b: Int[Tensor, "B M T"]) -> Tensor:
    """Return which tokens of both are equal, as a boolean tensor (B, N, L, T); special tokens never are."""
    return (a[..., :, None] == b[..., None, :]) & (a > END)[..., :, None]


def count_ngrams(ids: Int[Tensor, "B N L"]) -> Int[Tensor, "B N"]:
    """Count the n-grams of 1 to MAX_NGRAM tokens."""
    words = (ids > END).sum(-1)
    return torch.stack([(words - n).clamp(min=0) for n in range(MAX_NGRAM)]).sum(0)


def compute_states(
    model: Model, batch: Batch, outputs: Int[Tensor, "B N L"]
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N L D"]]:
    """Return the writer's states for the reference and for each sample, from one pass over both."""
    reference, (_, samples, length) = batch["target"].ids, outputs.shape
    width = max(length, reference.shape[1])
    parts = (F.pad(part, (0, width - part.shape[2]), value=PAD) for part in (reference[:, None], outputs))
    ids = torch.cat(tuple(parts), 1).flatten(0, 1)
    hidden, _ = model.write(shift_right(ids, START), ids != PAD, model.read(batch).repeat_rows(1 + samples))
    hidden = hidden.unflatten(0, (-1, 1 + samples))
    return hidden[:, 0, : reference.shape[1]], hidden[:, 1:, :length]


def compute_log_probs(
    head: Callable[[Tensor], Tensor], hidden: Float[Tensor, "B N L D"], ids: Int[Tensor, "B N L"]
) -> Float[Tensor, "B N L"]:
    """Log-probability of each token; logits are computed in chunks, and recomputed for the gradients to save memory."""
    parts = [
        checkpoint(gather_log_probs, head, *part, use_reentrant=False, preserve_rng_state=False)
        for part in zip(hidden.flatten(0, 2).split(LOGIT_CHUNK), ids.flatten().split(LOGIT_CHUNK), strict=True)
    ]
    return torch.cat(parts).view(ids.shape)
