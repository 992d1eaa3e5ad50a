"""Compatible and incompatible settings of readers of a picture and a question."""

import pytest

from saccade.config.load import load, save
from saccade.config.schema import QuestionJoin
from saccade.errors import SaccadeError
from saccade.model.build.model import build

NAME = "show-ask-attend-answer"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("reader.join.kind=sum", r"unknown kind 'sum'.*glimpses, hops, concat, question"),
        ("reader.join.glimpses=0", r"reader.join.glimpses"),
        ("reader.image.kind=frames", r"unknown kind 'frames'"),
        ("reader.image.size=100", r"size must be a multiple of 16"),
        ("reader.question.init=x", r"reader.question.init is not supported; set reader.init"),
        (
            "reader.join={kind='concat'}",
            r'states do not depend on each other, so that writer.pooling = "first" depends',
        ),
        ("reader.image_dropout=1", r"reader.image_dropout"),
        ("reader.question.causal=true", r'reader.question.causal = true is for a Transformer, got .* "recurrent"'),
        ("objectives.0.mixup=0.5", r"a mixed picture has no question of its own"),
        ("task=translate", r'task = "translate" reads texts, got a reader of pictures'),
        (
            "reader.join={kind='hops', question_length=39}",
            r"reader.join.question_length = 39 has no weight for .* data.max_length = 40; set one to the other",
        ),
        (
            "reader.join={kind='hops', question_length=40, dim=24}",
            r"must have the same width; got reader.question.stack.dim = 512 and reader.join.dim = 24; set one to the",
        ),
    ],
)
def test_incompatible_settings_are_reported(change, message):
    with pytest.raises(SaccadeError, match=message):
        load(NAME, overrides=[change])


def test_a_question_alone_has_no_reader_of_pictures_to_begin_with():
    with pytest.raises(SaccadeError, match="reader.image.init needs a reader of pictures"):
        load(NAME, overrides=["reader.join.kind=question", "reader.image.init=x"])


def test_a_join_of_another_kind_leaves_the_settings_of_the_one_before(tmp_path):
    recipe = load(NAME, overrides=["reader.join.kind=question"])
    assert recipe.reader.join == QuestionJoin()
    save(recipe, tmp_path / "r.toml")
    assert load(tmp_path / "r.toml").reader == recipe.reader


def test_a_stack_over_both_is_as_wide_as_both():
    changes = ["reader.join={kind='concat', dim=16, stack={kind='transformer', layers=1, dim=24, heads=2, ff=8}}"]
    with pytest.raises(SaccadeError, match=r"reader.join.stack.dim must be that of the join, 16, got 24"):
        build(load(NAME, tiny=True, overrides=changes), source_size=9, target_size=7)
