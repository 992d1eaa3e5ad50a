"""Rescoring by a teacher: an autoregressive model chooses among the outputs of a non-autoregressive one.

With sampled fertilities this is noisy parallel decoding (Gu et al. 2018, section 3.3).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from saccade.config.plugins import Kinds
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END, Tokenizers
from saccade.errors import SaccadeError
from saccade.model.model import Model
from saccade.predict.search.greedy import DecodableModel, SearchHypothesis, compute_length_penalty
from saccade.predict.search.likelihood import compute_token_log_probs
from saccade.predict.search.mask_predict import Rescoring, is_non_autoregressive
from saccade.predict.search.request import FusionModel, Request
from saccade.predict.search.shallow_fusion import load_cached_run, load_fusion


def load_other_models(
    decoding: Decoding, model: DecodableModel, *, tokenizers: Tokenizers, device: str, max_length: int, kinds: Kinds
) -> tuple[FusionModel | None, Model | None]:
    """Load the language model and the teacher that the settings name and that take part in this model's decoding."""
    fusion = teacher = None
    if decoding.lm:
        fusion = load_fusion(decoding, target=tokenizers.target, device=device, max_length=max_length, kinds=kinds)
    if decoding.teacher and is_non_autoregressive(model.writer):
        teacher = load_teacher(
            decoding.teacher, tokenizers=tokenizers, device=device, max_length=max_length, kinds=kinds,
            dtype=next(model.writer.parameters()).dtype,
        )  # fmt: skip
    return fusion, teacher


def load_teacher(
    name: str, *, tokenizers: Tokenizers, device: str, max_length: int, kinds: Kinds, dtype: torch.dtype
) -> Model:
    """Load the autoregressive model of a run in the precision of the student, for outputs of `max_length` tokens."""
    run = load_cached_run(name, device, kinds, dtype)
    writes = run.recipe.writer.tokens is not None and not is_non_autoregressive(run.model.writer)
    if not writes or run.recipe.reader.text is None:
        raise SaccadeError(
            f'teacher = {name!r} is a run with writer.kind = "{run.recipe.writer.kind}" of task '
            f'"{run.recipe.task.name}"; a teacher reads a text and writes another one token by token'
        )
    sides = ((run.tokenizers.source, tokenizers.source), (run.tokenizers.target, tokenizers.target))
    if any(theirs.fingerprint() != ours.fingerprint() for theirs, ours in sides):
        raise SaccadeError(
            f"teacher = {name!r} has other vocabularies than this run; train a run that has the teacher's, "
            "by init=TEACHER and tokenizer.kind=init"
        )
    if run.recipe.data.max_length < max_length:
        raise SaccadeError(
            f"teacher = {name!r} was made for {run.recipe.data.max_length} tokens, but outputs may have up "
            f"to {max_length}; set max_length = {run.recipe.data.max_length - 1}"
        )
    return run.model


def get_rescoring(request: Request) -> Rescoring | None:
    """Return the function that scores hypotheses by the teacher of a request; None where it has none."""
    if request.teacher is None:
        return None
    return partial(rescore_hypotheses, request.teacher, request.source, length_penalty=request.decoding.length_penalty)


@torch.no_grad()
def rescore_hypotheses(
    teacher: Model,
    source: Batch,
    hypotheses: Sequence[Sequence[SearchHypothesis]],
    *,
    length_penalty: float,
) -> list[list[SearchHypothesis]]:
    """Return the hypotheses of each sentence with log P_teacher(output | source), and the score of its beam search.

    Sampled fertilities give outputs of different lengths; without length normalization the shortest ones win.
    """
    counts = torch.tensor([len(group) for group in hypotheses], device=source["source"].content.device)
    targets = pad([[*item.ids, END] for group in hypotheses for item in group]).to(counts.device)
    memory = teacher.read(source).repeat_rows(counts)
    batch = Batch({"target": targets}, {"target": 0})
    values = iter(compute_token_log_probs(teacher, batch, memory).sum(1).tolist())
    return [
        [
            replace(item, log_prob=value, score=value / compute_length_penalty(len(item.ids) + 1, length_penalty))
            for item, value in zip(group, values, strict=False)
        ]
        for group in hypotheses
    ]
