"""Success rate of followed instructions: actions are executed on the map, and their end poses compared."""

from collections.abc import Sequence

from saccade.config.metric import Score
from saccade.config.schema import Corpus, Decoding
from saccade.data.sources.pairs import limit_embedded_examples
from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor
from saccade.score.evaluate import Evaluation, predict_timed
from saccade.score.metrics.accuracy import exact_match
from saccade_worlds.navigation.maps import Pose
from saccade_worlds.navigation.routes import parse_navigation_input, read_routes

ROUTE_METRICS = ("success", "place", "accuracy")


def read_route_pairs(corpora: Sequence[Corpus], *, synthetic_count: int | None = None) -> list[tuple[str, str]]:
    """Return each route as a line of JSON and its actions; `synthetic_count` as in `EvaluationOptions`."""
    routes = (route for corpus in limit_embedded_examples(corpora, synthetic_count) for route in read_routes(corpus))
    return [(line, actions) for route in routes for _, line, actions in route.iter_rows(augment=False, mirror=False)]


def find_end_pose(source: str, actions: str) -> Pose:
    """Return the pose after executing the actions from the start given by a line of JSON."""
    walk = parse_navigation_input(source, where="the input")
    return walk.world.follow(walk.start, actions.split())[-1]


def list_end_poses(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the end pose of each pair, as text."""
    return [str(find_end_pose(source, actions)) for source, actions in pairs]


def route_scores(sources: Sequence[str], outputs: Sequence[str], references: Sequence[str]) -> dict[str, Score]:
    """Score how many routes end in the reference's pose, at its position, or have exactly its actions."""
    if not sources:
        raise SaccadeError("there is nothing to evaluate: no routes were given; is the file empty?")
    ends = [
        (find_end_pose(source, ours), find_end_pose(source, theirs))
        for source, ours, theirs in zip(sources, outputs, references, strict=True)
    ]
    success = 100 * sum(ours == theirs for ours, theirs in ends) / len(ends)
    place = 100 * sum(ours.place == theirs.place for ours, theirs in ends) / len(ends)
    return {
        "success": Score(success, "share of routes that end at the right place, looking the right way"),
        "place": Score(place, "share of routes that end at the right place"),
        "accuracy": exact_match(outputs, references),
    }


def evaluate_routes(
    predictor: Predictor, pairs: Sequence[tuple[str, str]], *, decoding: Decoding | None = None
) -> Evaluation:
    """Predict the actions of every instruction and score where they end."""
    sources, references = [source for source, _ in pairs], [actions for _, actions in pairs]
    timed = predict_timed(predictor, sources, decoding)
    return Evaluation(route_scores(sources, timed[0], references), len(pairs), *timed, counted="routes")
