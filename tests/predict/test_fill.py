"""Filling at once: lengths, passes and their masks by hand; what the predictor makes of them."""

import pytest
import torch

from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, Tokens, pad
from saccade.data.tokenization.tokenizers import END, PAD
from saccade.errors import SaccadeError
from saccade.kernels import failures
from saccade.layers.memory import Memory
from saccade.model.writers.fill import MASK, Lengths
from saccade.predict import decode as decoding_of
from saccade.predict.decode import decode
from saccade.predict.engines import fill_graphs
from saccade.predict.engines.fill_graphs import MaskPredictGraphs
from saccade.predict.engines.plain import MaskPredict
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.search import fill
from saccade.predict.search.fill import Wanted
from saccade.predict.search.request import Request

STACK = {"layers": 2, "dim": 22, "heads": 11, "ff": 13, "norm": "pre"}
TEXTS = ["abc", "gfedcba", "a b", "c", "fed cab gag"]


@pytest.fixture
def make_filler(make_predictor):
    """A predictor of random weights that fills."""

    def make(**writer):
        part = {"kind": "fill", "stack": STACK, "tie": "none", "reach": 5, **writer}
        return make_predictor(writer=part, objectives=[{"kind": "fill"}])

    return make


def length_table(*rows, shortest):
    return Lengths(torch.tensor(rows).log(), torch.tensor(shortest))


# ---- lengths


def test_the_likeliest_lengths_are_tried():
    lengths = length_table([0.1, 0.2, 0.4, 0.3], [0.7, 0.1, 0.15, 0.05], shortest=[2, 5])
    near, log_probs, counts = fill.likely_lengths(lengths, torch.tensor([9, 9]), Wanted(1, 2, 0))
    assert near.tolist() == [[4, 5], [5, 7]]
    torch.testing.assert_close(log_probs.exp(), torch.tensor([[0.4, 0.3], [0.7, 0.15]]))
    assert counts.all()


def test_lengths_that_are_not_allowed_do_not_count():
    """At least 2 tokens and END, at most 3: lengths 3 and 4 of 2 to 5."""
    lengths = length_table([0.1, 0.2, 0.3, 0.4], shortest=[2])
    near, _, counts = fill.likely_lengths(lengths, torch.tensor([3]), Wanted(1, 3, 2))
    assert near[0, :2].tolist() == [4, 3] and counts.tolist() == [[True, True, False]]


@pytest.mark.parametrize(("limit", "least", "length"), [(1, 0, 2), (20, 12, 13)])
def test_where_no_length_is_allowed_the_nearest_is_taken(limit, least, length):
    lengths = length_table([0.1, 0.2, 0.3, 0.4], shortest=[5])
    near, _, counts = fill.likely_lengths(lengths, torch.tensor([limit]), Wanted(1, 2, least))
    assert near[0, 0] == length and counts.tolist() == [[True, False]]


def test_no_more_lengths_than_there_are():
    near, _, _ = fill.likely_lengths(length_table([0.4, 0.6], shortest=[2]), torch.tensor([9]), Wanted(1, 5, 0))
    assert near.tolist() == [[3, 2]]


# ---- passes


class Scripted:
    """Is as sure of what it writes as it is told, place by place and pass by pass; remembers every canvas."""

    def __init__(self, *passes):
        self.passes, self.seen = passes, []

    def fill(self, memory, mask, shape):
        def over(canvas):
            sure = torch.tensor(self.passes[len(self.seen)])
            self.seen.append(canvas[0].tolist())
            logits = torch.full((*canvas.shape, 10), -torch.inf)
            logits[..., 4 + len(self.seen)] = sure.log()
            logits[..., 3] = (1 - sure).log()  # likelier than the token in some places, but no token
            return logits

        return over


NOWHERE = Memory(torch.zeros(1, 1, 1), torch.ones(1, 1, dtype=torch.bool))


def test_each_pass_writes_the_least_sure_tokens_again():
    """Four tokens in four passes: all, then the 3, 2 and 1 least sure; those that stay keep their probability."""
    writer = Scripted(
        [0.9, 0.1, 0.2, 0.3, 0.5], [0.5, 0.15, 0.6, 0.7, 0.5], [0.5, 0.8, 0.4, 0.5, 0.5], [0.5, 0.5, 0.95, 0.5, 0.5]
    )
    canvas, sure = fill.written(writer, NOWHERE, torch.tensor([5]), 5, Wanted(4, 1, 0))
    assert writer.seen == [
        [MASK, MASK, MASK, MASK, END],
        [5, MASK, MASK, MASK, END],
        [5, MASK, MASK, 6, END],
        [5, 7, MASK, 6, END],
    ]
    assert canvas.tolist() == [[5, 7, 8, 6, END]]
    torch.testing.assert_close(sure.exp(), torch.tensor([[0.9, 0.8, 0.95, 0.7, 1.0]]))


def test_places_behind_the_end_are_never_written():
    writer = Scripted(*[[0.5, 0.4, 0.3, 0.2, 0.1, 0.1]] * 3)
    canvas, sure = fill.written(writer, NOWHERE, torch.tensor([3]), 6, Wanted(3, 1, 0))
    assert canvas.tolist() == [[5, 6, END, PAD, PAD, PAD]]
    assert sure[0, 2:].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("iterations", "words", "hidden"), [(1, 5, [5]), (2, 5, [5, 2]), (3, 7, [7, 4, 2]), (5, 2, [2, 1, 1, 0, 0])]
)
def test_the_number_of_hidden_tokens_falls_evenly(iterations, words, hidden):
    writer = Scripted(*[[0.5] * (words + 1)] * iterations)
    fill.written(writer, NOWHERE, torch.tensor([words + 1]), words + 1, Wanted(iterations, 1, 0))
    assert [canvas.count(MASK) for canvas in writer.seen] == hidden


def test_least_sure_by_hand():
    sure = torch.tensor([[-1.0, -3.0, -2.0, -9.0], [-1.0, -1.0, -1.0, -1.0]])
    chosen = fill.least_sure(sure, torch.tensor([3, 4]), torch.tensor([2, 1]))
    assert chosen.tolist() == [[False, True, True, False], [True, False, False, False]]


def test_special_tokens_are_never_written():
    logits = torch.zeros(1, 1, 7)
    logits[0, 0, :4], logits[0, 0, 5] = 9.0, 1.0
    values, tokens = fill.likeliest(logits, fill.FIRST)
    assert tokens.tolist() == [[5]]
    torch.testing.assert_close(values, logits.log_softmax(-1)[..., 5])


def test_unknown_words_are_written_where_they_are_replaced_afterwards():
    logits = torch.zeros(1, 1, 7)
    logits[0, 0, :4] = 9.0
    assert fill.likeliest(logits, Wanted.of(Decoding(replace_unknown=True)).first)[1].tolist() == [[3]]


def test_equal_neighbours_become_one_where_asked():
    row = [7, 7, 8, 8, 8, 7, END, PAD, 7.0, -2.1, 1.0]
    looks = [[float(i)] for i in range(8)]
    assert fill.as_found(row, looks, collapse=False).ids == [7, 7, 8, 8, 8, 7]
    found = fill.as_found(row, looks, collapse=True)
    assert (found.ids, found.alignment) == ([7, 8, 7], [[0.0], [2.0], [5.0]])
    assert (found.log_prob, found.score) == (-2.1, pytest.approx(-0.3))


# ---- the predictor


@pytest.mark.parametrize("decoding", [{}, {"iterations": 3}, {"lengths": 4, "iterations": 2, "n_best": 3, "beam": 3}])
def test_a_text_alone_gets_what_it_gets_among_others(make_filler, decoding):
    predictor, settings = make_filler(), Decoding(**decoding)
    together = predictor.candidates(TEXTS, decoding=settings)
    for text, expected in zip(TEXTS, together, strict=True):
        [alone] = predictor.candidates([text], decoding=settings)
        assert [item.ids for item in alone] == [item.ids for item in expected]
        assert [item.score for item in alone] == pytest.approx([item.score for item in expected], abs=1e-4)
        assert alone == sorted(alone, key=lambda item: -item.score)


def test_n_best_are_outputs_of_so_many_lengths(make_filler):
    found = make_filler().candidates(TEXTS, decoding=Decoding(n_best=3))
    assert all(len({len(item.ids) for item in outputs}) == 3 for outputs in found)


def test_an_output_of_one_pass_is_as_likely_as_score_says(make_filler):
    predictor = make_filler()
    found = [outputs[0] for outputs in predictor.candidates(TEXTS, decoding=Decoding(iterations=1))]
    scores = predictor.score([(text, item.text) for text, item in zip(TEXTS, found, strict=True)])
    assert scores == pytest.approx([item.log_prob for item in found], abs=1e-4)
    assert [item.score for item in found] == pytest.approx(
        [item.log_prob / (len(item.ids) + 1) for item in found], abs=1e-6
    )


def test_lengths_are_within_what_is_asked_for(make_filler):
    predictor = make_filler()
    for least, most in ((0, 3), (4, 6), (15, 15)):
        found = predictor.candidates(TEXTS, decoding=Decoding(lengths=3, min_length=least, max_length=most))
        assert all(least <= len(outputs[0].ids) <= most for outputs in found)


def test_alignment_has_a_row_for_each_token(make_filler):
    found = make_filler().candidates(TEXTS, decoding=Decoding(lengths=2), align=True)
    for text, [item] in zip(TEXTS, found, strict=True):
        assert len(item.alignment) == len(item.ids)
        assert all(sum(row) == pytest.approx(1, abs=1e-4) and len(row) == len(text) + 1 for row in item.alignment)


def test_what_it_looks_at_can_be_seen(make_filler):
    seen = make_filler().attention("abc", "gfed")
    assert seen.target_labels == seen.seen_labels == ["g", "f", "e", "d", "<end>"]
    assert {weights.shape for address, weights in seen.maps.items() if "cross" in address} == {(11, 5, 4)}
    own = seen.maps["writer.stack.blocks.0.self"]
    assert own.shape == (11, 5, 5) and (own[:, 0, 4] > 0).all()  # the first place sees the last


def test_outputs_stay_the_same_with_weights_laid_out_for_a_cpu(make_run, make_filler):
    part = {"kind": "fill", "stack": STACK, "tie": "none", "reach": 5}
    run = make_run("x", writer=part, objectives=[{"kind": "fill"}])
    plain, decoding = make_filler(), Decoding(iterations=2)
    assert Predictor.load(run).predict(TEXTS, decoding=decoding) == plain.predict(TEXTS, decoding=decoding)
    for precision in ("int8", "bf16"):
        assert len(Predictor.load(run, precision=precision).predict(TEXTS, decoding=decoding)) == len(TEXTS)
    with pytest.raises(SaccadeError, match="give it alone"):
        Predictor.load([run, run])
    with pytest.raises(SaccadeError, match=r"CTranslate2 cannot express writer.kind = 'fill'; use engine torch"):
        Predictor.load(run, engine="ctranslate2")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"sample": True}, "knows no sample, got sample = True"),
        ({"no_repeat": 2}, "knows no no_repeat, got no_repeat = 2"),
        ({"coverage": 0.2}, "knows no coverage, got coverage = 0.2"),
        ({"prefix": "a"}, "knows no prefix, got prefix = 'a'; leave it out, or take iterations and lengths"),
    ],
)
def test_what_only_a_search_can_do_is_refused(make_filler, setting, said):
    with pytest.raises(SaccadeError, match=said):
        make_filler().predict(TEXTS, decoding=Decoding(**setting))


@pytest.mark.parametrize("setting", [{"iterations": 2}, {"lengths": 2}, {"collapse": True}])
def test_what_only_filling_can_do_is_refused(make_predictor, setting):
    [(name, value)] = setting.items()
    with pytest.raises(SaccadeError, match=rf"knows no {name}, got {name} = {value}; leave it out"):
        make_predictor().predict(TEXTS, decoding=Decoding(**setting))


def test_weights_that_are_no_numbers_are_told(make_filler):
    predictor = make_filler()
    with torch.no_grad():
        predictor.model.writer.output.weight.fill_(torch.nan)
    with pytest.raises(SaccadeError, match="no finite probabilities for line 1"):
        predictor.predict(["abc"], decoding=Decoding(min_length=2))


def test_a_writer_that_does_not_attend_cannot_be_aligned():
    writer = torch.nn.Identity()
    writer.forward = lambda canvas, mask, memory: canvas
    with pytest.raises(SaccadeError, match="does not attend to what it reads"):
        fill.looked(writer, NOWHERE, torch.zeros(1, 2, dtype=torch.long), None)


# ---- without the host


def sources(*lengths):
    generator = torch.Generator().manual_seed(sum(lengths))
    return pad([[*torch.randint(4, 12, (n - 1,), generator=generator).tolist(), END] for n in lengths])


@pytest.mark.parametrize("wanted", [Wanted(1, 1, 0), Wanted(4, 3, 0), Wanted(2, 2, 25)])
def test_rooms_give_what_a_plain_pass_gives(make_filler, wanted):
    model, rooms = make_filler().model.eval(), fill_graphs.Rooms(())
    decoding = Decoding(n_best=wanted.lengths, beam=9)
    for lengths in ((5, 9, 2), (7,), (3, 8, 6), (17,), (16, 16, 16, 16)):
        source, limits = sources(*lengths), [max(2 * n, wanted.least) for n in lengths]
        with torch.no_grad():
            made = rooms.run(model, source, limits, wanted)
            plain, _ = fill.decode_plainly(model, source, limits=limits, wanted=wanted, align=False)
        got, expected = (fill.outputs(part, None, sentences=len(lengths), decoding=decoding) for part in (made, plain))
        assert [[item.ids for item in outputs] for outputs in got] == [
            [item.ids for item in outputs] for outputs in expected
        ]
        for mine, theirs in zip(got, expected, strict=True):
            assert [item.score for item in mine] == pytest.approx([item.score for item in theirs], abs=1e-4)
    assert {key[:2] for key in rooms.rooms} == {(4, 16), (1, 16), (1, 32)}


def test_nothing_in_a_pass_asks_the_device(make_filler):
    """Tensors without numbers cannot be asked for any."""
    model = make_filler().model.eval().to("meta")
    source = Tokens(*(torch.zeros(3, 16, dtype=kind, device="meta") for kind in (torch.long, torch.bool)))
    with torch.no_grad():
        made = fill.filled(model, source, torch.zeros(3, dtype=torch.long, device="meta"), Wanted(4, 2, 0), 21)
    assert made.shape == (6, 21 + fill.NUMBERS)


def test_large_batches_get_no_room(make_filler, monkeypatch):
    monkeypatch.setattr(fill_graphs, "MOST", 2 * 3 * 21)
    model, rooms = make_filler().model.eval(), fill_graphs.Rooms(())
    with torch.no_grad():
        for lengths, fits in (((4, 5), True), ((4, 5, 6), False)):
            for met in (False, True):
                assert bool(rooms.explain(model, sources(*lengths), Wanted(1, 3, 0))) != (fits and met)


@pytest.mark.parametrize(("length", "fits"), [(15, False), (16, False), (21, True)])
def test_rooms_end_where_learned_positions_do(make_predictor, length, fits):
    """A source of at most 16 tokens, and five more places for its output."""
    known = {"kind": "learned", "length": length}
    part = {"kind": "fill", "stack": STACK, "tie": "none", "reach": 5, "positions": known}
    sections = {"writer": part, "objectives": [{"kind": "fill"}], "data": {"max_length": 15}}
    model = make_predictor(**sections, reader={"stack": STACK, "positions": known}).model
    assert fill_graphs.has_positions(model, 16, 21) == fits


def test_few_rooms_are_kept(make_filler, monkeypatch):
    monkeypatch.setattr(fill_graphs, "KEPT", 2)
    model, rooms = make_filler().model.eval(), fill_graphs.Rooms(())
    with torch.no_grad():
        for least in (0, 1, 2, 1):
            rooms.run(model, sources(4), [9], Wanted(1, 1, least))
    assert [key[2].least for key in rooms.rooms] == [2, 1]


def test_rooms_are_made_anew_when_weights_have_moved(make_filler):
    model = make_filler().model
    first = fill_graphs.rooms_of(model)
    assert fill_graphs.rooms_of(model) is first
    model.double()
    assert fill_graphs.rooms_of(model) is not first


def test_a_cpu_has_no_graphs(make_filler):
    support = MaskPredictGraphs().supports(make_filler().model, Request([9], Decoding(), Batch({"source": sources(4)})))
    assert support.reason == "the batch is on cpu, not on cuda"


def test_what_cannot_be_captured_is_filled_plainly(make_filler, monkeypatch):
    def broken(*arguments, **settings):
        raise RuntimeError("no such kernel")

    model, request = make_filler().model.eval(), Request([9, 9], Decoding(), Batch({"source": sources(5, 3)}))
    engines = (MaskPredictGraphs("cpu"), MaskPredict())
    monkeypatch.setattr(fill_graphs.Rooms, "run", broken)
    with torch.no_grad():
        first = decode(model, request, engines=engines)
        assert first.decision.declined == {"cuda-graphs": "a batch of this shape comes for the first time"}
        with pytest.raises(RuntimeError, match="no such kernel"):  # as tests are strict
            decode(model, request, engines=engines)
        monkeypatch.setenv(failures.STRICT, "0")
        with pytest.warns(RuntimeWarning, match="without CUDA graphs, which failed: no such kernel"):
            found = decode(model, request, engines=engines)
        assert found.found == first.found and found.decision.engine == "plain"
        again = decode(model, request, engines=engines)
    assert again.decision.declined == {"cuda-graphs": "it failed with this model before"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("settings", [{}, {"iterations": 4, "lengths": 3}])
def test_graphs_give_what_a_plain_pass_gives(make_filler, settings):
    predictor, decoding = make_filler(), Decoding(**settings)
    expected = predictor.predict(TEXTS, decoding=decoding)
    predictor.model.to("cuda")
    for _ in range(3):  # plainly, captured, replayed
        assert [predictor.predict([text], decoding=decoding)[0] for text in TEXTS] == expected
        assert predictor.predict(TEXTS, decoding=decoding) == expected
    assert fill_graphs.rooms_of(predictor.model).rooms


def test_the_second_time_a_shape_comes_it_gets_a_room(make_filler, monkeypatch):
    """The whole way of a GPU, with plain calls in the place of graphs."""
    predictor, decoding = make_filler(), Decoding(iterations=2, lengths=2)
    expected = predictor.predict(TEXTS, decoding=decoding)
    monkeypatch.setattr(decoding_of, "ENGINES", (MaskPredictGraphs("cpu"), MaskPredict()))
    for _ in range(2):
        assert predictor.predict(TEXTS, decoding=decoding) == expected
    assert len(fill_graphs.rooms_of(predictor.model).rooms) == 1
