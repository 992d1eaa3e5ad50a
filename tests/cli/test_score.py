"""`saccade evaluate` and `saccade compare`."""

import json
import shutil
from pathlib import Path

import pytest

from saccade.config.load import load, save
from saccade.config.plugins import Kinds
from saccade.config.schema import Corpus
from saccade.score.api import read_test_pairs

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:"


@pytest.fixture
def files(tmp_path, pairs) -> tuple[str, str]:
    (tmp_path / "a.src").write_text("".join(f"{source}\n" for source, _ in pairs))
    (tmp_path / "a.ref").write_text("".join(f"{target}\n" for _, target in pairs))
    return "a.src", "a.ref"


def test_any_two_files_are_scored(cli, files):
    result = cli("evaluate", "--hyp", "a.ref", "--ref", "a.ref")
    assert result.code == 0
    name, value, signature = result.out.splitlines()[0].split()
    assert (name, value) == ("bleu", "100.00")
    assert signature.startswith(SIGNATURE)


def test_json_of_two_files(cli, files, pairs):
    found = json.loads(cli("evaluate", "--hyp", "a.src", "--ref", "a.ref", "--json", "--lowercase").out)
    assert found["sentences"] == len(pairs)
    assert list(found["scores"]) == ["bleu", "chrf", "ter", "gleu", "accuracy"]
    assert "case:lc" in found["scores"]["bleu"]["signature"]


def test_only_the_metrics_that_were_asked_for(cli, files):
    found = json.loads(cli("evaluate", "--hyp", "a.ref", "--ref", "a.ref", "--metrics", "accuracy,bleu", "--json").out)
    assert list(found["scores"]) == ["accuracy", "bleu"]


def test_an_unknown_metric_is_named(cli, files):
    result = cli("evaluate", "--hyp", "a.ref", "--ref", "a.ref", "--metrics", "blue")
    assert result.code == 2
    assert "unknown metric 'blue'; expected one of bleu, chrf, ter, gleu, accuracy" in result.err


def test_a_run_is_scored_with_its_speed(cli, run, files, tmp_path):
    result = cli("evaluate", run, "--data", *files, "beam=2", "--output", "out.txt")
    assert result.code == 0
    assert "2 sentences in" in result.out
    assert "tokens/s" in result.out
    assert (tmp_path / "out.txt").read_text().split() == cli("predict", run, "--input", "a.src", "beam=2").out.split()


@pytest.fixture
def table(tmp_path, pairs):
    """A table of the pairs, target first, with two columns more."""
    rows = "".join(f"{n},{target},{source},x\n" for n, (source, target) in enumerate(pairs))
    (tmp_path / "t.csv").write_text(f"id,German,English,note\n{rows}")
    return "t.csv"


def test_columns_of_test_data_are_named_where_they_are_not_clear(cli, run, files, table):
    for command in ("evaluate", "compare"):
        refused = cli(command, run, "--data", table)
        assert refused.code == 2
        assert "which of the columns id, German, English, note are the source and the target?" in refused.err
        assert "name them: --columns 'German,English', or call them source and target" in refused.err
    named = cli("evaluate", run, "--data", table, "--columns", "English,German", "--json")
    assert named.err.startswith('data t.csv: source = column "English", target = column "German"\n')
    assert json.loads(named.out)["scores"] == json.loads(cli("evaluate", run, "--data", *files, "--json").out)["scores"]
    turned = cli("evaluate", run, "--data", table, "--columns", "German,English", "--json")
    assert json.loads(turned.out)["scores"] != json.loads(named.out)["scores"]
    assert cli("compare", run, "--data", table, "--columns", "English,German").code == 0


def test_columns_without_a_table_are_refused(cli, run):
    assert (
        cli("evaluate", run, "--columns", "a,b").err
        == "error: --columns names the columns of a file that is given by --data\n"
    )


def test_truncated_outputs_are_reported_and_counted(cli, run, files):
    result = cli("evaluate", run, "--data", *files, "beam=1", "max_length=2", "min_length=1", "--json")
    cut = json.loads(result.out)["cut"]
    assert cut > 0
    assert result.err.startswith(f"{cut} of 2 outputs w")
    assert " cut at 2 tokens; with max_length=95 " in result.err
    whole = cli("evaluate", run, "--data", *files, "beam=1", "max_length=2", "min_length=2", "--json")
    assert ("cut" in json.loads(whole.out), whole.err) == (False, "")


def test_without_data_the_validation_files_are_used(cli, tmp_path, files, pairs, new_run):
    run = new_run(tmp_path / "c", seed=3, more=['data.valid=["a.src", "a.ref"]'])
    assert json.loads(cli("evaluate", run, "--json").out)["sentences"] == len(pairs)


def test_a_held_out_fraction_cannot_be_evaluated_without_data(cli, run):
    result = cli("evaluate", run)
    assert (result.code, result.err) == (2, f"error: '{run}' has no validation files of its own; give --data SRC REF\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "evaluate needs a RUN, or --hyp FILE and --ref FILE"),
        (("--hyp", "a.ref"), "--hyp FILE and --ref FILE must be given together and without a run"),
        (
            ("runs/x", "--hyp", "a.ref", "--ref", "a.ref"),
            "--hyp FILE and --ref FILE must be given together and without a run",
        ),
    ],
)
def test_what_is_missing_is_reported(cli, files, words, message):
    result = cli("evaluate", *words)
    assert (result.code, result.err) == (2, f"error: {message}\n")


def test_runs_are_compared_in_one_table(cli, run, other, tmp_path, files, new_run):
    wide = new_run(tmp_path / "wide", seed=1, more=["reader.stack.ff=13"])
    result = cli("compare", run, other, wide, "--data", *files)
    assert result.code == 0
    titles, first, second, *_ = result.out.splitlines()
    assert titles.split()[:2] == ["run", "BLEU"]
    assert first.startswith("a (2 seeds)")  # runs that differ in their seed only
    assert second.startswith("wide")


@pytest.mark.parametrize(("option", "mark"), [("--markdown", "| run |"), ("--latex", r"\begin{tabular}")])
def test_a_comparison_for_papers(cli, run, other, files, option, mark):
    assert mark in cli("compare", run, other, "--data", *files, option).out


def test_a_comparison_for_programs(cli, run, other, files):
    found = json.loads(cli("compare", run, other, "--data", *files, "--json", "--metric", "accuracy").out)
    assert (found["metric"], len(found["rows"])) == ("accuracy", 1)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gleu", "'gleu' has no statistics per example, as a MeanMetric or a SumMetric has"),
        ("blue", "did you mean 'bleu'?"),
        ("own", "your own: --plugin FILE.py, or kinds={'own': ...} in Python"),
        ("f1", "'f1' does not score outputs of the kind \"text\""),
    ],
)
def test_metrics_without_a_comparison_are_reported(cli, run, files, name, reason):
    result = cli("compare", run, run, "--data", *files, "--metric", name)
    known = "bleu or accuracy or wer or cer or letters or rouge1 or rouge2 or rougeL"
    message = f"error: these runs cannot be compared by '{name}', only by {known}; {reason}\n"
    assert (result.code, result.err) == (2, message)


@pytest.mark.parametrize("name", ["dates", "dates-test"])
def test_of_embedded_data_a_thousand_pairs_are_used(cli, name):
    found = read_test_pairs(Path("none"), [Corpus(files=(f"embedded:{name}",))], Kinds())
    assert len(found) == 1_000
    assert all("embedded:NAME is 1,000 pairs" in " ".join(cli(verb, "--help").out.replace("│", " ").split())
               for verb in ("evaluate", "compare"))  # fmt: skip


def test_as_many_embedded_pairs_as_the_recipe_says_are_used(tmp_path, new_run):
    valid = 'data.valid=[{ files = ["embedded:dates"], examples = 1013 }]'
    assert len(read_test_pairs(new_run(tmp_path / "d", seed=1, more=[valid]), [], Kinds())) == 1013


def test_a_comparison_takes_no_settings(cli, run):
    result = cli("compare", run, run, "max_length=12")
    message = "compare takes no settings, got 'max_length=12'; each run is decoded with its own"
    assert (result.code, result.err) == (2, f"error: {message}\n")


def test_test_files_have_the_columns_of_training(tmp_path):
    (tmp_path / "test.csv").write_text("id,German,English\n7,ein Haus,a house\n")
    columns = "data.train=[{files=['train.csv'], columns=['German', 'English']}]"
    save(load("dates", overrides=[columns]), tmp_path / "recipe.toml")
    found = read_test_pairs(tmp_path, [Corpus(files=(str(tmp_path / "test.csv"),))], Kinds())
    assert found == [("ein Haus", "a house")]


def test_a_broken_run_is_left_out_of_a_comparison(cli, run, other, tmp_path, files):
    broken = Path(shutil.copytree(other, tmp_path / "broken"))
    (broken / "model.safetensors").write_bytes(b"x")
    result = cli("compare", run, broken, other, "--data", *files)
    assert result.code == 2
    assert result.out.splitlines()[1].startswith(f"{run.name} (2 seeds) ")
    assert result.err.startswith("error: left out 1 of 3 runs: ") and "is not a whole safetensors file" in result.err
    assert cli("compare", broken, run, "--data", *files).out == ""
