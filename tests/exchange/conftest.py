"""Tiny random models of transformers, saved as folders with a tokenizer of letters."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from torch import Tensor, nn

from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import START
from saccade.exchange.importing import import_folder
from saccade.model.model import Model
from saccade.model.run import Run, load_run
from saccade.model.writers.tokens import shift_right

transformers = pytest.importorskip("transformers")
Made = tuple[Path, nn.Module]

LETTERS = "▁abcdefghijkl"
SPECIAL = {
    "marian": (["</s>", "<unk>"], ["<pad>"]),
    "bart": (["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"]),
    "t5": (["<pad>", "</s>", "<unk>"], ["<extra_id_1>", "<extra_id_0>"]),
}
SHAPE = dict(
    d_model=10, encoder_layers=2, decoder_layers=3, encoder_attention_heads=2, decoder_attention_heads=5,
    encoder_ffn_dim=7, decoder_ffn_dim=11, max_position_embeddings=23,
)  # fmt: skip


def letters(family: str) -> Tokenizer:
    """Build a tokenizer with one token per letter, and the family's ids of special tokens."""
    before, after = SPECIAL[family]
    pieces = [(piece, 0.0) for piece in before] + [(letter, -1.0) for letter in LETTERS] + [(p, 0.0) for p in after]
    core = Tokenizer(models.Unigram(pieces, unk_id=[piece for piece, _ in pieces].index("<unk>")))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Metaspace()
    core.add_special_tokens([*before, *after])
    end = core.token_to_id("</s>")
    if family == "bart":
        core.post_processor = processors.RobertaProcessing(("</s>", end), ("<s>", 0))
    else:
        core.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", end)]
        )
    return core


def config_of(family: str) -> Any:
    match family:
        case "marian":
            return transformers.MarianConfig(
                **SHAPE, vocab_size=16, pad_token_id=15, eos_token_id=0, decoder_start_token_id=15,
                scale_embedding=True, forced_eos_token_id=None, activation_function="swish",
            )  # fmt: skip
        case "bart":
            return transformers.BartConfig(**SHAPE, vocab_size=18, forced_eos_token_id=None)
    relu = family == "t5"
    more: dict[str, Any] = {} if relu else {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    return transformers.T5Config(
        vocab_size=21, d_model=10, d_kv=3, d_ff=7, num_layers=2, num_decoder_layers=3, num_heads=2,
        relative_attention_num_buckets=8, relative_attention_max_distance=11, layer_norm_epsilon=1e-5, **more,
    )  # fmt: skip


CLASSES = {"marian": "MarianMTModel", "bart": "BartForConditionalGeneration", "t5": "T5ForConditionalGeneration"}
FAMILIES = ("marian", "bart", "t5", "t5-gated")


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Made]:
    """Write a folder of a family; its weights are random throughout, since zeros and ones hide mistakes."""

    def made(family: str, *, architecture: str = "", settings: Any = None, **options: Any) -> Made:
        name, config = family.partition("-")[0], config_of(family)
        for key, value in (settings or {}).items():
            setattr(config, key, value)
        model = getattr(transformers, architecture or CLASSES[name])(config)
        if family == "t5-gated" and not architecture:  # T5 1.1 does not tie output and embedding
            model.lm_head.weight = nn.Parameter(torch.empty_like(model.lm_head.weight))
        learned = [parameter.data for parameter in model.parameters() if parameter.requires_grad]
        for tensor in [*learned, *(bias for where, bias in model.named_buffers() if where == "final_logits_bias")]:
            nn.init.normal_(tensor, std=0.4)
        folder = tmp_path / f"{family}-folder"
        model.eval().save_pretrained(folder, **options)
        letters(name).save(str(folder / "tokenizer.json"))
        return folder, model

    return made


SOURCES, TARGETS = ["abc de", "k", "lkja hgf"], ["lk ja bc", "abcdefg", "b"]


class Both(NamedTuple):
    run: Run
    theirs: nn.Module
    folder: Path

    @property
    def order(self) -> Tensor:
        """The foreign id of each of our ids."""
        return torch.tensor(self.run.tokenizers.source.library_ids)

    @property
    def first(self) -> int:
        config: Any = self.theirs.config
        first = getattr(config, "decoder_start_token_id", None)
        return int(config.pad_token_id if first is None else first)

    def batch(self) -> Batch:
        source, target = self.run.tokenizers.source, self.run.tokenizers.target
        return Batch({"source": pad(source.encode_all(SOURCES)), "target": pad(target.encode_all(TARGETS))})

    def inputs(self) -> dict[str, Tensor]:
        """The same batch with foreign ids."""
        batch = self.batch()
        labels = self.order[batch["target"].ids]
        seen = torch.cat((torch.full((len(labels), 1), self.first), labels[:, :-1]), 1)
        source = batch["source"]
        return {
            "input_ids": self.order[source.ids], "attention_mask": source.mask.long(), "decoder_input_ids": seen,
        }  # fmt: skip

    def in_our_order(self, logits: Tensor) -> Tensor:
        """Reorder foreign logits by our ids, for tokens that both have."""
        known = self.order[self.order < logits.shape[-1]]
        return logits[self.batch()["target"].mask][:, known]

    def ours(self, model: Model) -> Tensor:
        batch = self.batch()
        target = batch["target"]
        logits = model.writer.head(model.writer(shift_right(target.ids, START), target.mask, model.read(batch)))
        return logits[target.mask][:, self.order < self.theirs.config.vocab_size]


@pytest.fixture(params=FAMILIES)
def both(request: Any, make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Both:
    norm = transformers.models.t5.modeling_t5.T5LayerNorm
    # The original computes squares in float32, so that float64 would not be more exact.
    monkeypatch.setattr(norm, "forward", lambda self, x: nn.functional.rms_norm(x, x.shape[-1:], self.weight, 1e-5))
    folder, theirs = make(request.param)
    import_folder(str(folder), str(tmp_path / "run"))
    return Both(load_run(tmp_path / "run"), theirs, folder)


@pytest.fixture
def load_theirs() -> Callable[[Path], nn.Module]:
    """Load a folder with transformers, which must use every tensor and miss none."""

    def load(folder: Path) -> nn.Module:
        name = json.loads((folder / "config.json").read_text())["architectures"][0]
        model, notes = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
        assert not notes["missing_keys"] and not notes["unexpected_keys"]
        return model.eval()

    return load


sys.path.insert(0, str(Path(__file__).parent))  # for tiny_encoders.py
