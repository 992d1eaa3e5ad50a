"""LAMB (You et al. 2020): Adam whose update of each matrix is scaled to the norm of that matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class Lamb(torch.optim.Optimizer):
    """x <- x - lr |x| / |u| u, u = m / (sqrt(v) + eps) + weight_decay x, with bias-corrected moments (algorithm 2).

    Vectors, such as biases and norms, get the plain update u. The step counter and a learning rate that is a tensor
    stay on the device of the parameters, so that a step can be captured in a CUDA graph.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float | Tensor,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "capturable": True}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, x: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[x], group["betas"]
        if not state:
            state["step"] = torch.zeros((), device=x.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(x), torch.zeros_like(x)
        step, m, v = state["step"], state["exp_avg"], state["exp_avg_sq"]
        step += 1
        m.lerp_(grad, 1 - beta1)
        v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        update = (m / (1 - beta1**step)) / ((v / (1 - beta2**step)).sqrt() + group["eps"])
        update += group["weight_decay"] * x
        if x.ndim > 1:
            x_norm, update_norm = x.norm(), update.norm()
            ratio = x_norm / update_norm.clamp(min=torch.finfo(x.dtype).tiny)
            update *= torch.where((x_norm > 0) & (update_norm > 0), ratio, 1.0)
        x.sub_(update * group["lr"])
