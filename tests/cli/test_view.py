"""`saccade view`: attention weights in the terminal and as plots."""

import json

import pytest


def test_the_terminal_shows_the_output_and_a_map(cli, run):
    result = cli("view", run, "3 May", "--target", "1999")
    assert result.code == 0
    first, _, name, *lines = result.out.splitlines()
    assert first == "1999"
    assert name == "writer.stack.blocks.1.cross, mean of 2 heads"
    assert [line.split()[0] for line in lines if line.strip().startswith(("1", "9"))] == list("1999")


def test_layer_and_head_are_chosen(cli, run):
    one = cli("view", run, "3 May", "--target", "1999", "--layer", 1, "--head", 2).out
    assert "writer.stack.blocks.0.cross, head 2" in one
    assert one != cli("view", run, "3 May", "--target", "1999", "--layer", 1, "--head", 1).out


@pytest.mark.parametrize(
    ("part", "address"), [("reader", "reader.stack.blocks.1.self"), ("writer", "writer.stack.blocks.1.self")]
)
def test_self_attention_of_reader_and_writer(cli, run, part, address):
    result = cli("view", run, "3 May", "--target", "1999", "--part", part)
    assert result.code == 0
    assert address in result.out


def test_without_a_target_it_is_the_models_own_output(cli, run):
    assert cli("view", run, "3 May").out.splitlines()[0] == cli("predict", run, "3 May").out.strip("\n")


@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_a_picture_of_all_heads(cli, run, tmp_path, name):
    result = cli("view", run, "3 May", "--target", "1999", "--png", name)
    assert (result.code, result.out) == (0, f"{name}\n")
    assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--layer", "3"), "--layer must be at most 2, got 3"),
        (("--head", "3"), "--head must be at most 2, got 3"),
        (("--part", "crss"), "--part must be one of cross, writer, reader, got 'crss'"),
    ],
)
def test_what_is_not_there_is_reported(cli, run, words, message):
    result = cli("view", run, "3 May", "--target", "1999", *words)
    assert (result.code, result.err) == (2, f"error: {message}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--png", "a.gif"), "the file of --png must end in .png or .svg, got 'a.gif'; rename it"),
        (("--svg", "a.png"), "the file of --svg must end in .svg, got 'a.png'; rename it"),
        (("--html", "a.htm"), "the file of --html must end in .html, got 'a.htm'; rename it"),
        (("--theme", "blue"), "--theme must be one of light, dark, got 'blue'"),
    ],
)
def test_what_cannot_be_written_is_reported_before_anything_is_loaded(cli, words, message):
    result = cli("view", "no such run", "3 May", *words)
    assert (result.code, result.err) == (2, f"error: {message}\n")


@pytest.mark.parametrize("option", ["--png", "--svg", "--html"])
def test_an_unwritable_file_is_reported(cli, run, tmp_path, option):
    (tmp_path / "file").write_text("")
    result = cli("view", run, "3 May", "--target", "1999", option, f"file/a.{option[2:]}")
    assert result.code == 2
    assert result.err.startswith("error: cannot write") and result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" ", "attention needs a text, got an empty one"),
        ("3 May" * 99, "source 1 has 496 tokens, but the model was made for at most"),
    ],
)
def test_what_cannot_be_read_is_reported(cli, run, text, message):
    result = cli("view", run, text)
    assert result.code == 2
    assert result.err.startswith(f"error: {message}")


def test_json_has_all_maps_and_the_steps(cli, run):
    found = json.loads(cli("view", run, "3 May", "--json").out)
    assert [entry["part"] for entry in found["maps"]] == ["reader", "reader", "writer", "cross", "writer", "cross"]
    assert [step["token"] for step in found["steps"]] == found["labels"]["target"]
    assert found["output"] == cli("predict", run, "3 May").out.strip("\n")
    assert found["title"] == run.name


def test_json_has_what_is_chosen(cli, run):
    [entry] = json.loads(cli("view", run, "3 May", "--json", "--part", "reader", "--layer", 2, "--head", 1).out)["maps"]
    assert (entry["address"], entry["heads"]) == ("reader.stack.blocks.1.self", 1)


def test_page_and_pictures_at_once(cli, run, tmp_path):
    result = cli("view", run, "3 May", "--html", "a.html", "--png", "a.png", "--svg", "a.svg", "--theme", "dark")
    assert (result.code, result.out) == (0, "a.png\na.svg\na.html\n")
    assert (tmp_path / "a.html").read_text("utf-8").startswith("<!doctype html>")


def test_subword_tokens_are_merged(cli, run):
    out = cli("view", run, "3 May", "--target", "1999", "--part", "reader", "--words").out
    assert [line.split()[0] for line in out.splitlines()[3:] if line[:5].strip()] == ["3", "May", "<end>"]


def test_two_runs_are_compared(cli, run, other):
    found = json.loads(cli("view", run, "3 May", "--target", "1999", "--compare", other, "--json").out)
    assert found["other"]["title"] == other.name
    assert found["maps"][0]["weights"] != found["other"]["maps"][0]["weights"]
    shown = cli("view", run, "3 May", "--target", "1999", "--compare", other).out
    assert f"{run.name}: 1999" in shown and f"{other.name}: 1999" in shown


CONVOLUTION = "{ kind = 'convolution', layers = 2, dim = 8, attention = [%s] }"


@pytest.mark.parametrize("attends", [True, False])
def test_convolutional_models_show_what_they_have(cli, new_run, tmp_path, attends):
    stack = CONVOLUTION % str(attends).lower()
    more = [f"reader.stack={stack}", f"writer.stack={stack}", "reader.positions.kind=none"]
    run = new_run(tmp_path / "run", seed=1, more=more)
    shown = cli("view", run, "3 May", "--target", "1999")
    if attends:
        assert shown.code == 0
        assert shown.out.splitlines()[2] == "writer.stack.blocks.1.cross, head 1"
    else:
        assert (shown.code, shown.err) == (2, "error: this model has no attention of --part cross; it has none\n")
