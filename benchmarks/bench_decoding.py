"""Decoding a fixed number of tokens, by saccade and by others: the decoding cases of `bench.py`.

All contenders have random weights of the same sizes and take the same number of steps, whatever the outputs are.
"""

import contextlib
import functools
import io
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import torch
from bench_training import marian_settings

import saccade
from saccade.config.load import validate
from saccade.config.schema import Decoding

if TYPE_CHECKING:
    from bench import Case, Size, Step

PRECISIONS = {"fp32": "float32", "int8": "int8"}  # ours, CTranslate2's
SPECIAL = ("<blank>", "<unk>", "<s>", "</s>")  # of CTranslate2's vocabulary


def build_decoding_cases(size: "Size") -> Iterable["Case"]:
    """Greedy and beam search, one sentence and many, in float32 and in int8."""
    from bench import OURS, Case

    with tempfile.TemporaryDirectory() as folder:
        for precision in PRECISIONS:
            for rows in (1, size.rows):
                for beam in (1, 4):
                    texts = sample_sentences(size, rows)
                    job = functools.partial(dict, size=size, texts=texts, beam=beam)
                    makers = {
                        OURS: lambda job=job, p=precision: ours(Path(folder), precision=p, **job()),
                        "CTranslate2": lambda job=job, p=precision: ctranslate2(Path(folder), precision=p, **job()),
                    }
                    if precision == "fp32":
                        makers["Hugging Face"] = lambda job=job: build_generate_step(**job())
                    search = "greedy" if beam == 1 else f"beam {beam}"
                    what = f"translate, {PRECISIONS[precision]}, batch {rows}, {search}"
                    yield Case(what, makers, rows * size.length)


def sample_sentences(size: "Size", rows: int) -> list[list[int]]:
    """Sample sentences of word ids; with the end token, each has `size.length` tokens."""
    return np.random.default_rng(3).integers(5, size.words, (rows, size.length - 1)).tolist()


def ours(folder: Path, *, precision: str, size: "Size", texts: list[list[int]], beam: int) -> "Step":
    """`saccade.load` and `predict`, from text to text."""
    predictor = saccade.load(create_run(folder, size), precision=precision)
    lines = [" ".join(f"w{number}" for number in text) for text in texts]
    steps = size.length - 1  # and one that writes the end
    decoding = Decoding(beam=beam, min_length=steps, max_length=steps, batch_tokens=10**6)
    return lambda: predictor.predict(lines, decoding=decoding)


def create_run(folder: Path, size: "Size") -> Path:
    """Train a run for one step on data that contains every word of the vocabulary once."""
    run = folder / "run"
    if run.exists():
        return run
    words = [f"w{number}" for number in range(size.words)]
    lines = "".join(" ".join(words[i : i + 10]) + "\n" for i in range(0, len(words), 10))
    files = [folder / "words.source", folder / "words.target"]
    for file in files:
        file.write_text(lines)
    stack = {"layers": size.layers, "dim": size.dim, "heads": size.heads, "ff": size.ff}
    recipe = validate(
        {
            "data": {"train": [str(file) for file in files]},
            "tokenizer": {"kind": "words", "size": size.words},
            "reader": {"stack": stack}, "writer": {"stack": stack},
            "train": {"steps": 1, "batch_tokens": 64, "device": "cpu"},
        }
    )  # fmt: skip
    quiet = contextlib.redirect_stderr(io.StringIO())  # its progress is of no interest here
    with quiet, patch.dict(os.environ, SACCADE_CACHE=str(folder / "cache")):
        saccade.train(recipe, run=run)
    return run


def build_generate_step(*, size: "Size", texts: list[list[int]], beam: int) -> "Step":
    """Hugging Face's generate with Marian."""
    from transformers import GenerationConfig, MarianMTModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    settings = marian_settings(size)
    model = MarianMTModel(settings).eval()
    model.generation_config = GenerationConfig(
        decoder_start_token_id=settings.decoder_start_token_id, eos_token_id=settings.eos_token_id,
        pad_token_id=settings.pad_token_id, num_beams=beam, do_sample=False,
        min_new_tokens=size.length, max_new_tokens=size.length,
    )  # fmt: skip
    source = torch.tensor([[*text, settings.eos_token_id] for text in texts])
    mask = torch.ones_like(source)

    def step() -> object:
        with torch.inference_mode():
            return model.generate(source, attention_mask=mask)

    return step


def ctranslate2(folder: Path, *, precision: str, size: "Size", texts: list[list[int]], beam: int) -> "Step":
    """Build the step of CTranslate2 with a model of random weights, written without a converter."""
    import ctranslate2 as engine

    path = folder / "ctranslate2"
    if not path.exists():
        write_random_model(path, size)
    translator = engine.Translator(
        str(path), device="cpu", compute_type=PRECISIONS[precision], inter_threads=1, intra_threads=1
    )
    sources = [[*(f"w{number}" for number in text), "</s>"] for text in texts]
    length = {"min_decoding_length": size.length, "max_decoding_length": size.length}
    return lambda: translator.translate_batch(sources, beam_size=beam, max_batch_size=0, **length)


def write_random_model(path: Path, size: "Size") -> None:
    """Write CTranslate2's specification of a post-norm Transformer with sinusoidal positions and random weights."""
    from ctranslate2.specs import Activation, TransformerSpec

    layers = (size.layers, size.layers)
    spec = TransformerSpec.from_config(layers, size.heads, pre_norm=False, activation=Activation.RELU)
    draw = np.random.default_rng(4)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return draw.normal(0, columns**-0.5, size=(rows, columns)).astype(np.float32)

    def linear(part: Any, rows: int, columns: int) -> None:
        part.weight, part.bias = matrix(rows, columns), np.zeros(rows, dtype=np.float32)

    def norm(part: Any) -> None:
        part.gamma, part.beta = np.ones(size.dim, dtype=np.float32), np.zeros(size.dim, dtype=np.float32)

    def block(layer: Any) -> None:
        for attention, widths in ((layer.self_attention, (3, 1)), (getattr(layer, "attention", None), (1, 2, 1))):
            if attention is not None:
                norm(attention.layer_norm)
                for part, width in zip(attention.linear, widths, strict=True):
                    linear(part, width * size.dim, size.dim)
        norm(layer.ffn.layer_norm)
        linear(layer.ffn.linear_0, size.ff, size.dim)
        linear(layer.ffn.linear_1, size.dim, size.ff)

    words = matrix(size.words, size.dim)
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = spec.decoder.projection.weight = words
    for layer in [*spec.encoder.layer, *spec.decoder.layer]:
        block(layer)
    vocabulary = [*SPECIAL, *(f"w{number}" for number in range(len(SPECIAL), size.words))]
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.add_source_eos = False
    path.mkdir(parents=True)
    spec.validate()
    spec.save(str(path))
