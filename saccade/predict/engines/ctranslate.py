"""Decode with CTranslate2 (Klein et al. 2020), if it is installed."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import torch

from saccade.config.protocols import Support
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END, PAD, START
from saccade.errors import SaccadeError
from saccade.extras import get_install_command
from saccade.model.int8 import hash_file
from saccade.model.run import Run
from saccade.predict.engines.convert import (
    SOURCE_HASH_FILE,
    SPECIAL_TOKENS,
    check_convertible,
    convert,
    describe_conversion,
)
from saccade.predict.engines.engine import Engine, explain_fused_scores, explain_inspection
from saccade.predict.search.greedy import DecodableModel, SearchHypothesis, compute_length_penalty
from saccade.predict.search.request import Request
from saccade.runs import WEIGHTS

CONVERTED_FOLDER = "ctranslate2"  # in the run
COMPUTE_TYPES = {"auto": "float32", "fp32": "float32", "bf16": "bfloat16", "int8": "int8"}


class Translator:
    """Greedy search of CTranslate2. Its beam search has another stopping rule than ours and is not used."""

    def __init__(self, run: Run, *, precision: str) -> None:
        """Convert a run once; the converted model is kept in the folder of the run."""
        check_convertible(run.recipe)  # first: nobody should install a package that cannot express the model
        try:
            import ctranslate2
        except ImportError:
            raise SaccadeError(
                f"ctranslate2 is not installed; use engine torch, or install it with: {get_install_command('export')}"
            ) from None
        folder = run.path / CONVERTED_FOLDER
        made_from = describe_conversion(run.recipe, hash_file(run.path / WEIGHTS))
        if not _is_up_to_date(folder, made_from):
            sizes = (run.tokenizers.source.size, run.tokenizers.target.size)
            convert(run.model, run.recipe, sizes, folder, made_from=made_from)
        device = next(run.model.parameters()).device.type
        self.translator = ctranslate2.Translator(
            str(folder), device=device, compute_type=COMPUTE_TYPES[precision], intra_threads=torch.get_num_threads()
        )
        self.ids = {token: i for i, token in SPECIAL_TOKENS.items()}

    def decode(
        self, sources: Sequence[Sequence[int]], *, limits: Sequence[int], decoding: Decoding, scored: bool = True
    ) -> list[list[SearchHypothesis] | None]:
        """Return the hypothesis for each source; None for one that does not end before its limit.

        CTranslate2 does not read a source of END alone and returns an empty output; it is None here too. Without
        `scored`, scores are 0.
        """
        rows = [[_to_token_name(i) for i in row] for row in sources]
        results = self.translator.translate_batch(
            rows,
            beam_size=1,
            min_decoding_length=decoding.min_length,
            max_decoding_length=max(limits) + 1,
            max_input_length=0,  # no limit; by default inputs are truncated
            disable_unk=True,
            suppress_sequences=[[_to_token_name(START)], [_to_token_name(PAD)]],
        )
        hypotheses: list[list[SearchHypothesis] | None] = [None] * len(rows)
        complete: dict[int, list[int]] = {}
        for number, (source, result, limit) in enumerate(zip(sources, results, limits, strict=True)):
            ids = [self.ids[token] if token in self.ids else int(token) for token in result.hypotheses[0]]
            if len(ids) <= limit and END not in ids and list(source) != [END]:
                complete[number] = ids
        log_probs = self.score([sources[i] for i in complete], list(complete.values())) if scored else repeat(0.0)
        for (number, ids), log_prob in zip(complete.items(), log_probs, strict=False):
            penalty = compute_length_penalty(len(ids) + 1, decoding.length_penalty)
            hypotheses[number] = [SearchHypothesis(ids, log_prob, log_prob / penalty, None)]
        return hypotheses

    def score(self, sources: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> list[float]:
        """Return the log-probability of each given output, END included, over the whole vocabulary.

        The search of CTranslate2 normalizes over the tokens that it allows; ours and this function over all of them.
        """
        pairs = ([[_to_token_name(i) for i in row] for row in rows] for rows in (sources, outputs))
        results = self.translator.score_batch(*pairs, max_input_length=0) if outputs else []
        return [sum(result.log_probs) for result in results]


class CTranslate2:
    """Greedy search of CTranslate2, if a run was loaded for it; outputs at their limit are left to the next engine."""

    name, title, non_autoregressive = "ctranslate2", "CTranslate2", False
    failures: tuple[type[Exception], ...] = ()

    def __init__(self, translator: Translator | None = None, fallback_engines: Sequence[Engine] = ()) -> None:
        """`fallback_engines` are those after it in the order of preference."""
        self.translator, self.fallback_engines = translator, fallback_engines

    def supports(self, model: DecodableModel, request: Request) -> Support:
        if self.translator is None:
            return Support("it was not requested (--engine ctranslate2)")
        reason = explain_inspection(request) or explain_fused_scores(request)
        if not reason and (request.prompts is not None or request.prefix or request.stop_rule is not None):
            reason = "outputs continue prompts or a prefix, or end at a given text"
        if not reason:
            check_decoding(request.decoding)  # an explicit request for this engine fails instead of falling back
        return Support(reason)

    def run(self, model: DecodableModel, request: Request) -> list[list[SearchHypothesis]]:
        assert self.translator is not None, "supports() declines without a translator"
        tokens = request.source["source"]
        sources = [ids[mask].tolist() for ids, mask in zip(tokens.ids, tokens.mask, strict=True)]
        hypotheses = self.translator.decode(
            sources, limits=request.limits, decoding=request.decoding, scored=request.scored
        )
        if unfinished := [i for i, outputs in enumerate(hypotheses) if outputs is None]:
            batch = Batch({"source": pad([sources[i] for i in unfinished])}).to(request.device)
            remaining = replace(request, batch=batch, limits=[request.limits[i] for i in unfinished])
            engine = next(
                one for one in self.fallback_engines if not one.non_autoregressive and one.supports(model, remaining)
            )
            for i, outputs in zip(unfinished, engine.run(model, remaining), strict=True):
                hypotheses[i] = outputs
        return [outputs for outputs in hypotheses if outputs is not None]


# Settings that the engine follows, or that do not affect greedy search; for `replace_unknown` it declines the request.
FOLLOWED_SETTINGS = {
    "length_penalty", "min_length", "max_length", "batch_tokens", "replace_unknown",
    "coverage_penalty",  # beam search only
    "temperature", "top_k", "top_p", "seed",  # sampling only
    "lm_weight",  # with `lm` only
    "iterations", "length_candidates", "collapse",  # non-autoregressive writers only
}  # fmt: skip


def check_decoding(decoding: Decoding) -> None:
    """Refuse settings with which CTranslate2 searches differently from the plain search."""
    required = Decoding(beam=1)
    for name in (one for one in Decoding.model_fields if one not in FOLLOWED_SETTINGS):
        value, given = getattr(required, name), getattr(decoding, name)
        if given != value:
            raise SaccadeError(
                f"engine ctranslate2 gives the text of our own search with {name} = {value!r} only, got {given!r}; "
                f"set {name}={value!r} or use engine torch"
            )


def _to_token_name(token_id: int) -> str:
    """Return the name of a token in CTranslate2's vocabulary, which is a list of strings: its id as text."""
    return SPECIAL_TOKENS.get(token_id, str(token_id))


def _is_up_to_date(folder: Path, made_from: str) -> bool:
    """Return whether the folder was converted from the same weights and recipe."""
    note = folder / SOURCE_HASH_FILE
    return note.is_file() and note.read_text() == made_from
