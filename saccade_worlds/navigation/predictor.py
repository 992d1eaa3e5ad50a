"""Inference with a run that follows instructions: instruction, map and start in; actions and their route out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from saccade.config.schema import Decoding
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.parts import PredictorParts
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.text import SearchDecoder, TextCodec, TextPresenter
from saccade.predict.search.greedy import SearchHypothesis
from saccade.view.viewing import View
from saccade.view.words import Groups
from saccade_worlds.navigation.observations import build_observation_encoder
from saccade_worlds.navigation.route_map import Route
from saccade_worlds.navigation.route_store import Atlas
from saccade_worlds.navigation.routes import NavigationInput, parse_navigation_input

SPACE = "␣"  # marks a word start in token labels
ARROWS = {0: "↑", 90: "→", 180: "↓", 270: "←"}


@dataclass(frozen=True, eq=False)
class Instruction:
    """The token ids of an instruction, and the map and start where it is followed."""

    ids: list[int]
    walk: NavigationInput

    def __len__(self) -> int:
        return len(self.ids)


class WalkCodec(TextCodec):
    """Reads lines of JSON with an instruction, a map and a start."""

    fields = ("instruction", "map", "start")

    def encode(self, texts: Sequence[str], what: str, *, numbers: Sequence[int] | None = None) -> list[Any]:
        numbers = numbers or range(1, len(texts) + 1)
        walks = [
            parse_navigation_input(text, where=f"{what} {number}") if text.strip() else None
            for number, text in zip(numbers, texts, strict=True)
        ]
        instructions = ["" if walk is None else walk.instruction for walk in walks]
        rows = super().encode(instructions, what, numbers=numbers)
        return [[] if walk is None else Instruction(ids, walk) for ids, walk in zip(rows, walks, strict=True)]

    def make_fields(self, rows: Sequence[Any]) -> dict[str, Any]:
        writer: Any = self.recipe.writer  # an ActionWriter: the recipe was checked
        atlas = Atlas(
            (row.walk for row in rows), encoder=build_observation_encoder(writer), target=self.tokenizers.target
        )
        ground = atlas.collate([atlas.get_pose_number(row.walk) for row in rows])
        return {**super().make_fields([row.ids for row in rows]), "ground": ground}

    def make_hypothesis(self, item: SearchHypothesis, source: str, length: int, *, align: bool) -> Hypothesis:
        alignment = None if item.alignment is None or not align else [row[:length] for row in item.alignment]
        return Hypothesis(item.ids, self.tokenizers.target.decode(item.ids), item.score, item.log_prob, alignment)

    def label_source(self, row: Any) -> tuple[list[str], Groups]:
        labels, words = super().label_source(row.ids)
        return [label.removeprefix(SPACE) for label in labels], words

    def name_input(self, source: str) -> str:
        return parse_navigation_input(source, where="the input").instruction


class RoutePresenter(TextPresenter):
    """Actions, and the route that they lead along."""

    def describe(self, text: str, hypotheses: Sequence[Hypothesis]) -> dict[str, Any]:
        """Return the outputs as a JSON object, with the pose after each action."""
        described = super().describe(text, hypotheses)
        if not text.strip():
            return described
        walk = parse_navigation_input(text, where="the input")
        route = walk.world.follow(walk.start, hypotheses[0].text.split())
        return {**described, "end": route[-1], "route": route}

    def view(self, source: str, target: str | None, *, decoding: Decoding | None, title: str) -> View:
        """Display the attention of each action, labelled with its position and direction, and the route."""
        view = super().view(source, target, decoding=decoding, title=title)
        walk = parse_navigation_input(source, where="the input")
        route = walk.world.follow(walk.start, view.output.split())
        poses = [f"{pose.x},{pose.y} {ARROWS[pose.direction]} " for pose in route]
        names = [
            f"{pose}{name.removeprefix(SPACE)}"
            for pose, name in zip_longest(poses, view.labels["target"], fillvalue="")
        ]
        maps = [replace(one, labels={**one.labels, "target": names}) for one in view.maps]
        floors = {ends: way.floor for ends, way in walk.world.edges.items()}
        return replace(
            view, maps=maps, labels={**view.labels, "target": names}, route=Route(walk.world.items, floors, route)
        )


Walker = partial(Predictor, parts=PredictorParts(WalkCodec, SearchDecoder, RoutePresenter))
