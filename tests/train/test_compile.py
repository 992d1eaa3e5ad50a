"""torch.compile, in processes of their own: the shape checks of the tests would break its graphs."""

import json

import pytest
import small
import torch

from saccade.errors import SaccadeError
from saccade.layers.regions import region
from saccade.train.loss import report_compile_errors

TRAIN = {"steps": 8, "valid_every": 4, "batch_tokens": 200, "report_every": 1, "pack": False}
R_DROP = ["objectives=[{kind='r-drop'}]"]
# Batches of one row get a second one of padding, which changes what dropout draws.
NO_DROPOUT = [f"{part}.dropout=0" for part in ("reader", "writer", "reader.stack", "writer.stack")]
ONE_ROW = ["train.batch_tokens=13", *NO_DROPOUT]


def losses(run):
    return [(line["event"], line["step"], line["loss"]) for line in small.read_metrics(run)]


@pytest.mark.parametrize(
    ("backend", "overrides"),
    [
        ("eager", []),
        pytest.param("eager", R_DROP, marks=pytest.mark.slow),
        pytest.param("eager", ONE_ROW, marks=pytest.mark.slow),
        pytest.param("aot_eager", ["train.recompute=true"], marks=pytest.mark.slow),
        pytest.param("aot_eager", [], marks=pytest.mark.slow),
    ],
)
def test_compiled_run_has_one_graph_a_side_no_breaks_and_the_losses_of_eager(
    run_in_process, tmp_path, backend, overrides
):
    small.api.train(small.small(**TRAIN), run=tmp_path / "eager", overrides=overrides)

    assert run_in_process(small.train_compiled, str(tmp_path / "compiled"), TRAIN, backend, overrides) == 0

    assert json.loads((tmp_path / "compiled/counts.json").read_text()) == {"graphs": 2, "breaks": 0}
    for got, expected in zip(losses(tmp_path / "compiled"), losses(tmp_path / "eager"), strict=True):
        assert got[:2] == expected[:2] and got[2] == pytest.approx(expected[2], abs=1e-5)


def test_packed_rows_of_all_lengths_share_one_graph_a_side(run_in_process, tmp_path):
    path = tmp_path / "graphs"
    assert run_in_process(small.count_packed_graphs, str(path)) == 0
    assert path.read_text() == "2"


def test_graph_break_says_how_to_continue(monkeypatch):
    monkeypatch.setenv("SACCADE_COMPILE_BACKEND", "eager")

    @region
    def breaks(x):
        torch._dynamo.graph_break()
        return x + 1

    with pytest.raises(SaccadeError, match="torch.compile failed .*train.compile=false"), report_compile_errors(True):
        breaks(torch.ones(3))
