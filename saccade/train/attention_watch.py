"""Records attention weights on a few fixed validation examples during training (`train.watch`), for `saccade watch`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from saccade.config.schema import Recipe
from saccade.data.batching.batches import collate_batch
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor
from saccade.train.average import swap_weights
from saccade.train.machine import autocast, preserve_rng_state
from saccade.train.session import Session
from saccade.view import moments
from saccade.view.maps import AttentionMap
from saccade.view.viewing import View

WATCHED_EXAMPLES = 2
MAX_CANDIDATES = 256  # validation examples among which they are chosen
MIN_TOKENS = 10  # preferred minimum length; shorter examples are used only if there are no others
MAX_TOKENS = 32  # maximum length, so that attention maps stay small and readable
MAX_WEIGHTS = 200_000  # attention weights recorded for one example; of larger models only the last layers


@dataclass
class WatchedExamples:
    """The examples, chosen when attention is first recorded, and whether recording is still possible."""

    pairs: list[tuple[str, str | None]] = field(default_factory=list)
    enabled: bool = True


def record_attention(s: Session) -> None:
    """Write the attention of the current weights on the examples; an error disables it and training continues."""
    examples = s.watched_examples
    if examples is None or not examples.enabled or not s.ranks.is_main:
        return
    try:
        with preserve_rng_state(s.device), swap_weights(s.model, None if s.average is None else s.average.weights):
            examples.pairs = examples.pairs or choose_examples(s)
            predictor = s.recipe.task.get_predictor(s.recipe)(s.model, recipe=s.recipe, tokenizers=s.tokenizers)
            with autocast(s.recipe.train, s.device):
                views = [compute_view(predictor, text, target, title=s.run.name) for text, target in examples.pairs]
        moments.write(s.run, s.progress.step, [view.data() for view in views], every=s.recipe.train.report_every)
    except (SaccadeError, OSError) as error:
        examples.enabled = False
        s.log.print_line(f"attention is not recorded: {error}")


def should_record_attention(s: Session) -> bool:
    """Whether attention is recorded at this step."""
    step, every = s.progress.step, s.recipe.train.report_every
    return s.watched_examples is not None and step % moments.compute_interval(step, every=every) == 0


def compute_view(predictor: Predictor, text: str, target: str | None, *, title: str) -> View:
    view = predictor.view(text, target, title=title)
    return replace(view, maps=keep_last_layers(list(view.maps)))


def keep_last_layers(maps: list[AttentionMap]) -> list[AttentionMap]:
    """Keep the last attention maps up to MAX_WEIGHTS, at least one."""
    kept, weights = list[AttentionMap](), 0
    for entry in reversed(maps):
        weights += entry.weights.size
        if kept and weights > MAX_WEIGHTS:
            break
        kept.insert(0, entry)
    return kept


def choose_examples(s: Session) -> list[tuple[str, str | None]]:
    """Choose the first validation examples that are short enough, with the target to force where the task has one."""
    if s.valid is None:
        raise SaccadeError("there is no validation data; give --valid SRC TGT, or data.valid=0.01 to hold some out")
    found: list[tuple[int, str, str]] = []
    for source, target in s.valid_pairs[:MAX_CANDIDATES] or decode_stored_examples(s):
        source_tokens = 0 if s.recipe.reader.medium else len(s.tokenizers.source.encode(source))
        tokens = max(source_tokens, len(s.tokenizers.target.encode(target)))
        if tokens <= MAX_TOKENS and source.strip():
            found.append((tokens, source, target))
    if not found:
        raise SaccadeError(f"none of the first validation examples has at most {MAX_TOKENS} tokens")
    found.sort(key=lambda example: example[0] < MIN_TOKENS)  # short ones last; the order is otherwise unchanged
    return [(source, s.recipe.task.get_forced_target(target)) for _, source, target in found[:WATCHED_EXAMPLES]]


def decode_stored_examples(s: Session) -> list[tuple[str, str]]:
    """Decode the first validation examples from their token ids, for tasks that keep no pairs of strings."""
    batch = collate_batch(s.valid, np.arange(min(MAX_CANDIDATES, len(s.valid))))
    if "source" in batch.fields and "target" in batch.fields:
        rows = zip(batch["source"].ids.tolist(), batch["target"].ids.tolist(), strict=True)
        return [(s.tokenizers.source.decode(source), s.tokenizers.target.decode(target)) for source, target in rows]
    [name] = [name for name in ("source", "target") if name in batch.fields]
    return [(decode_prefix(ids, s.tokenizers, s.recipe), "") for ids in batch[name].ids.tolist()]


def decode_prefix(ids: list[int], tokenizers: Tokenizers, recipe: Recipe) -> str:
    """Decode the first tokens of an example, few enough to fit again after encoding with special tokens."""
    return tokenizers.source.decode(ids[: min(MAX_TOKENS, recipe.data.max_length) - 4]).strip()
