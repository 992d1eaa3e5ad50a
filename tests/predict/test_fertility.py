"""Decoding by fertilities: candidates by hand, noisy parallel decoding by a teacher, scores, static buffers."""

import itertools

import pytest
import torch

from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizer import Tokenizer
from saccade.data.tokenization.tokenizers import END
from saccade.errors import SaccadeError
from saccade.layers.memory import Memory
from saccade.predict.engines import mask_predict_graphs
from saccade.predict.engines.mask_predict_graphs import MaskPredictGraphs
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.search import mask_predict
from saccade.predict.search.fertility import choose_fertilities, find_copies_of_length, make_noise, propose_copies
from saccade.predict.search.likelihood import compute_token_log_probs
from saccade.predict.search.mask_predict import MaskPredictParams
from saccade.predict.search.teacher import load_other_models

STACK = {"layers": 2, "dim": 22, "heads": 11, "ff": 13, "norm": "pre"}
TEXTS = ["abc", "gfedcba", "a b", "c", "fed cab gag"]


@pytest.fixture
def make_copier(make_predictor):
    """Factory of predictors with fertilities and random weights, which are sharp enough for different lengths."""

    def make(**writer):
        part = {"kind": "fertility", "stack": STACK, "max_fertility": 3, **writer}
        found = make_predictor(writer=part, objectives=[{"kind": "fertility"}])
        with torch.no_grad():
            found.model.writer.fertility.weight.mul_(4.0)
        return found

    return make


@pytest.fixture
def copier_run(make_run):
    part = {"kind": "fertility", "stack": STACK, "max_fertility": 3}
    return make_run("student", writer=part, objectives=[{"kind": "fertility"}])


class Given:
    """A writer with given fertility probabilities."""

    def __init__(self, *rows):
        self.probabilities = torch.tensor([rows])

    def predict_fertilities(self, memory):
        return self.probabilities.log()


MEMORY = Memory(torch.zeros(1, 4, 2), torch.ones(1, 4, dtype=torch.bool), tokens=torch.tensor([[5, 6, 7, END]]))
SOME = Given([0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.25, 0.45, 0.3], [0.0, 0.0, 1.0])


def propose(writer, *, limit=9, candidates=1, averages=False, **settings):
    return propose_copies(
        writer, MEMORY, torch.tensor([limit]), candidates=candidates, averages=averages, seed=1, **settings
    )


# ---- fertilities


def test_argmax_takes_the_most_probable_fertilities():
    copies = propose(SOME)
    assert copies.ids.tolist() == [[6, 6, 7, END]] and copies.lengths.tolist() == [4]
    assert copies.log_probs.exp().item() == pytest.approx(0.5 * 0.7 * 0.45)


def test_average_takes_the_expected_fertilities():
    """0.7, 1.6 and 1.05, rounded."""
    copies = propose(SOME, averages=True)
    assert copies.ids.tolist() == [[5, 6, 6, 7, END]]
    assert copies.log_probs.exp().item() == pytest.approx(0.3 * 0.7 * 0.45)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"limit": 2}, [6, 6, END]), ({"min_length": 5}, [6, 6, 7, 7, 7, END]), ({"limit": 0}, [END])],
)
def test_lengths_are_limited(settings, expected):
    assert propose(SOME, **settings).ids.tolist() == [expected]


def test_an_output_has_a_token():
    assert propose(Given(*[[1.0, 0.0]] * 4)).ids.tolist() == [[7, END]]


def test_sampled_fertilities_have_their_probabilities():
    """Of 4,000 samples at one position; positions are independent."""
    chosen = choose_fertilities(SOME.probabilities[:, :3].log(), candidates=4001, averages=False, seed=3)[0, 1:]
    for i, row in enumerate(SOME.probabilities[0, :3].tolist()):
        for value, probability in enumerate(row):
            assert (chosen[:, i] == value).float().mean().item() == pytest.approx(probability, abs=0.03)
    both = ((chosen[:, 0] == 0) & (chosen[:, 1] == 2)).float().mean().item()
    assert both == pytest.approx(0.5 * 0.7, abs=0.03)


def test_equal_candidates_count_once():
    valid = propose(SOME, candidates=40).valid
    samples = propose(SOME, candidates=40, width=9).ids.tolist()
    assert valid[0] and valid.sum() == len({tuple(row) for row in samples}) < 28


def test_candidates_that_do_not_count_are_not_scored_by_the_teacher():
    """Rows are tokens, length, log-probability and whether the candidate counts; the second one does not."""
    rows = torch.tensor([[5.0, END, 2.0, -4.0, 1.0], [5.0, END, 2.0, -1.0, 0.0], [6.0, END, 2.0, -3.0, 1.0]])
    seen = []
    found = mask_predict.collect_hypotheses(
        rows, None, sentences=1, decoding=Decoding(n_best=3), rescore=lambda groups: seen.extend(groups) or groups
    )
    assert [[item.ids for item in group] for group in seen] == [[[5], [6]]]
    assert [(item.ids, item.score) for item in found[0]] == [([6], -1.5), ([5], -2.0)]


@pytest.mark.parametrize("averages", [False, True])
def test_the_first_candidate_has_the_best_fertilities_and_the_others_are_sampled(averages):
    alone, several = propose(SOME, averages=averages), propose(SOME, averages=averages, candidates=7)
    width = alone.ids.shape[1]
    assert several.ids[0, :width].tolist() == alone.ids[0].tolist() and several.lengths[0] == alone.lengths[0]
    assert several.log_probs[0] == alone.log_probs[0]
    chosen = choose_fertilities(SOME.probabilities.log(), candidates=7, averages=averages, seed=1)[0]
    assert torch.equal(
        chosen[1:], choose_fertilities(SOME.probabilities.log(), candidates=7, averages=False, seed=1)[0, 1:]
    )
    assert len({tuple(row) for row in chosen[1:].tolist()}) > 1


def test_noise_depends_on_the_seed_and_not_on_the_length():
    short, long = make_noise(5, 3, 4, torch.device("cpu")), make_noise(5, 3, 9, torch.device("cpu"))
    assert torch.equal(short, long[:, :4]) and not torch.equal(short, make_noise(6, 3, 4, torch.device("cpu")))


def test_the_batch_does_not_change_an_output(make_copier):
    copier, decoding = make_copier(), Decoding(npd=5, n_best=3)
    together = copier.candidates(TEXTS, decoding=decoding)
    for text, expected in zip(TEXTS, together, strict=True):
        [alone] = copier.candidates([text], decoding=decoding)
        assert [item.text for item in alone] == [item.text for item in expected]
        assert [item.score for item in alone] == pytest.approx([item.score for item in expected], abs=1e-4)
    other = copier.candidates(TEXTS, decoding=decoding.model_copy(update={"seed": 7}))
    assert [[item.score for item in group] for group in other] != [[item.score for item in group] for group in together]


# ---- scores


def test_given_outputs_are_scored_with_their_best_fertilities(make_copier):
    """Compared with all fertilities that have the sum of the length."""
    model = make_copier().model.eval()
    source = pad([[5, 6, 7, END], [8, END]])
    batch = Batch({"source": source, "target": pad([[5, 6, 7, 8, 9, END], [6, 6, END]])})
    with torch.no_grad():
        memory = model.read(batch)
        ids, log_probs = find_copies_of_length(model.writer, memory, torch.tensor([5, 2]), 6)
        chances = model.writer.predict_fertilities(memory).log_softmax(-1)
        values = compute_token_log_probs(model, batch)
    for row, (words, count) in enumerate(((3, 5), (1, 2))):
        found = {}
        for fertilities in itertools.product(range(4), repeat=words):
            if sum(fertilities) == count:
                found[fertilities] = sum(chances[row, i, f].item() for i, f in enumerate(fertilities))
        best = max(found, key=lambda fertilities: found[fertilities])
        assert log_probs[row].item() == pytest.approx(found[best], abs=1e-4)
        copies = [source.ids[row, i].item() for i, f in enumerate(best) for _ in range(f)]
        assert ids[row].tolist() == [*copies, END, *[0] * (5 - count)]
        assert values[row, count].item() == pytest.approx(found[best], abs=1e-4)
        with torch.no_grad():
            alone = model.read(Batch({"source": pad([source.ids[row, : words + 1].tolist()])}))
            logits = model.writer.head(model.writer(torch.tensor([[*copies, END]]), None, alone))[0].log_softmax(-1)
        expected = [logits[t, batch["target"].ids[row, t]].item() for t in range(count)]
        assert values[row, :count].tolist() == pytest.approx(expected, abs=1e-4)


def test_outputs_of_argmax_have_the_score_that_was_found(make_copier):
    """Where no other fertilities with the same sum are more probable, which argmax guarantees."""
    copier = make_copier()
    for text, [item] in zip(TEXTS, copier.candidates(TEXTS), strict=True):
        if item.ids and len(item.ids) > 1:  # one token may be the minimum, not what the fertilities say
            assert copier.score([(text, item.text)])[0] == pytest.approx(item.log_prob, abs=1e-3)


# ---- noisy parallel decoding


def load_teacher_of(predictor, decoding):
    [_, teacher] = load_other_models(
        decoding, predictor.model, tokenizers=predictor.tokenizers, device="cpu", max_length=9,
        kinds=predictor.recipe.kinds,
    )  # fmt: skip
    return teacher


def score_by(teacher, pairs, alpha):
    """log P(Y | X) / ((5 + |Y|) / 6)^alpha of each pair, as the beam search of the teacher does."""
    counts = [len(teacher.tokenizers.target.encode(text)) for _, text in pairs]  # with END
    return [value / ((5 + n) / 6) ** alpha for value, n in zip(teacher.score(pairs), counts, strict=True)]


@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
def test_the_teacher_chooses_among_the_candidates(copier_run, make_run, alpha):
    teacher_run = make_run("teacher", seed=5)
    copier, teacher = Predictor.load(copier_run), Predictor.load(teacher_run)
    decoding = copier.recipe.predict.model_copy(update={"npd": 8, "length_penalty": alpha})
    every = copier.candidates(TEXTS, decoding=decoding.model_copy(update={"n_best": 8, "beam": 8}))
    chosen = copier.candidates(TEXTS, decoding=decoding.model_copy(update={"teacher": str(teacher_run)}))
    changed = 0
    for text, group, [best] in zip(TEXTS, every, chosen, strict=True):
        scores = score_by(teacher, [(text, item.text) for item in group], alpha)
        assert best.score == pytest.approx(max(scores), abs=1e-3)
        assert best.log_prob == pytest.approx(teacher.score([(text, best.text)])[0], abs=1e-3)
        assert best.text == group[scores.index(max(scores))].text
        assert max(scores) >= score_by(teacher, [(text, copier.predict([text])[0])], alpha)[0] - 1e-3  # argmax is one
        changed += best.text != group[0].text
    assert changed


def test_long_candidates_win_with_a_large_length_penalty(copier_run, make_run):
    copier, teacher_run = Predictor.load(copier_run), make_run("teacher", seed=5)
    decoding = copier.recipe.predict.model_copy(update={"npd": 8, "teacher": str(teacher_run)})
    short, long = (
        sum(len(best.ids) for [best] in copier.candidates(TEXTS, decoding=decoding.model_copy(update=update)))
        for update in ({"length_penalty": 0.0}, {"length_penalty": 3.0})
    )
    assert short < long


def test_the_teacher_computes_in_the_precision_of_the_student(copier_run, make_run):
    teacher_run = make_run("teacher", seed=5)
    for precision, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32), ("int8", torch.float32)):
        copier = Predictor.load(copier_run, device="cpu", precision=precision)
        decoding = copier.recipe.predict.model_copy(update={"npd": 4, "teacher": str(teacher_run)})
        teacher = load_teacher_of(copier, decoding)
        assert {weight.dtype for weight in teacher.parameters()} == {dtype}
        exact = Predictor.load(teacher_run)
        [[best]] = copier.candidates(["fed cab gag"], decoding=decoding)
        assert best.log_prob == pytest.approx(exact.score([("fed cab gag", best.text)])[0], rel=0.05)


def test_vocabularies_of_student_and_teacher_are_hashed_once(copier_run, make_run, monkeypatch):
    """Writing a vocabulary of thousands of tokens takes longer than decoding a sentence."""
    copier, written = Predictor.load(copier_run), []
    to_json = Tokenizer.to_json
    monkeypatch.setattr(Tokenizer, "to_json", lambda self: written.append(self) or to_json(self))
    decoding = copier.recipe.predict.model_copy(update={"npd": 3, "teacher": str(make_run("teacher", seed=5))})
    for text in TEXTS:
        copier.predict([text], decoding=decoding)
    assert len(written) == len(set(map(id, written))) <= 4


def test_the_teacher_chooses_among_length_candidates_too(make_run):
    part = {"kind": "fill", "stack": STACK, "tie": "none", "max_length_difference": 5}
    run, teacher = make_run("filler", writer=part, objectives=[{"kind": "fill"}]), make_run("teacher", seed=5)
    filler, scorer = Predictor.load(run), Predictor.load(teacher)
    decoding = filler.recipe.predict.model_copy(update={"length_candidates": 4, "teacher": str(teacher)})
    for text, [best] in zip(TEXTS, filler.candidates(TEXTS, decoding=decoding), strict=True):
        assert best.log_prob == pytest.approx(scorer.score([(text, best.text)])[0], abs=1e-3)


def test_teachers_that_cannot_score_are_refused(copier_run, make_run):
    copier = Predictor.load(copier_run)

    def decode(run, **settings):
        update = {"npd": 3, "teacher": str(run), **settings}
        with pytest.raises(SaccadeError) as error:
            copier.predict(["abc"], decoding=copier.recipe.predict.model_copy(update=update))
        assert "\n" not in str(error.value)
        return str(error.value)

    assert 'is a run with writer.kind = "fertility" of task "translate"; a teacher reads a text and' in decode(
        copier_run
    )
    assert "has other vocabularies than this run; train a run" in decode(make_run("other", letters="abcdefgxy "))
    short = make_run("short", data={"max_length": 12})
    assert "was made for 12 tokens, but outputs may have up to 24; set max_length = 11" in decode(short)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iterations": 2}, 'iterations is for writer.kind = "fill", got iterations = 2 and writer.kind = "fertility"'),
        ({"length_candidates": 3}, 'length_candidates is for writer.kind = "fill", got'),
        ({"sample": True}, "this model writes all tokens at once, which does not support sample"),
    ],
)
def test_options_of_other_searches_are_refused(make_copier, changes, message):
    copier = make_copier()
    with pytest.raises(SaccadeError, match=message):
        copier.predict(["abc"], decoding=Decoding(**changes))


@pytest.mark.parametrize("changes", [{"npd": 3}, {"fertilities": "average"}, {"teacher": "x"}])
def test_options_of_fertilities_are_refused_elsewhere(make_predictor, changes):
    [name] = changes
    kind = "fill" if name == "teacher" else "fertility"
    with pytest.raises(SaccadeError, match=f'which does not support {name}, got .* with writer.kind = "{kind}"'):
        make_predictor().predict(["abc"], decoding=Decoding(beam=1, **changes))
    if name != "teacher":
        part = {"kind": "fill", "stack": STACK, "tie": "none", "max_length_difference": 5}
        filler = make_predictor(writer=part, objectives=[{"kind": "fill"}])
        with pytest.raises(
            SaccadeError, match=f'{name} is for writer.kind = "fertility", got {name} = .*"fill"; leave'
        ):
            filler.predict(["abc"], decoding=Decoding(**changes))


# ---- engines and views


@pytest.mark.parametrize(
    "params",
    [MaskPredictParams(1, 1, 0), MaskPredictParams(1, 4, 0, seed=3), MaskPredictParams(1, 2, 9, averages=True)],
)
def test_static_buffers_give_what_a_plain_pass_gives(make_copier, params):
    model, cache = make_copier().model.eval(), mask_predict_graphs.MaskPredictGraphCache(())
    decoding = Decoding(n_best=params.lengths, beam=9)
    generator = torch.Generator().manual_seed(1)
    for lengths in ((5, 9, 2), (7,), (3, 8, 6), (17,), (16, 16, 16, 16)):
        source = pad([[*torch.randint(4, 12, (n - 1,), generator=generator).tolist(), END] for n in lengths])
        limits = [max(2 * n, params.min_length) for n in lengths]
        with torch.no_grad():
            canvases = cache.run(model, source, limits, params)
            plain, _ = mask_predict.decode_with_alignment(model, source, limits=limits, params=params, align=False)
        got, expected = (
            mask_predict.collect_hypotheses(part, None, sentences=len(lengths), decoding=decoding)
            for part in (canvases, plain)
        )
        assert [[item.ids for item in row] for row in got] == [[item.ids for item in row] for row in expected]
        for mine, theirs in zip(got, expected, strict=True):
            assert [item.score for item in mine] == pytest.approx([item.score for item in theirs], abs=1e-4)
    assert MaskPredictGraphs("cpu").name == "cuda-graphs"


def test_attention_and_alignment_are_shown(make_copier):
    copier = make_copier()
    [[best]] = copier.candidates(["gfedcba"], align=True)
    assert len(best.alignment) == len(best.ids) and len(best.alignment[0]) == 8
    maps = copier.attention("gfedcba")
    assert [name for name in maps.maps if "positional" in name] and len(maps.target_labels) == len(best.ids) + 1
