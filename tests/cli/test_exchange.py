"""`saccade import` and `saccade export`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from saccade.exchange.families.bart import MARIAN
from saccade.exchange.families.family import VocabularyMapping, find_tensor

CONFIG = {
    "model_type": "marian", "architectures": ["MarianMTModel"], "vocab_size": 7, "d_model": 4, "pad_token_id": 6,
    "eos_token_id": 0, "decoder_start_token_id": 6, "max_position_embeddings": 9, "activation_function": "relu",
    "scale_embedding": True, "num_beams": 6,
    **{f"{side}_{key}": 1 for side in ("encoder", "decoder") for key in ("layers", "attention_heads")},
    **{f"{side}_ffn_dim": 3 for side in ("encoder", "decoder")},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Marian model in Hugging Face format, built without transformers."""
    from saccade.config.load import validate
    from saccade.exchange.families.family import Config
    from saccade.model.build.model import build
    from saccade.model.run import named_weights

    path = tmp_path / "downloads" / "tiny"
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    pieces = [("</s>", 0.0), ("<unk>", 0.0), *((letter, -1.0) for letter in "abcd"), ("<pad>", 0.0)]
    Tokenizer(models.Unigram(pieces, unk_id=1)).save(str(path / "tokenizer.json"))
    recipe = validate(MARIAN.to_recipe(Config(CONFIG)))
    tensors: dict[str, torch.Tensor] = {}
    for name, ours in named_weights(build(recipe, source_size=7, target_size=7)).items():
        form, theirs = find_tensor(name, MARIAN.get_tensor_map(recipe))
        parts = form.to_theirs(ours, VocabularyMapping(list(range(7)), [], 7))
        tensors.update({there: part.contiguous() for there, part in zip(theirs, parts, strict=True)})
    save_file(tensors, path / "model.safetensors")
    return path


def test_import_predict_export(cli: Callable[..., Any], folder: Path) -> None:
    code, out, _ = cli("import", folder)
    assert code == 0 and "runs/tiny: marian, " in out.replace("\\", "/")
    assert "which do not affect the outputs: " in out and "num_beams" in out
    code, out, err = cli("predict", "tiny", "abc", "beam=1", "max_length=5")
    assert code == 0, err
    code, out, _ = cli("export", "tiny", "back")
    assert code == 0 and out == "back: marian\n"
    assert json.loads(Path("back/config.json").read_text())["decoder_start_token_id"] == 6


def test_mistakes_have_one_line_and_exit_code_2(cli: Callable[..., Any], folder: Path) -> None:
    code, _, err = cli("import", folder / "nowhere")
    assert code == 2 and "is not a folder; expected one with config.json" in err
    code, _, err = cli("export", "nothing", "back")
    assert code == 2 and "is not a run" in err
