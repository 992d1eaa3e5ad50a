"""What the campaign of damage objects to."""

import pytest
from cases import Case
from damage import damage, find_fault
from execute import Verdict

ONE_LINE = "error: x is damaged; restore it\n"


@pytest.mark.parametrize(
    ("verdict", "fault"),
    [
        (Verdict(code=0), ""),
        (Verdict(code=2, printed=ONE_LINE), ""),
        (Verdict(code=2, printed=ONE_LINE, changed=["runs/a/.training"]), ""),
        (Verdict(code=2, printed="usage"), "0 lines of error"),
        (Verdict(code=2, printed=ONE_LINE * 2), "2 lines of error"),
        (Verdict(code=1), "exit code 1"),
        (Verdict("KeyError in saccade/x.py:f", code=0), "KeyError in saccade/x.py:f"),
        (Verdict(code=2, printed=ONE_LINE, changed=["runs/a/x.json"]), "changed or removed runs/a/x.json"),
        (Verdict(code=0, changed=["runs/a/recipe.toml"]), "changed or removed runs/a/recipe.toml"),
    ],
)  # fmt: skip
def test_a_damaged_file_leads_to_one_line_and_no_loss(verdict, fault):
    assert find_fault(Case(["predict", "a"]), verdict, memory=0) == fault


def test_a_training_that_resumes_may_write():
    assert find_fault(Case(["train", "--resume", "a"]), Verdict(code=0, changed=["runs/a/metrics.jsonl"]), 0) == ""


def test_every_damage_changes_the_file():
    for content in (b"abcdef" * 200, b"a", b""):
        ways = damage(content, b"foreign")
        assert content not in ways.values()
        assert {"gone", "flipped", "foreign"} <= ways.keys()
