"""A trained run that walks: instructions in, with a map and where to start; actions out, and where they end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from saccade.config.schema import Decoding
from saccade.data.worlds.route_store import Atlas
from saccade.data.worlds.routes import Walk, parse_walk
from saccade.data.worlds.sights import eye_of
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.parts import Parts
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.text import SearchDecoder, TextCodec, TextPresenter
from saccade.predict.search.greedy import Found
from saccade.view.route import Route
from saccade.view.viewing import View
from saccade.view.words import Groups

SPACE = "␣"  # before each word, as labels have it
ARROWS = {0: "↑", 90: "→", 180: "↓", 270: "←"}


@dataclass(frozen=True, eq=False)
class Instruction:
    """The token ids of an instruction, and where it is to be followed."""

    ids: list[int]
    walk: Walk

    def __len__(self) -> int:
        return len(self.ids)


class WalkCodec(TextCodec):
    """Reads lines of JSON: an instruction, a map and a start."""

    fields = ("instruction", "map", "start")

    def encode(self, texts: Sequence[str], what: str, *, numbers: Sequence[int] | None = None) -> list[Any]:
        numbers = numbers or range(1, len(texts) + 1)
        walks = [
            parse_walk(text, where=f"{what} {number}") if text.strip() else None
            for number, text in zip(numbers, texts, strict=True)
        ]
        said = ["" if walk is None else walk.instruction for walk in walks]
        rows = super().encode(said, what, numbers=numbers)
        return [[] if walk is None else Instruction(ids, walk) for ids, walk in zip(rows, walks, strict=True)]

    def make_fields(self, rows: Sequence[Any]) -> dict[str, Any]:
        writer = self.recipe.writer.actions
        assert writer is not None, "the task says so"
        atlas = Atlas((row.walk for row in rows), eye=eye_of(writer), target=self.tokenizers.target)
        ground = atlas.field([atlas.number(row.walk) for row in rows])
        return {**super().make_fields([row.ids for row in rows]), "ground": ground}

    def make_hypothesis(self, item: Found, source: str, length: int, *, align: bool) -> Hypothesis:
        looks = None if item.alignment is None or not align else [row[:length] for row in item.alignment]
        return Hypothesis(item.ids, self.tokenizers.target.decode(item.ids), item.score, item.log_prob, looks)

    def label_source(self, row: Any) -> tuple[list[str], Groups]:
        labels, words = super().label_source(row.ids)
        return [label.removeprefix(SPACE) for label in labels], words

    def name_input(self, source: str) -> str:
        return parse_walk(source, where="the input").instruction


class RoutePresenter(TextPresenter):
    """Actions, and the route along which they lead."""

    def describe(self, text: str, found: Sequence[Hypothesis]) -> dict[str, Any]:
        """Also the pose after each action."""
        said = super().describe(text, found)
        if not text.strip():
            return said
        walk = parse_walk(text, where="the input")
        route = walk.world.walked(walk.start, found[0].text.split())
        return {**said, "end": route[-1], "route": route}

    def view(self, source: str, target: str | None, *, decoding: Decoding | None, title: str) -> View:
        """Attention of each action, with the place and the direction in which it was done, and the route."""
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


Walker = partial(Predictor, parts=Parts(WalkCodec, SearchDecoder, RoutePresenter))
