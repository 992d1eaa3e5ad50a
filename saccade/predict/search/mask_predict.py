"""Non-autoregressive decoding by mask-predict (Ghazvininejad et al. 2019), or from copies of the source (fertility.py).

A length is predicted, and a canvas of that many mask tokens is filled in one pass. Each later pass masks the tokens
with the lowest probability and predicts them again, given the others. Several lengths are decoded in parallel, and the
output with the best mean log-probability wins, or the one that a teacher finds the most probable (teacher.py). B
sentences with L candidates each are R = B L canvases of T positions, the last real one of which is END.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, Tokens
from saccade.data.tokenization.tokenizers import END, PAD, START, UNKNOWN
from saccade.errors import SaccadeError
from saccade.layers.blocks import repeated_passes
from saccade.layers.memory import Memory
from saccade.layers.record import record
from saccade.model.model import Model
from saccade.model.writers.fertility import FertilityWriter
from saccade.model.writers.fill import MASK, CanvasDecoder, LengthPrediction, build_masked_canvas
from saccade.predict.search.fertility import Copies, propose_copies
from saccade.predict.search.greedy import SearchHypothesis, best_tokens, sort_hypotheses

FIRST_TEXT_TOKEN = 1 + max(PAD, START, END, UNKNOWN)  # tokens below are special
FILL_OPTIONS, FERTILITY_OPTIONS = ("iterations", "length_candidates"), ("fertilities", "npd")
N_SUMMARY_COLUMNS = 3  # after the tokens of each canvas: its length, its log-probability, whether it is valid


Rescoring = Callable[[list[list[SearchHypothesis]]], list[list[SearchHypothesis]]]


class MaskPredictParams(NamedTuple):
    """Parameters of mask-predict for a batch, besides length limits."""

    iterations: int
    lengths: int  # candidates per sentence: lengths, or fertilities
    min_length: int  # END not counted
    first_token: int = FIRST_TEXT_TOKEN  # tokens below are never output
    averages: bool = False  # take expected fertilities in place of the most probable ones
    seed: int = 0  # of sampled fertilities

    @classmethod
    def from_decoding(cls, decoding: Decoding) -> "MaskPredictParams":
        """Take them from decoding settings.

        There are at least n_best candidates. Unknown words are output only if they are replaced afterwards.
        """
        first = UNKNOWN if decoding.replace_unknown else FIRST_TEXT_TOKEN
        candidates = max(decoding.length_candidates, decoding.npd, decoding.n_best)
        return cls(
            decoding.iterations, candidates, decoding.min_length, first, decoding.fertilities == "average",
            decoding.seed,
        )  # fmt: skip


class NonAutoregressiveWriter(Protocol):
    """A writer that predicts all tokens of a canvas in one pass."""

    def build_canvas_decoder(
        self, memory: Memory, mask: Bool[Tensor, "R T"] | None, shape: Sequence[int]
    ) -> CanvasDecoder: ...


def is_non_autoregressive(writer: object) -> bool:
    """Return whether a writer predicts all tokens at once instead of step by step."""
    return hasattr(writer, "build_canvas_decoder")


def predicts_fertilities(writer: object) -> bool:
    """Return whether a writer reads copies of the source, by fertilities that it predicts, in place of masks."""
    return bool(getattr(writer, "predicts_fertilities", False))


def check_mask_predict_options(decoding: Decoding, *, prefix: Sequence[int], writer: object) -> None:
    """Refuse options that only a step-by-step search has, or only another non-autoregressive writer."""
    copies, defaults = predicts_fertilities(writer), Decoding()
    for name in FILL_OPTIONS if copies else FERTILITY_OPTIONS:
        if (given := getattr(decoding, name)) != getattr(defaults, name):
            kinds = ("fill", "fertility") if copies else ("fertility", "fill")
            raise SaccadeError(
                f'{name} is for writer.kind = "{kinds[0]}", got {name} = {given!r} and writer.kind = "{kinds[1]}"; '
                "leave it out"
            )
    options = {
        "sample": decoding.sample,
        "no_repeat_ngram": decoding.no_repeat_ngram,
        "coverage_penalty": decoding.coverage_penalty,
        "prefix": prefix,
    }
    for name, given in options.items():
        if given:
            raise SaccadeError(
                f"this model writes all tokens at once, which does not support {name}, got {name} = "
                f"{getattr(decoding, name)!r}; leave it out, or take iterations and length_candidates"
            )


def check_autoregressive_options(decoding: Decoding) -> None:
    """Refuse options that only mask-predict has."""
    defaults = Decoding()
    for name in (*FILL_OPTIONS, *FERTILITY_OPTIONS, "teacher", "collapse"):
        if (given := getattr(decoding, name)) != getattr(defaults, name):
            kind = "fertility" if name in FERTILITY_OPTIONS else "fill"
            raise SaccadeError(
                f"this model writes one token after the other, which does not support {name}, got {name} = {given!r}; "
                f'leave it out, or train one with writer.kind = "{kind}"'
            )


def decode_with_alignment(
    model: Model, source: Tokens, *, limits: Sequence[int], params: MaskPredictParams, align: bool
) -> tuple[Float[Tensor, "R n"], Float[Tensor, "R T S"] | None]:
    """Return the result of `run_mask_predict`, and with `align` the cross-attention of the finished canvases."""
    max_lengths = torch.tensor(limits, device=source.ids.device)
    canvases = run_mask_predict(model, source, max_lengths, params)
    if not align:
        return canvases, None
    tokens, lengths = canvases[:, :-N_SUMMARY_COLUMNS].long(), canvases[:, -N_SUMMARY_COLUMNS].long()
    memory = read_source(model, source)
    if predicts_fertilities(model.writer):  # which reads copies of the source, not its own output
        tokens = propose_candidates(model.writer, memory, max_lengths, params, tokens.shape[1]).ids
    return canvases, compute_cross_attention(model.writer, memory, tokens, build_canvas_mask(lengths, tokens.shape[1]))


def run_mask_predict(
    model: Model, source: Tokens, limits: Int[Tensor, " B"], params: MaskPredictParams, width: int | None = None
) -> Float[Tensor, "R n"]:
    """Decode a batch; return its canvases with N_SUMMARY_COLUMNS columns appended, all in float32.

    float32 represents integers up to 2^24 exactly. With a `width` that no canvas exceeds, nothing synchronizes with the
    device, as a CUDA graph requires.
    """
    memory = read_source(model, source)
    if predicts_fertilities(model.writer):
        return fill_copies(model.writer, memory, limits, params, width)
    lengths, log_probs, valid = select_lengths(model.writer.predict_lengths(memory), limits, params)
    lengths = lengths.flatten()
    canvas, token_log_probs = fill_canvases(model.writer, memory, lengths, width or int(lengths.max()), params)
    total = token_log_probs.sum(1) + log_probs.flatten()
    return append_summary(canvas, lengths, total, valid.flatten())


def append_summary(
    canvas: Int[Tensor, "R T"], lengths: Int[Tensor, " R"], total: Float[Tensor, " R"], valid: Bool[Tensor, " R"]
) -> Float[Tensor, "R n"]:
    """Append length, log-probability and validity to each canvas."""
    return torch.cat((canvas.float(), torch.stack((lengths.float(), total, valid.float()), 1)), 1)


def propose_candidates(
    writer: FertilityWriter, memory: Memory, limits: Int[Tensor, " B"], params: MaskPredictParams, width: int | None
) -> Copies:
    """Return the copies of the source that a writer with fertilities gets."""
    return propose_copies(
        writer, memory, limits, candidates=params.lengths, averages=params.averages, seed=params.seed,
        min_length=params.min_length, width=width,
    )  # fmt: skip


def fill_copies(
    writer: FertilityWriter, memory: Memory, limits: Int[Tensor, " B"], params: MaskPredictParams, width: int | None
) -> Float[Tensor, "R n"]:
    """Predict all tokens from copies of the source in one pass; return them as `run_mask_predict` does."""
    copies = propose_candidates(writer, memory, limits, params, width)
    mask = build_canvas_mask(copies.lengths, copies.ids.shape[1])
    log_probs, tokens = select_best_tokens(
        writer.build_canvas_decoder(memory, mask, copies.ids.shape)(copies.ids), params.first_token
    )
    is_text = torch.arange(copies.ids.shape[1], device=copies.ids.device) < copies.lengths[:, None] - 1
    total = torch.where(is_text, log_probs, 0.0).sum(1) + copies.log_probs
    return append_summary(torch.where(is_text, tokens, copies.ids), copies.lengths, total, copies.valid)


def read_source(model: Model, source: Tokens) -> Memory:
    """Return the reader's memory, by the faster path for repeated passes where the reader supports it."""
    reader = model.reader
    if reader is None or not repeated_passes.supports(reader):
        # The count is given (as 0) because counting the tokens would synchronize with the device.
        return model.read(Batch({"source": source}, {"source": 0}))
    x = reader.embedding(source.ids)
    return Memory(
        repeated_passes.run_stack(reader.stack, x, repeated_passes.build_key_bias(source.mask, x)),
        source.mask,
        tokens=source.ids,
    )


def select_lengths(
    lengths: LengthPrediction, limits: Int[Tensor, " B"], params: MaskPredictParams
) -> tuple[Int[Tensor, "B L"], Float[Tensor, "B L"], Bool[Tensor, "B L"]]:
    """Return the most probable lengths (END included), their log-probabilities, and whether they are valid.

    If fewer lengths are allowed than requested, the rest is invalid. The first one is always valid: if no length is
    allowed, it is clamped to the nearest allowed one.
    """
    logits, shortest = lengths
    log_probs = logits.float().log_softmax(-1)
    candidates = shortest[:, None] + torch.arange(logits.shape[1], device=logits.device)
    allowed = (candidates > params.min_length) & (candidates <= limits[:, None] + 1)
    chosen = log_probs.masked_fill(~allowed, -torch.inf).topk(min(params.lengths, logits.shape[1])).indices
    clamped = torch.minimum(candidates.gather(1, chosen).clamp(min=params.min_length + 1), limits[:, None] + 1)
    valid = allowed.gather(1, chosen) | (torch.arange(chosen.shape[1], device=chosen.device) == 0)
    return clamped, log_probs.gather(1, chosen), valid


def fill_canvases(
    writer: NonAutoregressiveWriter, memory: Memory, lengths: Int[Tensor, " R"], width: int, params: MaskPredictParams
) -> tuple[Int[Tensor, "R T"], Float[Tensor, "R T"]]:
    """Return the filled canvases, and the log-probability of each token when it was chosen; 0 from END on."""
    canvas, mask = build_masked_canvas(lengths, width), build_canvas_mask(lengths, width)
    log_probs = torch.zeros(canvas.shape, device=canvas.device)
    decode = writer.build_canvas_decoder(memory, mask, canvas.shape)
    for passes_left in reversed(range(params.iterations)):
        masked = canvas == MASK
        values, tokens = select_best_tokens(decode(canvas), params.first_token)
        canvas, log_probs = torch.where(masked, tokens, canvas), torch.where(masked, values, log_probs)
        if passes_left:
            remasked = find_least_confident(log_probs, lengths - 1, (lengths - 1) * passes_left // params.iterations)
            canvas = canvas.masked_fill(remasked, MASK)
    return canvas, log_probs


def build_canvas_mask(lengths: Int[Tensor, " R"], width: int) -> Bool[Tensor, "R T"] | None:
    """Return which positions of each canvas are real; None on a CPU if all of them are."""
    if lengths.device.type == "cpu" and int(lengths.min()) == width:
        return None
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def select_best_tokens(
    logits: Float[Tensor, "R T V"], first_token: int
) -> tuple[Float[Tensor, "R T"], Int[Tensor, "R T"]]:
    """Return the log-probability and the id of the best token at each position, among ids >= `first_token`."""
    rows = logits.flatten(0, 1).float()
    values, tokens = best_tokens(rows[:, first_token:], 1)
    log_probs, ids = values[:, 0] - rows.logsumexp(-1), tokens[:, 0] + first_token
    return log_probs.view(logits.shape[:2]), ids.view(logits.shape[:2])


def find_least_confident(
    log_probs: Float[Tensor, "R T"], lengths: Int[Tensor, " R"], counts: Int[Tensor, " R"]
) -> Bool[Tensor, "R T"]:
    """Mark the `counts` positions with the lowest log-probability among the first `lengths` of each canvas."""
    outside = torch.arange(log_probs.shape[1], device=log_probs.device) >= lengths[:, None]
    ranks = log_probs.masked_fill(outside, torch.inf).argsort(dim=1, stable=True).argsort(1)
    return ranks < counts[:, None]


def compute_cross_attention(
    writer: nn.Module, memory: Memory, canvas: Int[Tensor, "R T"], mask: Bool[Tensor, "R T"] | None
) -> Float[Tensor, "R T S"]:
    """Return the attention of each position to memory: the mean over the heads of the last layer."""
    with record(writer) as maps:
        writer(canvas, mask, memory)
    cross = [weights for address, weights in maps.items() if "cross" in address]
    if not cross:
        raise SaccadeError("this model does not attend to what it reads, so nothing can be aligned; leave out align")
    return cross[-1].mean(1)


def collect_hypotheses(
    canvases: Float[Tensor, "R n"],
    attention: Float[Tensor, "R T S"] | None,
    *,
    sentences: int,
    decoding: Decoding,
    rescore: Rescoring | None = None,
) -> list[list[SearchHypothesis]]:
    """Return the n_best hypotheses of each sentence, best first; `rescore` gives them other scores before.

    Each tensor is copied from the device once.
    """
    rows, maps = canvases.tolist(), None if attention is None else attention.tolist()
    canvases_per_sentence, groups = len(rows) // sentences, []
    for first in range(0, len(rows), canvases_per_sentence):
        hypotheses = [
            to_hypothesis(rows[i], None if maps is None else maps[i], collapse=decoding.collapse)
            for i in range(first, first + canvases_per_sentence)
            if rows[i][-1]
        ]
        groups.append(hypotheses)
    groups = groups if rescore is None else rescore(groups)
    return [sort_hypotheses(hypotheses)[: decoding.n_best] for hypotheses in groups]


def to_hypothesis(row: Sequence[float], attention: list[list[float]] | None, *, collapse: bool) -> SearchHypothesis:
    """Convert a row; its score is the mean log-probability of its tokens, with that of the length in place of END's."""
    *tokens, length, log_prob, _ = row
    ids = [int(token) for token in tokens[: int(length) - 1]]
    kept = [i for i, token in enumerate(ids) if not (collapse and i and token == ids[i - 1])]
    alignment = None if attention is None else [attention[i] for i in kept]
    return SearchHypothesis([ids[i] for i in kept], log_prob, log_prob / length, alignment)
