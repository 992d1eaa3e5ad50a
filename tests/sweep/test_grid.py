"""How the values of a grid are read and named."""

import pytest

from saccade.errors import SaccadeError
from saccade.sweep.grid import (
    Axis,
    Configuration,
    Range,
    clean_name,
    list_configurations,
    parse_grid,
    parse_words,
    shorten_keys,
)

LR = "train.schedule.lr"


def test_commas_inside_brackets_and_quotes_part_no_values():
    [axis] = parse_grid({"train.augment": '[{kind = "a", p = 1}, 2],[],"x,y"'})
    assert axis.values == ('[{kind = "a", p = 1}, 2]', "[]", '"x,y"')


def test_values_of_python_are_those_of_the_command_line():
    given = parse_grid({LR: [1e-3, 3e-3], "train.pack": [True, None], "train.metric": ["loss"]})
    assert given == [
        Axis(LR, ("0.001", "0.003")), Axis("train.pack", ("true", '"none"')), Axis("train.metric", ('"loss"',))
    ]  # fmt: skip


def test_all_combinations_are_tried_the_last_key_first():
    words = parse_words([f"{LR}=1,2", "train.clip = 0"])
    found = [configuration.overrides for configuration in list_configurations(parse_grid(words))]
    assert found == [[f"{LR}=1", "train.clip=0"], [f"{LR}=2", "train.clip=0"]]


def test_ranges():
    assert parse_grid({LR: "1e-5..1e-2:log"}) == [Range(LR, 1e-5, 1e-2, is_log=True, is_whole=False)]
    [layers] = parse_grid({"reader.stack.layers": "1..6"})
    assert layers.is_whole and layers.format_number(3.0) == "3"
    narrow = Range(LR, 0.12344, 0.2, is_log=False, is_whole=False)
    assert narrow.format_number(0.12344) == "0.12344" and narrow.format_number(0.15321234) == "0.1532"


def test_names_are_short_and_different():
    assert shorten_keys(["reader.stack.dim", "writer.stack.dim", LR]) == {
        "reader.stack.dim": "reader.stack.dim", "writer.stack.dim": "writer.stack.dim", LR: "train.schedule.lr",
    }  # fmt: skip
    configuration = Configuration(((LR, "1e-3"), ("train.clip", "1.0")))
    assert (configuration.describe(), configuration.format_name()) == ("lr=1e-3, clip=1.0", "lr-1e-3-clip-1.0")
    unsafe = [clean_name(text) for text in ("a/../b", "a/b", "[1, 2]", "x" * 99, "x" * 98, "..")]
    assert len(set(unsafe)) == 6 and not any(set("/[] ") & set(name) or len(name) > 48 for name in unsafe)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({}, "a sweep needs keys and their values, such as --grid train.schedule.lr=1e-4,3e-4,1e-3"),
        ({LR: ""}, f"the grid has no values of {LR}; give some as {LR}=A,B,..."),
        ({LR: []}, f"the grid has no values of {LR}"),
        ({LR: "1,,2"}, f"the grid has an empty value of {LR}, got '1,,2'; is there a comma too many?"),
        ({LR: "1e-3,0.001"}, f"the grid has the value 0.001 of {LR} twice; leave one out"),
        ({LR: 0.1}, f"grid: expected a list of values of {LR}, got 0.1; put it into a list"),
        ({LR: "1e-2..1e-5"}, f"range of {LR}: expected two numbers LOW..HIGH, the lower one first, got 1e-2..1e-5"),
        ({LR: "0..1:log"}, f"range of {LR}: a logarithmic one must begin above 0, got 0; leave :log out"),
        ({LR: "1..2:ln"}, f"range of {LR}: unknown scale 'ln'; expected 1..2 or 1..2:log"),
    ],
)
def test_mistakes(grid, message):
    with pytest.raises(SaccadeError) as error:
        parse_grid(grid)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["1e-3,2"], "--grid 1e-3,2: expected KEY=VALUE,VALUE,..., such as"),
        ([f"{LR}=1", f"{LR}=2"], f"--grid names {LR} twice; give all of its values in one list: {LR}=A,B,..."),
    ],
)
def test_mistakes_of_the_command_line(words, message):
    with pytest.raises(SaccadeError) as error:
        parse_words(words)
    assert str(error.value).startswith(message)
