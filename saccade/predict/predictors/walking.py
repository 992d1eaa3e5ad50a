"""A trained run that walks: instructions in, with a map and where to start; actions out, and where they end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from saccade.config.schema import ActionWriter, Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.data.worlds.route_store import Atlas
from saccade.data.worlds.routes import Walk, parse_walk
from saccade.data.worlds.sights import Eye, eye_of
from saccade.errors import SaccadeError
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.search.greedy import Found
from saccade.view.route import Route
from saccade.view.viewing import View
from saccade.view.words import Groups

SPACE = "␣"  # before each word, as labels have it
ARROWS = {0: "↑", 90: "→", 180: "↓", 270: "←"}


@dataclass(frozen=True, eq=False)
class Told:
    """An instruction as ids, and where it is to be followed."""

    ids: list[int]
    walk: Walk

    def __len__(self) -> int:
        return len(self.ids)


class Walker(Predictor):
    """Lines of JSON in, actions out."""

    fields = ("instruction", "map", "start")

    @property
    def eye(self) -> Eye:
        assert isinstance(self.recipe.writer, ActionWriter), "the task says so"
        return eye_of(self.recipe.writer)

    def described(self, text: str, found: Sequence[Hypothesis]) -> dict[str, Any]:
        """Also where the actions lead: the pose after each of them."""
        told = super().described(text, found)
        if not text.strip():
            return told
        walk = parse_walk(text, where="the input")
        route = walk.world.walked(walk.start, found[0].text.split())
        return {**told, "end": route[-1], "route": route}

    def view(
        self, source: str, target: str | None = None, *, decoding: Decoding | None = None, title: str = ""
    ) -> View:
        """What each action looked at, with the place and the direction in which it was done, and the route."""
        seen = super().view(source, target, decoding=decoding, title=title)
        walk = parse_walk(source, where="the input")
        route = walk.world.walked(walk.start, seen.output.split())
        poses = [f"{pose.x},{pose.y} {ARROWS[pose.to]} " for pose in route]
        names = [
            f"{pose}{name.removeprefix(SPACE)}"
            for pose, name in zip_longest(poses, seen.labels["target"], fillvalue="")
        ]
        maps = [replace(one, labels={**one.labels, "target": names}) for one in seen.maps]
        floors = {ends: way.floor for ends, way in walk.world.ways.items()}
        return replace(
            seen, maps=maps, labels={**seen.labels, "target": names}, route=Route(walk.world.items, floors, route)
        )

    # ---- inside

    def _read(self, texts: Sequence[str], what: str, *, first: int = 1) -> list[Any]:
        walks = [
            parse_walk(text, where=f"{what} {number}") if text.strip() else None
            for number, text in enumerate(texts, start=first)
        ]
        said = ["" if walk is None else walk.instruction for walk in walks]
        rows = self._encode(self.tokenizers.source, said, what, first=first)
        return [[] if walk is None else Told(ids, walk) for ids, walk in zip(rows, walks, strict=True)]

    def _fitting(self, texts: Sequence[str], decoding: Decoding) -> int:
        """How many lines stand before the first one that cannot be followed."""
        for number, text in enumerate(texts):
            try:
                self._read([text], "line")
            except SaccadeError:
                return number
        return len(texts)

    def _batch(self, *, source: Sequence[Any], target: Sequence[list[int]] | None = None) -> Batch:
        atlas = Atlas((told.walk for told in source), eye=self.eye, target=self.tokenizers.target)
        fields: dict[str, Any] = {
            "source": pad([told.ids for told in source]),
            "ground": atlas.field([atlas.number(told.walk) for told in source]),
        }
        if target is not None:
            fields["target"] = pad(target)
        return Batch(fields).to(self.device)

    def _hypothesis(self, item: Found, source: str, length: int, *, align: bool) -> Hypothesis:
        text = self.tokenizers.target.decode(item.ids)
        looks = None if item.alignment is None else [row[:length] for row in item.alignment]
        return Hypothesis(item.ids, text, item.score, item.log_prob, looks if align else None)

    def _source_labels(self, row: Any) -> tuple[list[str], Groups]:
        labels, words = super()._source_labels(row.ids)
        return [label.removeprefix(SPACE) for label in labels], words

    def _called(self, source: str) -> str:
        return parse_walk(source, where="the input").instruction
