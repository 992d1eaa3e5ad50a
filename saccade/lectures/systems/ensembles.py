"""Check on the ensembles of the BLEU table: several runs decode together, by the mean of their probabilities."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from saccade.config.load import save
from saccade.config.schema import Decoding
from saccade.data.tokenization.tokenizers import END, PAD, START, UNKNOWN, Tokenizers, train_tokenizers
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_least,
    expect_at_most,
    expect_equal,
    expect_near,
)
from saccade.lectures.small import randomize_parameters
from saccade.lectures.systems.deep_recurrent import GNMT, Translation
from saccade.lectures.systems.systems import load_system
from saccade.lectures.tables import load_translations
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.run import named_weights, write_tensors
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.search.ensemble import Ensemble, EnsembleWriter, average_log_probs
from saccade.runs import RECIPE, WEIGHTS

TEXTS = ("abcab", "cb")
LENGTH = 4  # tokens of an output, at most
PRECISION = 1e-4  # runs are loaded in float32


@check(
    119,
    "S4:231-233",
    "Ensembles: several models translate together; each word is chosen by the mean of their probabilities.",
    formula=r"P(y_t \,|\, y_1, \dots, y_{t-1}, x) = \frac{1}{M} \sum_m P_m(y_t \,|\, y_1, \dots, y_{t-1}, x)",
    code=(Predictor.load, Ensemble, EnsembleWriter, average_log_probs),
    recipes=("deep-att", "gnmt"),
    breaks=(
        "ensemble-of-one",
        "ensemble-by-geometric-mean",
        "ensemble-states-not-reordered",
        "ensemble-reads-once",
        "uniform-attention",
    ),
)
def ensembles() -> CheckResult:
    settings = ["tokenizer.kind=characters", "reader.stack.layers=3", "writer.stack.layers=3"]
    recipe = load_system("gnmt", settings)
    tokenizers = train_tokenizers(recipe.tokenizer, lambda: iter([("abc", "abc")]))
    models = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(3):
            run = Path(folder) / f"run-{number}"
            run.mkdir()
            net = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target_size)
            randomize_parameters(net, scale=0.5)
            save(recipe, run / RECIPE)
            tokenizers.save(run)
            write_tensors(named_weights(net), run / WEIGHTS)
            models.append(net.double().eval())
        runs = [Path(folder) / f"run-{number}" for number in range(3)]
        together, swapped = (Predictor.load(names, device="cpu", engine="torch") for names in (runs, runs[::-1]))
    return build_result(
        *_compare_outputs(models, together, tokenizers),
        *_compare_members(models, together, swapped),
        *_compare_scores_of_the_table(),
    )


def translate(models: Sequence[Model], text: str, ids: Sequence[int], tokenizers: Tokenizers) -> list[Translation]:
    """What each model computes for an output, by the formulas of GNMT."""
    source, target = torch.tensor(tokenizers.source.encode(text)), torch.tensor([START, *ids])
    with torch.no_grad():
        return [GNMT.translate(net, source, target) for net in models]


def average(found: Sequence[Translation]) -> Tensor:
    """The log of the mean probability of each word (T, V)."""
    return torch.stack([item.logits.softmax(-1) for item in found]).mean(0).log()


def _compare_outputs(models: Sequence[Model], together: Predictor, tokenizers: Tokenizers) -> list[Comparison]:
    """Compare probabilities and attention of the outputs of beam search, and greedy outputs, with the formula."""
    beam = Decoding(beam=3, n_best=3, max_length=LENGTH, length_penalty=0.0, coverage_penalty=0.0)
    greedy = beam.model_copy(update={"beam": 1, "n_best": 1})
    probability, attention, given, outputs = 0.0, 0.0, 0.0, []
    for text, hypotheses in zip(TEXTS, together.candidates(TEXTS, decoding=beam, align=True), strict=True):
        for item in hypotheses:
            found = translate(models, text, item.ids, tokenizers)
            ids = torch.tensor([*item.ids, END])[:, None]
            log_prob = float(average(found).gather(1, ids).sum())
            probability = max(probability, abs(item.log_prob - log_prob))
            given = max(given, abs(together.score([(text, item.text)])[0] - log_prob))
            attention = max(attention, _compare_attention(item, found))
        outputs.append(_search_greedily(models, text, tokenizers))
    best = [item[0].ids for item in together.candidates(TEXTS, decoding=greedy)]
    return [
        expect_near("log-probabilities of beam search: difference from the mean", probability, 0, within=PRECISION),
        expect_near("log-probabilities of given outputs: difference from the mean", given, 0, within=PRECISION),
        expect_near("attention: difference from the mean", attention, 0, within=PRECISION),
        expect_equal("greedy outputs", str(best), str(outputs)),
    ]


def _compare_attention(item: Hypothesis, found: Sequence[Translation]) -> float:
    expected = torch.stack([part.attention for part in found]).mean(0)[:-1]
    if not len(expected):
        return 0.0
    return float((torch.tensor(item.alignment, dtype=torch.float64) - expected).abs().max())


def _search_greedily(models: Sequence[Model], text: str, tokenizers: Tokenizers) -> list[int]:
    ids: list[int] = []
    while len(ids) < LENGTH:
        scores = average(translate(models, text, ids, tokenizers))[-1]
        scores[[PAD, START, UNKNOWN]] = -torch.inf
        if (token := int(scores.argmax())) == END:
            break
        ids.append(token)
    return ids


def _compare_members(models: Sequence[Model], together: Predictor, swapped: Predictor) -> list[Comparison]:
    """The order of runs does not matter, and the mean is never worse than its members are on average (Jensen)."""
    pairs = [(text, output) for text in TEXTS for output in ("a", "abc", "cc", "")]
    ours, theirs = torch.tensor(together.score(pairs)), torch.tensor(swapped.score(pairs))
    members = torch.zeros(len(pairs))
    for net in models:
        for number, (text, output) in enumerate(pairs):
            ids = together.tokenizers.target.encode(output)
            (alone,) = translate([net], text, ids[:-1], together.tokenizers)
            members[number] += alone.logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None]).sum() / len(models)
    return [
        expect_at_most(
            "change of log-probabilities when runs change places", float((ours - theirs).abs().max()), PRECISION
        ),
        expect_at_least("smallest gain over the mean log-probability of the runs", float((ours - members).min()), 0.0),
        expect_at_least("largest gain", float((ours - members).max()), 0.05),
    ]


def _compare_scores_of_the_table() -> list[Comparison]:
    """In the table, each ensemble has a higher BLEU than its system alone."""
    scores = {system.name: system.en_fr for system in load_translations()[0]}
    gains = [
        value - (scores[name.removesuffix(" Ensemble")] or 0)
        for name, value in scores.items()
        if value and "Ensemble" in name
    ]
    return [
        expect_equal("ensembles of the table with a higher BLEU than their system", sum(gain > 0 for gain in gains), 3)
    ]
