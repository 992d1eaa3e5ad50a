"""`saccade ladder`."""

import json

import pytest

QUICK = (
    "train.steps=2",
    "train.schedule.warmup_steps=1",
    "train.valid_every=2",
    "train.save_every=2",
    "predict.max_length=5",
)
SMALL = ("reader.stack.dim=16", "writer.stack.dim=16", "train.batch_tokens=64", "train.device=cpu")


def test_a_ladder_on_own_files_is_scored_by_bleu(cli, tmp_path):
    lines = [f"{name} sees the dog and {other} ." for name in ("ann", "bob", "eve") for other in ("a cat", "an owl")]
    for name in ("train.en", "train.de", "test.en", "test.de"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines * 4))
    data = ("--data", "train.en", "train.de", "--valid", "0.2", "--test", "test.en", "test.de")
    result = cli("ladder", *data, "--size", "class", "--rungs", "attention,transformer", "--out", "out", *QUICK, *SMALL)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].split()[:4] == ["rung", "BLEU", "difference", "[95%]"]
    assert [line.split()[0] for line in lines[1:3]] == ["attention", "transformer"]
    assert "report, plot and all scores: out/report.md" in result.out
    assert "BLEU signature: nrefs:1|case:mixed|eff:no|tok:13a|" in result.out
    assert "1/2 attention, seed 1: Before" in result.err
    again = cli("ladder", *data, "--size", "class", "--rungs", "transformer", "--out", "out", "--json", *QUICK, *SMALL)
    found = json.loads(again.out)
    assert (found["metric"], found["unit"], found["rows"][0]["against"]) == ("bleu", "words", "")
    assert "1/1 transformer, seed 1: transformer-1 is trained already" in again.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rungs", "transfomer"], "unknown rung 'transfomer'; did you mean 'transformer'?"),
        (["--length", "0"], "--length is the maximum row length in letters, from 1 to 1,000, got 0"),
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--size", "clas"], "unknown size 'clas'; did you mean 'class'?"),
        (["--size", "full"], "--size full is for your own text: give --data SRC TGT"),
        (["--test", "a.en", "a.de"], "a ladder on your own text needs --data SRC TGT, --valid SRC TGT and --test"),
        (["--data", "embedded:copy", "--length", "9"], "--length is for the synthetic letter sequences"),
        (
            ["--data", "embedded:copy", "--valid", "embedded:copy-heldout", "--test", "no.en", "no.de"],
            "no.en not found",
        ),
        (["train.stepps=3"], "train.stepps"),
        (["fast"], "unexpected argument 'fast'; expected key=value"),
    ],
)
def test_mistakes_are_one_line(cli, words, message):
    result = cli("ladder", *words)
    assert result.code == 2
    assert message in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("rungs", [",", " , ,"])
def test_a_list_without_a_name_does_not_train_all_rungs(cli, rungs):
    result = cli("ladder", "--rungs", rungs)
    message = f"error: --rungs names no rung, got '{rungs}'; give some as A,B, or leave it out to train all\n"
    assert (result.code, result.err) == (2, message)
