"""How many instructions were followed: actions are carried out in their worlds, and where they end is compared."""

from collections.abc import Sequence

from saccade.config.schema import Corpus, Decoding
from saccade.data.sources.pairs import taken
from saccade.data.worlds.maps import Pose
from saccade.data.worlds.routes import parse_walk, read_routes
from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor
from saccade.score.accuracy import exact_match
from saccade.score.bleu import Score
from saccade.score.evaluate import Evaluation, timed_outputs

ROUTES = ("success", "place", "accuracy")


def route_pairs(corpora: Sequence[Corpus], *, made: int | None = None) -> list[tuple[str, str]]:
    """Each route as it is tested: a line of JSON, and the actions; `made` is how many of embedded data."""
    routes = (route for corpus in taken(corpora, made) for route in read_routes(corpus))
    return [(line, actions) for route in routes for _, line, actions in route.rows(varied=False, mirror=False)]


def end_of(source: str, actions: str) -> Pose:
    """Where actions lead that begin where a line of JSON says."""
    walk = parse_walk(source, where="the input")
    return walk.world.walked(walk.start, actions.split())[-1]


def ends_of(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """The same as texts, for many."""
    return [str(end_of(source, actions)) for source, actions in pairs]


def route_scores(sources: Sequence[str], outputs: Sequence[str], references: Sequence[str]) -> dict[str, Score]:
    """The share of routes that end as the reference does, at least at its place, or with the very same actions."""
    if not sources:
        raise SaccadeError("there is nothing to evaluate: no routes were given; is the file empty?")
    ends = [
        (end_of(source, ours), end_of(source, theirs))
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
    """Walks every route and looks where that ends."""
    sources, references = [source for source, _ in pairs], [actions for _, actions in pairs]
    made = timed_outputs(predictor, sources, decoding)
    return Evaluation(route_scores(sources, made[0], references), len(pairs), *made, counted="routes")
