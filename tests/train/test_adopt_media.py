"""Recipes of pictures whose reader comes from one run and whose writer from another (a language model)."""

import re
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import nn

from saccade.config.load import load, validate
from saccade.config.task import get_task
from saccade.data.batching.batch import Batch, Pictures
from saccade.data.tokenization.tokenizer import build_byte_alphabet
from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor
from saccade.train import api
from saccade.train.transfer.adopt_media import adopt_media_parts, adopt_reader, adopt_writer, find_init_runs

FEW = [
    "train.steps=1", "train.valid_every=9", "train.save_every=9", "train.metric=loss", "train.valid_predictions=0",
    "train.device=cpu", "data.train.0.examples=40", "data.valid=0", "train.ema=0", "train.batch_tokens=512",
]  # fmt: skip
STILL = [
    "train.schedule={kind='constant', lr=1e-30, warmup_steps=0}"
]  # so that the weights stay what they were at first
STACK = {"layers": 2, "dim": 12, "heads": 2, "ff": 17, "dropout": 0.0, "norm": "pre"}


def tensors(run):
    return load_file(run / "model.safetensors")


@pytest.fixture
def language(tmp_path):
    """A language model whose width differs from that of the reader."""
    values = {
        "name": "lm", "task": "language-model", "tokenizer": {"kind": "bytes"}, "reader": {"kind": "none"},
        "data": {"train": [{"files": ["embedded:sentences"], "examples": 50}], "max_length": 50},
        "writer": {"stack": STACK, "tie": "output", "positions": {"kind": "learned", "length": 50}, "dropout": 0.0},
        "train": {"steps": 1, "valid_every": 9, "save_every": 9, "device": "cpu", "batch_tokens": 512},
    }  # fmt: skip
    api.train(validate(values), run=tmp_path / "lm")
    return tmp_path / "lm"


@pytest.fixture
def seeing(tmp_path):
    small_one = ["reader.size=16", "reader.stack.dim=20", "reader.stack.layers=1", "reader.stack.ff=7"]
    api.train("vit", tiny=True, run=tmp_path / "vit", overrides=[*FEW, *small_one, "reader.augment.crop=0"])
    return tmp_path / "vit"


def train_captioner(path, *overrides):
    api.train("show-attend-tell", tiny=True, run=path, overrides=[*FEW, *overrides])
    return path


def test_a_reader_of_pictures_and_a_language_model_become_one(seeing, language, tmp_path, capsys):
    run = train_captioner(tmp_path / "run", f"reader.init={seeing}", f"writer.init={language}", *STILL)
    recipe, after = load(run / "recipe.toml"), tensors(run)
    assert (recipe.reader.kind, recipe.reader.size, recipe.reader.stack.dim) == ("patches", 16, 20)
    assert (recipe.writer.stack.dim, recipe.writer.positions.length, recipe.data.max_length) == (12, 50, 50)
    assert (run / "tokenizer.json").read_bytes() == (language / "tokenizer.json").read_bytes()
    for name, tensor in tensors(seeing).items():
        if name.startswith("reader."):
            torch.testing.assert_close(after.pop(name), tensor)
    for name, tensor in tensors(language).items():
        torch.testing.assert_close(after.pop(name.replace(".residuals.1.", ".residuals.2.")), tensor)
    assert all(".cross." in name or ".residuals.1." in name for name in after)  # which alone are new
    said = capsys.readouterr().err
    assert re.search(r"reader.init=\S+: (\d+) of \1 tensors copied\n", said)
    assert re.search(
        r"writer.init=\S+: 28 of 44 tensors copied, the rest is newly initialized; its cross-attention is new", said
    )


def test_a_new_captioner_equals_its_language_model_until_it_is_trained(seeing, language, tmp_path):
    parts = (f"reader.init={seeing}", f"writer.init={language}")
    run = Predictor.load(train_captioner(tmp_path / "run", *parts, *STILL), device="cpu").model
    alone = Predictor.load(language, device="cpu").model
    ids, mask = torch.randint(4, 200, (3, 11)), torch.ones(3, 11).bool()
    shown = Pictures(torch.randint(0, 256, (3, 3, 16, 16)).byte(), torch.ones(3, 5).bool())
    with torch.no_grad():
        memory = run.read(Batch({"source": shown}))
        torch.testing.assert_close(run.writer(ids, mask, memory), alone.writer(ids, mask, None))
    learned = train_captioner(
        tmp_path / "learned", *parts, "train.steps=12", "train.schedule={kind='constant', lr=0.01, warmup_steps=0}",
        "train.batch_tokens=2048",
    )  # fmt: skip
    after = Predictor.load(learned, device="cpu").model
    with torch.no_grad():
        dark, lit = (
            after.writer(
                ids, mask, after.read(Batch({"source": Pictures(torch.full_like(shown.values, v), shown.mask)}))
            )
            for v in (0, 255)
        )
    assert (dark - lit).abs().max() > 1e-3
    losses = [line["loss"] for line in small.read_metrics(learned) if line["event"] == "train"]
    assert losses[-1] < losses[0] or len(losses) == 1
    assert all((tensors(learned)[f"writer.stack.blocks.{i}.cross.heads.out.weight"] != 0).any() for i in range(2))


def test_imported_models_become_one(tmp_path):
    transformers = pytest.importorskip("transformers")
    from saccade.exchange.importing import import_folder

    core = Tokenizer(models.BPE({letter: number for number, letter in enumerate(build_byte_alphabet())}, []))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    written: dict[str, Any] = dict(
        n_embd=8, n_layer=2, n_head=2, n_positions=31, vocab_size=257, bos_token_id=256, eos_token_id=256
    )
    seen: dict[str, Any] = dict(
        hidden_size=10, num_hidden_layers=1, num_attention_heads=2, intermediate_size=7, image_size=16, patch_size=8
    )
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(**written)).eval()
    vit = transformers.ViTModel(transformers.ViTConfig(**seen)).eval()
    for name, model in (("gpt2", gpt2), ("vit", vit)):
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(tmp_path / f"{name}-folder")
    core.save(str(tmp_path / "gpt2-folder" / "tokenizer.json"))
    for name in ("gpt2", "vit"):
        import_folder(str(tmp_path / f"{name}-folder"), str(tmp_path / name))
    path = train_captioner(
        tmp_path / "run", f"reader.init={tmp_path / 'vit'}", f"writer.init={tmp_path / 'gpt2'}", *STILL
    )
    run = Predictor.load(path, device="cpu")
    pixels = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    ids = run.tokenizers.target.encode("a red circle")[:-1]
    with torch.no_grad():
        memory = run.model.read(Batch({"source": Pictures(pixels, torch.ones(2, 5).bool())}))
        torch.testing.assert_close(memory.states, vit(pixels / 127.5 - 1).last_hidden_state, atol=1e-4, rtol=1e-4)
        rows = torch.tensor([[1, *ids]]).expand(2, -1)
        logits = run.model.writer.head(run.model.writer(rows, torch.ones_like(rows).bool(), memory))
        order = torch.tensor(run.tokenizers.target.library_ids)
        theirs = gpt2(torch.tensor([[256, *order[ids].tolist()]])).logits
    known = order < 257
    torch.testing.assert_close(logits[:1, :, known], theirs[:, :, order[known]], atol=1e-4, rtol=1e-4)


def test_training_settings_come_from_the_recipe(seeing, language):
    recipe = load("show-attend-tell", overrides=["reader.augment.flip=0.25"])
    made = adopt_media_parts(recipe, {"reader.init": str(seeing), "writer.init": str(language)})
    assert made.reader.augment == recipe.reader.augment
    assert made.objectives[0].coverage == 0.0 != recipe.objectives[0].coverage
    assert (made.train, made.predict) == (recipe.train, recipe.predict)


def test_a_pretrained_reader_gets_a_head_that_asks_the_right_state(seeing):
    old = load(seeing / "recipe.toml")
    label = load("vit", overrides=["writer.pooling=mean"])
    assert adopt_reader(label, old, run="x").writer.pooling == "first"
    states = old.model_copy(update={"task": get_task("encode"), "writer": load("bert").writer})
    assert adopt_reader(label, states, run="x").writer.pooling == "first"
    bare = states.model_copy(update={"reader": states.reader.model_copy(update={"class_token": False})})
    assert adopt_reader(label, bare, run="x").writer.pooling == "mean"


def test_a_picture_classifier_can_be_trained_on_other_classes(seeing, tmp_path):
    run = tmp_path / "run"
    again = ["data.train.0.examples=400", f"init={seeing}", *STILL]
    api.train("vit", tiny=True, run=run, overrides=[*FEW, *again])
    old, new = Predictor.load(seeing), Predictor.load(run)
    before, after = tensors(seeing)["writer.output.weight"], tensors(run)["writer.output.weight"]
    assert set(old.labels.names) < set(new.labels.names)
    for i, name in enumerate(old.labels.names):
        torch.testing.assert_close(after[new.labels.names.index(name)], before[i])


def test_ways_to_write_with_a_shared_table_are_distinguished(language):
    recipe, old = load("show-attend-tell"), load("transformer")
    assert adopt_writer(recipe, old, "x").writer.tie == "output"
    assert adopt_writer(recipe, load(language / "recipe.toml"), "x").writer.tie == "output"


def test_the_runs_are_found_in_the_overrides():
    found = find_init_runs(["train.steps=3", "writer.init='runs/my x'", "init = y", "reader.init="])
    assert found == {"init": "y", "writer.init": "runs/my x"}


def test_a_run_that_reads_something_else_is_refused(seeing, language, tmp_path):
    with pytest.raises(SaccadeError, match="that run reads nothing, and recipe 'show-attend-tell' reads pictures"):
        train_captioner(tmp_path / "run", f"reader.init={language}")
    with pytest.raises(SaccadeError, match="that run reads pictures, and recipe 'listen-transformer' reads sounds"):
        api.train("listen-transformer", tiny=True, run=tmp_path / "run", overrides=[f"reader.init={seeing}"])
    with pytest.raises(SaccadeError, match="'nowhere' is not a run"):
        train_captioner(tmp_path / "run", "writer.init=nowhere")


def test_a_run_that_writes_no_tokens_is_refused(seeing, language, tmp_path):
    with pytest.raises(SaccadeError, match='that run has writer.kind = "label", which writes no tokens'):
        train_captioner(tmp_path / "run", f"writer.init={seeing}")
    with pytest.raises(SaccadeError, match="recipe 'vit' has writer.kind = \"label\", which writes no tokens"):
        api.train("vit", tiny=True, run=tmp_path / "run", overrides=[f"writer.init={language}"])


def write_recipe(tmp_path: Path, *overrides: str) -> None:
    """Train a recipe given as a file, which does not adopt the architecture of a run."""
    (tmp_path / "own.toml").write_text(
        'task = "media-to-text"\n[tokenizer]\nkind = "bytes"\n[reader]\nkind = "patches"\nsize = 16\npatch_size = 8\n'
        'stack = { layers = 1, dim = 20, heads = 4, ff = 7, norm = "pre" }\n[writer]\ntie = "output"\n'
        'stack = { layers = 2, dim = 12, heads = 2, ff = 17, norm = "pre" }\n[data]\n'
        'train = [{ files = ["embedded:scenes"], examples = 40 }]\n'
    )
    short = ["train.steps=1", "train.device=cpu", "train.save_every=9"]
    api.train(tmp_path / "own.toml", run=tmp_path / "run", overrides=[*short, *overrides])


def test_a_file_that_takes_over_something_else_is_refused(seeing, language, tmp_path):
    with pytest.raises(SaccadeError, match="reader.init=.*: that run reads texts, and this recipe pictures"):
        write_recipe(tmp_path, f"reader.init={language}")
    with pytest.raises(
        SaccadeError, match='writer.init=.*: that run has writer.kind = "label", which writes no tokens'
    ):
        write_recipe(tmp_path, f"writer.init={seeing}")
    with pytest.raises(SaccadeError, match="init=.*: that run reads pictures, and this recipe texts"):
        api.train("classify", tiny=True, run=tmp_path / "run", overrides=[f"init={seeing}"])


def test_a_reader_of_another_width_is_refused(seeing, tmp_path):
    with pytest.raises(SaccadeError, match="the reader of that run is 20 wide, and this one 24; set reader.stack"):
        write_recipe(tmp_path, f"reader.init={seeing}", "reader.stack.dim=24")


def test_a_writer_of_another_width_is_refused(language, tmp_path):
    with pytest.raises(SaccadeError, match="the writer of that run is 12 wide, and this one 14; set writer.stack.dim"):
        write_recipe(tmp_path, f"writer.init={language}", "writer.stack.dim=14")


def test_new_cross_attention_to_text_adds_nothing_at_first(language, tmp_path):
    stack = {**STACK, "layers": 2}
    recipe = validate({
        "name": "t", "tokenizer": {"kind": "bytes"}, "data": small.COPY, "reader": {"stack": stack},
        "writer": {"stack": stack, "tie": "output", "positions": {"kind": "learned", "length": 256}, "dropout": 0.0},
        "train": {**small.TRAIN, "steps": 1, "valid_every": 9, "save_every": 9},
    })  # fmt: skip
    api.train(recipe, run=tmp_path / "run", overrides=[f"writer.init={language}", *STILL])
    before, after = tensors(language), tensors(tmp_path / "run")
    name = "writer.stack.blocks.1.residuals.{}.norm.weight"
    torch.testing.assert_close(after[name.format(2)], before[name.format(1)])
    assert (after["writer.stack.blocks.1.cross.heads.out.weight"].abs() < 1e-20).all()
