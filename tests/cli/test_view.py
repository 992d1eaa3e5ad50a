"""`saccade view`: who looks at whom, in the terminal and as a picture."""

import pytest
import torch

from saccade.cli.view import choose
from saccade.errors import SaccadeError
from saccade.predict.outputs import AttentionMaps


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
def test_reader_and_writer_look_at_themselves(cli, run, part, address):
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
        (("--png", "a.gif"), "the picture's name must end in .png or .svg, got 'a.gif'; rename it"),
    ],
)
def test_what_is_not_there_is_told(cli, run, words, message):
    result = cli("view", run, "3 May", "--target", "1999", *words)
    assert (result.code, result.err) == (2, f"error: {message}\n")


@pytest.mark.parametrize(
    ("maps", "rest"),
    [({}, "none"), ({"writer.stack.blocks.0.cross": torch.ones(1, 2, 3)}, "writer.stack.blocks.0.cross")],
)
def test_a_model_without_such_attention_is_told(maps, rest):
    seen = AttentionMaps(maps, ["a", "b", "<end>"], ["c", "<end>"], "c", ["<start>", "c"])
    with pytest.raises(SaccadeError, match=rf"this model has no attention of --part reader; it has {rest}$"):
        choose(seen, part="reader", layer=None)


CONVOLUTION = "{ kind = 'convolution', layers = 2, dim = 8, attention = [%s] }"


@pytest.mark.parametrize("attends", [True, False])
def test_convolutional_models_show_what_they_have(cli, new_run, tmp_path, attends):
    stack = CONVOLUTION % str(attends).lower()
    more = [f"reader.stack={stack}", f"writer.stack={stack}", "reader.positions.kind=none"]
    run = new_run(tmp_path / "run", seed=1, more=more)
    shown = cli("view", run, "3 May", "--target", "1999")
    if attends:
        assert shown.code == 0
        assert shown.out.splitlines()[2] == "writer.stack.blocks.1.cross, mean of 1 heads"
    else:
        assert (shown.code, shown.err) == (2, "error: this model has no attention of --part cross; it has none\n")
