"""Traced searches: tracing does not change the outputs, and the tree contains the steps of the search."""

import threading
from typing import Any

import pytest
import torch

from saccade.config.schema import Decoding
from saccade.data.tokenization.tokenizers import END, START, UNKNOWN
from saccade.predict.search import trace as steps
from saccade.predict.search.beam import beam_search
from saccade.predict.search.greedy import choose_best, decode_rows
from saccade.predict.search.trace import MAX_LIKELY_TOKENS, MAX_PRUNED_CANDIDATES, SearchTree, trace_search

from .conftest import LETTERS, PAD, V

GREEDY, BEAM = Decoding(beam=1, min_length=3), Decoding(beam=4, n_best=2, min_length=3)
SAMPLE = Decoding(sample=True, seed=3, min_length=3)


def never(allowed: torch.Tensor, written: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    allowed = allowed.clone()
    allowed[:, [PAD, START, UNKNOWN]] = False
    return allowed


def most(limit: int) -> Any:
    def rule(allowed: torch.Tensor, written: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if written.shape[1] <= limit:
            return allowed
        return torch.arange(V)[None] == END

    return rule


def search(toy: Any, width: int, *, limit: int = 6) -> list[Any]:
    writer, rules = toy(seed=5), [never, most(limit)]
    if width == 1:
        return decode_rows(
            writer, writer.start(1), sentence_ids=torch.zeros(1, dtype=torch.long), choose=choose_best, rules=rules
        )[0]
    return beam_search(writer, writer.start(1), limits=torch.tensor([limit]), width=width, rules=rules)[0]


@pytest.mark.parametrize("width", [1, 2, 3])
def test_tracing_changes_nothing(toy: Any, width: int) -> None:
    alone = search(toy, width)
    with trace_search():
        heard = search(toy, width)
    assert heard == alone


@pytest.mark.parametrize("width", [1, 3])
def test_the_best_output_is_a_path_in_the_tree(toy: Any, width: int) -> None:
    with trace_search() as tree:
        best = search(toy, width)[0]
    at, scores = 0, []
    for step, token in zip(tree.steps, [*best.ids, END], strict=False):
        [found] = [item for item in step if item.parent == at and item.token == token]
        assert found.kept
        at = found.id
        scores.append(found.score)
    assert len(scores) == len(best.ids) + 1
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] == pytest.approx(best.log_prob)


def test_scores_are_log_probabilities_of_all_tokens_so_far(toy: Any) -> None:
    with trace_search() as tree:
        search(toy, 3)
    items = {item.id: item for step in tree.steps for item in step}
    checked = 0
    for item in items.values():
        ids, at = list[int](), item
        while at.parent:
            ids, at = [at.token, *ids], items[at.parent]
        ids = [at.token, *ids]
        if ids[-1] == END:
            assert item.score == pytest.approx(toy(seed=5).replay(ids[:-1], 0)[0], abs=1e-5)
            checked += 1
    assert checked > 2


def test_kept_candidates_are_the_best_and_some_pruned_ones_are_recorded(toy: Any) -> None:
    with trace_search() as tree:
        search(toy, 2)
    assert sum(item.kept for item in tree.steps[0]) == 2
    for step in tree.steps:
        assert [item.score for item in step] == sorted((item.score for item in step), reverse=True)
        assert [item.kept for item in step] == sorted((item.kept for item in step), reverse=True)
        assert sum(not item.kept for item in step) <= MAX_PRUNED_CANDIDATES
        assert all(item.token in (*LETTERS, END) for item in step)  # what rules forbid was no candidate
    numbers = [item.id for step in tree.steps for item in step]
    assert numbers == list(range(1, len(numbers) + 1))


def test_traces_belong_to_their_thread(toy: Any) -> None:
    with trace_search() as tree:
        thread = threading.Thread(target=search, args=(toy, 2))
        thread.start()
        thread.join()
    assert tree.steps == []


def test_tracing_ends_after_an_error(toy: Any) -> None:
    with pytest.raises(RuntimeError), trace_search():
        raise RuntimeError
    assert not steps.is_tracing()
    search(toy, 2)


def test_sampling_is_traced_too(toy: Any) -> None:
    tree, scores = SearchTree(), torch.tensor([[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -torch.inf]])
    tree.add(torch.tensor([[START]]), scores, torch.tensor([0]), torch.tensor([5]))
    assert [(item.token, item.kept) for item in tree.steps[0]] == [
        (0, False), (1, False), (2, False), (3, False), (4, False), (5, True)
    ]  # fmt: skip


# ---- through a predictor


@pytest.mark.parametrize("decoding", [GREEDY, BEAM, SAMPLE])
def test_a_view_has_the_output_of_predict(make_predictor: Any, decoding: Decoding) -> None:
    predictor = make_predictor(seed=3)
    view = predictor.view("abc de", decoding=decoding)
    [[best, *_]] = predictor.candidates(["abc de"], decoding=decoding)
    assert view.output == best.text
    assert [step["token"] for step in view.steps] == predictor.tokenizers.target.convert_ids_to_tokens([*best.ids, END])
    assert sum(step["log_prob"] for step in view.steps) == pytest.approx(best.log_prob, abs=1e-4)


def test_each_step_has_likely_tokens_and_the_beam(make_predictor: Any) -> None:
    predictor = make_predictor(seed=3)
    view = predictor.view("abc de", decoding=BEAM)
    kept = {0}
    for step in view.steps:
        probs = [item["prob"] for item in step["next"]]
        assert len(probs) == MAX_LIKELY_TOKENS and probs == sorted(probs, reverse=True) and sum(probs) <= 1 + 1e-5
        assert step["token"] in [item["token"] for item in step["beam"] if item["kept"]]
        assert {item["parent"] for item in step["beam"]} <= kept
        kept |= {item["id"] for item in step["beam"] if item["kept"]}


def test_a_given_target_has_probabilities_but_no_search(make_predictor: Any) -> None:
    predictor = make_predictor(seed=3)
    view = predictor.view("abc", "fg")
    assert sum(step["log_prob"] for step in view.steps) == pytest.approx(predictor.score([("abc", "fg")])[0], abs=1e-4)
    assert all(step["beam"] == [] for step in view.steps)


def test_alignment_of_a_step_is_its_row_of_the_map(make_predictor: Any) -> None:
    """Step i has the weights of row i of the last layer, averaged over heads."""
    predictor = make_predictor(seed=3)
    [[best, _]] = predictor.candidates(["abc de"], decoding=BEAM, align=True)
    view = predictor.view("abc de", decoding=BEAM)
    shown = torch.from_numpy(view.maps[-1].weights).mean(0)[:-1]
    torch.testing.assert_close(shown, torch.tensor(best.alignment), atol=1e-5, rtol=1e-4)


def test_other_engines_leave_a_traced_search_to_the_plain_one(make_predictor: Any) -> None:
    predictor = make_predictor(seed=3)
    predictor.loaded.translator = object()  # would fail if it were asked
    assert predictor.view("abc de").steps
