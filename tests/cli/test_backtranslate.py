"""`saccade backtranslate` and `saccade distill`: a corpus that `saccade train` reads."""

import json

from saccade.config.load import load
from saccade.runs import find_run


def test_a_corpus_is_written_and_trained_on(cli, run, tmp_path):
    (tmp_path / "mono.txt").write_text("3 May 1999\n\n21 June 2008\n")
    words = ("backtranslate", run, "--input", "mono.txt", "--max-ratio", 20, "max_length=90", "min_length=0")
    result = cli(*words, "--output", "s.tsv", "--tag", "<BT>", "--json")
    assert result.code == 0, result.err
    counts = json.loads(result.out)
    lines = (tmp_path / "s.tsv").read_text().splitlines()
    assert (counts["lines"], counts["pairs"]) == (3, len(lines) - 1)
    assert lines[0] == "source\ttarget" and counts["pairs"] + sum(counts["left_out"].values()) == 3
    plain = cli(*words, "-o", "t.tsv")
    assert plain.out.startswith(f"t.tsv: 3 lines, {counts['pairs']} pairs; left out: ")
    assert cli(*words, "-o", "t.tsv").err == "error: t.tsv exists already; delete it, or choose another --output\n"
    (tmp_path / "s.tsv").write_text("source\ttarget\n" + "<BT> 3 May\t1999\n" * 20)
    small = ["train.steps=1", "train.schedule.warmup_steps=1", "data.valid=0.2", "train.valid_predictions=1"]
    real = ["--data", "embedded:dates", "data.train.0.examples=50", "data.train.0.weight=2.0"]
    assert cli("train", "dates", *real, "--data", "s.tsv", *small, "--run", "r").code == 0


def test_a_language_model_is_refused(cli, language_model, tmp_path):
    (tmp_path / "mono.txt").write_text("abc\n")
    result = cli("backtranslate", language_model, "-i", "mono.txt", "-o", "s.tsv")
    expected = 'back-translation needs a run that translates the target language, got task = "language-model"; '
    assert (result.code, result.err) == (2, f"error: {expected}train one with --data TGT SRC\n")


def test_a_folder_that_is_not_there_is_named(cli, run, tmp_path):
    (tmp_path / "mono.txt").write_text("abc\n")
    result = cli("backtranslate", run, "-i", "mono.txt", "-o", "nodir/s.tsv")
    assert (result.code, result.err) == (
        2,
        "error: cannot write nodir/s.tsv: folder 'nodir' does not exist; create it\n",
    )


def test_a_teacher_is_distilled_and_the_next_command_trains_a_student(cli, run, tmp_path):
    (tmp_path / "train.txt").write_text("3 May 1999\n\n21 June 2008\n")
    words = ("distill", run, "--input", "train.txt", "--max-ratio", 20, "max_length=90", "beam=2")
    result = cli(*words, "--output", "d.tsv", "--json")
    assert result.code == 0, result.err
    counts, lines = json.loads(result.out), (tmp_path / "d.tsv").read_text().splitlines()
    assert (counts["lines"], counts["pairs"]) == (3, len(lines) - 1)
    assert {line.split("\t")[0] for line in lines[1:]} <= {"3 May 1999", "21 June 2008"}
    plain = cli(*words, "-o", "e.tsv").out.splitlines()
    assert plain[0].startswith(f"e.tsv: 3 lines, {counts['pairs']} pairs; left out: ")
    assert plain[1].startswith("next: saccade train nat --data e.tsv --valid SRC TGT init=")
    (tmp_path / "d.tsv").write_text("source\ttarget\n" + "3 May\t1999\n" * 20)
    command = plain[1].replace("e.tsv", "d.tsv").replace(" --valid SRC TGT", "").split()[2:]
    small = ["train.steps=1", "train.schedule.warmup_steps=1", "data.valid=0.2", "train.valid_predictions=1"]
    width = load(find_run(run) / "recipe.toml").reader.stack.dim
    sizes = [f"{side}.stack={{ layers = 1, dim = {width}, heads = 1, ff = 8 }}" for side in ("reader", "writer")]
    trained = cli(*command, *small, *sizes, "writer.tie=none", "--run", "student")
    assert trained.code == 0, trained.err


def test_a_teacher_that_does_not_translate_is_refused(cli, language_model, tmp_path):
    (tmp_path / "mono.txt").write_text("abc\n")
    result = cli("distill", language_model, "-i", "mono.txt", "-o", "s.tsv")
    expected = (
        'distillation needs a run that translates the source language, the teacher, got task = "language-model"; '
    )
    assert (result.code, result.err) == (2, f"error: {expected}train one with --data SRC TGT\n")
