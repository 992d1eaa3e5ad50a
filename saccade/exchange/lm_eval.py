"""Evaluate a language model with EleutherAI's lm-evaluation-harness (package `lm_eval`, extra `lm-eval`).

    python -m saccade.exchange.lm_eval --model saccade --model_args run=RUN --tasks NAME

is the command `lm_eval` with one more kind of model. In Python, `register()` adds it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from pydantic import ValidationError

from saccade.config.plugins import load_plugins
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.errors import SaccadeError
from saccade.extras import get_install_command
from saccade.predict.lines import group_by_length
from saccade.predict.predictors.language import LanguageModel
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.search.likelihood import score_last_tokens
from saccade.predict.threads import use_all_cores
from saccade.runs import find_run

MODEL_NAME = "saccade"  # of `lm_eval --model`
DEFAULT_NEW_TOKENS = 256  # of a generated text, as for the other models of lm_eval
# Names of lm_eval for the maximal number of new tokens, the first one that is given counts.
NEW_TOKENS_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


class ContinuationScore(NamedTuple):
    """The log-probability of a continuation, and whether greedy search would generate it."""

    log_prob: float
    is_greedy: bool


class HarnessModel:
    """A language model by the definitions of the harness: likelihoods of continuations and texts, and generation."""

    def __init__(self, predictor: Predictor, *, batch_tokens: int | None = None) -> None:
        task = predictor.recipe.task
        if not task.is_language_model or not predictor.continues_prompts:
            raise SaccadeError(f'lm_eval needs a run with task = "language-model", got task = "{task.name}"')
        self.predictor = cast(LanguageModel, predictor)
        self.max_length = predictor.recipe.data.max_length
        self.batch_tokens = batch_tokens or predictor.recipe.predict.batch_tokens

    def loglikelihood(self, pairs: Sequence[tuple[str, str]]) -> list[ContinuationScore]:
        """Score the second text of each pair as the continuation of the first, truncated from the left if too long."""
        encoded = [self.encode_pair(context, continuation) for context, continuation in pairs]
        return self._score([([*context, *continuation], len(context)) for context, continuation in encoded])

    def loglikelihood_rolling(self, texts: Sequence[str]) -> list[float]:
        """Score whole texts: each token once, given as many tokens before it as its window has."""
        return [score.log_prob for score in self._score([(self._encode(text), 0) for text in texts])]

    def generate_until(self, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
        """Continue contexts with the settings of the harness; those with equal settings are decoded together."""
        decodings = [self.build_decoding(settings) for _, settings in requests]
        outputs = [""] * len(requests)
        for decoding in dict.fromkeys(decodings):
            chosen = [i for i, other in enumerate(decodings) if other == decoding]
            texts = self.predictor.predict([requests[i][0] for i in chosen], decoding=decoding)
            for i, text in zip(chosen, texts, strict=True):
                outputs[i] = text
        return outputs

    def build_decoding(self, settings: Mapping[str, Any]) -> Decoding:
        """Translate generation settings of the harness to decoding settings: greedy search unless it asks to sample."""
        rest = dict(settings)
        given = [rest.pop(name) for name in NEW_TOKENS_NAMES if name in rest]
        new_tokens = next((int(number) for number in given if number is not None), DEFAULT_NEW_TOKENS)
        until, temperature, asked = rest.pop("until", None), rest.pop("temperature", None), rest.pop("do_sample", None)
        sample = bool(temperature) if asked is None else bool(asked) and temperature != 0
        sampling = {name: rest.pop(name) for name in ("top_k", "top_p", "seed") if name in rest}
        if rest:
            raise SaccadeError(
                f"unknown generation settings {', '.join(rest)}; expected until, {', '.join(NEW_TOKENS_NAMES)}, "
                "do_sample, temperature, top_k, top_p, seed"
            )
        stops = [until] if isinstance(until, str) else until or ()
        try:
            return Decoding(
                beam=1,
                sample=sample,
                temperature=float(temperature) if sample and temperature else 1.0,
                stop=tuple(stop for stop in stops if stop),
                max_length=max(1, min(new_tokens, self.max_length // 2)),  # the other half is for the context
                truncate_prompt=True,
                batch_tokens=self.batch_tokens,
                **(sampling if sample else {}),
            )
        except ValidationError as error:
            [first, *_] = error.errors()
            raise SaccadeError(f"generation setting {first['loc'][0]}: {first['msg']}, got {first['input']}") from None

    def encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Tokenize a context and its continuation as one text, since tokens include the space before a word.

        Spaces at the end of the context belong to the continuation. A token that is part of both, too.
        """
        stripped = context.rstrip()
        before, whole = self._encode(stripped), self._encode(context + continuation)
        same = next((i for i, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), len(before))
        same = min(same, len(whole))
        return whole[:same], whole[same:]

    def _encode(self, text: str) -> list[int]:
        return self.predictor.decoder.codec.encode_text(text)

    def _score(self, rows: Sequence[tuple[list[int], int]]) -> list[ContinuationScore]:
        """Score the tokens of each row from an index on."""
        windows = [
            (i, *window) for i, (ids, first) in enumerate(rows) for window in split_windows(ids, first, self.max_length)
        ]
        log_probs, is_greedy = [0.0] * len(rows), [True] * len(rows)
        with self.predictor.inference():
            lengths = [len(ids) for _, ids, _ in windows]
            for group in group_by_length(lengths, budget=self.batch_tokens):
                batch = Batch({"target": pad([windows[j][1] for j in group])}).to(self.predictor.device)
                scores = score_last_tokens(self.predictor.model, batch, [windows[j][2] for j in group])
                for j, (values, are_best) in zip(group, scores, strict=True):
                    log_probs[windows[j][0]] += sum(values)
                    is_greedy[windows[j][0]] &= all(are_best)
        return [ContinuationScore(*score) for score in zip(log_probs, is_greedy, strict=True)]


def split_windows(ids: list[int], first: int, length: int) -> Iterator[tuple[list[int], int]]:
    """Yield windows of at most `length` tokens, with the number of last tokens in each that are scored.

    Every token from index `first` on is scored once. A window has as much context as there is space for, and at least
    one token of it, unless it begins with the text.
    """
    while first < len(ids):
        end = min(len(ids), first + (max(length - 1, 1) if first else length))
        yield ids[max(0, end - length) : end], end - first
        first = end


def register() -> None:
    """Add the model `saccade` to those that lm_eval knows."""
    if importlib.util.find_spec("lm_eval") is None:
        raise SaccadeError(f"lm_eval is not installed; install it with: {get_install_command('lm-eval')}")
    registry = importlib.import_module("lm_eval.api.registry")
    base: Any = importlib.import_module("lm_eval.api.model").LM

    class SaccadeLM(base):
        """A run of saccade as a model of lm_eval."""

        def __init__(
            self,
            run: str,
            device: str | None = None,
            precision: str = "auto",
            batch_tokens: int | None = None,
            batch_size: int | str | None = None,
            max_batch_size: int | None = None,
            plugin: str = "",
        ) -> None:
            """Load a run, with the kinds of a plugin file if it needs one.

            lm_eval gives batch sizes, which are ignored, since batches have `batch_tokens`; and by default a GPU, which
            means any device if there is none.
            """
            super().__init__()
            device = (
                "auto" if device is None or (device.startswith("cuda") and not torch.cuda.is_available()) else device
            )
            kinds = load_plugins(*([plugin] if plugin else []))
            predictor = Predictor.load(find_run(str(run)), kinds=kinds, device=device, precision=precision)
            self.harness = HarnessModel(predictor, batch_tokens=batch_tokens)

        def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            return [(*score,) for score in self.harness.loglikelihood([request.args for request in requests])]

        def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
            return self.harness.loglikelihood_rolling([request.args[0] for request in requests])

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            return self.harness.generate_until([request.args for request in requests])

    registry.register_model(MODEL_NAME)(SaccadeLM)


def main() -> None:
    """Run the command of lm_eval; a user's mistake is one line on stderr."""
    use_all_cores()
    try:
        register()
        importlib.import_module("lm_eval.__main__").cli_evaluate()
    except SaccadeError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
