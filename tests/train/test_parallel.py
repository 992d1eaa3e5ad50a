"""One training on different numbers of processes and in different layouts, by gloo on the CPU, in float64."""

import contextlib
import json
from types import SimpleNamespace

import layouts
import pytest
import small
import torch
from broken_shards import FAULTS
from safetensors import safe_open
from safetensors.torch import load_file

from saccade.config.load import load
from saccade.config.schema import Train
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade.plan.layouts import count_sent_bytes, measure_process
from saccade.train import setup
from saccade.train.distributed import mesh
from saccade.train.distributed.mesh import ParallelLayout, StateSizes
from saccade.train.distributed.ranks import Ranks

EXACT = 1e-10
NORMAL = {"weight_init": {"kind": "normal", "scale_by_depth": True}}
SIZES = StateSizes(100, 100, 200, 0)
UNUSED = {
    "steps": 3, "accumulate": 2, "valid_predictions": 0, "save_every": 1, "ema": 0.0,
    "optimizer": {"eps": 1e-6, "weight_decay": 0.5},
    "parts": {"reader": {"stack": layouts.STACK}, "writer": {"stack": {"kind": "with-unused"}}},
}  # fmt: skip
GIANT = {"steps": 2, "accumulate": 2, "valid_every": 2, "valid_predictions": 0, "report_every": 1}
GIANT_LAYOUTS = ("ddp-2", "fsdp-2", "tensor-2", "tensor-2-fsdp-2")


def get_losses(run):
    return {(line["event"], line["step"]): line["loss"] for line in small.read_metrics(run)}


def assert_same_training(run, expected, *, limit=EXACT):
    """Losses of all reports and validations, and the final weights; parts of a run validate once more at their end."""
    own, other = get_losses(run), get_losses(expected)
    assert other.keys() <= own.keys() and len(own) == len(small.read_metrics(run))
    assert {key: own[key] for key in other} == pytest.approx(other, abs=limit, rel=0)
    weights, same = (load_file(path / "model.safetensors") for path in (run, expected))
    assert weights.keys() == same.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, same[name], atol=limit, rtol=0)


def join_batches(found, number, world):
    """The batches of a job in the order of the micro-batches of each step."""
    own = [found[number, rank]["batches"] for rank in range(world)]
    return [batch for group in zip(*own, strict=True) for batch in group]


@pytest.fixture(scope="module")
def trained(processes, tmp_path_factory):
    """Two processes that train as one, as DDP, as FSDP2, and as DDP that FSDP2 and then one process resume."""
    folder = tmp_path_factory.mktemp("layouts")
    jobs = [
        ("one", "one", {}),
        ("ddp-2", "moved", {"steps": 3, "count_sent": True}),
        ("fsdp-2", "moved", {"steps": 5, "resume": True, "count_sent": True}),
        ("one", "moved", {"steps": 6, "resume": True}),
        ("fsdp-2", "shards", {**NORMAL, "recompute": True, "profile": True}),
        ("one", "whole", NORMAL),
        ("one", "eager", {"gpu_steps": "eager"}),
        ("ddp-2", "graphs", {"gpu_steps": "graphs"}),
        ("ddp-2", "no-memory", {"gpu_steps": "graphs", "on_out_of_memory": "split", "fault": ("memory", 1, 1)}),
        ("fsdp-2", "shard-graphs", {"gpu_steps": "graphs"}),
        ("one", "unused", {**UNUSED, "gpu_steps": "eager"}),
        ("ddp-2", "unused-ddp", {**UNUSED, "gpu_steps": "eager"}),
        ("ddp-2", "unused-graphs", {**UNUSED, "gpu_steps": "graphs"}),
        ("one", "giant", {**GIANT, "recipe": "turing-nlg"}),
        ("fsdp-2", "giant-shards", {**GIANT, "recipe": "turing-nlg"}),
    ]
    found = layouts.Group(processes, folder).run(jobs)
    return folder, found


def test_a_run_that_changes_its_layout_twice_ends_as_one_process_would(trained):
    folder, found = trained

    assert_same_training(folder / "moved", folder / "one")
    order = [*join_batches(found, 1, 2), *join_batches(found, 2, 2), *join_batches(found, 3, 1)]
    assert order == found[0, 0]["batches"] and len(set(order)) == len(order) > 40


def test_fsdp_with_recomputation_gives_losses_and_weights_of_one_process(trained):
    folder, _ = trained

    assert_same_training(folder / "shards", folder / "whole")


def test_the_profile_lists_collective_operations_and_how_much_of_them_is_hidden(trained):
    folder, _ = trained
    found = json.loads((folder / "shards/profile.json").read_text())["communication"]
    table = (folder / "shards/profile.md").read_text()

    assert found["ms"] > 0 and 0 <= found["hidden"] < 1
    calls = {operation["name"]: operation["calls"] for operation in found["operations"]}
    # Each of 4 micro-batches gathers the 4 blocks forward and backward, and all else once
    assert calls["gloo:all_gather"] == 4 * (2 * 4 + 1)
    assert all(f"| `{name}` |" in table for name in calls) and "of it while this process computes" in table


def test_two_processes_with_cuda_graphs_train_as_one_without(trained):
    folder, found = trained

    assert_same_training(folder / "graphs", folder / "eager")
    for rank in range(2):
        counts = found[7, rank]["counts"]
        assert counts["replayed"] > 2 * counts["recorded"] > 2


def test_shards_with_cuda_graphs_train_as_one_process_without(trained):
    """Collective operations are part of the graphs, which run where both processes have batches of one shape."""
    folder, found = trained

    assert_same_training(folder / "shard-graphs", folder / "eager")
    counts = [found[9, rank]["counts"] for rank in range(2)]
    assert counts[0] == counts[1] and counts[0]["replayed"] > 2 * counts[0]["recorded"] > 2


def test_graphs_that_do_not_fit_in_one_process_are_dropped_in_all(trained):
    folder, found = trained

    assert_same_training(folder / "no-memory", folder / "eager")
    message = ": out of memory for CUDA graphs; training goes on without them"
    assert message in found[8, 0]["printed"]
    assert found[8, 0]["counts"]["replayed"] < found[7, 0]["counts"]["replayed"]


def test_a_parameter_that_the_loss_does_not_use_decays_in_all_layouts(trained):
    """Its gradient is 0, with CUDA graphs and without; DistributedDataParallel alone would fail in the second step."""
    folder, _ = trained
    weight = "writer.stack.unused.weight"

    for run in ("unused-ddp", "unused-graphs"):
        assert_same_training(folder / run, folder / "unused")
    names = ("checkpoints/step-2/model.safetensors", "model.safetensors")
    before, after = (load_file(folder / "unused" / name)[weight] for name in names)
    torch.testing.assert_close(after, before * (1 - 0.5 * 0.003))  # weight decay times the learning rate of step 3


def test_the_smallest_form_of_a_giant_trains_in_shards_as_in_one_process(trained):
    folder, _ = trained

    assert_same_training(folder / "giant-shards", folder / "giant")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["megatron", "turing-nlg", "gpt3", "gopher"])
def test_the_smallest_forms_of_giants_train_in_every_layout_as_in_one_process(processes, tmp_path, name):
    settings = {**GIANT, "recipe": name, "accumulate": 4}
    layouts.Group(processes, tmp_path).run([(layout, layout, settings) for layout in ("one", *GIANT_LAYOUTS)])

    for layout in GIANT_LAYOUTS:
        assert_same_training(tmp_path / layout, tmp_path / "one")


def test_the_layout_and_its_memory_are_printed_once(trained):
    _, found = trained

    line = "2 processes: shards of 1/2 (FSDP2); 8 micro-batches a step, 4 in each process; about"
    assert found[4, 0]["printed"].count(line) == 1
    assert not found[4, 1]["printed"]


def test_checkpoints_of_several_processes_are_safetensors_and_json_alone(trained):
    folder, _ = trained
    step = folder / "moved/checkpoints/step-3"

    files = sorted(path.name for path in step.iterdir())
    assert "state.json" in files and len(files) == 1 + 2 * 3, files  # model, optimizer and ema of two processes
    for path in step.iterdir():
        if path.name == "state.json":
            assert json.loads(path.read_text())["schema_version"] == 2
        else:
            with safe_open(path, framework="pt") as file:
                assert file.keys()


def test_a_damaged_part_of_a_checkpoint_is_found(trained, tmp_path):
    folder, _ = trained
    part = sorted((folder / "shards/checkpoints/step-6").glob("*.safetensors"))[-1]
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    copy = tmp_path / "step-6"
    copy.mkdir()
    for path in part.parent.iterdir():
        (copy / path.name).write_bytes(bytes(content) if path == part else path.read_bytes())

    with pytest.raises(ValueError, match=f"{part.name} differs from its SHA-256 digest"):
        small.checkpoint.read_verified_state(copy)


def test_the_plan_counts_what_each_process_holds(trained):
    """Parameters, gradients and optimizer state of DDP, FSDP2 and one process, to the byte."""
    folder, found = trained
    recipe = load(folder / "shards" / "recipe.toml")
    tokenizers = Tokenizers.load(folder / "shards")
    with torch.device("meta"):
        model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target_size).double()

    for number, layout in ((0, ParallelLayout()), (1, ParallelLayout(data=2)), (4, ParallelLayout(shard=2))):
        for rank in range(layout.data * layout.shard):
            place = (rank % layout.shard, 0)
            sizes = measure_process(model, recipe.train, layout, place=place)._asdict()
            held = found[number, rank]["bytes"]
            assert held == {name: sizes[name] for name in held} and len(held) == 3


def test_the_plan_counts_the_bytes_that_each_process_sends(trained):
    """Beside parameters and gradients, processes exchange some numbers such as the loss."""
    folder, found = trained
    recipe = load(folder / "moved" / "recipe.toml")
    tokenizers = Tokenizers.load(folder / "moved")
    with torch.device("meta"):
        model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target_size).double()
    memory = SimpleNamespace(model=model, setup=SimpleNamespace(residual_bytes=8))

    for number, layout in ((1, ParallelLayout(data=2)), (2, ParallelLayout(shard=2))):
        expected = count_sent_bytes(memory, recipe, layout)
        sent = [bytes for rank in range(2) for bytes in found[number, rank]["sent"]]
        assert len(sent) == (6, 4)[number - 1] and sent == pytest.approx(len(sent) * [expected], rel=0.01)


@pytest.mark.slow
def test_compiled_blocks_have_the_graphs_and_losses_of_one_process_in_all_layouts(processes, tmp_path):
    settings = {"compile": True, "gpu_steps": "eager", "steps": 3, "valid_every": 3}
    names = ("one", "ddp-2", "fsdp-2")
    found = layouts.Group(processes, tmp_path).run([(name, name, settings) for name in names])

    assert {result["compiled"] for result in found.values()} == {4}  # two of each side: the first block has no residual
    for name in names[1:]:
        assert_same_training(tmp_path / name, tmp_path / "one")


@pytest.mark.slow
def test_faults_of_sharded_gradients_and_graphs_are_noticed(processes, tmp_path):
    """The comparison with one process fails under each of them, and without one it does not."""
    settings = {"gpu_steps": "graphs", "steps": 4, "valid_every": 4, "valid_predictions": 0}
    jobs = [("one", "one", {**settings, "gpu_steps": "eager"}), ("fsdp-2", "whole", settings)]
    jobs += [("fsdp-2", fault, {**settings, "broken": fault}) for fault in FAULTS]
    layouts.Group(processes, tmp_path).run(jobs)

    assert_same_training(tmp_path / "whole", tmp_path / "one")
    unnoticed = []
    for fault in FAULTS:
        with contextlib.suppress(AssertionError):
            assert_same_training(tmp_path / fault, tmp_path / "one")
            unnoticed.append(fault)
    assert not unnoticed


# ---- choosing a layout


def choose(world, *, memory=10**9, accumulate=8, **parallel):
    settings = Train(accumulate=accumulate, parallel=parallel)
    return mesh.choose_parallel_layout(settings, world=world, sizes=SIZES, memory=memory)


def test_replicas_are_the_default_and_shards_what_does_not_fit():
    assert choose(4) == ParallelLayout(data=4)
    assert choose(4, memory=400) == ParallelLayout(data=2, shard=2)  # 200 bytes of 0.8 x 400
    assert choose(4, memory=100) == ParallelLayout(shard=4)
    assert choose(4, memory=400, tensor=2) == ParallelLayout(data=2, tensor=2)
    assert choose(4, shard=2) == ParallelLayout(data=2, shard=2)
    assert choose(4, data=2) == ParallelLayout(data=2, shard=2)


def test_a_model_that_no_device_can_hold_is_refused_with_the_number_that_can():
    sizes = StateSizes(4 * 2**30, 4 * 2**30, 8 * 2**30, 0)
    for layout, size in (
        (ParallelLayout(), "16.0"),
        (ParallelLayout(data=2), "16.0"),
        (ParallelLayout(shard=2), "8.0"),
    ):
        message = (
            f"parameters, gradients and optimizer take {size} GiB in each process, whose device has 6.0 GiB; share "
            "them between 4 or more such devices (--processes 4), or train a smaller model, or fewer of its parameters "
            "(freeze, train.lora)"
        )
        with pytest.raises(SaccadeError) as caught:
            mesh.check_memory(sizes, layout, memory=6 * 2**30)
        assert str(caught.value) == message
    mesh.check_memory(sizes, ParallelLayout(shard=4), memory=6 * 2**30)


@pytest.mark.parametrize("optimizer", ["adam", "own"])
def test_a_model_that_does_not_fit_on_a_gpu_is_refused_before_it_is_built(monkeypatch, optimizer):
    """Unless its optimizer is the user's own, whose state may be small."""
    monkeypatch.setattr(mesh, "get_device_memory", lambda device, ranks: 1000)
    kinds = {"own": lambda parameters: torch.optim.SGD(parameters, lr=0.1)}
    recipe = small.small(optimizer={"kind": optimizer}, kinds=kinds)
    tokenizers = Tokenizers(*2 * [SimpleNamespace(size=9)])
    settings = {"ranks": Ranks(), "device": torch.device("cuda"), "report": print}

    with pytest.raises(SaccadeError, match="take 0.0 GiB") if optimizer == "adam" else contextlib.nullcontext():
        assert setup.arrange_processes(recipe, tokenizers, **settings) == Ranks()


@pytest.mark.parametrize("parallel", [{"tensor": 3}, {"data": 3}, {"shard": 3}, {"data": 4, "shard": 2}])
def test_a_layout_for_another_number_of_processes_is_refused(parallel):
    with pytest.raises(SaccadeError, match=r"data x shard x tensor must be the number of processes, 4, got .*; leave"):
        choose(4, **parallel)


def test_processes_that_cannot_share_the_micro_batches_are_refused_with_the_valid_numbers():
    message = (
        "a step has train.accumulate=8 micro-batches, which 3 processes cannot share equally; start one of 1, 2, 4, 8 "
        "(x train.parallel.tensor), or set train.accumulate to a multiple of 3, which changes the batch"
    )
    with pytest.raises(SaccadeError) as caught:
        choose(3)
    assert str(caught.value) == message


@pytest.mark.parametrize("setting", [{"watch": True}, {"on_out_of_memory": "split"}])
def test_settings_that_need_the_whole_model_are_refused_with_shards(setting):
    with pytest.raises(SaccadeError, match=rf"train.{next(iter(setting))}=.* needs the whole model in each process"):
        mesh.check_settings(Train(**setting), ParallelLayout(shard=2))
    mesh.check_settings(Train(**setting), ParallelLayout(data=2))


def test_a_step_has_eight_micro_batches_under_torchrun_unless_the_recipe_says_more(monkeypatch):
    assert mesh.choose_micro_batches(Train()).accumulate == 1
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert mesh.choose_micro_batches(Train()).accumulate == 8
    assert mesh.choose_micro_batches(Train(accumulate=6)).accumulate == 6


def test_a_resumed_run_forgets_a_layout_for_another_number_of_processes(monkeypatch):
    recipe = layouts.build_recipe(parallel={"data": 2, "shard": 2, "timeout": 77})
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert mesh.forget_other_layout(recipe, []) == recipe
    parallel = mesh.forget_other_layout(recipe, ["train.parallel.shard=2"]).train.parallel
    assert (parallel.data, parallel.shard, parallel.tensor, parallel.timeout) == (None, 2, 1, 77)
    monkeypatch.setenv("WORLD_SIZE", "2")
    parallel = mesh.forget_other_layout(recipe, []).train.parallel
    assert (parallel.data, parallel.shard, parallel.tensor, parallel.timeout) == (None, None, 1, 77)
