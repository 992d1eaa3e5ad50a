"""What a training prints before its first step: what is trained, on what, and where the run is."""

from __future__ import annotations

import torch

from saccade.train.session import Session


def format_banner(s: Session) -> list[str]:
    """Return the lines of the banner."""
    total = sum(parameter.numel() for parameter in s.model.parameters())
    trained = sum(parameter.numel() for parameter in s.model.parameters() if parameter.requires_grad)
    frozen = f", {trained:,} of them trained" if trained < total else ""
    facts = [f"{total:,} parameters{frozen}", *([f"{s.num_examples:,} examples"] if s.num_examples else [])]
    return [
        f"training '{s.recipe.name}' on {format_device(s.device)}: {', '.join(facts)}, {format_budget(s)}",
        f"the run is in {s.run}; learning curves: saccade watch {s.run}",
        f"Ctrl-C saves a checkpoint and stops; go on with: {s.resume_command}",
    ]


def format_device(device: torch.device) -> str:
    if device.type == "cpu":
        threads = torch.get_num_threads()
        return f"the CPU with {threads} thread{'s' * (threads > 1)}"
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def format_budget(s: Session) -> str:
    """How long training goes on: steps, epochs, minutes, or until the validation no longer improves."""
    settings = s.recipe.train
    found = [
        f"{value:,g} {name}"
        for name, value in (("steps", s.total_steps), ("epochs", settings.epochs), ("minutes", settings.minutes))
        if value is not None
    ]
    return " or ".join(found) + (" or until patience ends" if settings.patience is not None else "")
