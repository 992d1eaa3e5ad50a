"""Counting the results of tests on a machine with a GPU."""

import pytest

REPORT = """<testsuites><testsuite name="pytest">
<testcase classname="tests.a" name="test_one"/>
<testcase classname="tests.a" name="test_two"><failure message="x"/></testcase>
<testcase classname="tests.a" name="test_two"><error message="teardown"/></testcase>
<testcase classname="tests.b" name="test_three[cuda]"><skipped message="needs a CUDA device"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def cuda_tests(script):
    return script("cuda_tests")


def test_a_report_is_counted(cuda_tests):
    found = cuda_tests.count_results(REPORT)
    assert found == {
        "passed": 1, "failed": 1, "errors": 1, "skipped": 1, "names": ["tests.a::test_two", "tests.a::test_two"]
    }  # fmt: skip


def test_shards_are_added_up_and_those_without_a_report_were_stopped(cuda_tests):
    found = cuda_tests.count_results(REPORT)
    rows = cuda_tests.build_rows({"visible": [found, found, {"seconds": 540}], "hidden": [found]})
    values = {row["what"]: row["value"] for row in rows}
    assert values["fast tests with CUDA visible: passed"] == values["fast tests with CUDA visible: failed"] == 2
    assert values["fast tests with CUDA visible: stopped"] == 1
    assert values["fast tests with CUDA hidden: skipped"] == 1
    assert values["fast tests with CUDA hidden: stopped"] == 0


def test_counts_of_another_commit_do_not_count(cuda_tests, tmp_path, monkeypatch):
    part = tmp_path / "visible-1-of-8.json"
    assert cuda_tests.read_part(part) == {}
    part.write_text('{"commit": "abc", "passed": 3}')
    assert cuda_tests.read_part(part) == {}
    monkeypatch.setattr(cuda_tests.results, "commit", lambda: "abc")
    assert cuda_tests.read_part(part)["passed"] == 3
