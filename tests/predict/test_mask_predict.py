"""Mask-predict: lengths, passes and masks by hand, the predictor, and graphs."""

import pytest
import torch

from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, Tokens, pad
from saccade.data.tokenization.tokenizers import END, PAD
from saccade.errors import SaccadeError
from saccade.kernels import failures
from saccade.layers.attention.positions import Axial
from saccade.layers.memory import Memory
from saccade.model.writers.fill import MASK, LengthPrediction
from saccade.predict import decode as decoding_of
from saccade.predict.decode import decode
from saccade.predict.engines import mask_predict_graphs
from saccade.predict.engines.mask_predict_graphs import MaskPredictGraphs
from saccade.predict.engines.plain import MaskPredict
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.search import mask_predict
from saccade.predict.search.likelihood import compute_length_log_probs, compute_token_log_probs
from saccade.predict.search.mask_predict import MaskPredictParams
from saccade.predict.search.request import Request

STACK = {"layers": 2, "dim": 22, "heads": 11, "ff": 13, "norm": "pre"}
TEXTS = ["abc", "gfedcba", "a b", "c", "fed cab gag"]


@pytest.fixture
def make_filler(make_predictor):
    """Factory of non-autoregressive predictors with random weights."""

    def make(**writer):
        part = {"kind": "fill", "stack": STACK, "tie": "none", "max_length_difference": 5, **writer}
        return make_predictor(writer=part, objectives=[{"kind": "fill"}])

    return make


def length_table(*rows, shortest):
    return LengthPrediction(torch.tensor(rows).log(), torch.tensor(shortest))


# ---- lengths


def test_the_most_probable_lengths_are_tried():
    lengths = length_table([0.1, 0.2, 0.4, 0.3], [0.7, 0.1, 0.15, 0.05], shortest=[2, 5])
    selected, log_probs, valid = mask_predict.select_lengths(lengths, torch.tensor([9, 9]), MaskPredictParams(1, 2, 0))
    assert selected.tolist() == [[4, 5], [5, 7]]
    torch.testing.assert_close(log_probs.exp(), torch.tensor([[0.4, 0.3], [0.7, 0.15]]))
    assert valid.all()


def test_lengths_that_are_not_allowed_do_not_count():
    """At least 2 tokens and END, at most 3: lengths 3 and 4 of 2 to 5."""
    lengths = length_table([0.1, 0.2, 0.3, 0.4], shortest=[2])
    selected, _, valid = mask_predict.select_lengths(lengths, torch.tensor([3]), MaskPredictParams(1, 3, 2))
    assert selected[0, :2].tolist() == [4, 3] and valid.tolist() == [[True, True, False]]


@pytest.mark.parametrize(("limit", "least", "length"), [(1, 0, 2), (20, 12, 13)])
def test_without_an_allowed_length_the_nearest_is_used(limit, least, length):
    lengths = length_table([0.1, 0.2, 0.3, 0.4], shortest=[5])
    selected, _, valid = mask_predict.select_lengths(lengths, torch.tensor([limit]), MaskPredictParams(1, 2, least))
    assert selected[0, 0] == length and valid.tolist() == [[True, False]]


def test_no_more_lengths_than_there_are():
    selected, _, _ = mask_predict.select_lengths(
        length_table([0.4, 0.6], shortest=[2]), torch.tensor([9]), MaskPredictParams(1, 5, 0)
    )
    assert selected.tolist() == [[3, 2]]


# ---- passes


class Scripted:
    """A writer with given confidences per position and pass; records every canvas."""

    def __init__(self, *passes):
        self.passes, self.seen = passes, []

    def build_canvas_decoder(self, memory, mask, shape):
        def decode(canvas):
            confidence = torch.tensor(self.passes[len(self.seen)])
            self.seen.append(canvas[0].tolist())
            logits = torch.full((*canvas.shape, 10), -torch.inf)
            logits[..., 4 + len(self.seen)] = confidence.log()
            logits[..., 3] = (1 - confidence).log()  # more probable than the token at some positions, but special
            return logits

        return decode


NO_MEMORY = Memory(torch.zeros(1, 1, 1), torch.ones(1, 1, dtype=torch.bool))


def test_each_pass_predicts_the_least_confident_tokens_again():
    """Four tokens in four passes: all, then the 3, 2 and 1 least confident; others keep their probability."""
    writer = Scripted(
        [0.9, 0.1, 0.2, 0.3, 0.5], [0.5, 0.15, 0.6, 0.7, 0.5], [0.5, 0.8, 0.4, 0.5, 0.5], [0.5, 0.5, 0.95, 0.5, 0.5]
    )
    canvas, log_probs = mask_predict.fill_canvases(writer, NO_MEMORY, torch.tensor([5]), 5, MaskPredictParams(4, 1, 0))
    assert writer.seen == [
        [MASK, MASK, MASK, MASK, END],
        [5, MASK, MASK, MASK, END],
        [5, MASK, MASK, 6, END],
        [5, 7, MASK, 6, END],
    ]
    assert canvas.tolist() == [[5, 7, 8, 6, END]]
    torch.testing.assert_close(log_probs.exp(), torch.tensor([[0.9, 0.8, 0.95, 0.7, 1.0]]))


def test_positions_after_end_stay_padding():
    writer = Scripted(*[[0.5, 0.4, 0.3, 0.2, 0.1, 0.1]] * 3)
    canvas, log_probs = mask_predict.fill_canvases(writer, NO_MEMORY, torch.tensor([3]), 6, MaskPredictParams(3, 1, 0))
    assert canvas.tolist() == [[5, 6, END, PAD, PAD, PAD]]
    assert log_probs[0, 2:].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("iterations", "words", "hidden"), [(1, 5, [5]), (2, 5, [5, 2]), (3, 7, [7, 4, 2]), (5, 2, [2, 1, 1, 0, 0])]
)
def test_the_number_of_masked_tokens_falls_linearly(iterations, words, hidden):
    writer = Scripted(*[[0.5] * (words + 1)] * iterations)
    mask_predict.fill_canvases(
        writer, NO_MEMORY, torch.tensor([words + 1]), words + 1, MaskPredictParams(iterations, 1, 0)
    )
    assert [canvas.count(MASK) for canvas in writer.seen] == hidden


def test_least_confident_positions_by_hand():
    log_probs = torch.tensor([[-1.0, -3.0, -2.0, -9.0], [-1.0, -1.0, -1.0, -1.0]])
    chosen = mask_predict.find_least_confident(log_probs, torch.tensor([3, 4]), torch.tensor([2, 1]))
    assert chosen.tolist() == [[False, True, True, False], [True, False, False, False]]


def test_special_tokens_are_never_output():
    logits = torch.zeros(1, 1, 7)
    logits[0, 0, :4], logits[0, 0, 5] = 9.0, 1.0
    values, tokens = mask_predict.select_best_tokens(logits, mask_predict.FIRST_TEXT_TOKEN)
    assert tokens.tolist() == [[5]]
    torch.testing.assert_close(values, logits.log_softmax(-1)[..., 5])


def test_unknown_words_are_output_if_they_are_replaced_afterwards():
    logits = torch.zeros(1, 1, 7)
    logits[0, 0, :4] = 9.0
    assert mask_predict.select_best_tokens(
        logits, MaskPredictParams.from_decoding(Decoding(replace_unknown=True)).first_token
    )[1].tolist() == [[3]]


def test_equal_neighbours_are_collapsed_on_request():
    row = [7, 7, 8, 8, 8, 7, END, PAD, 7.0, -2.1, 1.0]
    attention = [[float(i)] for i in range(8)]
    assert mask_predict.to_hypothesis(row, attention, collapse=False).ids == [7, 7, 8, 8, 8, 7]
    found = mask_predict.to_hypothesis(row, attention, collapse=True)
    assert (found.ids, found.alignment) == ([7, 8, 7], [[0.0], [2.0], [5.0]])
    assert (found.log_prob, found.score) == (-2.1, pytest.approx(-0.3))


# ---- the predictor


@pytest.mark.parametrize(
    "decoding", [{}, {"iterations": 3}, {"length_candidates": 4, "iterations": 2, "n_best": 3, "beam": 3}]
)
def test_outputs_do_not_depend_on_the_batch(make_filler, decoding):
    predictor, settings = make_filler(), Decoding(**decoding)
    together = predictor.candidates(TEXTS, decoding=settings)
    for text, expected in zip(TEXTS, together, strict=True):
        [alone] = predictor.candidates([text], decoding=settings)
        assert [item.ids for item in alone] == [item.ids for item in expected]
        assert [item.score for item in alone] == pytest.approx([item.score for item in expected], abs=1e-4)
        assert alone == sorted(alone, key=lambda item: -item.score)


def test_n_best_outputs_have_different_lengths(make_filler):
    found = make_filler().candidates(TEXTS, decoding=Decoding(n_best=3))
    assert all(len({len(item.ids) for item in outputs}) == 3 for outputs in found)


def test_score_is_the_log_probability_of_a_single_pass(make_filler):
    predictor = make_filler()
    found = [outputs[0] for outputs in predictor.candidates(TEXTS, decoding=Decoding(iterations=1))]
    scores = predictor.score([(text, item.text) for text, item in zip(TEXTS, found, strict=True)])
    assert scores == pytest.approx([item.log_prob for item in found], abs=1e-4)
    assert [item.score for item in found] == pytest.approx(
        [item.log_prob / (len(item.ids) + 1) for item in found], abs=1e-6
    )


def test_output_lengths_are_within_the_limits(make_filler):
    predictor = make_filler()
    for least, most in ((0, 3), (4, 6), (15, 15)):
        found = predictor.candidates(TEXTS, decoding=Decoding(length_candidates=3, min_length=least, max_length=most))
        assert all(least <= len(outputs[0].ids) <= most for outputs in found)


def test_alignment_has_a_row_for_each_token(make_filler):
    found = make_filler().candidates(TEXTS, decoding=Decoding(length_candidates=2), align=True)
    for text, [item] in zip(TEXTS, found, strict=True):
        assert len(item.alignment) == len(item.ids)
        assert all(sum(row) == pytest.approx(1, abs=1e-4) and len(row) == len(text) + 1 for row in item.alignment)


def test_attention_of_mask_predict_can_be_displayed(make_filler):
    seen = make_filler().attention("abc", "gfed")
    assert seen.target_labels == seen.seen_labels == ["g", "f", "e", "d", "<end>"]
    assert {weights.shape for address, weights in seen.maps.items() if "cross" in address} == {(11, 5, 4)}
    own = seen.maps["writer.stack.blocks.0.self"]
    assert own.shape == (11, 5, 5) and (own[:, 0, 4] > 0).all()  # attention is not causal


def test_packed_weights_give_the_same_outputs(make_run, make_filler):
    part = {"kind": "fill", "stack": STACK, "tie": "none", "max_length_difference": 5}
    run = make_run("x", writer=part, objectives=[{"kind": "fill"}])
    plain, decoding = make_filler(), Decoding(iterations=2)
    assert Predictor.load(run).predict(TEXTS, decoding=decoding) == plain.predict(TEXTS, decoding=decoding)
    for precision in ("int8", "bf16"):
        assert len(Predictor.load(run, precision=precision).predict(TEXTS, decoding=decoding)) == len(TEXTS)
    with pytest.raises(SaccadeError, match="load it alone"):
        Predictor.load([run, run])
    with pytest.raises(SaccadeError, match=r"CTranslate2 cannot express writer.kind = 'fill'; use engine torch"):
        Predictor.load(run, engine="ctranslate2")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"sample": True}, "does not support sample, got sample = True"),
        ({"no_repeat_ngram": 2}, "does not support no_repeat_ngram, got no_repeat_ngram = 2"),
        ({"coverage_penalty": 0.2}, "does not support coverage_penalty, got coverage_penalty = 0.2"),
        (
            {"prefix": "a"},
            "does not support prefix, got prefix = 'a'; leave it out, or take iterations and length_candidates",
        ),
    ],
)
def test_autoregressive_options_are_refused(make_filler, setting, said):
    with pytest.raises(SaccadeError, match=said):
        make_filler().predict(TEXTS, decoding=Decoding(**setting))


@pytest.mark.parametrize("setting", [{"iterations": 2}, {"length_candidates": 2}, {"collapse": True}])
def test_mask_predict_options_are_refused_by_other_writers(make_predictor, setting):
    [(name, value)] = setting.items()
    with pytest.raises(SaccadeError, match=rf"does not support {name}, got {name} = {value}; leave it out"):
        make_predictor().predict(TEXTS, decoding=Decoding(**setting))


def test_nan_weights_are_reported(make_filler):
    predictor = make_filler()
    with torch.no_grad():
        predictor.model.writer.output.weight.fill_(torch.nan)
    with pytest.raises(SaccadeError, match="no finite probabilities for line 1"):
        predictor.predict(["abc"], decoding=Decoding(min_length=2))


def test_a_writer_without_cross_attention_cannot_be_aligned():
    writer = torch.nn.Identity()
    writer.forward = lambda canvas, mask, memory: canvas
    with pytest.raises(SaccadeError, match="does not attend to what it reads"):
        mask_predict.compute_cross_attention(writer, NO_MEMORY, torch.zeros(1, 2, dtype=torch.long), None)


# ---- graphs


def sources(*lengths):
    generator = torch.Generator().manual_seed(sum(lengths))
    return pad([[*torch.randint(4, 12, (n - 1,), generator=generator).tolist(), END] for n in lengths])


@pytest.mark.parametrize(
    "params", [MaskPredictParams(1, 1, 0), MaskPredictParams(4, 3, 0), MaskPredictParams(2, 2, 25)]
)
def test_static_buffers_give_what_a_plain_pass_gives(make_filler, params):
    model, cache = make_filler().model.eval(), mask_predict_graphs.MaskPredictGraphCache(())
    decoding = Decoding(n_best=params.lengths, beam=9)
    for lengths in ((5, 9, 2), (7,), (3, 8, 6), (17,), (16, 16, 16, 16)):
        source, limits = sources(*lengths), [max(2 * n, params.min_length) for n in lengths]
        with torch.no_grad():
            canvases = cache.run(model, source, limits, params)
            plain, _ = mask_predict.decode_with_alignment(model, source, limits=limits, params=params, align=False)
        got, expected = (
            mask_predict.collect_hypotheses(part, None, sentences=len(lengths), decoding=decoding)
            for part in (canvases, plain)
        )
        assert [[item.ids for item in outputs] for outputs in got] == [
            [item.ids for item in outputs] for outputs in expected
        ]
        for mine, theirs in zip(got, expected, strict=True):
            assert [item.score for item in mine] == pytest.approx([item.score for item in theirs], abs=1e-4)
    assert {key[:2] for key in cache.buffers} == {(4, 16), (1, 16), (1, 32)}


def test_a_pass_does_not_synchronize_with_the_device(make_filler):
    """Tensors on the meta device have no values that could be read."""
    model = make_filler().model.eval().to("meta")
    source = Tokens(*(torch.zeros(3, 16, dtype=kind, device="meta") for kind in (torch.long, torch.bool)))
    with torch.no_grad():
        canvases = mask_predict.run_mask_predict(
            model, source, torch.zeros(3, dtype=torch.long, device="meta"), MaskPredictParams(4, 2, 0), 21
        )
    assert canvases.shape == (6, 21 + mask_predict.N_SUMMARY_COLUMNS)


def test_large_batches_get_no_graph(make_filler, monkeypatch):
    monkeypatch.setattr(mask_predict_graphs, "MAX_CANVAS_POSITIONS", 2 * 3 * 21)
    model, cache = make_filler().model.eval(), mask_predict_graphs.MaskPredictGraphCache(())
    with torch.no_grad():
        for lengths, fits in (((4, 5), True), ((4, 5, 6), False)):
            for seen in (False, True):
                assert bool(cache.explain_unsupported(model, sources(*lengths), [9], MaskPredictParams(1, 3, 0))) != (
                    fits and seen
                )


@pytest.mark.parametrize(("length", "fits"), [(15, False), (16, False), (21, True)])
def test_buffers_are_not_longer_than_learned_positions(make_predictor, length, fits):
    """A source of at most 16 tokens, and five more positions for its output."""
    known = {"kind": "learned", "length": length}
    part = {"kind": "fill", "stack": STACK, "tie": "none", "max_length_difference": 5, "positions": known}
    sections = {"writer": part, "objectives": [{"kind": "fill"}], "data": {"max_length": 15}}
    model = make_predictor(**sections, reader={"stack": STACK, "positions": known}).model
    assert mask_predict_graphs.has_positions(model, 16, 21) == fits


def test_the_cache_of_graphs_is_limited(make_filler, monkeypatch):
    monkeypatch.setattr(mask_predict_graphs, "MAX_CACHED_GRAPHS", 2)
    model, cache = make_filler().model.eval(), mask_predict_graphs.MaskPredictGraphCache(())
    with torch.no_grad():
        for least in (0, 1, 2, 1):
            cache.run(model, sources(4), [9], MaskPredictParams(1, 1, least))
    assert [key[2].min_length for key in cache.buffers] == [2, 1]


def test_the_cache_is_renewed_when_weights_have_moved(make_filler):
    model = make_filler().model
    first = mask_predict_graphs.get_graph_cache(model)
    assert mask_predict_graphs.get_graph_cache(model) is first
    model.double()
    assert mask_predict_graphs.get_graph_cache(model) is not first


def test_a_cpu_has_no_graphs(make_filler):
    support = MaskPredictGraphs().supports(make_filler().model, Request([9], Decoding(), Batch({"source": sources(4)})))
    assert support.reason == "the batch is on cpu, not on cuda"


def test_buffers_longer_than_axial_positions_have_no_graph(make_filler):
    """On a GPU, a position beyond the table would end the process."""
    predictor = make_filler()
    predictor.model.writer.embedding.positions = Axial(predictor.model.writer.stack.dim, shape=(2, 8), row_dim=2)
    assert predictor.model.writer.embedding.max_length == 16
    request = Request([9], Decoding(), Batch({"source": sources(14)}))
    for _ in range(2):
        reason = MaskPredictGraphs("cpu").supports(predictor.model, request).reason
        assert reason == "the table of learned positions is shorter than the buffers"


def test_a_given_target_may_contain_end(make_filler):
    """Only its last token has the log-probability of the length."""
    model = make_filler().model.eval()
    batch = Batch({"source": sources(4), "target": pad([[5, END, 6, END]])})
    with torch.no_grad():
        found = compute_token_log_probs(model, batch)
        length = compute_length_log_probs(model.writer.predict_lengths(model.read(batch)), torch.tensor([4]))
    assert found[0, 3] == length and found[0, 1] != length


def test_a_failed_capture_falls_back_to_the_plain_engine(make_filler, monkeypatch):
    def broken(*arguments, **settings):
        raise RuntimeError("no such kernel")

    model, request = make_filler().model.eval(), Request([9, 9], Decoding(), Batch({"source": sources(5, 3)}))
    engines = (MaskPredictGraphs("cpu"), MaskPredict())
    monkeypatch.setattr(mask_predict_graphs.MaskPredictGraphCache, "run", broken)
    with torch.no_grad():
        first = decode(model, request, engines=engines)
        assert first.decision.declined == {"cuda-graphs": "a batch of this shape occurs for the first time"}
        with pytest.raises(RuntimeError, match="no such kernel"):  # as tests are strict
            decode(model, request, engines=engines)
        monkeypatch.setenv(failures.STRICT, "0")
        with pytest.warns(RuntimeWarning, match="without CUDA graphs, which failed: no such kernel"):
            found = decode(model, request, engines=engines)
        assert found.hypotheses == first.hypotheses and found.decision.engine == "plain"
        again = decode(model, request, engines=engines)
    assert again.decision.declined == {"cuda-graphs": "it failed with this model before"}


@pytest.mark.cuda
@pytest.mark.parametrize("settings", [{}, {"iterations": 4, "length_candidates": 3}])
def test_graphs_give_what_a_plain_pass_gives(make_filler, settings):
    predictor, decoding = make_filler(), Decoding(**settings)
    expected = predictor.predict(TEXTS, decoding=decoding)
    predictor.model.to("cuda")
    for _ in range(3):  # plainly, captured, replayed
        assert [predictor.predict([text], decoding=decoding)[0] for text in TEXTS] == expected
        assert predictor.predict(TEXTS, decoding=decoding) == expected
    assert mask_predict_graphs.get_graph_cache(predictor.model).buffers


def test_a_shape_gets_a_graph_the_second_time(make_filler, monkeypatch):
    """The code path of a GPU, with plain calls in place of graphs."""
    predictor, decoding = make_filler(), Decoding(iterations=2, length_candidates=2)
    expected = predictor.predict(TEXTS, decoding=decoding)
    monkeypatch.setattr(decoding_of, "ENGINES", (MaskPredictGraphs("cpu"), MaskPredict()))
    for _ in range(2):
        assert predictor.predict(TEXTS, decoding=decoding) == expected
    assert len(mask_predict_graphs.get_graph_cache(predictor.model).buffers) == 1
