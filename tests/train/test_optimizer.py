import pytest
import torch
from torch import nn

from saccade.config.schema import Optimizer
from saccade.errors import SaccadeError
from saccade.train import checkpoint
from saccade.train.optimizer import (
    build_optimizer,
    freeze,
    get_optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
    split_by_decay,
)


def test_only_matrices_decay(model):
    decayed, free = split_by_decay(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    assert len(decayed) + len(free) == len(list(model.parameters()))
    assert all(parameter.ndim >= 2 and "bias" not in names[id(parameter)] for parameter in decayed)
    assert not any("embedding" in names[id(parameter)] or "norm" in names[id(parameter)] for parameter in decayed)
    assert any(parameter.ndim > 1 and names[id(parameter)].endswith("bias") for parameter in free)


def step_once(model, *, decay=0.0, lr=0.1):
    optimizer = build_optimizer(Optimizer(weight_decay=decay), model)
    set_learning_rate(optimizer, lr)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return optimizer


def test_decay_is_decoupled_and_spares_biases():
    layer = nn.Linear(3, 2)
    nn.init.ones_(layer.weight), nn.init.ones_(layer.bias)

    step_once(layer, decay=0.5, lr=0.1)

    torch.testing.assert_close(layer.weight, torch.full((2, 3), 1 - 0.1 * 0.5))
    torch.testing.assert_close(layer.bias, torch.ones(2))


def test_frozen_parts_are_not_in_the_optimizer(model):
    freeze(model, ["reader"])

    optimizer = build_optimizer(Optimizer(), model)

    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert not trained & {id(p) for p in model.reader.parameters()}
    assert trained == {id(p) for p in model.writer.parameters()} - {id(p) for p in model.reader.parameters()}


def test_nothing_left_to_train_is_refused(model):
    freeze(model, ["reader", "writer"])

    with pytest.raises(SaccadeError, match="every parameter is frozen"):
        build_optimizer(Optimizer(), model)


def store(folder, tensors):
    """A checkpoint with these tensors of an optimizer."""
    checkpoint.save(folder, step=1, groups={"optimizer": tensors}, state={})
    return checkpoint.load_latest(folder, warn=pytest.fail)


def test_state_goes_through_named_tensors(tmp_path):
    layer = nn.Linear(3, 2)
    optimizer = step_once(layer)
    tensors = {name: value.clone() for name, value in get_optimizer_tensors(optimizer, layer).items()}

    other = build_optimizer(Optimizer(), layer)
    restore_optimizer(other, layer, store(tmp_path, tensors))

    assert set(tensors) == {f"{key}:{name}" for key in ("step", "exp_avg", "exp_avg_sq") for name in ("weight", "bias")}
    assert tensors["step:bias"].item() == 1
    assert all(torch.equal(value, tensors[name]) for name, value in get_optimizer_tensors(other, layer).items())


def test_lamb_is_algorithm_2():
    """You et al. 2020: moments, decoupled decay, then the step of a matrix is lr times its own norm."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2).double()
    x = {name: value.detach().clone() for name, value in layer.named_parameters()}
    m, v = ({name: torch.zeros_like(value) for name, value in x.items()} for _ in range(2))
    optimizer = build_optimizer(Optimizer(kind="lamb", betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1), layer)
    for step in range(1, 6):
        set_learning_rate(optimizer, 0.02 * step)
        for name, parameter in layer.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            m[name] = 0.9 * m[name] + 0.1 * parameter.grad
            v[name] = 0.99 * v[name] + 0.01 * parameter.grad**2
            update = m[name] / (1 - 0.9**step) / ((v[name] / (1 - 0.99**step)).sqrt() + 1e-6)
            if name == "weight":
                update = update + 0.1 * x[name]
                update = update * x[name].norm() / update.norm()
            x[name] = x[name] - 0.02 * step * update
        optimizer.step()
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(parameter.detach(), x[name], atol=1e-6, rtol=0)


def test_lamb_moves_zeros_and_leaves_out_what_has_no_gradient():
    layer = nn.Linear(3, 2)
    nn.init.zeros_(layer.weight)
    optimizer = build_optimizer(Optimizer(kind="lamb"), layer)
    set_learning_rate(optimizer, 0.1)
    layer.weight.grad = torch.ones_like(layer.weight)
    before = layer.bias.detach().clone()
    optimizer.step()
    torch.testing.assert_close(layer.weight, torch.full((2, 3), -0.1))
    assert torch.equal(layer.bias, before)


def test_the_state_of_lamb_goes_through_named_tensors(tmp_path):
    layer = nn.Linear(3, 2)
    optimizer = build_optimizer(Optimizer(kind="lamb"), layer)
    set_learning_rate(optimizer, 0.1)
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    tensors = {name: value.clone() for name, value in get_optimizer_tensors(optimizer, layer).items()}
    other = build_optimizer(Optimizer(kind="lamb"), layer)
    restore_optimizer(other, layer, store(tmp_path, tensors))
    assert all(torch.equal(value, tensors[name]) for name, value in get_optimizer_tensors(other, layer).items())
