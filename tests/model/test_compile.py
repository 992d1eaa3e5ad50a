"""torch.compile: one graph for all shapes, without breaks, with the results of eager mode."""

import subprocess
import sys
from pathlib import Path

import pytest

# Alone, since the checks of shapes that the tests add to every function are none of the model's graph.
SCRIPT = """
import sys
import torch
from torch._dynamo.utils import counters
from saccade.config.load import load
from saccade.model.build.model import build

torch.manual_seed(0)
model = build(load(sys.argv[1]), source_size=23, target_size=23).eval()
weights = list(model.parameters())


def logits(source, mask, target):
    return model.writer.head(model.writer(target, None, model.reader(source, mask)))


torch._dynamo.config.specialize_float = True  # scales and dropout rates never change; otherwise traced twice
compiled = torch.compile(logits, fullgraph=True, dynamic=True, backend=sys.argv[2])
for b, s, t in [(3, 7, 5), (4, 9, 6), (2, 11, 13)]:
    ids = torch.randint(4, 23, (b, s)), torch.arange(s) < torch.randint(1, s, (b, 1)), torch.randint(4, 23, (b, t))
    got, wanted = compiled(*ids), logits(*ids)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    for a, b in zip(*(torch.autograd.grad(y.square().mean(), weights) for y in (got, wanted)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
print("graphs", counters["stats"]["unique_graphs"])
"""
SMALL = """
reader.stack = { layers = 1, dim = 12, heads = 3, ff = 17 }
writer.stack = { layers = 1, dim = 12, heads = 3, ff = 17, norm = "pre" }
writer.positions = { kind = "rotary" }
"""


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
def test_one_graph_for_all_shapes(tmp_path: Path, backend: str) -> None:
    """With the second backend, gradients are compiled too."""
    recipe = tmp_path / "small.toml"
    recipe.write_text(SMALL)
    command = [sys.executable, "-c", SCRIPT, str(recipe), backend]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["graphs", "1"]
