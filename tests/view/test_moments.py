import pytest

from saccade.view import moments


@pytest.mark.parametrize(("step", "expected"), [(0, 10), (220, 10), (221, 20), (440, 20), (441, 40), (100_000, 5120)])
def test_the_distance_of_moments_grows_with_the_run(step, expected):
    assert moments.spacing(step, every=10) == expected


def test_a_long_run_keeps_few_moments_at_even_distances(tmp_path, made):
    small = made(layers=1, heads=1)
    for step in range(0, 1001, 10):
        if step % moments.spacing(step, every=10) == 0:
            moments.write(tmp_path, step, [small], every=10)
        assert len(moments.steps(tmp_path)) <= moments.MOST + 2
    assert moments.steps(tmp_path) == list(range(0, 961, 80))


def test_the_last_step_is_kept_though_it_is_none_of_them(tmp_path, made):
    for step in (0, 10, 20, 25):
        moments.write(tmp_path, step, [made(layers=1, heads=1)], every=10)
    assert moments.steps(tmp_path) == [0, 10, 20, 25]
    moments.write(tmp_path, 30, [made(layers=1, heads=1)], every=10)
    assert moments.steps(tmp_path) == [0, 10, 20, 30]


def test_going_on_from_a_step_forgets_what_came_after_it(tmp_path, made):
    for step in (0, 10, 20):
        moments.write(tmp_path, step, [made(layers=1, heads=1)], every=10)
    (tmp_path / "watch" / ".step-30.json.17.tmp").write_text("half")
    moments.cut(tmp_path, after=10)
    assert [item.name for item in sorted((tmp_path / "watch").iterdir())] == ["step-0.json", "step-10.json"]


def test_nothing_is_forgotten_where_nothing_was_kept(tmp_path):
    moments.cut(tmp_path, after=10)
    assert moments.steps(tmp_path) == [] and moments.sharpness(tmp_path) == {"step": []}


def test_sharpness_is_the_mean_entropy_of_each_kind_of_attention(tmp_path, made):
    first, second = made(layers=1, heads=2), made(layers=1, heads=2)
    for document, bits in ((first, [1.0, 2.0]), (second, [4.0, 5.0])):
        document["statistics"] = {name: {"entropy": bits} for name in document["statistics"]}
        document["statistics"]["cross.1"] = {"entropy": [0.5, 0.5]}
    moments.write(tmp_path, 7, [first, second], every=7)
    assert moments.sharpness(tmp_path) == {
        "step": [7], "output to input": [0.5], "output to itself": [3.0], "input to itself": [3.0],
    }  # fmt: skip


def test_a_damaged_moment_is_left_out(tmp_path, made):
    for step in (0, 7):
        moments.write(tmp_path, step, [made(layers=1, heads=1)], every=7)
    moments.path_of(tmp_path, 0).write_text('{"schema": 1')
    assert moments.sharpness(tmp_path)["step"] == [7]
