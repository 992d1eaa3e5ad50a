"""Random configurations of every family: imported and exported exactly, or refused in one line; never wrong."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from comparison import Refusal, check_both_ways, write_folder
from draws import DRAWS

from saccade.exchange.families.catalogue import FAMILIES

transformers = pytest.importorskip("transformers")
NUM_FAST, NUM_SLOW = 1, 200  # configurations of each family
MIN_EXACT = 0.6  # share of the configurations that must be imported, refusals being for what cannot be expressed


def check_seed(family: str, seed: int, folder: Path) -> Refusal | None:
    """Check one configuration; a failure names the seed that reproduces it."""
    rng = Random(f"{family} {seed}")
    draw = DRAWS[family](rng)
    try:
        write_folder(draw, folder / "folder", rng)
        return check_both_ways(folder / "folder", folder, rng)
    except Exception as error:
        error.add_note(f"{family}, seed {seed}: {draw.architecture} with {draw.config}")
        raise


def test_every_family_is_drawn() -> None:
    assert set(DRAWS) == set(FAMILIES)


@pytest.mark.parametrize("family", DRAWS)
def test_random_configurations_are_exact_or_refused(family: str, tmp_path: Path) -> None:
    seed, exact = 0, 0
    while exact < NUM_FAST:  # refusals take little time
        exact += check_seed(family, seed, tmp_path / str(seed)) is None
        seed += 1
        assert seed < 10 * NUM_FAST, f"{family}: {exact} of {seed} configurations could be imported"


@pytest.mark.slow
@pytest.mark.parametrize("family", DRAWS)
def test_many_random_configurations_are_exact_or_refused(family: str, tmp_path: Path) -> None:
    refusals: Counter[Any] = Counter()
    for seed in range(NUM_SLOW):
        if (refusal := check_seed(family, seed, tmp_path / str(seed))) is not None:
            refusals[refusal.stage] += 1
    print(f"{family}: {NUM_SLOW - refusals.total()} exact, {refusals.total()} refused, 0 wrong")
    assert not refusals["export"], f"{refusals['export']} of the imported models cannot be exported"
    assert refusals.total() <= (1 - MIN_EXACT) * NUM_SLOW
