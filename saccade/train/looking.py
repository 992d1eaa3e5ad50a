"""While a model learns, what it attends to in a few fixed validation texts (`train.watch`), for `saccade watch`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from saccade.config.schema import Recipe
from saccade.data.batching.batches import assemble
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor
from saccade.train.average import wearing
from saccade.train.machine import autocast, kept_randomness
from saccade.train.session import Session
from saccade.view import moments
from saccade.view.maps import AttentionMap
from saccade.view.viewing import View

TEXTS = 2
TRIED = 256  # validation texts among which they are looked for
SHORTEST = 10  # tokens of a text that says something; shorter ones are taken where there are no others
LONGEST = 32  # tokens of a text, so that its maps stay small and can be read
MOST = 200_000  # weights of one text; of larger models the last layers are kept


@dataclass
class Looks:
    """Which texts are looked at; found at the first look."""

    pairs: list[tuple[str, str | None]] = field(default_factory=list)
    on: bool = True


def look(s: Session) -> None:
    """Writes what the usable weights attend to now; where that cannot be, training goes on without it."""
    looks = s.looks
    if looks is None or not looks.on or not s.ranks.main:
        return
    try:
        with kept_randomness(s.device), wearing(s.model, None if s.average is None else s.average.weights):
            looks.pairs = looks.pairs or fixed_texts(s)
            predictor = s.recipe.task.get_predictor(s.recipe)(s.model, recipe=s.recipe, tokenizers=s.tokenizers)
            with autocast(s.recipe.train, s.device):
                views = [seen(predictor, text, target, title=s.run.name) for text, target in looks.pairs]
        moments.write(s.run, s.progress.step, [view.data() for view in views], every=s.recipe.train.report_every)
    except (SaccadeError, OSError) as error:
        looks.on = False
        s.log.say(f"attention is not watched: {error}")


def due(s: Session) -> bool:
    """Whether this is a step to look at."""
    every = s.recipe.train.report_every
    return s.looks is not None and s.progress.step % moments.spacing(s.progress.step, every=every) == 0


def seen(predictor: Predictor, text: str, target: str | None, *, title: str) -> View:
    view = predictor.view(text, target, title=title)
    return replace(view, maps=last_layers(list(view.maps)))


def last_layers(maps: list[AttentionMap]) -> list[AttentionMap]:
    """As many of the last maps as may be kept, at least one."""
    kept, weights = list[AttentionMap](), 0
    for entry in reversed(maps):
        weights += entry.weights.size
        if kept and weights > MOST:
            break
        kept.insert(0, entry)
    return kept


def fixed_texts(s: Session) -> list[tuple[str, str | None]]:
    """The first validation texts that are short enough, with what is written for them where that is given."""
    if s.valid is None:
        raise SaccadeError("there are no validation texts; give --valid SRC TGT, or data.valid=0.01 to hold some out")
    found: list[tuple[int, str, str]] = []
    for source, target in s.valid_pairs[:TRIED] or stored_texts(s):
        read = 0 if s.recipe.reader.medium else len(s.tokenizers.source.encode(source))
        tokens = max(read, len(s.tokenizers.target.encode(target)))
        if tokens <= LONGEST and source.strip():
            found.append((tokens, source, target))
    if not found:
        raise SaccadeError(f"none of the first validation texts has at most {LONGEST} tokens")
    found.sort(key=lambda text: text[0] < SHORTEST)  # these come last, all others stay in their order
    return [(source, s.recipe.task.get_forced_target(target)) for _, source, target in found[:TEXTS]]


def stored_texts(s: Session) -> list[tuple[str, str]]:
    """The first validation texts, from their tokens, where no pairs are kept as text."""
    batch = assemble(s.valid, np.arange(min(TRIED, len(s.valid))))
    if "source" in batch.fields and "target" in batch.fields:
        rows = zip(batch["source"].ids.tolist(), batch["target"].ids.tolist(), strict=True)
        return [(s.tokenizers.source.decode(source), s.tokenizers.target.decode(target)) for source, target in rows]
    [name] = [name for name in ("source", "target") if name in batch.fields]
    return [(shortened(ids, s.tokenizers, s.recipe), "") for ids in batch[name].ids.tolist()]


def shortened(ids: list[int], tokenizers: Tokenizers, recipe: Recipe) -> str:
    """The first tokens of a text as text, few enough to be read again with what stands around them."""
    return tokenizers.source.decode(ids[: min(LONGEST, recipe.data.max_length) - 4]).strip()
