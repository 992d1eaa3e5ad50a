import sys
from typing import Any

import pytest
import torch
from safetensors import safe_open

from saccade.config.schema import Decoding
from saccade.errors import SaccadeError
from saccade.kernels.cpu import prepared
from saccade.kernels.cpu.fma import FmaLinear
from saccade.kernels.cpu.prepared import Int8Linear, PackedLinear
from saccade.kernels.cpu.vnni import VnniLinear
from saccade.model import int8
from saccade.predict import threads
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import WEIGHTS

LINES = ["abcd efg", "gfe", "a", "bad cab bag", "fed"]
onednn = pytest.mark.skipif(not prepared.is_available(), reason="needs a torch with oneDNN")


@onednn
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("beam", [1, 4])
def test_prepared_weights_write_the_same_tokens(beam: int, norm: str, make_run: Any, make_predictor: Any) -> None:
    decoding = Decoding(beam=beam, n_best=beam)
    plain = make_predictor(seed=3, norm=norm).candidates(LINES, decoding=decoding)
    loaded = Predictor.load(make_run("one", seed=3, norm=norm), device="cpu")
    assert isinstance(loaded.model.writer.output, PackedLinear | FmaLinear)
    for got, expected in zip(loaded.candidates(LINES, decoding=decoding), plain, strict=True):
        assert [item.ids for item in got] == [item.ids for item in expected]
        assert [item.score for item in got] == pytest.approx([item.score for item in expected], abs=1e-5)


@onednn
def test_int8_weights_are_converted_once_and_kept(make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run("one", seed=3)
    first = Predictor.load(folder, device="cpu", precision="int8")
    assert isinstance(first.model.writer.output, Int8Linear | VnniLinear)
    monkeypatch.setattr(int8, "quantize_weights", lambda model: pytest.fail("made again"))
    again = Predictor.load(folder, device="cpu", precision="int8")
    assert again.predict(LINES) == first.predict(LINES)
    scores = [[item.score for item in row] for one in (first, again) for row in one.candidates(LINES)]
    assert scores[: len(LINES)] == scores[len(LINES) :]


@onednn
def test_int8_is_near_fp32(make_run: Any) -> None:
    folder = make_run("one", seed=3)
    pairs = [(text, text) for text in LINES]
    exact, near = (Predictor.load(folder, device="cpu", precision=p).score(pairs) for p in ("fp32", "int8"))
    assert near == pytest.approx(exact, rel=0.05)
    assert near != exact


@onednn
@pytest.mark.parametrize("spoil", ["cut", "other weights", "other names"])
def test_int8_weights_of_another_model_are_converted_again(spoil: str, make_run: Any) -> None:
    folder, other = make_run("one", seed=3), make_run("two", seed=4)
    expected = Predictor.load(folder, device="cpu", precision="int8").score([("abc", "cba")])
    kept = folder / int8.INT8_WEIGHTS
    if spoil == "cut":
        kept.write_bytes(kept.read_bytes()[:-7])
    elif spoil == "other weights":
        Predictor.load(other, device="cpu", precision="int8")
        kept.write_bytes((other / int8.INT8_WEIGHTS).read_bytes())
    else:
        with safe_open(kept, framework="pt") as file:
            note, vocabulary = (file.metadata()[name] for name in (int8.MADE_FROM, int8.VOCABULARY))
        int8.write_tensors({"x": torch.ones(3)}, kept, vocabulary=vocabulary, made_from=note)
    size = kept.stat().st_size
    assert Predictor.load(folder, device="cpu", precision="int8").score([("abc", "cba")]) == expected
    assert kept.stat().st_size != size or spoil == "other weights"


@onednn
def test_new_weights_are_converted_to_int8_again(make_run: Any) -> None:
    folder, other = make_run("one", seed=3), make_run("two", seed=4)
    old = Predictor.load(folder, device="cpu", precision="int8").score([("abc", "cba")])
    (folder / WEIGHTS).write_bytes((other / WEIGHTS).read_bytes())
    new = Predictor.load(folder, device="cpu", precision="int8").score([("abc", "cba")])
    assert new != old
    assert new == Predictor.load(other, device="cpu", precision="int8").score([("abc", "cba")])


@onednn
def test_int8_works_in_a_read_only_run(make_run: Any) -> None:
    folder = make_run("one", seed=3)
    (folder / int8.INT8_WEIGHTS).mkdir()  # a file cannot be written there
    assert Predictor.load(folder, device="cpu", precision="int8").predict(LINES)


def test_bf16_computes_in_bf16(make_run: Any) -> None:
    folder = make_run("one", seed=3)
    exact, near = (Predictor.load(folder, device="cpu", precision=p) for p in ("fp32", "bf16"))
    assert next(near.model.parameters()).dtype == torch.bfloat16
    assert near.score([("abc", "cba")]) == pytest.approx(exact.score([("abc", "cba")]), rel=0.05)
    assert any(near.predict(LINES))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "fast"}, "unknown engine 'fast'; expected one of auto, torch, ctranslate2"),
        ({"precision": "fp8"}, "unknown precision 'fp8'; expected one of auto, fp32, bf16, int8"),
    ],
)
def test_unknown_names_are_refused(settings: dict, message: str, make_run: Any) -> None:
    with pytest.raises(SaccadeError, match=message):
        Predictor.load(make_run("one"), device="cpu", **settings)


def test_int8_is_refused_on_a_gpu() -> None:
    from saccade.predict.engines.load import check_engine_and_precision

    with pytest.raises(SaccadeError, match="int8 is for the CPU, got device cuda; use bf16 there, or device cpu"):
        check_engine_and_precision("auto", "int8", torch.device("cuda"))


def test_int8_runs_on_the_cpu_by_default(make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line has no option for the device."""
    monkeypatch.delenv("SACCADE_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert Predictor.load(make_run("one"), precision="int8").device.type == "cpu"


def test_int8_is_refused_without_onednn(make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "is_available", lambda: False)
    with pytest.raises(SaccadeError, match="int8 needs a torch with oneDNN, .* use precision fp32"):
        Predictor.load(make_run("one"), device="cpu", precision="int8")
    assert all(Predictor.load(make_run("two"), device="cpu").predict(LINES))


def test_a_missing_ctranslate2_is_reported(make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(
        SaccadeError, match=r"ctranslate2 is not installed; use engine torch, .*pip install .*\[export\]"
    ):
        Predictor.load(make_run("one"), device="cpu", engine="ctranslate2")


def test_a_model_that_ctranslate2_cannot_express_needs_no_ctranslate2(
    make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is the model, so that nobody installs the package in vain."""
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    run = make_run("one", reader={"causal": True, "stack": {"layers": 1, "dim": 22, "heads": 11, "ff": 13}})
    with pytest.raises(SaccadeError, match=r"CTranslate2 cannot express reader.causal = true; use engine torch"):
        Predictor.load(run, device="cpu", engine="ctranslate2")


def test_hyper_threads_of_one_core_count_once(tmp_path: Any) -> None:
    for number, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert threads.count_cores({0, 1, 2, 3}, tmp_path) == 2
    assert threads.count_cores({1, 3}, tmp_path) == 1
    assert threads.count_cores({0, 1, 7}, tmp_path) == 3  # one that the system does not describe


def test_omp_num_threads_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setenv(threads.THREADS_VARIABLE, "1")
    threads.use_all_cores()
    assert asked == []
    monkeypatch.delenv(threads.THREADS_VARIABLE)
    threads.use_all_cores()
    assert asked == [threads.count_cores(threads.get_available_cpus(), threads.TOPOLOGY)]
