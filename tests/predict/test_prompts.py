"""Few-shot prompts from templates, examples and tasks."""

import json
from pathlib import Path
from typing import Any

import pytest

from saccade.errors import SaccadeError
from saccade.predict.prompts import PromptTask, build_task, format_examples, parse_template, read_tasks

TEMPLATE = r"Poor English: {poor}\nGood English: {good}"


def task(**fields: Any) -> PromptTask:
    return PromptTask("tasks:1", fields)


def test_examples_are_whole_and_the_task_ends_before_its_answer(tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").write_text(
        '{"poor": "I eated.", "good": "I ate."}\n{"poor": "He go.", "good": "He goes."}\n'
    )
    template = parse_template(TEMPLATE)
    solved = format_examples(template, str(tmp_path / "e.jsonl"))
    assert solved == "Poor English: I eated.\nGood English: I ate.\nPoor English: He go.\nGood English: He goes.\n"
    assert (
        template.format_prompt(build_task(template, "We is."), solved) == f"{solved}Poor English: We is.\nGood English:"
    )
    assert (template.answer, template.input_fields, template.answer_spaces, template.after) == (
        "good",
        ["poor"],
        " ",
        "\n",
    )


def test_a_template_may_be_a_file_with_several_fields_and_braces(tmp_path: Path) -> None:
    file = tmp_path / "template.txt"
    file.write_text("{{Title: {title}\nBy {author}: {title}}}\n\nArticle:\n{article}\n\n###\n")
    template = parse_template(str(file))
    assert template.input_fields == ["title", "author"] and template.after == "\n\n###\n"
    assert template.format_prompt(task(title="A", author=7)) == "{Title: A\nBy 7: A}\n\nArticle:\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no field", "'no field' has no field, and there is no file of that name; expected one as 'Question"),
        ("{a", r"the template cannot be read \(.*\); write {{ and }} for braces"),
        ("{a} b", r"the answer as its last one, as .*; got {a}$"),
        ("{a} {b} {a}", r"the answer as its last one, as .*; got {a}, {b}, {a}$"),
        ("{a.b} {c}", r"plain names, as {question}, got {a\.b}"),
        ("{a:>3} {c}", r"plain names, as {question}, got {a>3}"),
        ("{} {c}", r"plain names, as {question}, got {}"),
    ],
)
def test_an_invalid_template_is_explained_in_one_line(text: str, message: str) -> None:
    with pytest.raises(SaccadeError, match=message):
        parse_template(text)


def test_a_field_that_is_missing_or_no_text_is_named_with_its_row(tmp_path: Path) -> None:
    template = parse_template(TEMPLATE)
    with pytest.raises(
        SaccadeError, match=r"tasks:1: the template asks for {poor}; did you mean pour\? \(fields: pour"
    ):
        template.format_prompt(task(pour="x", good="y"))
    with pytest.raises(SaccadeError, match="tasks:1: expected text in field 'poor', got list"):
        template.format_prompt(task(poor=["x"]))
    (tmp_path / "e.jsonl").write_text('{"poor": "a", "good": "b"}\n{"poor": "a"}\n')
    with pytest.raises(SaccadeError, match=r"e\.jsonl:2: the template asks for {good} \(fields: poor\)"):
        format_examples(template, str(tmp_path / "e.jsonl"))
    with pytest.raises(SaccadeError, match="has the fields a, b, so that one text is not enough; give tasks as rows"):
        build_task(parse_template("{a} {b} {c}"), "x")


def test_tasks_are_rows_of_any_file_with_columns(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("poor,good\nI eated.,I ate.\n")
    (tmp_path / "t.tsv").write_text("poor\tgood\nI eated.\tI ate.\n")
    (tmp_path / "t.jsonl").write_text(json.dumps({"poor": "I eated.", "good": "I ate."}) + "\n")
    prompts = {
        parse_template(TEMPLATE).format_example(next(read_tasks(str(tmp_path / f"t.{end}"))))
        for end in ("csv", "tsv", "jsonl")
    }
    assert prompts == {"Poor English: I eated.\nGood English: I ate.\n"}
    with pytest.raises(
        SaccadeError, match=r"t\.txt has no fields for a template; expected a file that ends with \.tsv"
    ):
        next(read_tasks("t.txt"))


def test_a_file_that_is_no_template_is_refused(tmp_path):
    (tmp_path / "template").write_bytes(b"\xff")
    with pytest.raises(SaccadeError, match=r"template is not UTF-8 text .*; save it as UTF-8"):
        parse_template(str(tmp_path / "template"))
    with pytest.raises(SaccadeError, match="has no field, and there is no file of that name"):
        parse_template("a" * 5000)
