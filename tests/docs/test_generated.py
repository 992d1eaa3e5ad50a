"""Generated pages are up to date, and benchmarks/report.py writes what it should."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def load_script(path: str):
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_drawing_of_a_training_step_is_up_to_date():
    """`make check` looks at the other generated pages."""
    done = subprocess.run([sys.executable, ROOT / "docs/training_step.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_settings_page_has_type_default_and_meaning():
    page = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    assert '| `epochs` | whole number >= 1, or `"none"` | `"none"` |' in page
    assert '## `[reader.stack]`, `[reader.second_pass.stack]` and `[writer.stack]`, kind = "transformer"' in page
    assert '| `norm` | `"post"` or `"pre"` or `"none"` | `"post"` |' in page
    assert "Liang et al. 2021" in page


def test_command_page_has_every_verb():
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    verbs = ["demo", "train", "predict", "evaluate", "compare", "view", "runs", "recipes", "recipes copy"]
    assert not [verb for verb in verbs if f"## saccade {verb}\n" not in page]


RESULT = {
    "name": "translation",
    "command": "python benchmarks/translation.py --data FOLDER",
    "commit": "0123456789ab",
    "date": "2026-01-02",
    "hardware": "one abacus",
    "versions": {"torch": "2.13.0"},
    "minutes": 2.5,
    "rows": [
        {"what": "a->b, BLEU", "value": 40.0, "unit": "BLEU", "signature": "nrefs:1|tok:13a", "seed": 1},
        {"what": "a->b, BLEU", "value": 42.5, "unit": "BLEU", "signature": "nrefs:1|tok:13a", "seed": 2},
        {"what": "a->b, BLEU, mean", "value": 41.25, "unit": "BLEU", "peer": "other", "peer_value": 37.5, "ratio": 1.1},
        {"what": "a->b, parameters", "value": 1234567, "unit": "parameters"},
        {"what": "a->b, minutes, the whole process", "value": 3.0, "unit": "minutes", "seed": 1},
        {"what": "c->d, BLEU", "value": 50.0, "unit": "BLEU", "seed": 1},
        {"what": "memory", "value": 7, "unit": "MiB"},
        {"what": "memory at each length", "value": 8, "unit": "MiB", "detail": True},
        {"what": "speed", "value": None, "unit": "tok/s"},
    ],
}


@pytest.fixture
def report(tmp_path):
    module = load_script("benchmarks/report.py")
    module.ROOT = tmp_path
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "speed.md").write_text("# s\n<!-- table: translation -->\nold\n<!-- table: end -->\nend\n")
    (tmp_path / "README.md").write_text(f"# before\n{module.BEGIN}\nold\n{module.END}\nafter\n")
    (tmp_path / "benchmarks" / "results" / "translation.json").write_text(json.dumps(RESULT))
    return module


def run_report(report, monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["report.py", *words])
    return report.main()


def test_results_page_has_command_and_hardware_of_each_number(report, monkeypatch, tmp_path):
    assert run_report(report, monkeypatch) == 0
    page = (tmp_path / "docs" / "results.md").read_text()
    assert "    python benchmarks/translation.py --data FOLDER\n" in page
    assert "one abacus; 2026-01-02, commit 0123456789ab;\n2.50 minutes in all; torch 2.13.0." in page
    assert "| a->b, BLEU | 42.50 BLEU | 2 |  |  |" in page
    assert "| a->b, BLEU, mean | 41.25 BLEU |  | other: 37.50 | 1.10 |" in page
    assert "| a->b, parameters | 1,234,567 parameters |" in page
    assert page.count("* `nrefs:1|tok:13a`") == 1


def test_front_page_shows_the_rows_of_front(report, monkeypatch, tmp_path):
    monkeypatch.setattr(
        report, "FRONT", {"speed": "fast", "c->d": "c to d", "nobody": "x", "a->b, BLEU, mean": "a to b"}
    )
    run_report(report, monkeypatch)
    lines = (tmp_path / "README.md").read_text().splitlines()
    assert lines[0] == "# before"
    assert lines[-1] == "after"
    assert lines[4:7] == [
        "| fast | not measured |  |  |",
        "| c to d | 50.0 BLEU |  |  |",
        "| a to b | 41.2 BLEU | other: 37.5 | 1.10 |",
    ]


def test_front_page_shows_seeds_spread_and_sizes_of_both_sides(report, monkeypatch, tmp_path):
    run_report(report, monkeypatch)
    lines = (tmp_path / "README.md").read_text().splitlines()
    [row] = [line for line in lines if line.startswith("| `multi30k-en-de` |")]
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[3:6] == ["40.81 ± 0.21 BLEU", "3", "8.40 M"]
    assert cells[6].endswith("2.35 M parameters") and "8.4 M parameters" in cells[7]
    [fsdd] = [line for line in lines if line.startswith("| `fsdd` |")]
    assert "99.78 ± 0.19 % of digits | 3 |" in fsdd
    [one] = [line for line in lines if line.startswith("| `cifar10` |")]
    assert "| 91.96 % right | 1 |" in one


def test_results_page_says_how_to_repeat_and_what_lacks_seeds(report, monkeypatch, tmp_path):
    run_report(report, monkeypatch)
    page = (tmp_path / "docs" / "results.md").read_text()
    assert "saccade reproduce NAME --data-folder DATA" in page and "DATA is a folder with" in page
    [few] = [line for line in page.splitlines() if line.startswith("Not measured with three seeds")]
    assert "`cifar10`" in few and "`fsdd`" not in few and "`multi30k-en-de`" not in few
    assert "* `fsdd`: once by the test" in page


@pytest.mark.parametrize(
    ("value", "text"),
    [(1567525, "1.57 M"), (83730, "83,700"), (4550, "4,550"), (47.9, "47.9"), (0.622, "0.622"), (0, "0"), ("-", "-")],
)
def test_numbers_are_rounded_for_people(report, value, text):
    assert report.round_number(value) == text


def test_front_page_names_rows_that_are_there():
    module = load_script("benchmarks/report.py")
    assert len(module.headlines(module.read(ROOT / "benchmarks" / "results"))) == len(module.FRONT)


def test_page_shows_the_files_that_it_names(report, monkeypatch, tmp_path):
    run_report(report, monkeypatch)
    lines = (tmp_path / "docs" / "speed.md").read_text().splitlines()
    assert lines[:2] == ["# s", "<!-- table: translation -->"] and lines[-2:] == ["<!-- table: end -->", "end"]
    assert lines[2] == "one abacus; `python benchmarks/translation.py --data FOLDER`, 2026-01-02."
    assert "| memory | 7 MiB |  |  |  |" in lines and "old" not in lines


def test_missing_result_is_marked_on_the_page(report):
    page = report.with_tables("<!-- table: other -->\n<!-- table: end -->\n", [RESULT])
    assert page == "<!-- table: other -->\nNot recorded yet.\n<!-- table: end -->\n"


def test_check_detects_outdated_pages(report, monkeypatch, tmp_path, capsys):
    assert run_report(report, monkeypatch, "--check") == 1
    assert "docs/results.md is not up to date" in capsys.readouterr().err
    run_report(report, monkeypatch)
    assert run_report(report, monkeypatch, "--check") == 0
    assert "\nold\n" not in (tmp_path / "README.md").read_text()


def test_result_that_lacks_something_is_named(report, tmp_path):
    broken = {**RESULT, "rows": [{"what": "x", "value": 1}]}
    del broken["hardware"]
    (tmp_path / "benchmarks" / "results" / "broken.json").write_text(json.dumps(broken))
    with pytest.raises(SystemExit, match=r"broken\.json lacks hardware, unit of row 1"):
        report.read(tmp_path / "benchmarks" / "results")


def test_readme_without_marks_is_refused(report):
    with pytest.raises(SystemExit, match=r"README\.md lacks the marks"):
        report.with_table("nothing", [], {})
