"""Recurrent models in training: resuming, compilation, and attention that finds the answer."""

import json
import signal

import pytest
import small

SIDES = ("reader", "writer")
RECURRENT = {
    "sutskever": {
        "reader": {"cell": "lstm", "reverse": True},
        "writer": {"cell": "lstm", "input_feeding": False, "initial_state": "copied"},
    },
    "bahdanau": {"reader": {"cell": "gru", "bidirectional": True}, "writer": {"cell": "gru", "attention": "additive"}},
    "luong": {"reader": {"cell": "lstm"}, "writer": {"cell": "lstm", "attention": "general", "layers": 2}},
    "deep-att": {
        "reader": {"layers": 3, "bidirectional": "alternate", "fast_forward": True},
        "writer": {"layers": 3, "attention": "additive", "fast_forward": True},
    },
}
TRAIN = {"ema": 0.9, "keep_checkpoints": 2}


def stacks(name):
    """Both stacks of a system, for `small`."""
    shared = {"kind": "recurrent", "dim": 14, "dropout": 0.1}
    return {side: {"stack": {**shared, **RECURRENT[name][side]}, "positions": {"kind": "none"}} for side in SIDES}


@pytest.mark.parametrize(
    "name", ["bahdanau", "deep-att", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sutskever", "luong"))]
)
def test_killed_and_resumed_is_bit_identical(run_in_process, tmp_path, name):
    whole, run, train = tmp_path / "whole", tmp_path / "run", {**TRAIN, "parts": stacks(name)}
    assert run_in_process(small.train_or_resume, str(whole), train) == 0

    assert run_in_process(small.train_and_die, str(run), train, "batch", 39) == -signal.SIGKILL
    assert run_in_process(small.train_or_resume, str(run), train) == 0

    assert small.weights(run) == small.weights(whole)
    assert small.weights(run, 24) == small.weights(whole, 24)


@pytest.mark.parametrize("name", ["bahdanau", pytest.param("luong", marks=pytest.mark.slow)])
def test_steps_of_the_recurrence_compile_without_breaks(run_in_process, tmp_path, name):
    train = {"steps": 8, "valid_every": 4, "batch_tokens": 200, "report_every": 1, "parts": stacks(name)}
    small.api.train(small.small(**train), run=tmp_path / "eager")

    assert run_in_process(small.train_compiled, str(tmp_path / "compiled"), train, "eager", []) == 0

    counts = json.loads((tmp_path / "compiled/counts.json").read_text())
    # One graph for training and one for validation; versions of torch may compile the first step of each apart.
    assert counts["breaks"] == 0 and 2 <= counts["graphs"] <= 4
    losses = [
        [(line["event"], line["loss"]) for line in small.read_metrics(tmp_path / run)] for run in ("eager", "compiled")
    ]
    for (event, loss), (other, expected) in zip(*losses, strict=True):
        assert event == other and loss == pytest.approx(expected, abs=1e-5)


def learner(name, data, **train):
    """A recipe without dropout that learns quickly."""
    parts = {side: {**part, "dropout": 0.0} for side, part in stacks(name).items()}
    for part in parts.values():
        part["stack"] |= {"dropout": 0.0, "dim": 64}
    schedule = {"kind": "cosine", "lr": 0.01, "warmup_steps": 30}
    fast = {"schedule": schedule, "clip": 1.0, "accumulate": 1, "batch_tokens": 1024, "valid_every": train["steps"]}
    return small.small(data=data, parts=parts, **{**fast, **train})


@pytest.mark.parametrize("name", RECURRENT)
def test_one_pair_is_learned_by_heart(tmp_path, name):
    """Row 4: we are eating bread -> estamos comiendo pan [STOP], begun by [START] and ended by [STOP]."""
    pairs = [("we are eating bread", "estamos comiendo pan"), ("we eat", "comemos")]
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    recipe = learner(name, {"train": [str(tmp_path / "pairs.tsv")]}, steps=60)

    run = small.api.train(recipe, run=tmp_path / "run", overrides=["tokenizer.kind=words", "predict.beam=2"])

    assert run.predict([source for source, _ in pairs]) == [target for _, target in pairs]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("bahdanau", "reverse"), ("bahdanau", "copy"), ("luong", "reverse")])
def test_attention_finds_the_letter_to_write(tmp_path, name, kind):
    """Rows 5 and 21: the alignment of reversed letters is anti-diagonal, that of copied ones diagonal."""
    data = {"train": [{"files": [f"embedded:{kind}"], "examples": 10000}]}
    run = small.api.train(learner(name, data, steps=400), run=tmp_path / "run")
    for text in ("abcdefghij", "tgkqwz", "zzyxqabc", "mmnopab"):
        target = text[::-1] if kind == "reverse" else text
        [weights] = [weights[0] for weights in run.attention(text, target).maps.values()]
        n = len(text)
        right = range(n)[::-1] if kind == "reverse" else range(n)
        near = [float(weights[t, max(at - 1, 0) : at + 2].sum()) for t, at in enumerate(right)]
        assert run.predict([text]) == [target]
        # A state of the reader has seen its neighbours, so one of them may be attended to as well.
        assert min(near) > 0.5 and sum(near) / n > 0.8
