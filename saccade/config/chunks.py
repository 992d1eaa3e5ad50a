"""Tables of a recipe: stacks that are computed backwards (Kitaev et al. 2020)."""

from __future__ import annotations

from typing import Any

from saccade.config.table import Count, Table


class Chunks(Table):
    """How far attention sees in a stack that is computed backwards: its own chunk and the one before it."""

    length: Count = 64  # positions of a chunk; of "lsh", after they were sorted by their buckets
    local: Count | None = None  # the same for "local"; none: as many
    hashes: Count = 2  # rounds of hashing
    buckets: tuple[Count, ...] = ()  # even numbers whose product counts the buckets; none: as the length asks
    seed: int | None = None  # of the rotations in training; none: others at each step
    feedforward: Count | None = None  # positions that pass the feed-forward network at a time; none: all


def check_reversible(stack: Any) -> None:
    """What does not go with `residual = "reversible"`, and what goes with nothing else."""
    if stack.residual == "reversible":
        fixed = {
            "norm": "pre", "kv_heads": None, "window": None, "experts": None, "heads_form": "paper", "share": False,
            "drop_path": 0.0,
        }  # fmt: skip
        other = [name for name, value in fixed.items() if getattr(stack, name) != value]
        if other or not stack.ff:
            raise ValueError(
                'residual = "reversible" goes with norm = "pre", ff above 0, and without kv_heads, window, experts, '
                f"share, drop_path and other forms of heads; change {other[0] if other else 'ff'}"
            )
        return
    special = [kind for kind in stack.attention if kind != "full"]
    if special:
        raise ValueError(
            f'attention = "{special[0]}" is for residual = "reversible", got {stack.residual}; change one of them'
        )
