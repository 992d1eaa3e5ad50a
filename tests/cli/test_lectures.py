"""`saccade lectures`: list, run, audit, trace, report."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from devices import DEVICES

from saccade.errors import SaccadeError
from saccade.lectures import catalogue
from saccade.lectures.attention import scores
from saccade.lectures.catalogue import find_row
from saccade.lectures.claims import build_result, expect_equal
from saccade.lectures.listing import format_claim, list_claims
from saccade.lectures.scale import complexity
from saccade.lectures.sources import parse_sources
from saccade.lectures.tables import read_table
from saccade.lectures.trace import format_trace, trace_run
from saccade.predict.predictors.predictor import Predictor


@pytest.fixture
def few(monkeypatch):
    """Replace the catalogue by four rows: quick ones, one that needs training, and prose."""
    chosen = [find_row(number) for number in (5, 22, 37, 44)]
    monkeypatch.setattr(catalogue, "load_rows", lambda: chosen)


def test_list_shows_every_claim_under_its_topic(cli):
    result = cli("lectures", "list")
    assert result.code == 0
    lines = result.out.splitlines()
    topics = [line for line in lines if line and not line.startswith(" ")][:-1]
    assert topics == list(read_table("rows.toml")["topics"])
    assert sorted(int(line.split()[0]) for line in lines if line.startswith(" ")) == [*range(1, 120)]
    assert "   22  Sequence to sequence learning with attention is reviewed. [prose]" in lines
    assert lines[-1].startswith("`saccade lectures run` checks 106 of them; with --train 7 more")
    assert not re.search(r"S\d:\d", result.out)


def test_list_with_sources_names_the_notes(cli):
    out = cli("lectures", "list", "--sources").out
    assert "\n   15  Attention weights lie between 0 and 1 and sum to 1; padding gets exactly 0. (S3:129)\n" in out
    assert "\nS3  Lecture 17: Attention; slides, annotated in Chinese\n" in out


def test_list_of_a_recipe_has_the_claims_of_its_topics_and_its_own(cli):
    found = json.loads(cli("lectures", "list", "--recipe", "transformer", "--json").out)
    assert [item["row"] for item in found] == [*range(57, 87), 88]
    found = json.loads(cli("lectures", "list", "--recipe", "listen-attend-walk", "--json").out)
    assert [item["row"] for item in found] == [31]  # declared by the plugin


def test_a_recipe_without_claims_is_reported(cli):
    result = cli("lectures", "list", "--recipe", "llama")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: no claim of the lecture notes is about a recipe 'llama'; `saccade recipes`")


@pytest.mark.parametrize("width", [40, 80])
def test_claims_are_wrapped_to_the_width_of_the_terminal(width):
    claims = list_claims()
    lines = [line for one in claims for line in format_claim(one, sources=True, width=width).splitlines()]
    assert max(map(len, lines)) <= width
    assert len(lines) > len(claims)


def test_the_list_is_read_from_the_source_as_the_catalogue_imports_it(cli):
    found = json.loads(cli("lectures", "list", "--json").out)
    expected = [
        (row.row, row.sentence, row.measure is not None, row.trains, [str(one) for one in parse_sources(row.where)])
        for row in catalogue.load_rows()
    ]
    durations = {"seconds": (True, False), "minutes": (True, True), "-": (False, False)}
    assert [(item["row"], item["sentence"], *durations[item["duration"]]) for item in found] == [
        row[:4] for row in expected
    ]
    named = [[f"{one['notes']}, {one['lines'].replace(',', ', ')}" for one in item["sources"]] for item in found]
    assert named == [[re.sub(", lines? (?=[\\d, -]+$)", ", ", one) for one in row[4]] for row in expected]


def test_the_list_imports_neither_torch_nor_the_checks():
    code = (
        "import sys; from saccade.cli import app; app(['lectures', 'list'], standalone_mode=False); "
        "print(sorted({'torch', 'numpy', 'saccade_worlds', 'saccade.lectures.catalogue'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_run_measures_all_that_is_quick(cli, few):
    result = cli("lectures", "run")
    assert result.code == 0
    assert result.out.splitlines()[-1] == "2 holds, 1 needs training"


def test_run_of_one_row_shows_formula_expected_and_measured(cli):
    result = cli("lectures", "run", 44)
    assert result.code == 0
    assert "softmax(q · k_1, …, q · k_4) = (0.6, 0.1, 0.2, 0.1)" in result.out
    assert "expected 3.2 ± 1e-06, measured 3.2" in result.out


def test_run_of_a_table_prints_it(cli):
    assert "GNMT + RL Ensemble" in cli("lectures", "run", 87).out


def test_run_for_programs(cli):
    [found] = json.loads(cli("lectures", "run", 44, "--json").out)
    assert found["state"] == "holds"
    assert found["sources"] == [
        {
            "notes": "Transformers (1) (COMP3361, week 4, Lingpeng Kong, The University of Hong Kong)",
            "code": "S1",
            "lines": "80-111,135",
        }
    ]
    assert {"what", "expected", "measured", "tolerance", "holds"} == set(found["compared"][0])


def test_a_row_that_fails_is_exit_code_1(cli, monkeypatch):
    monkeypatch.setattr(scores, "scaled_dot", scores.dot)
    result = cli("lectures", "run", 37)
    assert result.code == 1
    assert "row 37: fails" in result.out
    assert "FAILS  largest difference" in result.out


def test_a_row_that_raises_fails_and_the_others_still_run(cli, monkeypatch):
    monkeypatch.setattr(scores, "scaled_dot", None)
    result = cli("lectures", "run", 37, 44)
    assert result.code == 1
    assert "TypeError" in result.out
    assert "row 44: holds" in result.out


def test_a_wrong_row_is_exit_code_2(cli):
    result = cli("lectures", "run", 120)
    assert (result.code, result.out) == (2, "")
    assert result.err == "error: there is no row 120; rows are 1 to 119, see `saccade lectures list`\n"


def test_a_row_without_a_check_says_why(cli):
    result = cli("lectures", "run", 22)
    assert result.code == 0
    assert "row 22: prose" in result.out


def test_audit_shows_what_each_row_notices(cli, few):
    result = cli("lectures", "audit")
    assert result.code == 0
    rows = [line.split("  ") for line in result.out.splitlines()[1:3]]
    assert [row[0] for row in rows] == ["37", "44"]  # those that are quick and have a check
    for number, line in ((37, result.out.splitlines()[1]), (44, result.out.splitlines()[2])):
        names = find_row(number).breaks
        assert f"{len(names)} of {len(names)}" in line and ", ".join(names) in line and "[" not in line
    total = sum(len(find_row(number).breaks) for number in (37, 44))
    assert f"2 rows, {total} of {total} breaks noticed" in result.out


def test_audit_for_programs(cli):
    found = json.loads(cli("lectures", "audit", "44", "--json").out)
    assert [item["break"] for item in found] == list(find_row(44).breaks)
    assert {item["state"] for item in found} == {"fails"} and all(item["what"].endswith(".") for item in found)


def test_audit_lists_breaks_with_the_rows_that_name_them(cli, few):
    lines = cli("lectures", "audit", "--list").out.splitlines()
    (uniform,) = [line for line in lines if line.startswith("uniform-attention ")]
    assert uniform.split()[1] == "37" and "Attention ignores its query and keys" in uniform


@pytest.mark.parametrize(
    ("measure", "names", "reason"),
    [
        (lambda: build_result(expect_equal("two", 2, 2)), ("doubled-values",) * 3, "holds under doubled-values"),
        (lambda: 1 / 0, ("doubled-values",) * 3, "raises under doubled-values (ZeroDivisionError: division by zero)"),
        (
            lambda: build_result(expect_equal("x", float("nan"), 2)),
            ("doubled-values",) * 3,
            "raises under doubled-values (not finite: x)",
        ),
        (lambda: build_result(expect_equal("two", 3, 2)), ("doubled-values",) * 3, "it names 1 breaks, at least 3 are"),
    ],
)
def test_a_row_that_proves_too_little_is_exit_code_1(cli, monkeypatch, measure, names, reason):
    row = replace(find_row(44), measure=measure, breaks=names)
    monkeypatch.setattr(catalogue, "find_row", lambda number: row)
    result = cli("lectures", "audit", "44")
    assert result.code == 1
    assert f"row 44 is weak: {reason}" in result.out


def test_audit_of_prose_and_of_unknown_rows_is_exit_code_2(cli):
    assert "row 22 is prose without a check; `saccade lectures list` shows which" in cli("lectures", "audit", "22").err
    assert cli("lectures", "audit", "22").code == cli("lectures", "audit", "999").code == 2


def test_trace_prints_numbers_that_can_be_checked_by_hand(cli):
    out = cli("lectures", "trace").out
    assert "Q  queries, X W_Q  (N_Q x D_Q = 2 x 64)" in out
    assert "       112       96" in out
    assert "        14       12" in out
    assert "    0.8808   0.1192" in out


def test_run_with_sources_names_the_notes(cli):
    out = cli("lectures", "run", 22, "--sources").out
    assert "\n    S4:12: How Transformer Model Works (Jaegul Choo, KAIST), line 12\n" in out


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_trace_shows_every_column_within_the_width(width):
    matrix, words = torch.arange(12.0).reshape(2, 6) / 7 + 1000.1, ["one", "long-word"]
    text = format_trace({"X": matrix, "A": matrix[:, :2]}, words, width=width)
    shown = [float(number) for number in re.findall(r"\d+\.\d{4}", text.partition("\n\n")[0])]
    torch.testing.assert_close(sorted(shown), matrix.flatten().tolist(), atol=1e-4, rtol=0)
    values = [line for line in text.splitlines() if "  (N_" not in line]
    assert max(map(len, values)) <= width
    assert text.splitlines()[-3].split() == words  # the columns of weights are named by the words


def test_columns_of_zeros_are_only_counted():
    text = format_trace({"Q": torch.tensor([[1.0, 2.0, 0.0, 0.0]])})
    assert text.splitlines()[1:] == ["         1        2", "  columns 3 to 4 are 0"]


def test_trace_of_a_run_names_its_letters(cli, run):
    result = cli("lectures", "trace", run, "3 May", "--layer", 2, "--head", 2)
    assert result.code == 0
    assert "A  attention weights, softmax of each row of E  (N_Q x N_X = 6 x 6)" in result.out
    assert "<end>" in result.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["3 May", "--layer", "9"], "--layer must be from 1 to 2, got 9"),
        (["3 May", "--head", "3"], "--head must be from 1 to 2, got 3"),
        ([], "trace needs an input for the run"),
    ],
)
def test_invalid_arguments_of_trace_are_reported(cli, run, words, message):
    result = cli("lectures", "trace", run, *words)
    assert result.code == 2
    assert message in result.err


def test_report_of_one_lecture(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(complexity, "compare_path_lengths", lambda: [])
    result = cli("lectures", "report", "--out", "class", "--lecture", "S0")
    assert (result.code, result.out) == (0, "class/index.html\n")
    assert 'id="row-50"' in (tmp_path / "class" / "index.html").read_text("utf-8")


def test_report_of_an_unknown_lecture(cli):
    result = cli("lectures", "report", "--out", "class", "--lecture", "S9")
    assert result.code == 2
    assert "there is no lecture 'S9'" in result.err


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("head", [1, 2])
def test_trace_of_a_run_is_what_attention_computes(run, head, device):
    found, words = trace_run(Predictor.load(run, device=device), "3 May", layer=1, head=head)
    assert len(words) == len(found["A"]) == 6
    assert "R" in found  # this run has relative positions
    torch.testing.assert_close(found["A"], found["E"].softmax(-1))
    torch.testing.assert_close(found["Y"], found["A"] @ found["V"])


def test_trace_rotates_queries_and_keys_for_rotary_positions(new_run, tmp_path):
    path = new_run(tmp_path / "rotary", seed=3, more=["reader.positions={kind='rotary'}"])
    found, _ = trace_run(Predictor.load(path), "3 May", layer=2, head=2)
    assert "R" not in found
    torch.testing.assert_close(found["A"], found["E"].softmax(-1))


def test_trace_needs_self_attention(run):
    predictor = Predictor.load(run)
    predictor.model.reader = torch.nn.Identity()
    with pytest.raises(SaccadeError, match="this run's reader has no self-attention to trace"):
        trace_run(predictor, "3 May", layer=1, head=1)
