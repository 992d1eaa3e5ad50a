"""Translation by CTranslate2 (Klein et al. 2020), where it is installed: the same text, from another engine."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from saccade.config.protocols import Support
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END, PAD, START
from saccade.errors import SaccadeError
from saccade.model.int8 import fingerprint
from saccade.model.run import Run
from saccade.predict.engines.convert import MADE_FROM, SPECIAL, convert, expressible
from saccade.predict.engines.engine import Engine, explain_watched
from saccade.predict.search.greedy import DecodableModel, Found, penalty
from saccade.predict.search.request import Request
from saccade.runs import WEIGHTS

FOLDER = "ctranslate2"  # in the run
KINDS = {"auto": "float32", "fp32": "float32", "bf16": "bfloat16", "int8": "int8"}


class Translator:
    """CTranslate2's greedy search. Its search with beams ends by other rules than ours, so that is left to ours."""

    def __init__(self, run: Run, *, precision: str) -> None:
        """Converts a run with plain weights, once; what was converted is kept in the run."""
        try:
            import ctranslate2
        except ImportError:
            raise SaccadeError(
                "ctranslate2 is not installed; `pip install saccade[export]` adds it, or use engine torch"
            ) from None
        expressible(run.recipe)
        folder, made_from = run.path / FOLDER, fingerprint(run.path / WEIGHTS)
        if not _is_made(folder, made_from):
            sizes = (run.tokenizers.source.size, run.tokenizers.target.size)
            convert(run.model, run.recipe, sizes, folder, made_from=made_from)
        device = next(run.model.parameters()).device.type
        self.translator = ctranslate2.Translator(
            str(folder), device=device, compute_type=KINDS[precision], intra_threads=torch.get_num_threads()
        )
        self.ids = {piece: i for i, piece in SPECIAL.items()}

    def decode(
        self, sources: Sequence[Sequence[int]], *, limits: Sequence[int], decoding: Decoding
    ) -> list[list[Found] | None]:
        """The output for each source; None for one that does not end by itself before its limit."""
        results = self.translator.translate_batch(
            [[_piece(i) for i in row] for row in sources],
            beam_size=1,
            length_penalty=0,  # scores are sums of log-probabilities
            min_decoding_length=decoding.min_length,
            max_decoding_length=max(limits) + 1,
            disable_unk=True,
            suppress_sequences=[[_piece(START)], [_piece(PAD)]],
            return_scores=True,
        )
        return [self._found(result, limit, decoding) for result, limit in zip(results, limits, strict=True)]

    def _found(self, result: Any, limit: int, decoding: Decoding) -> list[Found] | None:
        ids = [self.ids[piece] if piece in self.ids else int(piece) for piece in result.hypotheses[0]]
        if len(ids) > limit or END in ids:
            return None
        log_prob = result.scores[0]
        return [Found(ids, log_prob, log_prob / penalty(len(ids) + 1, decoding.length_penalty), None)]


class CTranslate2:
    """CTranslate2's greedy search, where a run was loaded for it; what it does not end is left to the next engine."""

    name, title, at_once = "ctranslate2", "CTranslate2", False
    failures: tuple[type[Exception], ...] = ()

    def __init__(self, translator: Translator | None = None, others: Sequence[Engine] = ()) -> None:
        """`others`: the engines after it."""
        self.translator, self.others = translator, others

    def supports(self, model: DecodableModel, request: Request) -> Support:
        if self.translator is None:
            return Support("it was not asked for (--engine ctranslate2)")
        reason = explain_watched(request)
        if not reason:
            check_decoding(request.decoding)  # who asks for this engine is told what it cannot do
        return Support(reason)

    def run(self, model: DecodableModel, request: Request) -> list[list[Found]]:
        assert self.translator is not None, "it supports no request without"
        tokens = request.source["source"]
        sources = [ids[mask].tolist() for ids, mask in zip(tokens.ids, tokens.mask, strict=True)]
        found = self.translator.decode(sources, limits=request.limits, decoding=request.decoding)
        if rest := [i for i, outputs in enumerate(found) if outputs is None]:
            batch = Batch({"source": pad([sources[i] for i in rest])}).to(request.device)
            left = replace(request, batch=batch, limits=[request.limits[i] for i in rest])
            engine = next(one for one in self.others if not one.at_once and one.supports(model, left))
            for i, outputs in zip(rest, engine.run(model, left), strict=True):
                found[i] = outputs
        return [outputs for outputs in found if outputs is not None]


def check_decoding(decoding: Decoding) -> None:
    """Refuses settings that CTranslate2 would search by in another way than ours."""
    plain = Decoding()
    ours = {name: getattr(plain, name) for name in ("no_repeat", "prefix", "ctc", "lm")}
    for name, value in {"beam": 1, "n_best": 1, "sample": False, **ours}.items():
        if (given := getattr(decoding, name)) != value:
            raise SaccadeError(
                f"engine ctranslate2 gives the text of our own search with {name} = {value!r} only, got {given!r}; "
                f"set {name}={value!r} or use engine torch"
            )


def _piece(number: int) -> str:
    """CTranslate2 wants pieces of text; numbers are as good as any."""
    return SPECIAL.get(number, str(number))


def _is_made(folder: Path, made_from: str) -> bool:
    note = folder / MADE_FROM
    return note.is_file() and note.read_text() == made_from
