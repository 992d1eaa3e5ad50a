import pytest
import torch
from torch import nn

from saccade.config.schema import Optimizer
from saccade.errors import SaccadeError
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


def test_state_goes_through_named_tensors():
    layer = nn.Linear(3, 2)
    optimizer = step_once(layer)
    tensors = {name: value.clone() for name, value in get_optimizer_tensors(optimizer, layer).items()}

    other = build_optimizer(Optimizer(), layer)
    restore_optimizer(other, layer, tensors)

    assert set(tensors) == {f"{key}:{name}" for key in ("step", "exp_avg", "exp_avg_sq") for name in ("weight", "bias")}
    assert tensors["step:bias"].item() == 1
    assert all(torch.equal(value, tensors[name]) for name, value in get_optimizer_tensors(other, layer).items())
