"""BERT, RoBERTa and ALBERT: imported models compared with the originals, and exported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_encoders import make
from torch import Tensor, nn

from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.text_pairs import encode_texts
from saccade.errors import SaccadeError
from saccade.exchange.exporting import export_run
from saccade.exchange.importing import import_folder
from saccade.model.run import Run, load_run, read_weights
from saccade.train.batches.pack import pack_batch

transformers = pytest.importorskip("transformers")
HEADS = {
    "bert": (
        "BertForMaskedLM",
        "BertForPreTraining",
        "BertModel",
        "BertForSequenceClassification",
        "BertForTokenClassification",
    ),
    "roberta": (
        "RobertaForMaskedLM",
        "RobertaModel",
        "RobertaForSequenceClassification",
        "RobertaForTokenClassification",
    ),
    "albert": (
        "AlbertForMaskedLM",
        "AlbertForPreTraining",
        "AlbertModel",
        "AlbertForSequenceClassification",
        "AlbertForTokenClassification",
    ),
}
TEXTS = [("abc de",), ("k",), ("lkja hgf", "bb aa c")]


class Both(NamedTuple):
    run: Run
    theirs: nn.Module
    folder: Path

    @property
    def order(self) -> Tensor:
        return torch.tensor(self.run.tokenizers.source.library_ids)

    def batch(self) -> Batch:
        return Batch({"source": pad(encode_texts(self.run.tokenizers.source, TEXTS))})

    def inputs(self) -> dict[str, Tensor]:
        """The same batch with foreign ids and the segment ids of their tokenizer."""
        source = self.batch()["source"]
        fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(self.folder / "tokenizer.json"))
        fast.pad_token = self.run.tokenizers.source.backend.id_to_token(self.order[0].item())
        given = [fast(*texts, return_token_type_ids=True) for texts in TEXTS]
        assert [row.input_ids for row in given] == [
            self.order[row[keep]].tolist() for row, keep in zip(source.ids, source.mask, strict=True)
        ]
        segments = torch.zeros_like(source.ids)
        for row, item in zip(segments, given, strict=True):
            row[: len(item.token_type_ids)] = torch.tensor(item.token_type_ids)
        return {
            "input_ids": self.order[source.ids], "attention_mask": source.mask.long(),
            "token_type_ids": segments.clamp(max=self.theirs.config.type_vocab_size - 1),
        }  # fmt: skip

    def outputs(self) -> dict[str, Tensor]:
        """Logits of the original for real tokens, ordered by our ids, and for texts."""
        found, keep = self.theirs(**self.inputs()), self.batch()["source"].mask
        if self.run.recipe.task.name == "classify":
            return {"logits": found.logits[keep] if found.logits.dim() == 3 else found.logits}
        known = self.order[self.order < self.theirs.config.vocab_size]
        logits = found.get("logits", found.get("prediction_logits"))
        pairs = found.get("seq_relationship_logits", found.get("sop_logits"))
        said = {"states": found.get("last_hidden_state"), "pairs": pairs, "pooled": found.get("pooler_output")}
        said["states"] = None if said["states"] is None else said["states"][keep]
        return {name: x for name, x in said.items() if x is not None} | (
            {} if logits is None else {"logits": logits[keep][:, known]}
        )

    def ours(self) -> dict[str, Tensor]:
        batch, model = self.batch(), self.run.model
        memory, keep = model.read(batch), batch["source"].mask
        writer: Any = model.writer
        if self.run.recipe.task.name == "classify":
            said = writer(memory)
            return {"logits": said[keep] if said.dim() == 3 else said}
        if "writer.output.bias" not in dict(model.named_parameters()):
            return {"states": memory.states[keep], "pooled": writer.hidden(memory.states[:, 0])}
        known = self.order < self.theirs.config.vocab_size
        said = {"logits": writer.head(writer(memory.states[keep]))[:, known]}
        return said | ({"pairs": writer.compute_pair_logits(memory)} if writer.follows is not None else {})


@pytest.fixture(params=[(family, head) for family, heads in HEADS.items() for head in heads], ids=lambda x: x[1])
def both(request: Any, tmp_path: Path) -> Both:
    family, architecture = request.param
    more = {"id2label": dict(enumerate(["O", "B", "I"])), "num_labels": 3} if "Classification" in architecture else {}
    theirs = make(tmp_path / "folder", family, architecture, **more)
    import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    return Both(load_run(tmp_path / "run"), theirs, tmp_path / "folder")


@pytest.mark.parametrize(("kind", "close"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_outputs_equal_those_of_the_original(both: Both, kind: torch.dtype, close: float) -> None:
    both.theirs.to(kind), both.run.model.to(kind)
    ours, theirs = both.ours(), both.outputs()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, atol=close, rtol=close)


def test_gradients_are_those_of_the_original(both: Both) -> None:
    model, theirs = both.run.model.double(), both.theirs.double()
    names = dict(theirs.named_parameters())
    tables = [next(value for name, value in names.items() if word in name) for word in ("word_emb", "token_type_emb")]
    mixed = [
        [value for name, value in names.items() if f"{word}.weight" in name][-1] for word in ("query", "key", "value")
    ]
    block = model.reader.stack.blocks[-1]
    ours = [model.reader.embedding.tokens.weight, model.reader.embedding.segments.weight, block.self.project.weight]
    a = torch.autograd.grad(sum(x.square().mean() for x in both.ours().values()), ours)
    b = torch.autograd.grad(sum(x.square().mean() for x in both.outputs().values()), [*tables, *mixed])
    exact = {"atol": 1e-9, "rtol": 1e-7}
    known = both.order < theirs.config.vocab_size
    known[0] = False  # the original has no gradient for padding
    torch.testing.assert_close(a[0][known], b[0][both.order[known]], **exact)
    torch.testing.assert_close(a[1], b[1], **exact)
    torch.testing.assert_close(a[2], torch.stack([part.unflatten(0, (len(a[2]), -1)) for part in b[2:]], 1), **exact)


def test_packed_rows_give_the_same_outputs(both: Both) -> None:
    batch, model = both.batch(), both.run.model.double()
    packed = pack_batch(batch)
    states = model.read(packed).states[0]
    torch.testing.assert_close(states, model.read(batch).states[batch["source"].mask])


def test_padding_changes_nothing(both: Both) -> None:
    model, rows = both.run.model.double(), encode_texts(both.run.tokenizers.source, TEXTS)
    alone, beside = Batch({"source": pad(rows[:1])}), both.batch()
    torch.testing.assert_close(model.read(alone).states, model.read(beside).states[:1, : len(rows[0])])


def test_what_is_exported_is_what_was_imported(both: Both, load_theirs: Callable[..., Any], tmp_path: Path) -> None:
    path, _ = export_run(both.run.path, tmp_path / "out")
    inputs, again = both.inputs(), load_theirs(path)
    keep = both.batch()["source"].mask
    assert type(again) is type(both.theirs)
    for value, other in zip(again(**inputs).to_tuple(), both.theirs(**inputs).to_tuple(), strict=True):
        real = keep if value.dim() == 3 else slice(None)  # RoBERTa gives padding its own position
        torch.testing.assert_close(value[real], other[real])
    back = import_folder(str(path), str(tmp_path / "again"))
    before, after = (read_weights(folder / "model.safetensors") for folder in (both.run.path, back.path))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    fast = transformers.AutoTokenizer.from_pretrained(path)
    texts = ["abc de", "k", "never"]
    ours = both.run.tokenizers.source
    assert fast(texts).input_ids == [[ours.library_ids[number] for number in row] for row in ours.encode_all(texts)]
    assert fast.mask_token in ("[MASK]", "<mask>")
    assert fast.bos_token_id == again.config.bos_token_id == fast.cls_token_id
    assert not (path / "generation_config.json").exists()  # an encoder does not generate


def test_layers_of_albert_are_stored_once(tmp_path: Path) -> None:
    make(tmp_path / "folder", "albert", "AlbertForMaskedLM")
    import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    names = read_weights(tmp_path / "run" / "model.safetensors")
    assert {name.split(".")[3] for name in names if "blocks" in name} == {"0"}


def test_legacy_names_of_norms_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    make(folder, "bert", "BertForPreTraining")
    tensors = load_file(folder / "model.safetensors")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
           for name, tensor in tensors.items()}  # fmt: skip
    import_folder(str(folder), str(tmp_path / "a"))
    save_file(old, folder / "model.safetensors")
    import_folder(str(folder), str(tmp_path / "b"))
    a, b = (read_weights(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_stored_tensors_decide_the_head(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    make(folder, "bert", "BertForPreTraining")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertForMaskedLM"]}))
    import_folder(str(folder), str(tmp_path / "run"))
    assert load_run(tmp_path / "run").recipe.writer.pairs


@pytest.mark.parametrize(
    ("family", "key", "value", "message"),
    [
        ("bert", "position_embedding_type", "relative_key", "position_embedding_type"),
        ("bert", "hidden_act", "mish", "hidden_act"),
        ("bert", "architectures", ["BertForQuestionAnswering"], "expected a bert folder with BertForMaskedLM or"),
        ("albert", "num_hidden_groups", 2, "num_hidden_groups"),
        ("roberta", "pad_token_id", 0, "pad_token_id"),
        ("bert", "is_decoder", True, "is_decoder"),
    ],
)
def test_what_cannot_be_imported_is_refused(tmp_path: Path, family: str, key: str, value: Any, message: str) -> None:
    folder = tmp_path / "folder"
    make(folder, family, HEADS[family][0])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(SaccadeError, match=message):
        import_folder(str(folder), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_another_output_matrix_is_kept_apart(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    make(folder, "bert", "BertForMaskedLM")
    tensors = load_file(folder / "model.safetensors")
    other = torch.randn_like(tensors["bert.embeddings.word_embeddings.weight"])
    save_file({**tensors, "cls.predictions.decoder.weight": other}, folder / "model.safetensors")
    import_folder(str(folder), str(tmp_path / "run"))
    run = load_run(tmp_path / "run")
    assert run.recipe.writer.tie == "none"
    order = torch.tensor(run.tokenizers.source.library_ids)
    known = order < 18
    torch.testing.assert_close(run.model.writer.output.weight[known], other[order[known]])
