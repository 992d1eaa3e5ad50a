"""What computes a prediction: our own blocks in some precision, or CTranslate2."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from saccade.errors import SaccadeError
from saccade.kernels.cpu import prepared
from saccade.model.inference import keep_memory, pack
from saccade.model.int8 import fill_int8
from saccade.model.run import Run, load_run, pick_device
from saccade.predict.engines.ctranslate import Translator

ENGINES = ("auto", "torch", "ctranslate2")  # auto: torch, which is the faster one of the two in float32
PRECISIONS = ("auto", "fp32", "bf16", "int8")  # auto: fp32


def load_for(
    name: str | Path, *, kinds: Mapping[str, Any] | None, device: str, engine: str, precision: str
) -> tuple[Run, Translator | None]:
    """A run, ready for the engine and in the precision that are wanted."""
    place = pick_device(device)
    check_wanted(engine, precision, place)
    fill = fill_int8 if precision == "int8" and engine != "ctranslate2" else None
    run = load_run(name, kinds=kinds, device=str(place), fill=fill)
    other = Translator(run, precision=precision) if engine == "ctranslate2" else None
    if precision == "bf16":
        run.model.to(torch.bfloat16)
    if place.type == "cpu":
        keep_memory()
        if fill is None and prepared.is_available():
            pack(run.model)
    return run, other


def check_wanted(engine: str, precision: str, device: torch.device) -> None:
    for what, given, known in (("engine", engine, ENGINES), ("precision", precision, PRECISIONS)):
        if given not in known:
            raise SaccadeError(f"unknown {what} {given!r}; expected one of {', '.join(known)}")
    if precision == "int8" and device.type != "cpu":
        raise SaccadeError(f"precision int8 is for the CPU, got device {device}; use bf16 there, or device cpu")
