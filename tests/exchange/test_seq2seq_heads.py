"""Classification heads of BART and T5, and T5's encoder alone: compared with the originals, and exported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from tiny_decoders import gradients_of
from tokenizers import Tokenizer, processors
from torch import Tensor, nn

from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.text_pairs import encode_texts
from saccade.data.tokenization.tokenizers import START
from saccade.errors import SaccadeError
from saccade.exchange.exporting import export_run
from saccade.exchange.importing import import_folder
from saccade.model.run import Run, load_run, read_weights
from saccade.model.writers.tokens import shift_right
from saccade.train.batches.pack import pack_batch

transformers = pytest.importorskip("transformers")
NAMES = {0: "bad", 1: "so", 2: "good"}
MODELS = (
    ("bart", "BartForSequenceClassification"),
    ("t5", "T5ForSequenceClassification"),
    ("t5-gated", "T5ForSequenceClassification"),
    ("t5", "T5ForTokenClassification"),
    ("t5", "T5EncoderModel"),
    ("t5-gated", "T5EncoderModel"),
)
ALONE, PAIRS = [("abc de",), ("k",), ("lkja hgf",)], [("abc", "de"), ("k", "lkja hgf"), ("b", "a")]


class Both(NamedTuple):
    run: Run
    theirs: nn.Module
    folder: Path

    def batch(self, texts: Any) -> Batch:
        return Batch({"source": pad(encode_texts(self.run.tokenizers.source, texts))})

    def ours(self, batch: Batch) -> Tensor:
        """Logits for texts or tokens; states of an encoder alone."""
        model: Any = self.run.model
        memory = model.read(batch)
        return memory.states if self.run.recipe.task.name == "encode" else model.writer(memory)

    def outputs(self, texts: Any) -> tuple[Tensor, Tensor]:
        """Outputs of both models, without padding."""
        source = self.batch(texts)["source"]
        there = torch.tensor(self.run.tokenizers.source.library_ids)[source.ids]
        core = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        assert [row[keep].tolist() for row, keep in zip(there, source.mask, strict=True)] == [
            core.encode(*row).ids for row in texts
        ]
        found = self.theirs(there, attention_mask=source.mask.long())
        expected, mine = found.get("logits", found.get("last_hidden_state")), self.ours(self.batch(texts))
        return (mine[source.mask], expected[source.mask]) if mine.dim() == 3 else (mine, expected)


@pytest.fixture(params=MODELS, ids=str)
def both(request: Any, make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Both:
    norm = transformers.models.t5.modeling_t5.T5LayerNorm
    monkeypatch.setattr(norm, "forward", lambda self, x: nn.functional.rms_norm(x, x.shape[-1:], self.weight, 1e-5))
    family, architecture = request.param
    start = {} if family == "bart" else {"decoder_start_token_id": 0}
    folder, theirs = make(family, architecture=architecture, settings={"id2label": NAMES, **start})
    import_folder(str(folder), str(tmp_path / "run"))
    return Both(load_run(tmp_path / "run"), theirs, folder)


@pytest.mark.parametrize("texts", [ALONE, PAIRS], ids=["alone", "pairs"])
@pytest.mark.parametrize(("kind", "close"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_outputs_equal_those_of_the_original(both: Both, texts: Any, kind: torch.dtype, close: float) -> None:
    both.run.model.to(kind), both.theirs.to(kind)
    torch.testing.assert_close(*both.outputs(texts), atol=close, rtol=close)


def test_gradients_are_those_of_the_original(both: Both) -> None:
    both.run.model.double(), both.theirs.double()
    ours, expected = gradients_of(*both.outputs(PAIRS), both.run, both.theirs)
    assert ours.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(ours[name], gradient, atol=1e-9, rtol=1e-7)


def test_packed_rows_give_the_same_outputs(both: Both) -> None:
    both.run.model.double()
    batch = both.batch(PAIRS)
    keep, mine, packed = batch["source"].mask, both.ours(batch), both.ours(pack_batch(batch))
    assert both.run.model.capabilities.packed_rows or both.run.recipe.task.name == "encode"
    torch.testing.assert_close(mine[keep] if mine.dim() == 3 else mine, packed[0] if mine.dim() == 3 else packed)


def test_padding_changes_nothing(both: Both) -> None:
    both.run.model.double()
    alone, beside = (both.ours(both.batch(texts))[0] for texts in (PAIRS[:1], PAIRS))
    torch.testing.assert_close(alone, beside[: len(alone)])


def test_what_is_exported_is_what_was_imported(both: Both, load_theirs: Callable[..., Any], tmp_path: Path) -> None:
    path, _ = export_run(both.run.path, tmp_path / "out")
    again, fast = load_theirs(path), transformers.AutoTokenizer.from_pretrained(path)
    assert type(again) is type(both.theirs) and not (path / "generation_config.json").exists()
    for pairs in ALONE, PAIRS:
        given = fast(*map(list, zip(*pairs, strict=True)), padding=True, return_tensors="pt")
        found = again(input_ids=given.input_ids, attention_mask=given.attention_mask)
        said, expected = found.get("logits", found.get("last_hidden_state")), both.outputs(pairs)[1]
        real = given.attention_mask.bool() if said.dim() == 3 else slice(None)
        torch.testing.assert_close(said[real], expected, atol=1e-5, rtol=1e-5)
    if both.run.recipe.task.name == "classify":
        assert again.config.id2label == NAMES
    assert load_file(path / "model.safetensors").keys() == load_file(both.folder / "model.safetensors").keys()
    second = import_folder(str(path), str(tmp_path / "again")).path
    before, after = (read_weights(run / "model.safetensors") for run in (both.run.path, second))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert load_run(second).recipe.reader == both.run.recipe.reader


def other_pairs(core: Tokenizer) -> None:
    core.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", core.token_to_id("</s>"))]
    )


def piece_behind(core: Tokenizer) -> None:
    core.post_processor = processors.TemplateProcessing(
        single="$A </s> <mask>", special_tokens=[(piece, core.token_to_id(piece)) for piece in ("</s>", "<mask>")]
    )


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        (None, {"problem_type": "multi_label_classification"}, "only one label per text is supported"),
        (None, {"decoder_start_token_id": 7}, "expected the id of the padding, end or start token"),
        (None, {"eos_token_id": 5}, "eos_token_id = 5 is not supported; the tokenizer uses '</s>', 2"),
        (
            other_pairs,
            {"finetuning_task": "rte"},
            r"its tokenizer adds </s> to an example with 2 text\(s\), and only </s> </s> can be imported",
        ),
        (
            piece_behind,
            {},
            r"its tokenizer adds </s> <mask> to an example with 1 text\(s\), and only </s> can be imported",
        ),
        (
            None,
            {"architectures": ["BartForQuestionAnswering"]},
            "expected a bart folder with BartForConditionalGeneration or",
        ),
    ],
)
def test_settings_that_change_outputs_are_refused(
    make: Callable[..., Any], tmp_path: Path, change: Any, settings: dict[str, Any], message: str
) -> None:
    folder, _ = make("bart", architecture="BartForSequenceClassification", settings={"id2label": NAMES})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    core = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if change is not None:
        change(core)
    core.save(str(folder / "tokenizer.json"))
    with pytest.raises(SaccadeError, match=message) as raised:
        import_folder(str(folder), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists() and "\n" not in str(raised.value)


def test_a_model_without_a_head_uses_its_embedding_as_output(make: Callable[..., Any], tmp_path: Path) -> None:
    """facebook/bart-base is published as BartModel, but used for generation."""
    folder, _ = make("bart", architecture="BartModel")
    theirs = transformers.BartForConditionalGeneration.from_pretrained(folder).eval()
    run = load_run(import_folder(str(folder), str(tmp_path / "run")).path)
    both, order = Both(run, theirs, folder), torch.tensor(run.tokenizers.source.library_ids)
    source, model = both.batch(ALONE)["source"], run.model
    expected = theirs(order[source.ids], attention_mask=source.mask.long()).logits
    memory = model.read(Batch({"source": source}))
    mine = model.writer.head(model.writer(shift_right(source.ids, START), source.mask, memory))
    known = order < theirs.config.vocab_size
    torch.testing.assert_close(
        mine[source.mask][:, known], expected[source.mask][:, order[known]], atol=1e-4, rtol=1e-4
    )
    out, _ = export_run(run.path, tmp_path / "out")
    assert json.loads((out / "config.json").read_text())["architectures"] == ["BartForConditionalGeneration"]


def test_an_encoder_alone_has_no_decoder(make: Callable[..., Any], tmp_path: Path) -> None:
    folder, _ = make("t5-gated")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["T5EncoderModel"]}))
    with pytest.raises(SaccadeError, match=r"has the tensor 'decoder\..*', which t5 does not have"):
        import_folder(str(folder), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
