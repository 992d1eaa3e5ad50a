"""Classification heads of GPT-2, GPT-Neo and Llama: compared with the originals, and exported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tiny_decoders import config_of, gradients_of, in_float64, letters
from tokenizers import Tokenizer, processors
from torch import Tensor, nn

import saccade
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.text_pairs import encode_texts
from saccade.errors import SaccadeError
from saccade.exchange.exporting import export_run
from saccade.exchange.importing import import_folder
from saccade.model.run import Run, load_run, read_weights
from saccade.train.batches.pack import pack_batch

transformers = pytest.importorskip("transformers")
CLASSES = {"gpt2": "GPT2", "gpt_neo": "GPTNeo", "llama": "Llama", "llama-stretched": "Llama"}
TEXTS = ["abc de", "k", "lkja hgf"]
NAMES = {0: "bad", 1: "so", 2: "good"}


def make(folder: Path, family: str, head: str = "SequenceClassification", **more: Any) -> nn.Module:
    config = config_of(family)
    config.id2label, config.pad_token_id = NAMES, config.eos_token_id
    for key, value in more.items():
        setattr(config, key, value)
    model = getattr(transformers, f"{CLASSES[family]}For{head}")(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(folder)
    letters(family).save(str(folder / "tokenizer.json"))
    return model


class Both(NamedTuple):
    run: Run
    theirs: nn.Module

    def outputs(self) -> tuple[Tensor, Tensor]:
        """Logits of both models for texts or their real tokens; only ours end with END."""
        source = pad(encode_texts(self.run.tokenizers.source, [(text,) for text in TEXTS]))
        ends = source.mask.sum(1, keepdim=True) - 1
        real = source.mask & (torch.arange(source.ids.shape[1]) < ends)
        order = torch.tensor(self.run.tokenizers.source.library_ids)
        there = torch.where(real, order[source.ids], self.theirs.config.pad_token_id)
        logits = self.theirs(there, attention_mask=real.long()).logits
        writer: Any = self.run.model.writer
        mine = writer(self.run.model.read(Batch({"source": source})))
        return (mine[real], logits[real]) if mine.dim() == 3 else (mine, logits)


@pytest.fixture(params=[(family, head) for family in CLASSES for head in ("Sequence", "Token")], ids=str)
def both(request: Any, tmp_path: Path) -> Both:
    family, head = request.param
    theirs = make(tmp_path / "folder", family, f"{head}Classification")
    import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    return Both(load_run(tmp_path / "run"), theirs)


@pytest.mark.parametrize(("kind", "close"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_outputs_equal_those_of_the_original(
    both: Both, kind: torch.dtype, close: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == torch.float64:
        in_float64(*both, monkeypatch)
    torch.testing.assert_close(*both.outputs(), atol=close, rtol=close)


def test_gradients_are_those_of_the_original(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    in_float64(*both, monkeypatch)
    ours, expected = gradients_of(*both.outputs(), *both)
    torch.testing.assert_close(ours, expected, atol=1e-9, rtol=1e-7)


def test_packed_rows_give_the_same_outputs(both: Both) -> None:
    batch = Batch({"source": pad(encode_texts(both.run.tokenizers.source, [(text,) for text in TEXTS]))})
    model, packed = both.run.model.double(), pack_batch(batch)
    writer: Any = model.writer
    mine, other = writer(model.read(batch)), writer(model.read(packed))
    if mine.dim() == 3:
        mine, other = mine[batch["source"].mask], other[0]
    torch.testing.assert_close(mine, other[: len(mine)])


def test_what_is_exported_is_what_was_imported(both: Both, load_theirs: Callable[..., Any], tmp_path: Path) -> None:
    path, _ = export_run(both.run.path, tmp_path / "out")
    again, fast = load_theirs(path), transformers.AutoTokenizer.from_pretrained(path)
    assert type(again) is type(both.theirs)
    assert again.config.id2label == NAMES and not (path / "generation_config.json").exists()
    given = fast(TEXTS, padding=True, return_tensors="pt")
    real = given.attention_mask.bool()
    logits = again(input_ids=given.input_ids, attention_mask=given.attention_mask).logits
    logits = logits[real] if logits.dim() == 3 else logits
    torch.testing.assert_close(logits, both.outputs()[0], atol=1e-5, rtol=1e-5)
    core = Tokenizer.from_file(str(tmp_path / "folder" / "tokenizer.json"))
    assert [ids[keep].tolist() for ids, keep in zip(given.input_ids, real, strict=True)] == [
        core.encode(text).ids for text in TEXTS
    ]
    second = import_folder(str(path), str(tmp_path / "again")).path
    before, after = (read_weights(one / "model.safetensors") for one in (both.run.path, second))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_regression_heads_are_imported_and_exported(load_theirs: Callable[..., Any], tmp_path: Path) -> None:
    make(tmp_path / "folder", "gpt2", id2label={0: "LABEL_0"})
    import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    run = saccade.load(tmp_path / "run")
    again = load_theirs(export_run(tmp_path / "run", tmp_path / "out")[0])
    assert run.labels.kind == "number" and again.config.problem_type == "regression"
    assert float(run.predict(["abc"])[0]) == pytest.approx(again(torch.tensor([[1, 2, 3]])).logits.item(), abs=1e-3)


def test_labels_of_pairs_come_back_with_their_tokenizer(load_theirs: Callable[..., Any], tmp_path: Path) -> None:
    """The exported tokenizer puts END between two texts, as ours does."""
    make(tmp_path / "folder", "llama", finetuning_task="mrpc")
    core = letters("llama")
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A </s> $B", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    core.save(str(tmp_path / "folder" / "tokenizer.json"))
    run = load_run(import_folder(str(tmp_path / "folder"), str(tmp_path / "run")).path)
    path, _ = export_run(run.path, tmp_path / "out")
    fast, theirs = transformers.AutoTokenizer.from_pretrained(path), load_theirs(path)
    rows = encode_texts(run.tokenizers.source, [("abc", "de"), ("k", "lkja")])
    writer: Any = run.model.writer
    mine = writer(run.model.read(Batch({"source": pad(rows)})))
    given = fast(["abc", "k"], ["de", "lkja"], padding=True, return_tensors="pt")
    logits = theirs(input_ids=given.input_ids, attention_mask=given.attention_mask).logits
    torch.testing.assert_close(mine, logits, atol=1e-5, rtol=1e-5)
    again = load_run(import_folder(str(path), str(tmp_path / "again")).path)
    assert again.tokenizers.labels is not None and again.tokenizers.labels.num_texts == 2


def behind() -> Tokenizer:
    core = letters("llama")
    core.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return core


@pytest.mark.parametrize(
    ("core", "more", "message"),
    [
        (letters("llama"), {"pad_token_id": 5}, "pad_token_id = 5 is not supported; a text may end with that token"),
        (behind(), {}, r"its tokenizer adds <s> </s> to an example with 1 text\(s\), and only <s> can be imported"),
        (
            letters("llama"),
            {"finetuning_task": "rte"},
            r"its tokenizer adds nothing to an example with 2 text\(s\), and only <s> </s> can be",
        ),
        (letters("llama"), {"problem_type": "multi_label_classification"}, "only one label per text is supported"),
    ],
)
def test_settings_that_change_outputs_are_refused(tmp_path: Path, core: Tokenizer, more: Any, message: str) -> None:
    make(tmp_path / "folder", "llama", **more)
    core.save(str(tmp_path / "folder" / "tokenizer.json"))
    with pytest.raises(SaccadeError, match=message):
        import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_fine_tuned_language_model_is_exported_as_classifier(
    family: str, load_theirs: Callable[..., Any], tmp_path: Path
) -> None:
    """Its head has no bias, and the exported tokenizer adds no start token."""
    name = "GPT2LMHeadModel" if family == "gpt2" else "LlamaForCausalLM"
    getattr(transformers, name)(config_of(family)).save_pretrained(tmp_path / "folder")
    letters(family).save(str(tmp_path / "folder" / "tokenizer.json"))
    import_folder(str(tmp_path / "folder"), str(tmp_path / "language"))
    (tmp_path / "a.tsv").write_text("abc de\tgood\nk\tbad\nlkja hgf\tgood\n")
    few = ["train.steps=1", "train.epochs=none", "train.device=cpu", "train.batch_tokens=64", "data.max_length=16"]
    for bias in ("true", "false"):
        saccade.train(
            "classify", data=tmp_path / "a.tsv", valid=tmp_path / "a.tsv", run=tmp_path / f"tuned-{bias}",
            overrides=[f"init={tmp_path / 'language'}", f"writer.bias={bias}", *few],
        )  # fmt: skip
    with pytest.raises(
        SaccadeError, match=r"writer.bias = True.*; train it with the head of GPT-2: .* writer.bias=false"
    ):
        export_run(tmp_path / "tuned-true", tmp_path / "none")
    run = saccade.load(tmp_path / "tuned-false")
    path, found = export_run(tmp_path / "tuned-false", tmp_path / "out")
    fast, theirs = transformers.AutoTokenizer.from_pretrained(path), load_theirs(path)
    given = fast(TEXTS, padding=True, return_tensors="pt")
    logits = theirs(input_ids=given.input_ids, attention_mask=given.attention_mask).logits
    assert found == family and json.loads((path / "config.json").read_text())["pad_token_id"] is not None
    best = [found[0] for found in run.candidates(TEXTS)]
    expected = [theirs.config.id2label[int(number)] for number in logits.argmax(1)]
    assert run.predict(TEXTS) == expected
    torch.testing.assert_close(
        torch.tensor([one.log_prob for one in best]), logits.log_softmax(-1).amax(1), atol=1e-4, rtol=1e-4
    )
