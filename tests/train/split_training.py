"""Training of small models in float64 by one process, and by several with tensor parallelism, for comparisons."""

import os
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from unittest import mock

import torch
import torch._dynamo  # optimizers import it; here it is there before processes are made of this one
import torch.distributed as dist
import torch.nn.functional as F
from layouts import SentBytes
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import RowwiseParallel

from saccade.config.load import load
from saccade.config.protocols import Capabilities, TensorPlan
from saccade.data.batching.batch import Batch
from saccade.data.prepare import prepare
from saccade.errors import SaccadeError
from saccade.layers.attention.positions import Learned
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.readers.tokens import Embedding
from saccade.model.run import SkipInit
from saccade.model.writers.tokens import TokenWriter
from saccade.train.augment.augment import build_augmentation
from saccade.train.batches.pack import pack_batch
from saccade.train.distributed import tensor, vocabulary
from saccade.train.distributed.tensor import apply_tensor_parallel, reduce_partial_gradients
from saccade.train.loss import MicroBatchLoss
from saccade.train.objectives.objectives import build_objectives
from saccade.train.objectives.terms import compute_token_losses
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
    def load(cls, name, *overrides, dropout=True, packed=False, distinct=2):
        """The tiny form of a recipe on a few of its examples, with dropout everywhere.

        There are few `distinct` batches, since each new shape takes DTensor a long time on a CPU.
        """
        recipe = load(name, tiny=True)
        files = ", ".join(f"{{ files = {list(each.files)}, examples = 80 }}" for each in recipe.data.train)
        changes = [f"data.train=[{files}]", "data.valid=0.0", "train.batch_tokens=160"]
        for part in ("reader", "writer") if dropout else ():
            stack = getattr(getattr(recipe, part), "stack", None)
            if getattr(stack, "kind", None) == "transformer":
                changes += [*(f"{part}.stack.{each}" for each in DROPOUT), f"{part}.dropout=0.1"]
        recipe = load(name, tiny=True, overrides=[*changes, *overrides])
        prepared = prepare(recipe, report=lambda line: None)
        sizes = (prepared.tokenizers.source.size, prepared.tokenizers.target_size)
        stream = recipe.task.open_stream(recipe, prepared.train, None, rank=0, world=1)
        batches = [to_float64(next(stream)) for _ in range(distinct)]
        batches = [pack_batch(each) for each in batches] if packed else batches
        return cls(recipe, prepared.tokenizers, [*islice(cycle(batches), STEPS * MICRO_BATCHES)], sizes)


def to_float64(batch):
    """Convert the fields that are float32, which are audio features."""
    fields = {
        name: replace(field, values=field.values.double()) if field.content.dtype == torch.float32 else field
        for name, field in batch.fields.items()
    }
    return Batch(fields, batch.counts)


@dataclass
class Outcome:
    losses: list
    gradients: dict  # of the first step, clipped
    weights: dict  # after all steps
    random_state: torch.Tensor  # of the global generator afterwards


def build_model(trial, device="cpu"):
    torch.manual_seed(0)
    with torch.device(device), SkipInit() if device == "meta" else no_change():
        return build(trial.recipe, source_size=trial.sizes[0], target_size=trial.sizes[1]).double()


def train(trial, mesh=None, *, change=None, **options):
    """Train for some steps; with a mesh, with tensor parallelism over its dimension "tensor" and FSDP over "shard".

    Processes along "shard" take turns at the micro-batches of a step, all others take all of them. `change` names one
    of CHANGES, mistakes that make the outcome wrong.
    """
    with CHANGES[change]():
        return train_model(trial, mesh, **options)


def train_model(trial, mesh=None, *, meta=False, **options):
    recipe, model = trial.recipe, build_model(trial)
    whole = model
    if mesh is not None:
        model = build_model(trial, "meta") if meta else whole
        apply_tensor_parallel(model, mesh["tensor"], **options)
    if meta:
        fill(model.to_empty(device="cpu"), whole)
    objectives = build_objectives(recipe, tokenizer=trial.tokenizers.source)
    loss = MicroBatchLoss(
        model, objectives=objectives, settings=recipe.train, device=torch.device("cpu"),
        augmentation=build_augmentation(recipe),
    )  # fmt: skip
    turn, turns = 0, 1
    if mesh is not None and "shard" in mesh.mesh_dim_names:
        turn, turns = mesh.get_local_rank("shard"), mesh["shard"].size()
        fully_shard(loss, mesh=mesh["shard"])
        loss.set_gradient_divide_factor(1.0)  # gradients are summed
    optimizer = build_optimizer(recipe.train.optimizer, model)
    set_learning_rate(optimizer, RATE)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    losses, gradients = [], {}
    for step in range(len(trial.batches) // MICRO_BATCHES):
        optimizer.zero_grad()
        numbers = range(step * MICRO_BATCHES + turn, (step + 1) * MICRO_BATCHES, turns)
        sums = torch.tensor([run_micro_batch(loss, trial.batches, number) for number in numbers], dtype=torch.float64)
        sums = sums.sum(0)
        if turns > 1:
            dist.all_reduce(sums, group=mesh.get_group("shard"))
        reduce_partial_gradients(parameters)
        total, count = sums.tolist()
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
    found = loss(batches[number], generator)
    found.total.backward()
    return [found.total.item(), found.count.item()]


def gather(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


@torch.no_grad()
def fill(model, whole):
    """Copy the parameters and buffers of a whole model into one that was split on the meta device."""
    values = dict(whole.named_parameters()) | dict(whole.named_buffers())
    for name, empty in (*model.named_parameters(), *model.named_buffers()):
        value = values[name]
        if isinstance(empty, DTensor):
            value = distribute_tensor(value, empty.device_mesh, empty.placements, src_data_rank=None)
        empty.copy_(value)


def count_communication(trial, mesh, *, change=None, **options):
    """How often a block of the writer communicates in the forward and in the backward pass, by kind."""
    model = build_model(trial)
    with CHANGES[change]():
        apply_tensor_parallel(model, mesh["tensor"], **options)
    stream = Shard(1) if options.get("sequence_parallel", True) else Replicate()
    x = DTensor.from_local(torch.randn(2, 6, model.dim, dtype=torch.float64), mesh["tensor"], [stream])
    with CommDebugMode() as forward:
        hidden, residual, _ = model.writer.stack.blocks[-1](x.requires_grad_())
    with CommDebugMode() as backward:
        (hidden + residual).to_local().sum().backward()
    return [{str(kind): count for kind, count in mode.get_comm_counts().items()} for mode in (forward, backward)]


def count_sent(trial, mesh, **options):
    """The bytes that a process sends for the passes of the first micro-batch, and the shapes of its fields."""
    model = build_model(trial)
    apply_tensor_parallel(model, mesh["tensor"], **options)
    objectives = build_objectives(trial.recipe, tokenizer=trial.tokenizers.source)
    loss = MicroBatchLoss(model, objectives=objectives, settings=trial.recipe.train, device=torch.device("cpu"))
    with SentBytes() as sent:
        run_micro_batch(loss, trial.batches, 0)
        reduce_partial_gradients(model.parameters())
    return sent.total, [tuple(field.content.shape) for field in trial.batches[0].fields.values()]


def describe_parameters(trial, mesh, **options):
    """Names, shapes, placements and numbers of local elements of all parameters, and which names share one."""
    model = build_model(trial)
    apply_tensor_parallel(model, mesh["tensor"], **options)
    named = dict(model.named_parameters(remove_duplicate=False))
    first = {}
    for name, parameter in named.items():
        first.setdefault(parameter, name)
    return {
        name: (tuple(each.shape), str(each.placements), each.to_local().numel(), each.requires_grad, first[each])
        for name, each in named.items()
    }


# ---- mistakes


@contextmanager
def no_change():
    yield


def drop_equally(drop, x):
    """Give all processes the mask of the same part."""
    mask = drop(torch.ones(x.to_local().shape, dtype=x.dtype))
    return DTensor.from_local(x.to_local() * mask, x.device_mesh, x.placements)


def skip_reduction(output_layouts, use_local_output, module, outputs, mesh):
    """Take a sum of this process for the sum of all."""
    whole = DTensor.from_local(outputs.to_local(), mesh, [Replicate()])
    return whole.redistribute(placements=output_layouts) if not use_local_output else outputs.to_local()


def add_bias_everywhere(output_layouts, use_local_output, module, outputs, mesh):
    """Add the bias of a row-parallel layer once per process."""
    y = outputs.redistribute(placements=output_layouts)
    if getattr(module, "bias", None) is not None:
        y = y + module.bias * (mesh.size() - 1)
    return y.to_local() if use_local_output else y


def pick_unmasked(logits, ids, mesh, vocabulary):
    """Take logits of other tokens where a process does not have the target."""
    first = mesh.get_local_rank() * -(-vocabulary // mesh.size())
    return logits.gather(-1, (ids - first).clamp(0, logits.shape[-1] - 1)[..., None])[..., 0]


def embed_unmasked(ids, weight, *others, **settings):
    """Look up any vector where a process does not have the token."""
    if not isinstance(weight, DTensor):
        return plain_embedding(ids, weight, *others, **settings)
    local = weight.to_local()
    y = plain_embedding(ids.to_local() % len(local), local)
    return DTensor.from_local(y, weight.device_mesh, [Partial()])


plain_embedding = F.embedding


def keep_own_gradient(mesh, module, args):
    """Take the gradient of this process's heads for the gradient of all heads."""
    x = args[0] if isinstance(args[0], DTensor) else DTensor.from_local(args[0], mesh, [Replicate()])
    return (x.to_local(grad_placements=[Replicate()]), *args[1:])


CHANGES = {
    None: no_change,
    "equal dropout masks": lambda: mock.patch.object(tensor, "multiply_by_whole_mask", drop_equally),
    "no all-reduce": lambda: mock.patch.object(RowwiseParallel, "_prepare_output_fn", staticmethod(skip_reduction)),
    "bias in every process": lambda: mock.patch.object(
        RowwiseParallel, "_prepare_output_fn", staticmethod(add_bias_everywhere)
    ),
    "targets of other processes": lambda: mock.patch.object(vocabulary, "pick_targets", pick_unmasked),
    "softmax of own tokens": lambda: mock.patch.object(vocabulary, "reduce", lambda x, mesh, operation="sum": x),
    "embedding without mask": lambda: mock.patch.object(F, "embedding", embed_unmasked),
    "gradient of own heads": lambda: mock.patch.object(tensor, "share_input", keep_own_gradient),
    "untied embeddings": lambda: mock.patch.object(tensor, "restore_tied_parameters", lambda tied: None),
}


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
        outcomes = [queue.get(timeout=900) for queue in self.results]
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


# ---- a stack of a user's own


class OwnStack(torch.nn.Module):
    """A residual feed-forward layer that is no class of saccade and declares how it is split."""

    capabilities = Capabilities(tensor_parallel=True)
    tensor_plan = TensorPlan(
        is_stack=True, sublayers=("layer",), norms=("norm",), columns=("layer.0",), rows=("layer.2",),
        dropouts=("dropout",), sizes={"features": 6},
    )  # fmt: skip

    def __init__(self, dim):
        super().__init__()
        self.dim, self.norm, self.dropout = dim, torch.nn.LayerNorm(dim), torch.nn.Dropout(0.3)
        self.layer = torch.nn.Sequential(torch.nn.Linear(dim, 6), torch.nn.GELU(), torch.nn.Linear(6, dim))

    def forward(self, x, mask, memory=None, state=None):
        return self.norm(x + self.dropout(self.layer(x))), mask, state, {}


def compute_own_gradients(sizes, mesh=None):
    """Loss and gradients of a language model with an own stack over some tokens."""
    torch.manual_seed(0)
    tokens, dim = sizes
    embedding = Embedding(torch.nn.Embedding(tokens, dim))
    model = Model(None, TokenWriter(embedding, OwnStack(dim), output=torch.nn.Linear(dim, tokens))).double()
    if mesh is not None:
        apply_tensor_parallel(model, mesh["tensor"])
    ids = torch.randint(tokens, (3, 5))
    torch.manual_seed(1)
    hidden = model.write(ids, None, None)[0]
    loss, _ = compute_token_losses(model.writer, hidden, ids, torch.ones_like(ids, dtype=torch.bool), 0.1)
    loss.backward()
    reduce_partial_gradients(model.parameters())
    return loss.item(), {name: gather(each.grad) for name, each in model.named_parameters()}


def tie_differently(sizes, mesh):
    """The message for positions that share the table of tokens, which is split by tokens."""
    tokens, dim = sizes
    positions = Learned(dim, max_length=tokens)
    embedding = Embedding(torch.nn.Embedding(tokens, dim), positions=positions)
    positions.table.weight = embedding.tokens.weight
    model = Model(None, TokenWriter(embedding, OwnStack(dim), output=torch.nn.Linear(dim, tokens)))
    try:
        apply_tensor_parallel(model, mesh["tensor"])
    except SaccadeError as error:
        return [str(error)]
