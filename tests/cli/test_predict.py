"""`saccade predict`: arguments, files, stdin; text, n-best lists, JSON."""

import io
import json
import subprocess
import sys

import pytest

from saccade.predict.predictors.predictor import Predictor

TEXTS = ["3 May 1999", "", "21 June 2008"]


@pytest.fixture(scope="module")
def expected_outputs(run) -> list[str]:
    return Predictor.load(run).predict(TEXTS)


def feed(monkeypatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_texts_are_arguments(cli, run, expected_outputs):
    result = cli("predict", run, *TEXTS)
    assert result.code == 0
    assert result.out.split("\n") == [*expected_outputs, ""]
    assert [bool(text) for text in expected_outputs] == [True, False, True]


def test_lines_of_a_file(cli, run, expected_outputs, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")
    assert cli("predict", run, "--input", "in.txt").out.split("\n") == [*expected_outputs, ""]


@pytest.mark.parametrize("words", [("--input", "-"), ("-i", "-"), ("-",), ()])
def test_lines_of_stdin(cli, run, expected_outputs, monkeypatch, words):
    feed(monkeypatch, "\n".join(TEXTS).encode())
    assert cli("predict", run, *words).out.split("\n") == [*expected_outputs, ""]


def test_output_goes_to_a_file(cli, run, expected_outputs, tmp_path):
    result = cli("predict", run, *TEXTS, "--output", "out.txt")
    assert result.out == ""
    assert (tmp_path / "out.txt").read_text().split("\n") == [*expected_outputs, ""]


def test_json_has_input_output_and_scores(cli, run, expected_outputs):
    lines = [json.loads(line) for line in cli("predict", run, *TEXTS, "--json", "--n-best", 2).out.splitlines()]
    assert [line["input"] for line in lines] == TEXTS
    assert lines[0]["candidates"][0]["score"] >= lines[0]["candidates"][1]["score"]
    assert lines[0]["output"] == lines[0]["candidates"][0]["output"]


def test_verbose_says_which_engine_decoded_and_why_others_did_not(cli, run, expected_outputs):
    result = cli("predict", run, *TEXTS, "--verbose", "--json")
    lines = [json.loads(line) for line in result.out.splitlines()]
    assert [line["output"] for line in lines] == expected_outputs
    [engine] = {line["engine"] for line in lines if line["input"]}  # an empty input is not decoded
    assert engine in ("plain", "cpu-fused")  # depends on whether a C compiler is installed
    assert f"engine {engine}: decoded 1 batch" in result.err.splitlines()
    assert "engine cuda-graphs: not used for 1 batch: the batch is on cpu, not on cuda" in result.err.splitlines()
    quiet = cli("predict", run, *TEXTS, "--json")
    assert "engine" not in json.loads(quiet.out.splitlines()[0]) and "engine" not in quiet.err


def test_the_n_best_have_number_and_score(cli, run):
    rows = [line.split("\t") for line in cli("predict", run, "3 May", "4 May", "--n-best", 2).out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "2"]
    assert float(rows[0][1]) >= float(rows[1][1])


def test_n_best_alone_widens_the_search(cli, run):
    assert len(cli("predict", run, "3 May", "--n-best", 3).out.splitlines()) == 3
    assert cli("predict", run, "3 May", "--n-best", 3, "--beam", 2).code == 2


def test_settings_are_key_and_value(cli, run):
    short = cli("predict", run, "3 May 1999", "max_length=2", "--beam", 1).out
    assert short == cli("predict", run, "3 May 1999", "predict.max_length=2", "beam=1").out
    assert len(short.strip()) <= 2


def test_truncated_outputs_are_reported(cli, run):
    result = cli("predict", run, "3 May", "4 May", "5 May", "beam=1", "max_length=3", "min_length=2")
    cut = sum(len(line) == 3 for line in result.out.splitlines())
    message = f"{cut} of 3 outputs {'was' if cut == 1 else 'were'} cut at 3 tokens; with max_length=95 "
    assert cut > 0
    assert result.err == f"{message}(predict.max_length) they may be longer\n"
    assert cli("predict", run, "3 May", "beam=1", "max_length=3", "min_length=3").err == ""


def test_settings_have_their_mistakes_reported(cli, run):
    result = cli("predict", run, "3 May", "bem=4")
    assert (result.code, result.err) == (2, "error: settings: predict.bem: unknown key; did you mean 'beam'?\n")


def test_a_text_that_resembles_a_setting_gets_a_hint(cli, run):
    result = cli("predict", run, "colour=red")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: 'colour=red' looks like a setting, but no setting has that name (beam, ")
    assert result.err.endswith("); if it is an input text, give it by --input FILE, or --input - and stdin\n")


def test_several_runs_are_an_ensemble(cli, run, other):
    together = cli("predict", f"{run},{other}", *TEXTS, "--json").out
    assert together == cli("predict", run, *TEXTS, "--with", other, "--json").out
    alone = cli("predict", run, *TEXTS, "--json").out
    assert json.loads(together.splitlines()[0])["score"] != json.loads(alone.splitlines()[0])["score"]


def test_a_run_is_found_by_its_name(cli, run, expected_outputs, monkeypatch):
    monkeypatch.setenv("SACCADE_RUNS", str(run.parent))
    assert cli("predict", run.name, TEXTS[0]).out == expected_outputs[0] + "\n"


def test_a_missing_run_is_reported(cli):
    result = cli("predict", "none", "text")
    assert result.code == 2
    assert (
        result.err == "error: 'none' is not a run: expected a folder with recipe.toml; `saccade runs` lists the runs\n"
    )


def test_texts_and_input_exclude_each_other(cli, run):
    result = cli("predict", run, "text", "--input", "x")
    assert result.err == "error: give inputs as arguments or by --input, not both; got 'text' and --input x\n"


def test_nothing_to_predict_is_reported(cli, run, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    result = cli("predict", run)
    assert (result.code, "no input; give it" in result.err) == (2, True)


def test_a_file_is_not_written_over_itself(cli, run, tmp_path):
    (tmp_path / "a.txt").write_text("3 May\n")
    result = cli("predict", run, "--input", "a.txt", "--output", "./a.txt")
    assert result.err == "error: --input and --output are the same file 'a.txt'; choose another --output\n"
    assert (tmp_path / "a.txt").read_text() == "3 May\n"


def test_a_missing_input_is_reported(cli, run):
    result = cli("predict", run, "--input", "none.txt")
    assert (result.code, "none.txt not found" in result.err) == (2, True)


def test_only_unknown_characters_give_some_output(cli, run):
    assert cli("predict", run, "木木木").code == 0


def test_a_text_of_100000_characters_is_reported_in_one_line(cli, run):
    result = cli("predict", run, "3" * 100_000)
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert len(result.err) < 300


def test_the_first_line_comes_out_before_the_last_is_read(run, expected_outputs):
    command = [sys.executable, "-m", "saccade", "predict", str(run)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    process.stdin.write(TEXTS[0] + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == expected_outputs[0] + "\n"
    rest, _ = process.communicate(TEXTS[2] + "\n", timeout=60)
    assert rest == expected_outputs[2] + "\n"


def test_input_that_cannot_be_read_does_not_empty_an_older_output(cli, run, tmp_path):
    (tmp_path / "keep.txt").write_text("precious")
    result = cli("predict", run, "--input", "gone.txt", "--output", "keep.txt")
    assert result.code == 2 and "gone.txt" in result.err
    assert (tmp_path / "keep.txt").read_text() == "precious"


def test_a_prefix_that_the_model_cannot_write_is_refused(cli, run):
    result = cli("predict", run, "3 May 1999", "prefix=☃")
    assert (result.code, result.err) == (
        2,
        "error: the prefix '☃' has letters or words that the model does not know\n",
    )


def test_int8_weights_are_created_and_cached(cli, run):
    result = cli("predict", run, *TEXTS, "--precision", "int8")
    assert (result.code, result.out.count("\n")) == (0, 3)
    assert (run / "model.int8.safetensors").is_file()
    assert cli("evaluate", run, "--data", "embedded:dates", "--precision", "fp8").err.startswith(
        "error: unknown precision 'fp8'; expected one of auto, fp32, bf16, int8"
    )


def test_an_engine_that_cannot_express_the_recipe_is_reported(cli, run):
    pytest.importorskip("ctranslate2")
    result = cli("predict", run, TEXTS[0], "--engine", "ctranslate2", "--beam", "1")
    said = "error: CTranslate2 cannot express reader.positions.kind = 'shaw'; use engine torch\n"
    assert (result.code, result.err) == (2, said)


def test_terms_of_a_file_are_in_the_outputs(cli, run, tmp_path):
    (tmp_path / "terms.tsv").write_text("May\t0606\nJune\t99\n")
    result = cli("predict", run, *TEXTS, "--terms", "terms.tsv", "--beam", 3)
    first, empty, second, _ = result.out.split("\n")
    assert ("0606" in first, empty, "99" in second) == (True, "", True)
    assert "lack" not in result.err


def test_a_term_that_the_model_does_not_know_is_reported_with_its_line(cli, run, tmp_path):
    (tmp_path / "terms.tsv").write_text("June\t99\nMay\t☃\n", encoding="utf-8")
    result = cli("predict", run, *TEXTS, "--terms", "terms.tsv", "--beam", 3)
    message = (
        "the target phrase '☃' has letters or words that the model does not know; use other words or remove the term"
    )
    assert (result.code, result.err) == (2, f"error: terms.tsv:2: {message}\n")


def test_terms_without_space_are_reported(cli, run, tmp_path):
    (tmp_path / "terms.tsv").write_text("May\t19990503\n")
    result = cli("predict", run, *TEXTS, "--terms", "terms.tsv", "--beam", 3, "--json")
    line = json.loads(result.out.splitlines()[0])
    assert line["missing_terms"] == line["candidates"][0]["missing_terms"] == ["19990503"]
    message = "1 of 3 outputs lacks terms, for which the length limit has no space: '19990503'; raise max_length"
    assert message in result.err


def test_terms_with_greedy_search_are_refused(cli, run, tmp_path):
    (tmp_path / "terms.tsv").write_text("May\t0606\n")
    result = cli("predict", run, *TEXTS, "--terms", "terms.tsv", "--beam", 1)
    expected = "error: terms need beam search; set beam = 4 and sample = false, got beam = 1\n"
    assert (result.code, result.out, result.err) == (2, "", expected)


def test_lines_of_a_table_are_no_texts(cli, run, tmp_path):
    for name in ("a.csv", "a.tsv", "a.parquet"):
        (tmp_path / name).write_text("3 May 1999\t1999-05-03\n")
        result = cli("predict", run, "--input", name)
        assert (result.code, result.out) == (2, "")
        assert result.err == (
            f"error: --input reads lines of text, but {name} is a table; give a column of it by --corpus {name} "
            "--column NAME --output FOLDER\n"
        )
    (tmp_path / "a.tsv").write_text("3 May 1999\n")  # one column is a text in each line
    assert cli("predict", run, "--input", "a.tsv").code == 0


def test_the_name_of_a_file_is_not_translated(cli, run, tmp_path):
    (tmp_path / "test.tsv").write_text("3 May 1999\n")
    result = cli("predict", run, "test.tsv")
    message = (
        "'test.tsv' is a file, but this run reads texts, not files; give a column of it by --corpus test.tsv --column"
    )
    assert (result.code, result.out) == (2, "") and message in result.err
    assert cli("predict", run, "--input", "test.tsv").code == 0
    assert cli("predict", run, "other.tsv").code == 0  # there is no such file: a text
