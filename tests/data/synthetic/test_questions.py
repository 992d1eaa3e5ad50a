"""Questions about shapes are deterministic, their answers are right, and they need the picture."""

from collections import Counter, defaultdict

import numpy as np

from saccade.data.synthetic.shapes import COLORS, KINDS, NUMBERS, generate_boards, generate_questions


def test_the_same_questions_each_time():
    first, again = (
        [(np.asarray(picture), described) for picture, described in generate_questions(5, seed=1)] for _ in range(2)
    )
    assert all(np.array_equal(a, b) and x == y for (a, x), (b, y) in zip(first, again, strict=True))


def test_answers_are_true():
    for board, asked, _ in generate_boards(300, seed=2):
        words = asked.question.split()
        if words[:2] == ["how", "many"]:
            name = next(name for name in (*COLORS, *KINDS) if words[2].startswith(name))
            assert NUMBERS[sum(name in (one.color, one.kind) for one in board.values())] == asked.answer
            continue
        seen = board[asked.cell]
        if words[1] == "colour":
            assert (seen.color, [one.kind for one in board.values()].count(seen.kind)) == (asked.answer, 1)
        elif "of" in words:
            beside = board[asked.cell + (1 if "left" in words else -1)]
            assert (seen.kind, [beside.color, beside.kind]) == (asked.answer, words[-3:-1])
        else:
            assert (seen.kind, seen.color) == (asked.answer, words[3])


def test_a_question_alone_is_not_enough():
    """The most frequent answer to each question is right in less than two of five cases."""
    answers = defaultdict(Counter)
    for _, asked, _ in generate_boards(3000, seed=1):
        answers[asked.question][asked.answer] += 1
    assert sum(max(found.values()) for found in answers.values()) / 3000 < 0.4


def test_boards_that_are_held_out_are_never_trained_on():
    def describe(**kind):
        return {
            tuple((p, s.color, s.kind) for p, s in board.items())
            for board, _, _ in generate_boards(600, seed=1, **kind)
        }

    assert not describe() & describe(heldout=True)
