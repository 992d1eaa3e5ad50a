"""The adapter for lm-evaluation-harness: its arithmetic against brute force, and the harness itself if installed."""

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from saccade.config.load import save, validate
from saccade.config.schema import Tokenizer
from saccade.data.tokenization.tokenizers import START, train_tokenizers
from saccade.errors import SaccadeError
from saccade.exchange import lm_eval
from saccade.exchange.lm_eval import HarnessModel, split_windows
from saccade.model.build.model import build
from saccade.model.run import named_weights, write_tensors
from saccade.predict.predictors.language import LanguageModel
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import RECIPE, WEIGHTS

LENGTH = 13  # data.max_length of the model
TEXTS = ["the dog sees the cat", "a cat and a dog sleep", "the cats sleep", "dogs see cats"]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    stack = {"layers": 2, "dim": 22, "heads": 11, "ff": 13, "norm": "pre"}
    values = {
        "task": "language-model",
        "data": {"max_length": LENGTH},
        "reader": {"kind": "none"},
        "writer": {"tie": "none", "stack": stack},
        "tokenizer": {"kind": "bpe", "size": 280},
    }
    recipe = validate(values, origin="test")
    tokenizers = train_tokenizers(
        Tokenizer(kind="bpe", size=280, shared=True), lambda: [(text, text) for text in TEXTS]
    )
    torch.manual_seed(0)
    network = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target.size)
    with torch.no_grad():
        network.writer.output.weight.mul_(4.0)
    return LanguageModel(network, recipe=recipe, tokenizers=tokenizers)


@pytest.fixture(scope="module")
def harness(model: LanguageModel) -> HarnessModel:
    return HarnessModel(model, batch_tokens=40)


def encode(model: LanguageModel, text: str) -> list[int]:
    return model.tokenizers.target.encode(text)[:-1]


def score_by_hand(model: LanguageModel, context: list[int], ids: list[int]) -> tuple[float, bool]:
    """Score each token by a forward pass of its own over all tokens before it in one window."""
    total, greedy = 0.0, True
    for n, token in enumerate(ids):
        inputs = torch.tensor([[START, *context, *ids[:n]]])
        with model.inference():
            hidden = model.model.writer(inputs, torch.ones_like(inputs, dtype=torch.bool), None)
            log_probs = model.model.writer.head(hidden[0, -1]).float().log_softmax(-1)
        total += float(log_probs[token])
        greedy &= int(log_probs.argmax()) == token
    return total, greedy


def test_continuations_are_scored_as_by_hand(model: LanguageModel, harness: HarnessModel) -> None:
    pairs = [("the dog", " sees"), ("", "the cat"), ("a ", "dog"), ("the cat", " sleep the"), ("dogs", " see")]
    expected = []
    for context, continuation in pairs:
        before = encode(model, context.rstrip())
        whole = encode(model, context + continuation)
        assert whole[: len(before)] == before
        expected.append(score_by_hand(model, before, whole[len(before) :]))
    found = harness.loglikelihood(pairs)
    assert [score.log_prob for score in found] == pytest.approx([value for value, _ in expected], abs=1e-4)
    assert [score.is_greedy for score in found] == [greedy for _, greedy in expected]


def test_the_greedy_continuation_is_marked(model: LanguageModel, harness: HarnessModel) -> None:
    [context] = [encode(model, "the dog")]
    ids = list[int]()
    for _ in range(3):
        ids.append(
            next(
                token
                for token in range(model.tokenizers.target.size)
                if score_by_hand(model, [*context, *ids], [token])[1]
            )
        )
    assert [score.is_greedy for score in harness._score([([*context, *ids], len(context))])] == [True]
    ids[1] = ids[1] - 1
    assert [score.is_greedy for score in harness._score([([*context, *ids], len(context))])] == [False]


def test_a_long_context_is_truncated_from_the_left(model: LanguageModel, harness: HarnessModel) -> None:
    context, continuation = " ".join(TEXTS * 3), " the dog"
    whole = encode(model, context + continuation)
    count = len(whole) - len(encode(model, context))
    expected = score_by_hand(model, whole[-LENGTH:-count], whole[-count:])
    [found] = harness.loglikelihood([(context, continuation)])
    assert found.log_prob == pytest.approx(expected[0], abs=1e-4)
    [other] = harness.loglikelihood([("x" + context, continuation)])  # beyond the window
    assert other == found


def test_a_continuation_that_is_too_long_is_scored_in_windows(model: LanguageModel, harness: HarnessModel) -> None:
    context, continuation = "the dog", " " + " ".join(TEXTS)
    before, whole = encode(model, context), encode(model, context + continuation)
    assert len(whole) - len(before) > LENGTH
    total, begin = 0.0, len(before)
    while begin < len(whole):
        end = min(len(whole), begin + LENGTH - 1)
        total += score_by_hand(model, whole[max(0, end - LENGTH) : begin], whole[begin:end])[0]
        begin = end
    assert harness.loglikelihood([(context, continuation)])[0].log_prob == pytest.approx(total, abs=1e-4)


def test_rolling_windows_score_every_token_once(model: LanguageModel, harness: HarnessModel) -> None:
    texts = ["", "the", " ".join(TEXTS), " ".join(TEXTS * 2), "a cat"]
    expected = []
    for text in texts:
        ids, total, begin = encode(model, text), 0.0, 0
        while begin < len(ids):
            end = min(len(ids), LENGTH if begin == 0 else begin + LENGTH - 1)
            total += score_by_hand(model, ids[max(0, end - LENGTH) : begin], ids[begin:end])[0]
            begin = end
        expected.append(total)
    assert harness.loglikelihood_rolling(texts) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("length", [2, 3, 7])
def test_windows_cover_each_token_once_and_have_full_context(length: int) -> None:
    for total in range(30):
        for first in range(total + 1):
            ids, covered = list(range(total)), list[int]()
            for row, count in split_windows(ids, first, length):
                assert len(row) <= length and 0 < count <= len(row)
                assert row == ids[row[0] : row[-1] + 1]
                assert len(row) == min(length, row[-1] + 1)  # no space is wasted
                assert count < len(row) or row[0] == 0 == first
                covered += row[len(row) - count :]
            assert covered == ids[first:]


def test_tokens_across_the_boundary_belong_to_the_continuation(model: LanguageModel, harness: HarnessModel) -> None:
    merged = encode(model, "the")
    assert len(merged) == 1 and merged[0] not in encode(model, "th")
    context, continuation = harness.encode_pair("th", "e dog")
    assert (context, continuation) == ([], encode(model, "the dog"))
    assert harness.encode_pair("the ", "dog") == (merged, encode(model, "the dog")[1:])
    assert harness.encode_pair("", "dog") == ([], encode(model, "dog"))
    assert harness.encode_pair("the dog", "") == (encode(model, "the dog"), [])


def test_generation_is_greedy_search_with_stop_strings(model: LanguageModel, harness: HarnessModel) -> None:
    requests = [(text, {"until": ["\n", "e"], "max_gen_toks": 5}) for text in TEXTS[:2]] + [("a", {"max_gen_toks": 3})]
    found = harness.generate_until(requests)
    settings = {"beam": 1, "sample": False, "truncate_prompt": True}
    plain = model.recipe.predict.model_copy(update={**settings, "max_length": 5, "stop": ("\n", "e")})
    short = model.recipe.predict.model_copy(update={**settings, "max_length": 3})
    assert found == [*model.predict(TEXTS[:2], decoding=plain), *model.predict(["a"], decoding=short)]
    assert not any("e" in text for text in found[:2])


def test_generation_settings_of_the_harness_are_translated(harness: HarnessModel) -> None:
    decoding = harness.build_decoding({"until": "\n", "temperature": 0.7, "top_p": 0.9, "max_new_tokens": 4, "seed": 3})
    assert (decoding.sample, decoding.temperature, decoding.top_p, decoding.seed) == (True, 0.7, 0.9, 3)
    assert (decoding.stop, decoding.max_length, decoding.beam) == (("\n",), 4, 1)
    greedy = harness.build_decoding({"do_sample": False, "temperature": 0.0, "until": None})
    assert (greedy.sample, greedy.stop, greedy.max_length) == (False, (), LENGTH // 2)
    assert not harness.build_decoding({"do_sample": True, "temperature": 0}).sample
    assert harness.build_decoding({"do_sample": True}).temperature == 1.0
    with pytest.raises(
        SaccadeError, match="generation setting top_k: Input should be greater than or equal to 0, got -1"
    ):
        harness.build_decoding({"do_sample": True, "top_k": -1})
    with pytest.raises(SaccadeError, match="unknown generation settings num_beams; expected until, max_gen_toks"):
        harness.build_decoding({"num_beams": 3})


def test_a_long_context_leaves_space_for_generation(harness: HarnessModel) -> None:
    assert len(harness.generate_until([(" ".join(TEXTS * 9), {"until": ["\n"]})])) == 1


def test_other_tasks_are_refused() -> None:
    class Other:
        continues_prompts = False
        recipe = validate({}, origin="test")

    with pytest.raises(SaccadeError, match='lm_eval needs a run with task = "language-model", got task = "translate"'):
        HarnessModel(Other())  # type: ignore[arg-type]


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SaccadeError, match=r"lm_eval is not installed; .*pip install .*\[lm-eval\]"):
        lm_eval.register()
    with pytest.raises(SystemExit) as left:
        lm_eval.main()
    assert left.value.code == 2
    assert capsys.readouterr().err.endswith("[lm-eval]'\n")


TASK = """
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: OUTPUT
doc_to_text: "{{question}}"
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="needs lm_eval")
@pytest.mark.filterwarnings("ignore")
def test_the_harness_runs_local_tasks(model: LanguageModel, tmp_path: Path, monkeypatch: Any) -> None:
    """The results of lm_eval are those of the same sums by hand."""
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    package, tasks = importlib.import_module("lm_eval"), importlib.import_module("lm_eval.tasks")
    rows = [{"question": text, "choices": [" dog", " the cat"], "label": i % 2} for i, text in enumerate(TEXTS)]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    until = 'generation_kwargs: {until: ["e"], max_gen_toks: 4}\nmetric_list: [{metric: exact_match}]\n'
    kinds = {
        "choice": ("multiple_choice", 'doc_to_choice: "{{choices}}"\ndoc_to_target: label\ntarget_delimiter: ""\n'),
        "rolling": (
            "loglikelihood_rolling",
            'doc_to_target: "{{question}}"\nmetric_list: [{metric: byte_perplexity}]\n',
        ),
        "until": ("generate_until", f'doc_to_target: "x"\n{until}'),
    }
    for name, (output, more) in kinds.items():
        text = TASK.replace("DATA", str(data)).replace("OUTPUT", output).replace("colours", name)
        (tmp_path / f"{name}.yaml").write_text(text.replace('"{{question}}"', '""', name == "rolling") + more)
    run = tmp_path / "run"
    run.mkdir()
    save(model.recipe, run / RECIPE)
    model.tokenizers.save(run)
    write_tensors(named_weights(model.model), run / WEIGHTS)
    lm_eval.register()
    result = package.simple_evaluate(
        model="saccade", model_args=f"run={run},device=cpu", tasks=[*kinds],
        task_manager=tasks.TaskManager(include_path=str(tmp_path), include_defaults=False), bootstrap_iters=0,
    )["results"]  # fmt: skip
    harness = HarnessModel(Predictor.load(run, device="cpu"))  # type: ignore[arg-type]
    right = 0
    for row in rows:
        scores = harness.loglikelihood([(row["question"], choice) for choice in row["choices"]])
        right += max((0, 1), key=lambda i: scores[i].log_prob) == row["label"]
    assert result["choice"]["acc,none"] == right / len(rows)
    total, size = sum(harness.loglikelihood_rolling(TEXTS)), sum(len(text.encode()) for text in TEXTS)
    assert result["rolling"]["byte_perplexity,none"] == pytest.approx(math.exp(-total / size), rel=1e-5)
    assert "exact_match,none" in result["until"]
