"""Files of a run: written atomically, read with clear error messages."""

import errno
import os
import re
import resource
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from saccade.config.load import save
from saccade.config.schema import Recipe
from saccade.data.batching.batch import Batch
from saccade.data.tokenization.tokenizers import Tokenizers, train_tokenizers
from saccade.errors import SaccadeError
from saccade.layers.attention import positions
from saccade.model import run as module
from saccade.model.build import allocation
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.run import DEVICE, load_run, named_weights, pick_device, write_tensors
from saccade.runs import RECIPE, WEIGHTS

PAIRS = [("ein Hund", "a dog"), ("zwei Katzen", "two cats")]


def create_run(folder: Path, recipe: Recipe, *, kinds: Mapping[str, Any] | None = None) -> Model:
    folder.mkdir()
    tokenizers = train_tokenizers(recipe.tokenizer, lambda: PAIRS)
    model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target.size)
    save(recipe, folder / RECIPE)
    tokenizers.save(folder)
    write_tensors(named_weights(model), folder / WEIGHTS)
    return model.eval()


@pytest.fixture
def small(recipe: Callable[..., Recipe]) -> Recipe:
    return recipe("tokenizer.kind=characters")


def test_a_loaded_run_is_the_model_that_was_written(tmp_path: Path, small: Recipe, batch: Batch) -> None:
    model = create_run(tmp_path / "run", small)
    run = load_run(tmp_path / "run")
    loaded = run.model
    assert run.recipe == small and run.path == tmp_path / "run"
    assert not any(part.training for part in loaded.modules())
    ids = batch["target"].ids % 12
    source = batch["source"].ids % 12
    outputs = [one.writer(ids, None, one.reader(source, batch["source"].mask)) for one in (model, loaded)]
    assert torch.equal(*outputs)


@pytest.mark.parametrize(("tie", "absent"), [
    ("all", {"writer.embedding.tokens.weight", "writer.output.weight"}),
    ("output", {"writer.output.weight"}),
    ("none", set()),
])  # fmt: skip
def test_tied_tensors_are_stored_once(
    tmp_path: Path, recipe: Callable[..., Recipe], tie: str, absent: set[str]
) -> None:
    model = create_run(tmp_path / "run", recipe("tokenizer.kind=characters", f"writer.tie={tie}"))
    stored = load_file(tmp_path / "run" / WEIGHTS)
    assert set(model.state_dict()) - set(stored) == absent
    assert sum(tensor.numel() for tensor in stored.values()) == sum(p.numel() for p in model.parameters())
    writer = load_run(tmp_path / "run").model.writer
    assert (writer.output.weight is writer.embedding.tokens.weight) == (tie != "none")


def test_shared_score_terms_are_stored_once(tmp_path: Path, recipe: Callable[..., Recipe]) -> None:
    """T5's table is shared by all layers; slopes and other constants are not stored."""
    create_run(tmp_path / "run", recipe("tokenizer.kind=characters", "reader.positions.kind=bucketed",
                                      "writer.positions.kind=alibi"))  # fmt: skip
    names = [name for name in load_file(tmp_path / "run" / WEIGHTS) if "term" in name]
    assert names == ["reader.stack.blocks.0.self.heads.term.table.weight"]
    load_run(tmp_path / "run")


def test_separate_vocabularies(tmp_path: Path, recipe: Callable[..., Recipe]) -> None:
    create_run(tmp_path / "run", recipe("tokenizer.kind=characters", "tokenizer.shared=false", "writer.tie=output"))
    run = load_run(tmp_path / "run")
    assert run.model.reader.embedding.tokens.num_embeddings == run.tokenizers.source.size
    assert run.model.writer.output.weight.shape[0] == run.tokenizers.target.size != run.tokenizers.source.size


def test_a_run_may_be_moved(tmp_path: Path, small: Recipe) -> None:
    create_run(tmp_path / "here", small)
    assert sorted(os.listdir(tmp_path / "here")) == [WEIGHTS, RECIPE, "tokenizer.json"]  # all that is needed
    (tmp_path / "there").mkdir()
    shutil.move(tmp_path / "here", tmp_path / "there" / "renamed")
    assert load_run(str(tmp_path / "there" / "renamed")).recipe == small


def build_ramp_positions(width: int, *, slope: float = 1.0) -> nn.Module:
    """Custom positions whose initialization reads the value of a tensor."""
    module = positions.Learned(width, max_length=31)
    nn.init.constant_(module.table.weight, slope / float(torch.ones(width).sum()))
    return module


def test_a_kind_that_reads_tensor_values_can_be_loaded(tmp_path: Path, recipe: Callable[..., Recipe]) -> None:
    kinds = {"measured": build_ramp_positions}
    settings = recipe("tokenizer.kind=characters", "reader.positions.kind=measured", kinds=kinds)
    made = create_run(tmp_path / "run", settings, kinds=kinds)
    loaded = load_run(tmp_path / "run", kinds=kinds).model
    assert all(torch.equal(a, b) for a, b in zip(made.parameters(), loaded.parameters(), strict=True))


# ---- what is wrong is said


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match=r"is not a run: expected a folder with recipe.toml; `saccade runs` lists"):
        load_run(tmp_path)
    with pytest.raises(SaccadeError, match="nowhere' is not a run"):
        load_run(tmp_path / "nowhere")


def test_a_folder_of_the_same_name_does_not_hide_a_run(
    tmp_path: Path, small: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the folder that a run was imported from; nor is the name that was given suggested."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SACCADE_RUNS", raising=False)
    Path("runs").mkdir()
    create_run(tmp_path / "runs" / "minilm", small)
    Path("minilm").mkdir()
    assert load_run("minilm").path == Path("runs/minilm")
    (tmp_path / "runs" / "minilm" / RECIPE).unlink()
    with pytest.raises(SaccadeError, match="'minilm' is not a run: .*; `saccade runs` lists the runs"):
        load_run("minilm")
    create_run(tmp_path / "runs" / "minilm2", small)
    with pytest.raises(SaccadeError, match="'minilm' is not a run: .*; did you mean 'minilm2'"):
        load_run("minilm")


def test_a_run_without_weights(tmp_path: Path, small: Recipe) -> None:
    create_run(tmp_path / "run", small)
    (tmp_path / "run" / WEIGHTS).unlink()
    with pytest.raises(SaccadeError, match=r"has no model.safetensors yet; go on .* --resume"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "header"])
def test_damaged_weights(tmp_path: Path, small: Recipe, damage: str) -> None:
    create_run(tmp_path / "run", small)
    path = tmp_path / "run" / WEIGHTS
    whole = path.read_bytes()
    path.write_bytes({
        "truncated": whole[:-10], "empty": b"", "text": b"These are not weights, are they?",
        "header": whole[:20] + b"\xff" * 30 + whole[50:],
    }[damage])  # fmt: skip
    with pytest.raises(SaccadeError, match=r"model.safetensors is not a whole safetensors file") as error:
        load_run(tmp_path / "run")
    assert "\n" not in str(error.value)


def change_weights(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def test_memory_is_not_taken_for_a_recipe_that_asks_for_more_than_the_weights(tmp_path: Path, small: Recipe) -> None:
    folder = tmp_path / "run"
    create_run(folder, small)
    recipe = folder / RECIPE
    recipe.write_text(re.sub(r"^ff = .*", "ff = 10000000", recipe.read_text("utf-8"), count=1, flags=re.M), "utf-8")
    before = read_largest_memory()

    with pytest.raises(SaccadeError, match=r"reader\..* must be \(10000000,.*by recipe and tokenizer, got"):
        load_run(folder)
    assert read_largest_memory() - before < 100e6


def test_a_table_that_is_no_parameter_may_be_larger_than_the_weights(
    tmp_path: Path, small: Recipe, monkeypatch
) -> None:
    monkeypatch.setattr(allocation, "MIN_CHECKED_BYTES", 0)
    monkeypatch.setattr(module, "MAX_EXPANSION", 0)
    model = create_run(tmp_path / "run", small)
    torch.testing.assert_close(named_weights(load_run(tmp_path / "run").model), named_weights(model))


def read_largest_memory() -> int:
    """Bytes of memory that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_missing_an_unknown_and_a_misshapen_tensor(tmp_path: Path, small: Recipe) -> None:
    name = "writer.stack.blocks.1.cross.query.weight"
    for change, message in (
        (lambda t: t.pop(name), f"lacks tensor '{name}'; do recipe.toml and the weights belong together"),
        (lambda t: t.update(extra=torch.zeros(1)), "has an unknown tensor 'extra'"),
        (lambda t: t.update({name: torch.zeros(2)}), rf"{name} must be \(3, 1, 4, 12\) by recipe .*, got \(2,\)$"),
    ):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        create_run(tmp_path / "run", small)
        change_weights(tmp_path / "run", change)
        with pytest.raises(SaccadeError, match=message):
            load_run(tmp_path / "run")


@pytest.mark.parametrize("tie", ["all", "none"])
def test_a_tokenizer_of_another_run(tmp_path: Path, recipe: Callable[..., Recipe], tie: str) -> None:
    settings = recipe("tokenizer.kind=characters", f"writer.tie={tie}")
    create_run(tmp_path / "run", settings)
    other: Tokenizers = train_tokenizers(settings.tokenizer, lambda: [("xyzuvw0123", "!?%&")])
    other.save(tmp_path / "run")
    with pytest.raises(SaccadeError, match="the tokenizer does not match the weights"):
        load_run(tmp_path / "run")


def test_a_recipe_of_a_newer_version(tmp_path: Path, small: Recipe) -> None:
    create_run(tmp_path / "run", small)
    path = tmp_path / "run" / RECIPE
    path.write_text(path.read_text().replace("schema_version = 1", "schema_version = 2"))
    with pytest.raises(SaccadeError, match="a newer saccade wrote it"):
        load_run(tmp_path / "run")


def test_weights_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match="gone.safetensors does not exist"):
        module.read_weights(tmp_path / "gone.safetensors")


# ---- devices


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "tpu", "meta", "", "xpu"])
def test_unknown_devices(name: str) -> None:
    with pytest.raises(SaccadeError, match=f"unknown device '{name}'; expected auto, cpu, cuda, cuda:N or mps"):
        pick_device(name)


def test_devices_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(
        SaccadeError, match="device 'cuda:2' is not available: this machine has 2 cuda devices; use cpu or auto"
    ):
        pick_device("cuda:2")
    with pytest.raises(SaccadeError, match="device 'mps' is not available: this machine has 0 mps devices"):
        pick_device("mps")
    assert pick_device("cuda:1") == torch.device("cuda:1")


@pytest.mark.parametrize(("cuda", "mps", "expected"), [(1, True, "cuda"), (0, True, "mps"), (0, False, "cpu")])
def test_auto_takes_the_fastest(monkeypatch: pytest.MonkeyPatch, cuda: int, mps: bool, expected: str) -> None:
    monkeypatch.delenv(DEVICE, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(cuda))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert pick_device("auto").type == expected


def test_auto_is_the_device_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name, expected in (("cpu", "cpu"), ("cuda:1", "cuda:1"), ("auto", "cuda"), ("", "cuda")):
        monkeypatch.setenv(DEVICE, name)
        assert pick_device("auto") == torch.device(expected)
    monkeypatch.setenv(DEVICE, "cpu")
    assert pick_device("cuda:0") == torch.device("cuda:0")
    monkeypatch.setenv(DEVICE, "gpu")
    with pytest.raises(SaccadeError, match="unknown device 'gpu' in SACCADE_DEVICE; expected auto, cpu, cuda"):
        pick_device("auto")


# ---- weights as a file


def test_a_full_disk_leaves_the_old_weights_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_tensors(named_weights(nn.Linear(3, 5)), tmp_path / WEIGHTS)
    before = (tmp_path / WEIGHTS).read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SaccadeError, match=r"no space left on the disk while writing .*model.safetensors; free some"):
        write_tensors(named_weights(nn.Linear(3, 5)), tmp_path / WEIGHTS)
    assert (tmp_path / WEIGHTS).read_bytes() == before
    assert os.listdir(tmp_path) == [WEIGHTS]


def test_weights_of_other_types_and_strides_survive(tmp_path: Path) -> None:
    tensors = {"t": torch.randn(3, 5).T, "b": torch.randn(7).bfloat16(), "n": torch.tensor(3), "e": torch.empty(0, 2)}
    write_tensors(tensors, tmp_path / "w")
    read = module.read_weights(tmp_path / "w")
    assert all(torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype for name, tensor in tensors.items())


def test_buffers_that_last_are_stored_too() -> None:
    model = nn.BatchNorm1d(3)
    assert set(module.named_weights(model)) == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    module.copy_weights(model, {name: tensor + 2 for name, tensor in module.named_weights(model).items()})
    assert model.running_mean.tolist() == [2.0] * 3 and model.weight.tolist() == [3.0] * 3


def test_weights_of_another_vocabulary_of_the_same_size_are_refused(tmp_path: Path) -> None:
    write_tensors({"a": torch.zeros(1)}, tmp_path / "w", vocabulary="one")
    with pytest.raises(SaccadeError, match=r"w was trained with another vocabulary .*put back the tokenizer.json"):
        module.read_weights(tmp_path / "w", vocabulary="other")
    assert module.read_weights(tmp_path / "w", vocabulary="one")["a"] == 0


def test_weights_can_be_read_by_everybody_whom_the_user_lets_read(tmp_path: Path) -> None:
    write_tensors({"a": torch.zeros(1)}, tmp_path / "w")
    (tmp_path / "plain").write_text("")
    assert (tmp_path / "w").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("I/O error: No space left on device (os error 28)", "no space left on the disk while writing .*w.safetensors"),
        ("I/O error: Permission denied (os error 13)", "cannot write .*w.safetensors: I/O error: Permission denied"),
    ],
)
def test_what_the_disk_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, message: str
) -> None:
    def refuse(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half")
        raise SafetensorError(said)

    monkeypatch.setattr(module, "save_file", refuse)
    with pytest.raises(SaccadeError, match=message):
        write_tensors({"a": torch.zeros(2)}, tmp_path / "w.safetensors")
    assert not list(tmp_path.iterdir())


def test_loading_a_run_skips_random_initialization(tmp_path: Path, small: Recipe) -> None:
    made = create_run(tmp_path / "run", small).state_dict()
    before = torch.get_rng_state()
    loaded = load_run(tmp_path / "run").model.state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(made[name], loaded[name]) for name in made)
