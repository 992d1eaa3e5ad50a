import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from saccade.config.load import validate
from saccade.kernels.weights import Unsupported
from saccade.model.build.model import build


def test_kernels_agree_with_the_reference():
    """Run the comparison in Triton's interpreter, which must be enabled before Triton is imported."""
    pytest.importorskip("triton")
    script = Path(__file__).with_name("decoding_kernels.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}

    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "the kernels agree"


@pytest.mark.parametrize(
    ("stack", "positions", "known"),
    [
        ({}, "sinusoidal", True),
        ({"norm": "pre", "activation": "gelu-tanh"}, "learned", True),
        ({"norm_kind": "rms", "gated": True, "bias": False, "window": 3}, "rotary", True),
        ({}, {"kind": "rotary", "scaling": {}}, False),
        ({}, "alibi", False),
        ({}, "shaw", False),
        ({"head_projection": "split"}, "sinusoidal", False),
        ({"ff": 0}, "sinusoidal", False),
        ({"experts": {}}, "sinusoidal", False),
        ({"residual": False}, "sinusoidal", False),
        ({"norm": "none"}, "sinusoidal", False),
        ({"head_projection": "full", "dim": 256}, "sinusoidal", False),
    ],
)
def test_kernels_know_the_usual_blocks(stack, positions, known):
    """An unsupported block would silently be decoded by slower code."""
    pytest.importorskip("triton")
    from saccade.kernels.triton import step as fast_step

    where = {"kind": positions} if isinstance(positions, str) else positions
    part = {"stack": {"layers": 1, "dim": 16, "heads": 2, "ff": 16, **stack}, "positions": where}
    recipe = validate({"reader": part, "writer": part}, origin="test")
    built = build(recipe, source_size=9, target_size=9).writer.stack
    with nullcontext() if known else pytest.raises(Unsupported):
        fast_step.check_weights(built.describe_step())
