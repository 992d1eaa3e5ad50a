"""Imported ViT compared with the original: pixels, logits, gradients; and exported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import saccade
from saccade.data.batching.batch import Batch, Pictures
from saccade.data.media.decoding import build_decoder
from saccade.errors import SaccadeError
from saccade.exchange.exporting import export_run
from saccade.exchange.importing import import_folder
from saccade.model.run import Run, load_run, read_weights

transformers = pytest.importorskip("transformers")
NAMES = ("cat", "dog", "a red bus", "tree", "sky")
SHAPE = dict(
    hidden_size=10, num_hidden_layers=3, num_attention_heads=2, intermediate_size=7, image_size=12, patch_size=4,
    layer_norm_eps=1e-6,
)  # fmt: skip
SEES = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "resample": 3}


def make(folder: Path, architecture: str = "ViTForImageClassification", **more: Any) -> nn.Module:
    """Write the folder of a tiny model with random weights."""
    config = transformers.ViTConfig(**SHAPE, id2label=dict(enumerate(NAMES)), **more)
    model = getattr(transformers, architecture)(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(folder)
    processor(folder).save_pretrained(folder)
    return model


def processor(folder: Path) -> Any:
    if (folder / "preprocessor_config.json").exists():
        return transformers.ViTImageProcessorPil.from_pretrained(folder)
    return transformers.ViTImageProcessorPil(size={"height": 12, "width": 12}, **SEES)


class Both(NamedTuple):
    run: Run
    theirs: Any
    folder: Path

    def ours(self, kind: torch.dtype) -> Tensor:
        """Our logits of three pictures, or states without a head."""
        model = self.run.model.to(kind)
        memory = model.read(Batch({"source": Pictures(pixels(), torch.ones(3, 10).bool())}))
        return memory.states if self.run.tokenizers.labels is None else model.writer(memory)

    def others(self, kind: torch.dtype) -> Any:
        mean, std = (torch.tensor(SEES[name], dtype=kind).view(3, 1, 1) for name in ("image_mean", "image_std"))
        return self.theirs.to(kind)((pixels().to(kind) / 255 - mean) / std)


def pixels() -> Tensor:
    return torch.randint(0, 256, (3, 3, 12, 12), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


@pytest.fixture
def both(tmp_path: Path) -> Both:
    theirs = make(tmp_path / "folder")
    import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    return Both(load_run(tmp_path / "run"), theirs, tmp_path / "folder")


@pytest.mark.parametrize(("kind", "close"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_logits_are_those_of_the_original(both: Both, kind: torch.dtype, close: float) -> None:
    torch.testing.assert_close(both.ours(kind), both.others(kind).logits, atol=close, rtol=close)


def test_gradients_are_those_of_the_original(both: Both) -> None:
    reader, names = both.run.model.double().reader, dict(both.theirs.double().named_parameters())
    block = reader.stack.blocks[1]
    ours = [reader.cells.project.weight, reader.first, reader.positions.table.weight, block.self.project.weight]
    layer = "vit.layers.1.attention"
    there = ["patch_embeddings.projection.weight", "cls_token", "position_embeddings"]
    others = [*(names[f"vit.embeddings.{name}"] for name in there), *(names[f"{layer}.{x}_proj.weight"] for x in "qkv")]
    a = torch.autograd.grad(both.ours(torch.float64).square().mean(), ours)
    b = torch.autograd.grad(both.others(torch.float64).logits.square().mean(), others)
    torch.testing.assert_close(a[0].flatten(), b[0].flatten(), atol=1e-9, rtol=1e-7)
    torch.testing.assert_close(a[1], b[1][0, 0], atol=1e-9, rtol=1e-7)
    torch.testing.assert_close(a[2], b[2][0], atol=1e-9, rtol=1e-7)
    torch.testing.assert_close(a[3], torch.stack([x.unflatten(0, (2, -1)) for x in b[3:]], 1), atol=1e-9, rtol=1e-7)


def test_preprocessing_equals_that_of_the_original(both: Both, tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (31, 23, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    reader: Any = both.run.recipe.reader
    ours = torch.from_numpy(build_decoder(reader)(str(tmp_path / "a.png")))
    theirs = processor(both.folder)(Image.open(tmp_path / "a.png"), return_tensors="pt").pixel_values
    torch.testing.assert_close(both.run.model.reader.cells.normalization.normalize(ours, torch.float32), theirs)


def test_a_picture_is_labelled_with_the_name_that_the_original_gives(both: Both, tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.png" for i in range(3)]
    for file, picture in zip(files, pixels(), strict=True):
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(file)
    expected = [NAMES[i] for i in both.others(torch.float32).logits.argmax(-1)]
    assert saccade.load(both.run.path).predict([str(file) for file in files]) == expected


def test_what_is_exported_is_what_was_imported(both: Both, load_theirs: Callable[..., Any], tmp_path: Path) -> None:
    path, family = export_run(both.run.path, tmp_path / "out")
    assert family == "vit"
    again = load_theirs(path)
    expected = both.others(torch.float32).logits
    torch.testing.assert_close(both._replace(theirs=again).others(torch.float32).logits, expected)
    assert tuple(again.config.id2label.values()) == NAMES
    old, new = (processor(folder).to_dict() for folder in (both.folder, path))
    keys = ("size", "image_mean", "image_std", "resample", "do_normalize", "rescale_factor", "image_processor_type")
    assert {key: old[key] for key in keys} == {key: new[key] for key in keys}
    back = import_folder(str(path), str(tmp_path / "back"))
    before, after = (read_weights(folder / "model.safetensors") for folder in (both.run.path, back.path))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_duplicate_class_names_are_made_unique(tmp_path: Path) -> None:
    make(tmp_path / "folder")
    names = {str(i): name for i, name in enumerate(("crane", "dog", "crane", "tree", "crane"))}
    change(tmp_path / "folder", "config.json", id2label=names)
    import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    labels: Any = load_run(tmp_path / "run").tokenizers.labels
    assert labels.names == ("crane", "dog", "crane (2)", "tree", "crane (4)")


def test_a_model_without_a_head_gives_its_states(tmp_path: Path, load_theirs: Callable[..., Any]) -> None:
    theirs = make(tmp_path / "folder", "ViTModel")
    import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    both = Both(load_run(tmp_path / "run"), theirs, tmp_path / "folder")
    found = both.others(torch.float64)
    torch.testing.assert_close(both.ours(torch.float64), found.last_hidden_state, atol=1e-9, rtol=1e-9)
    path, _ = export_run(both.run.path, tmp_path / "out")
    again = both._replace(theirs=load_theirs(path)).others(torch.float64)
    torch.testing.assert_close(again.pooler_output, found.pooler_output)


def test_a_run_trained_here_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["train.steps=1", "train.valid_every=9", "train.valid_predictions=4", "data.train.0.examples=40"]
    run = saccade.train("vit", tiny=True, run="x", overrides=[*quick, "data.valid.0.examples=4", "train.device=cpu"])
    path, _ = export_run("x", tmp_path / "out")
    theirs = transformers.ViTForImageClassification.from_pretrained(path).eval()
    wide = np.random.default_rng(2).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    Image.fromarray(wide).save("a.png")
    sees = transformers.CLIPImageProcessorPil.from_pretrained(path)
    logits = theirs(sees(Image.open("a.png"), return_tensors="pt").pixel_values).logits.detach()
    found = run.candidates(["a.png"], decoding=run.recipe.predict.model_copy(update={"n_best": 2, "beam": 2}))[0]
    assert [item.text for item in found] == [theirs.config.id2label[int(i)] for i in logits[0].topk(2).indices]
    np.testing.assert_allclose(found[0].log_prob, logits.log_softmax(-1).max().item(), atol=1e-4)


def change(folder: Path, file: str, **values: Any) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("config.json", {"hidden_size": 12}, r"cls_token of shape \(1, 1, 10\) cannot become \(12,\)"),
        ("config.json", {"qkv_bias": False}, "qkv_bias = False is not supported; only True can be imported"),
        ("config.json", {"hidden_act": "mish"}, "hidden_act = 'mish' is not supported; expected one of relu, gelu"),
        ("config.json", {"registers": 4}, "registers = 4 is not supported; it is unknown and may change the outputs"),
        ("config.json", {"problem_type": "multi_label_classification"}, "only one of several classes per picture"),
        (
            "config.json",
            {"architectures": ["ViTForMaskedImageModeling"]},
            "cannot be imported; expected a vit folder with ViTForImage",
        ),
        (
            "preprocessor_config.json",
            {"size": 16},
            "size = 16 is not supported; expected preprocessing that yields 12 x 12",
        ),
        (
            "preprocessor_config.json",
            {"size": 15, "do_center_crop": True},
            "size = 15 is not supported; expected preprocessing",
        ),
        (
            "preprocessor_config.json",
            {"size": 12, "do_center_crop": True, "crop_size": 8},
            "expected preprocessing that yields 12 x 12 pixels",
        ),
        (
            "preprocessor_config.json",
            {"size": {"longest_edge": 12}},
            "size = {'longest_edge': 12} is not supported; expected height and width, or shortest_edge",
        ),
        ("preprocessor_config.json", {"resample": 1}, "resample = 1 is not supported; expected one of 2, 3"),
        ("preprocessor_config.json", {"do_normalize": False}, "do_normalize = False is not supported; only True"),
        (
            "preprocessor_config.json",
            {"gamma": 2},
            "gamma = 2 is not supported; it is unknown and may change the outputs",
        ),
    ],
)
def test_unsupported_settings_are_refused(tmp_path: Path, file: str, values: Any, message: str) -> None:
    make(tmp_path / "folder")
    change(tmp_path / "folder", file, **values)
    with pytest.raises(SaccadeError, match=message):
        import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fit", "margin", "size", "kind"),
    [
        ("stretch", 2, {"height": 16, "width": 16}, "DeiTImageProcessorPil"),
        ("crop", 0, {"shortest_edge": 12}, "CLIPImageProcessorPil"),
        ("crop", 3, {"shortest_edge": 18}, "CLIPImageProcessorPil"),
    ],
)
def test_a_folder_with_center_crop_is_imported(
    tmp_path: Path, fit: str, margin: int, size: dict[str, int], kind: str
) -> None:
    make(tmp_path / "folder")
    middle = {"size": size, "do_center_crop": True, "crop_size": {"height": 12, "width": 12}}
    change(tmp_path / "folder", "preprocessor_config.json", **middle)
    import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    run = load_run(tmp_path / "run")
    reader: Any = run.recipe.reader
    assert (reader.fit, reader.margin) == (fit, margin)
    noise = np.random.default_rng(1).integers(0, 256, (36, 48, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    path, _ = export_run(tmp_path / "run", tmp_path / "out")
    assert json.loads((path / "preprocessor_config.json").read_text())["image_processor_type"] == kind[:-3]
    sees = getattr(transformers, kind).from_pretrained(path)
    theirs = sees(Image.open(tmp_path / "a.png"), return_tensors="pt").pixel_values
    ours = torch.from_numpy(build_decoder(reader)(str(tmp_path / "a.png")))
    found = run.model.reader.cells.normalization.normalize(ours, torch.float32)
    assert (found - theirs).abs().mean() < (0.02 if fit == "crop" else 1e-6)  # cropped before or after resizing


def test_missing_preprocessing_settings_have_defaults(tmp_path: Path) -> None:
    make(tmp_path / "folder")
    file = tmp_path / "folder" / "preprocessor_config.json"
    nothing = dict.fromkeys(("size", "crop_size", "do_center_crop", "return_tensors", "device"))
    change(tmp_path / "folder", file.name, **nothing, data_format="channels_first")
    import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    reader: Any = load_run(tmp_path / "run").recipe.reader
    assert (reader.image_shape, reader.fit, reader.resample) == ((12, 12), "stretch", "bicubic")
    file.unlink()
    import_folder(str(tmp_path / "folder"), str(tmp_path / "without"))
    reader = load_run(tmp_path / "without").recipe.reader
    assert (reader.image_shape, reader.fit, reader.resample) == ((12, 12), "stretch", "bilinear")


def test_an_encoder_without_pooler_is_imported_and_exported(tmp_path: Path) -> None:
    config = transformers.ViTConfig(**SHAPE)
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "folder")
    import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    path, _ = export_run(tmp_path / "run", tmp_path / "out")
    before, after = (read_weights(folder / "model.safetensors") for folder in (tmp_path / "folder", path))
    again = {name.removeprefix("vit."): tensor for name, tensor in after.items()}
    assert before.keys() == again.keys() and all(torch.equal(before[name], again[name]) for name in before)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    make(tmp_path / "folder")
    weights = tmp_path / "folder" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(SaccadeError, match="model.safetensors is not a complete safetensors file"):
        import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))


def test_a_reader_alone_gives_vectors_and_pictures_of_its_attention(tmp_path: Path) -> None:
    theirs = make(tmp_path / "folder", "ViTModel")
    import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    both, run = Both(load_run(tmp_path / "run"), theirs, tmp_path / "folder"), saccade.load(tmp_path / "run")
    files = [str(tmp_path / f"{i}.png") for i in range(3)]
    for file, picture in zip(files, pixels(), strict=True):
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(file)
    expected = both.others(torch.float32).last_hidden_state.detach()
    np.testing.assert_allclose(run.embed(files, pool="first", normalise=False), expected[:, 0], atol=1e-4)
    np.testing.assert_allclose(run.embed(files, normalise=False), expected.mean(1), atol=1e-4)
    assert run.embed([]).shape == (0, 10)
    assert run.view(files[0]).maps
    with pytest.raises(SaccadeError, match="has no output for a picture; ask for embeddings of pictures"):
        run.predict(files)
    with pytest.raises(SaccadeError, match="expected a list of files, got the single text"):
        run.embed(files[0])
    with pytest.raises(SaccadeError, match='writer.kind = "states" has no outputs to train'):
        saccade.train(tmp_path / "run" / "recipe.toml", data="embedded:shapes", run=tmp_path / "new")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["reader.stem=[4, 5, 6]"],
            r"^no Hugging Face architecture matches this model \(vit: reader.stem = \(4, 5, 6\)\)$",
        ),
        (
            ["reader.class_token=false", "writer.pooling=mean"],
            r"^no Hugging Face architecture matches this model \(vit: reader.class_token = False\)$",
        ),
        (["reader.positions=sinusoidal"], r"\(vit: reader.positions = 'sinusoidal'\)$"),
    ],
)
def test_a_vit_with_own_settings_is_not_exported(tmp_path: Path, changes: list[str], message: str) -> None:
    few = [
        "data.train.0.examples=200", "data.valid.0.examples=4", "train.steps=1", "train.metric=loss",
        "reader.stack={layers=1, dim=12, heads=2, ff=8}",
    ]  # fmt: skip
    saccade.train("vit", tiny=True, run=tmp_path / "run", overrides=[*few, *changes])
    with pytest.raises(SaccadeError, match=message):
        export_run(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()
