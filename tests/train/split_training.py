"""Training of small models in float64 by one process, and by several with tensor parallelism, for comparisons."""

import os
import traceback
from dataclasses import dataclass

import torch
import torch._dynamo  # optimizers import it; here it is there before processes are made of this one
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from saccade.config.load import load
from saccade.data.prepare import prepare
from saccade.model.build.model import build
from saccade.train.augment.augment import build_augmentation
from saccade.train.batches.pack import pack_batch
from saccade.train.distributed.tensor import apply_tensor_parallel, reduce_partial_gradients
from saccade.train.loss import MicroBatchLoss
from saccade.train.objectives.objectives import build_objectives
from saccade.train.optimizer import build_optimizer, set_learning_rate

STEPS, MICRO_BATCHES, CLIP, RATE = 3, 2, 0.5, 3e-3
DROPOUT = ("dropout=0.2", "attention_dropout=0.3", "ff_dropout=0.1")


@dataclass
class Trial:
    """What is trained: a recipe with its tokenizers, the micro-batches, and the sizes of the vocabularies."""

    recipe: object
    tokenizers: object
    batches: list
    sizes: tuple

    @classmethod
    def load(cls, name, *overrides, dropout=True, packed=False, **form):
        """The tiny form of a recipe on a few of its examples, with dropout everywhere."""
        recipe = load(name, tiny=True, **form)
        files = ", ".join(f"{{ files = {list(each.files)}, examples = 80 }}" for each in recipe.data.train)
        changes = [f"data.train=[{files}]", "data.valid=0.0", "train.batch_tokens=160"]
        for part in ("reader", "writer") if dropout else ():
            stack = getattr(getattr(recipe, part), "stack", None)
            if getattr(stack, "kind", None) == "transformer":
                changes += [*(f"{part}.stack.{each}" for each in DROPOUT), f"{part}.dropout=0.1"]
        recipe = load(name, tiny=True, overrides=[*changes, *overrides], **form)
        prepared = prepare(recipe, report=lambda line: None)
        sizes = (prepared.tokenizers.source.size, prepared.tokenizers.target_size)
        stream = recipe.task.open_stream(recipe, prepared.train, None, rank=0, world=1)
        batches = [next(stream) for _ in range(STEPS * MICRO_BATCHES)]
        return cls(recipe, prepared.tokenizers, [pack_batch(each) for each in batches] if packed else batches, sizes)


@dataclass
class Outcome:
    losses: list
    gradients: dict  # of the first step, clipped
    weights: dict  # after all steps
    random_state: torch.Tensor  # of the global generator afterwards


def train(trial, mesh=None, **options):
    """Train for some steps; with a mesh, with tensor parallelism over its dimension "tensor" and FSDP over "shard"."""
    torch.manual_seed(0)
    recipe = trial.recipe
    model = build(recipe, source_size=trial.sizes[0], target_size=trial.sizes[1]).double()
    objectives = build_objectives(recipe, tokenizer=trial.tokenizers.source)
    if mesh is not None:
        apply_tensor_parallel(model, mesh["tensor"], **options)
    loss = MicroBatchLoss(
        model, objectives=objectives, settings=recipe.train, device=torch.device("cpu"),
        augmentation=build_augmentation(recipe),
    )  # fmt: skip
    if mesh is not None and "shard" in mesh.mesh_dim_names:
        fully_shard(loss, mesh=mesh["shard"])
        loss.set_gradient_divide_factor(1.0)
    optimizer = build_optimizer(recipe.train.optimizer, model)
    set_learning_rate(optimizer, RATE)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    losses, gradients = [], {}
    for step in range(len(trial.batches) // MICRO_BATCHES):
        optimizer.zero_grad()
        first = step * MICRO_BATCHES
        sums = [run_micro_batch(loss, trial.batches, number) for number in range(first, first + MICRO_BATCHES)]
        reduce_partial_gradients(parameters)
        total, count = (sum(each) for each in zip(*sums, strict=True))
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(1 / count)
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        losses.append(total / count)
        if not gradients:
            gradients = {name: gather(each.grad) for name, each in model.named_parameters() if each.grad is not None}
        optimizer.step()
    weights = {name: gather(each.detach()) for name, each in model.named_parameters()}
    return Outcome(losses, gradients, weights, torch.get_rng_state())


def run_micro_batch(loss, batches, number):
    torch.manual_seed(1000 + number)
    generator = torch.Generator().manual_seed(2000 + number)
    sums = loss(batches[number], generator)
    sums.total.backward()
    return sums.total.item(), sums.count.item()


def gather(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


# ---- processes


def serve(rank, world, port, jobs, results):
    """Train what the queue of jobs asks for, as one of several processes; the first one returns the outcomes."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(world)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    meshes = {}
    while (job := jobs.get()) is not None:
        function, arguments, (names, shape), options = job
        try:
            if (names, shape) not in meshes:
                meshes[names, shape] = init_device_mesh("cpu", shape, mesh_dim_names=names)
            outcome = function(arguments, meshes[names, shape], **options)
        except Exception:
            outcome = traceback.format_exc()
        results.put(outcome)
    dist.destroy_process_group()


class Workers:
    """Processes that train together."""

    def __init__(self, context, world, port):
        self.jobs = [context.Queue() for _ in range(world)]
        self.results = [context.Queue() for _ in range(world)]
        self.started = [
            context.Process(target=serve, args=(rank, world, port, self.jobs[rank], self.results[rank]), daemon=True)
            for rank in range(world)
        ]
        for process in self.started:
            process.start()

    def __call__(self, function, arguments, mesh, **options):
        """Call the function in all processes with a mesh of these names and sizes; return what each one returns."""
        for queue in self.jobs:
            queue.put((function, arguments, mesh, options))
        outcomes = [queue.get(timeout=240) for queue in self.results]
        for outcome in outcomes:
            assert not isinstance(outcome, str), outcome
        return outcomes

    def stop(self):
        for queue in self.jobs:
            queue.put(None)
        for process in self.started:
            process.join(60)


def compare(outcome, expected):
    """The largest difference of losses, of gradients, and of weights."""
    assert outcome.gradients.keys() == expected.gradients.keys()
    assert outcome.weights.keys() == expected.weights.keys()
    return {
        "losses": max(abs(a - b) for a, b in zip(outcome.losses, expected.losses, strict=True)),
        "gradients": max(float((outcome.gradients[n] - each).abs().max()) for n, each in expected.gradients.items()),
        "weights": max(float((outcome.weights[n] - each).abs().max()) for n, each in expected.weights.items()),
    }
