"""Load a run for inference: in a given precision, with PyTorch or CTranslate2."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from saccade.errors import SaccadeError
from saccade.kernels.cpu import prepared
from saccade.model.inference import keep_freed_memory, prepack_weights
from saccade.model.int8 import load_int8_weights
from saccade.model.run import Run, load_run, pick_device
from saccade.predict.engines.ctranslate import Translator

ENGINE_CHOICES = ("auto", "torch", "ctranslate2")  # auto: torch, the faster one of the two in float32
PRECISIONS = ("auto", "fp32", "bf16", "int8")  # auto: fp32; int8 is for the CPU


def load_for_inference(
    name: str | Path, *, kinds: Mapping[str, Any] | None, device: str, engine: str, precision: str
) -> tuple[Run, Translator | None]:
    """Load a run for the engine and in the precision requested; also return the CTranslate2 translator, if any."""
    torch_device = pick_device("cpu" if device == "auto" and precision == "int8" else device)
    check_engine_and_precision(engine, precision, torch_device)
    weight_loader = load_int8_weights if precision == "int8" and engine != "ctranslate2" else None
    run = load_run(name, kinds=kinds, device=str(torch_device), weight_loader=weight_loader)
    translator = Translator(run, precision=precision) if engine == "ctranslate2" else None
    if precision == "bf16":
        run.model.to(torch.bfloat16)
    if torch_device.type == "cpu":
        keep_freed_memory()
        if weight_loader is None and prepared.is_available():
            prepack_weights(run.model)
    return run, translator


def check_engine_and_precision(engine: str, precision: str, device: torch.device) -> None:
    """Refuse unknown names, and int8 on devices other than a CPU."""
    for option, given, known in (("engine", engine, ENGINE_CHOICES), ("precision", precision, PRECISIONS)):
        if given not in known:
            raise SaccadeError(f"unknown {option} {given!r}; expected one of {', '.join(known)}")
    if precision == "int8" and device.type != "cpu":
        raise SaccadeError(f"precision int8 is for the CPU, got device {device}; use bf16 there, or device cpu")
