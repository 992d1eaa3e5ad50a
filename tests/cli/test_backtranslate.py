"""`saccade backtranslate`: a corpus that `saccade train` reads."""

import json


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
