"""saccade as a contender in a CPU translation suite: `case.folder` is a Hugging Face folder of a Marian model.

    python cpu_generate.py --threads 1 --clock cpu --plugin benchmarks/cpu_contenders.py

The suite provides the folder, the sources and the number of output tokens; this file loads the weights into our model.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from common import Contender, contender  # type: ignore[import-not-found]  # the suite's own module
from safetensors.torch import load_file
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from saccade.config import schema
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END, START
from saccade.model.build.model import build
from saccade.model.inference import keep_freed_memory, load_quantized_weights, prepack_weights, quantize_weights
from saccade.model.model import Model
from saccade.model.writers.tokens import Step
from saccade.predict.search.beam import beam_search
from saccade.predict.search.filters import require_min_length
from saccade.predict.search.greedy import choose_best, decode_rows


def load_marian(folder: Path) -> tuple[Model, list[int]]:
    """Load the weights of a Marian folder into our model; also return our token id for each of its ids."""
    config = json.loads((folder / "config.json").read_text())
    theirs = load_file(folder / "model.safetensors")
    size = config["vocab_size"]
    ours = map_token_ids(size, end=config["eos_token_id"], start=config["decoder_start_token_id"])
    stack = schema.TransformerStack(
        layers=config["encoder_layers"],
        dim=config["d_model"],
        heads=config["encoder_attention_heads"],
        ff=config["encoder_ffn_dim"],
        activation=config["activation_function"],
    )
    where = schema.Sinusoidal(layout="concatenated")
    recipe = schema.Recipe(
        reader=schema.TokenReader(stack=stack, positions=where), writer=schema.TokenWriter(stack=stack, positions=where)
    )
    model = build(recipe, source_size=size, target_size=size).eval()
    rows = torch.empty(size, dtype=torch.long)
    rows[ours] = torch.arange(size)
    with torch.no_grad():
        model.reader.embedding.tokens.weight.copy_(theirs["model.shared.weight"][rows])
        model.writer.output.bias = nn.Parameter(theirs["final_logits_bias"][0][rows])
        for side, part in (("encoder", model.reader), ("decoder", model.writer)):
            for i, block in enumerate(part.stack.blocks):
                load_block(block, theirs, f"model.{side}.layers.{i}.")
    return model, ours


def map_token_ids(size: int, *, end: int, start: int) -> list[int]:
    """Return our token id for each foreign id: our END and START ids for theirs, all others in order."""
    places = iter([i for i in range(size) if i not in (END, START)])
    return [END if i == end else START if i == start else next(places) for i in range(size)]


def load_block(block: Any, theirs: dict[str, Tensor], at: str) -> None:
    """Load one block from the tensors whose names begin with `at`."""

    def linear(target: nn.Module, name: str) -> None:
        target.weight.copy_(theirs[f"{at}{name}.weight"])
        target.bias.copy_(theirs[f"{at}{name}.bias"])

    def heads(target: Any, name: str, parts: str) -> None:
        for kind in ("weight", "bias"):
            parameter = getattr(target, kind)
            found = [theirs[f"{at}{name}.{part}_proj.{kind}"] for part in parts]
            shape = (parameter.shape[0], *parameter.shape[2:])
            parameter.copy_(torch.stack([one.view(shape) for one in found], 1))

    heads(block.self.project, "self_attn", "qkv")
    linear(block.self.heads.out, "self_attn.out_proj")
    norms = ["self_attn_layer_norm", "final_layer_norm"]
    if block.cross is not None:
        heads(block.cross.query, "encoder_attn", "q")
        heads(block.cross.memory, "encoder_attn", "kv")
        linear(block.cross.heads.out, "encoder_attn.out_proj")
        norms.insert(1, "encoder_attn_layer_norm")
    linear(block.feedforward.up, "fc1")
    linear(block.feedforward.down, "fc2")
    for residual, name in zip(block.residuals, norms, strict=True):
        linear(residual.norm, name)


class TruncatedWriter:
    """A writer that stops after `length` tokens without computing END, as the suite's peers do."""

    def __init__(self, writer: Any, *, length: int) -> None:
        self.writer, self.left = writer, length

    def step(self, inputs: Tensor, state: Any, *, align: bool = False) -> Step:
        if self.left:
            self.left -= 1
            return self.writer.step(inputs, state, align=align)
        logits = torch.full((inputs.shape[0], END + 1), -torch.inf)
        logits[:, END] = 0.0
        return Step(logits, state, None)


class OnCpu(Contender):
    """The search and the blocks of `saccade predict`."""

    precision = "fp32"

    def build(self, case: Any) -> None:
        self.case = case
        self.model, ours = load_marian(case.folder)
        keep_freed_memory()
        with torch.inference_mode():
            if self.precision == "int8":
                load_quantized_weights(self.model, quantize_weights(self.model))
            else:
                prepack_weights(self.model)
        self.theirs = {number: i for i, number in enumerate(ours)}
        self.batch = Batch({"source": pad([[ours[i] for i in row] for row in case.src])})

    def step(self) -> list[list[int]]:
        new, rows = self.case.new, torch.arange(len(self.case.src))
        with torch.inference_mode():
            state = self.model.writer.start(self.model.read(self.batch), capacity=new + 1)
            writer, rules = TruncatedWriter(self.model.writer, length=new), [require_min_length(new)]
            if self.case.beams == 1:
                found = decode_rows(writer, state, sentence_ids=rows, choose=choose_best, rules=rules, scored=False)
            else:
                limits = torch.full_like(rows, new)
                found = beam_search(writer, state, limits=limits, width=self.case.beams, rules=rules)
        return [[self.theirs[i] for i in outputs[0].ids] for outputs in found]


for precision in ("fp32", "int8"):
    contender("cpu-translate")(type(precision, (OnCpu,), dict(name=f"saccade {precision}", precision=precision)))
