import pytest

from saccade.view import moments


@pytest.mark.parametrize(("step", "expected"), [(0, 10), (220, 10), (221, 20), (440, 20), (441, 40), (100_000, 5120)])
def test_the_interval_of_moments_grows_with_the_run(step, expected):
    assert moments.compute_interval(step, every=10) == expected


def test_a_long_run_keeps_few_evenly_spaced_moments(tmp_path, make_document):
    small = make_document(layers=1, heads=1)
    for step in range(0, 1001, 10):
        if step % moments.compute_interval(step, every=10) == 0:
            moments.write(tmp_path, step, [small], every=10)
        assert len(moments.list_steps(tmp_path)) <= moments.MAX_MOMENTS + 2
    assert moments.list_steps(tmp_path) == list(range(0, 961, 80))


def test_the_last_step_is_always_kept(tmp_path, make_document):
    for step in (0, 10, 20, 25):
        moments.write(tmp_path, step, [make_document(layers=1, heads=1)], every=10)
    assert moments.list_steps(tmp_path) == [0, 10, 20, 25]
    moments.write(tmp_path, 30, [make_document(layers=1, heads=1)], every=10)
    assert moments.list_steps(tmp_path) == [0, 10, 20, 30]


def test_resuming_removes_later_moments(tmp_path, make_document):
    for step in (0, 10, 20):
        moments.write(tmp_path, step, [make_document(layers=1, heads=1)], every=10)
    (tmp_path / "watch" / ".step-30.json.17.tmp").write_text("half")
    moments.remove_after(tmp_path, last_step=10)
    assert [item.name for item in sorted((tmp_path / "watch").iterdir())] == ["step-0.json", "step-10.json"]


def test_removing_moments_without_any_does_nothing(tmp_path):
    moments.remove_after(tmp_path, last_step=10)
    assert moments.list_steps(tmp_path) == [] and moments.read_mean_entropies(tmp_path) == {"step": []}


def test_mean_entropies_of_each_part(tmp_path, make_document):
    first, second = make_document(layers=1, heads=2), make_document(layers=1, heads=2)
    for document, bits in ((first, [1.0, 2.0]), (second, [4.0, 5.0])):
        document["statistics"] = {name: {"entropy": bits} for name in document["statistics"]}
        document["statistics"]["cross.1"] = {"entropy": [0.5, 0.5]}
    moments.write(tmp_path, 7, [first, second], every=7)
    assert moments.read_mean_entropies(tmp_path) == {
        "step": [7], "output to input": [0.5], "output to itself": [3.0], "input to itself": [3.0],
    }  # fmt: skip


def test_a_damaged_moment_is_skipped(tmp_path, make_document):
    for step in (0, 7):
        moments.write(tmp_path, step, [make_document(layers=1, heads=1)], every=7)
    moments.get_path(tmp_path, 0).write_text('{"schema": 1')
    assert moments.read_mean_entropies(tmp_path)["step"] == [7]
