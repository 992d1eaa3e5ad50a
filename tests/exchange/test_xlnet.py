"""Imported XLNet compared with the original: permutation logits, memory, gradients, tokens; and exported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from torch import Tensor, nn

from saccade.data.batching.batch import pad
from saccade.data.tokenization.text_pairs import encode_texts
from saccade.data.tokenization.tokenizers import END
from saccade.errors import SaccadeError
from saccade.exchange.exporting import export_run
from saccade.exchange.families.catalogue import FAMILIES
from saccade.exchange.families.xlnet import complete_tokenizer
from saccade.exchange.formats.vocabulary import adopt_tokenizers, read_tokenizers
from saccade.exchange.importing import import_folder
from saccade.layers.attention.positions import Sinusoidal
from saccade.layers.attention.two_stream import build_permutation_mask
from saccade.model.model import Model
from saccade.model.readers.tokens import get_segment_ids
from saccade.model.run import Run, load_run, read_weights
from saccade.predict.predictors.predictor import Predictor

transformers = pytest.importorskip("transformers")
SPECIAL = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
LETTERS = "▁abcdefghijkl"
TEXTS = ["abc de", "k", "lkja hgf"]
D, LAYERS = 12, 2


def letters() -> Tokenizer:
    """Build a tokenizer with one token per letter, and XLNet's special tokens, two of which end a text."""
    core = Tokenizer(models.Unigram([*((s, 0.0) for s in SPECIAL), *((s, -1.0) for s in LETTERS)], unk_id=0))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Metaspace()
    core.add_special_tokens(SPECIAL)
    core.post_processor = processors.TemplateProcessing(
        single="$A:0 <sep>:0 <cls>:2", pair="$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2",
        special_tokens=[("<sep>", 4), ("<cls>", 3)],
    )  # fmt: skip
    return core


def letters_alone() -> Tokenizer:
    return Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))


def make_folder(folder: Path, kind: str = "LMHeadModel", **options: Any) -> nn.Module:
    config = transformers.XLNetConfig(
        vocab_size=22, d_model=D, n_layer=LAYERS, n_head=3, d_inner=17, mem_len=None, use_mems_eval=True, **options
    )
    model = getattr(transformers, f"XLNet{kind}")(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)  # zeros and ones hide mistakes
    model.save_pretrained(folder)
    letters().save(str(folder / "tokenizer.json"))
    return model


class Both(NamedTuple):
    run: Run
    theirs: nn.Module
    folder: Path

    @property
    def order(self) -> Tensor:
        """The foreign id of each of our ids."""
        return torch.tensor(self.run.tokenizers.source.library_ids)

    def in_float64(self) -> tuple[Model, Any]:
        """Both models in float64; the original's sinusoids need a patch for it."""

        def places(qlen: int, klen: int, bsz: int, device: Any = None) -> Tensor:
            distances = torch.arange(klen, -qlen, -1)[None]
            return Sinusoidal(D, layout="concatenated")(distances)[0, :, None].expand(-1, bsz, -1).double()

        theirs: Any = self.theirs.double()
        theirs.transformer.relative_positional_encoding = places
        return self.run.model.double(), theirs


@pytest.fixture
def both(tmp_path: Path) -> Both:
    folder = tmp_path / "folder"
    theirs = make_folder(folder)
    import_folder(str(folder), str(tmp_path / "run"))
    return Both(load_run(tmp_path / "run"), theirs, folder)


def sample_queries(both: Both, *, pairs: bool = False) -> dict[str, Any]:
    """Encode three texts and choose two positions of each to predict, in some order."""
    rows = [(text, TEXTS[0]) for text in TEXTS] if pairs else [(text,) for text in TEXTS]
    ids, keep = pad(encode_texts(both.run.tokenizers.source, rows)).ids, None
    keep = pad(encode_texts(both.run.tokenizers.source, rows)).mask
    at = torch.tensor([[2, 1], [0, 1], [5, 3]])
    when = torch.full(ids.shape, -1).scatter(1, at, torch.arange(2).expand(3, -1))
    return {"ids": ids, "keep": keep, "at": at, "order": when}


def ours(model: Model, given: dict[str, Any], *, before: Any = (), remember: int = 0) -> Any:
    segments = get_segment_ids(given["ids"], None)
    if before:
        segments = nn.functional.pad(segments, (before[0].shape[1], 0))
    return model.writer(
        model.reader, given["ids"], given["order"], at=given["at"], keep=given["keep"], segments=segments,
        memory=before, remember=remember,
    )  # fmt: skip


def their_inputs(both: Both, given: dict[str, Any]) -> dict[str, Tensor]:
    kind = next(both.theirs.parameters()).dtype
    return {
        "input_ids": both.order[given["ids"]],
        "attention_mask": given["keep"].to(kind),
        "perm_mask": (~build_permutation_mask(given["order"])).to(kind),
        "target_mapping": nn.functional.one_hot(given["at"], given["ids"].shape[1]).to(kind),
        "token_type_ids": get_segment_ids(given["ids"], None),
    }


@pytest.mark.parametrize("pairs", [False, True])
@torch.no_grad()
def test_logits_are_those_of_the_original_in_float64(both: Both, pairs: bool) -> None:
    given = sample_queries(both, pairs=pairs)
    model, theirs = both.in_float64()
    expected = theirs(**their_inputs(both, given)).logits
    logits = model.writer.head(ours(model, given).query)
    known = both.order < 22
    assert known.all()
    torch.testing.assert_close(logits, expected[..., both.order], atol=1e-9, rtol=1e-9)


@torch.no_grad()
def test_logits_are_those_of_the_original_in_float32(both: Both) -> None:
    given = sample_queries(both)
    expected = both.theirs(**their_inputs(both, given)).logits
    logits = both.run.model.writer.head(ours(both.run.model, given).query)
    torch.testing.assert_close(logits, expected[..., both.order], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_memory_is_that_of_the_original(both: Both) -> None:
    given = sample_queries(both)
    model, theirs = both.in_float64()
    before = [torch.randn(3, 5, D, dtype=torch.float64) for _ in range(LAYERS)]
    expected = theirs(**their_inputs(both, given), mems=[part.transpose(0, 1) for part in before])
    found = ours(model, given, before=before, remember=100)
    torch.testing.assert_close(model.writer.head(found.query), expected.logits[..., both.order], atol=1e-9, rtol=1e-9)
    for one, other in zip(found.memory, expected.mems, strict=True):
        torch.testing.assert_close(one, other.transpose(0, 1), atol=1e-9, rtol=1e-9)


@torch.no_grad()
def test_states_are_those_of_the_original(both: Both) -> None:
    """Bidirectional attention; the original pads on the left."""
    model, theirs = both.in_float64()
    tokens = pad(encode_texts(both.run.tokenizers.source, [("abc", "de"), ("lkja hgf", "k"), ("b", "l")]))
    found = model.reader(tokens.ids, tokens.mask).states
    for row, (ids, mask) in enumerate(zip(tokens.ids, tokens.mask, strict=True)):
        length, width = int(mask.sum()), len(ids)
        real, segments = both.order[ids[:length]][None], get_segment_ids(ids[None, :length], None)
        left = (width - length, 0)
        expected = theirs.transformer(
            nn.functional.pad(real, left, value=5), token_type_ids=nn.functional.pad(segments, left, value=3),
            attention_mask=nn.functional.pad(torch.ones_like(real), left).double(),
        ).last_hidden_state[0, width - length :]  # fmt: skip
        torch.testing.assert_close(found[row, :length], expected, atol=1e-9, rtol=1e-9)


def test_gradients_are_those_of_the_original(both: Both) -> None:
    given = sample_queries(both, pairs=True)
    model, theirs = both.in_float64()
    layer, mine = theirs.transformer.layer[1].rel_attn, model.reader.stack.blocks[1].self
    a = torch.autograd.grad(
        model.writer.head(ours(model, given).query).square().mean(),
        [model.reader.embedding.tokens.weight, mine.project.weight, mine.heads.term.segments, model.writer.query],
    )
    b = torch.autograd.grad(
        theirs(**their_inputs(both, given)).logits.square().mean(),
        [theirs.transformer.word_embedding.weight, layer.q, layer.k, layer.v, layer.seg_embed,
         theirs.transformer.mask_emb],
    )  # fmt: skip
    exact = {"atol": 1e-9, "rtol": 1e-7}
    torch.testing.assert_close(a[0], b[0][both.order], **exact)
    torch.testing.assert_close(a[1], torch.stack([part.permute(1, 2, 0) for part in b[1:4]], 1), **exact)
    torch.testing.assert_close(a[2], b[4].transpose(0, 1), **exact)
    torch.testing.assert_close(a[3], b[5].flatten(), **exact)


@torch.no_grad()
def test_what_is_exported_is_what_was_imported(both: Both, load_theirs: Callable[..., Any], tmp_path: Path) -> None:
    path, name = export_run(both.run.path, tmp_path / "out")
    assert name == "xlnet"
    inputs = their_inputs(both, sample_queries(both))
    torch.testing.assert_close(load_theirs(path)(**inputs).logits, both.theirs(**inputs).logits)
    again = import_folder(str(path), str(tmp_path / "again"))
    before, after = (read_weights(folder / "model.safetensors") for folder in (both.run.path, again.path))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
    rows = encode_texts(both.run.tokenizers.source, [(text,) for text in TEXTS])
    assert fast(TEXTS).input_ids == [both.order[torch.tensor(row)].tolist() for row in rows]


def test_sequences_end_with_the_tokens_of_the_file(both: Both) -> None:
    tokenizer = both.run.tokenizers.source
    assert tokenizer.backend.id_to_token(tokenizer.library_ids[END]) == "<sep>"
    assert tokenizer.convert_ids_to_tokens(tokenizer.suffix_ids) == ["<cls>"] and tokenizer.prefix_ids == ()
    (row,) = encode_texts(tokenizer, [("ab", "k")])
    assert tokenizer.convert_ids_to_tokens(row) == ["␣", "a", "b", "<end>", "␣", "k", "<end>", "<cls>"]
    (short,) = encode_texts(tokenizer, [("abcd", "k")], max_length=7)
    assert len(short) == 7 and short[-2:] == row[-2:]


@pytest.mark.parametrize("own", [False, True])
def test_sentencepiece_files_give_the_ids_of_the_original(tmp_path: Path, own: bool) -> None:
    library, users = pytest.importorskip("sentencepiece"), ["."] if own else []
    corpus = ["the quick brown fox jumps over the lazy dog", "numbers 12345 and 3.14!", "text, here and there"] * 30
    with (tmp_path / "spiece.model").open("wb") as file:
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus), model_writer=file, vocab_size=70, hard_vocab_limit=False, minloglevel=2,
            control_symbols=["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"], user_defined_symbols=["<eop>", *users],
        )  # fmt: skip
    with pytest.raises(SaccadeError, match="has no token <sep>, which XLNet appends to texts"):
        complete_tokenizer(letters_alone(), {})
    pieces = library.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    (core,) = read_tokenizers(tmp_path, FAMILIES["xlnet"], pieces.get_piece_size())
    tokenizer = adopt_tokenizers([core], size=pieces.get_piece_size(), start="own").source
    texts = ["the quick fox", "3.14 dogs.", "", "never 🦊", "a fox  and\tlines"]

    def ids(*text: str) -> list[int]:
        (row,) = encode_texts(tokenizer, [text])
        return [tokenizer.library_ids[number] for number in row]

    for text in texts:
        assert ids(text) == [*pieces.encode(text), *(core.token_to_id(piece) for piece in ("<sep>", "<cls>"))], text
    if own:  # XLNetTokenizer splits text at user-defined tokens, the library does not
        return
    theirs = transformers.XLNetTokenizer.from_pretrained(tmp_path)
    for text in [*texts, "  Ünïcödé  ``quoted'' text\tand\nlines", "a <mask> fox", "<mask>fox"]:
        assert ids(text) == theirs(text).input_ids, text
    assert ids("the fox", "here") == theirs("the fox", "here").input_ids


@pytest.mark.parametrize(
    ("key", "value"), [("attn_type", "uni"), ("bi_data", True), ("clamp_len", 7), ("same_length", True)]
)
def test_settings_that_change_outputs_are_refused(both: Both, tmp_path: Path, key: str, value: Any) -> None:
    path = both.folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(SaccadeError, match=f"{key} = {value!r} is not supported; only"):
        import_folder(str(both.folder), str(tmp_path / "other"))


NAMES = {0: "bad", 1: "fair", 2: "good"}


@pytest.mark.parametrize("kind", ["ForSequenceClassification", "ForTokenClassification"])
@torch.no_grad()
def test_labels_are_those_of_the_original(tmp_path: Path, kind: str) -> None:
    theirs: Any = make_folder(
        tmp_path / "folder", kind, num_labels=3, id2label=NAMES, label2id={n: i for i, n in NAMES.items()}
    )
    run = load_run(import_folder(str(tmp_path / "folder"), str(tmp_path / "run")).path)
    tokenizer = run.tokenizers.source
    assert run.recipe.task.name == "classify" and run.tokenizers.labels.names == ("bad", "fair", "good")
    rows = encode_texts(tokenizer, [("abc", "de"), ("k", "lkja hgf")])
    tokens = pad(rows)
    found = run.model.writer(run.model.reader(tokens.ids, tokens.mask))
    for row, ids in enumerate(rows):  # one by one: the original pools the last state, which may be padding
        given = torch.tensor([ids])
        expected = theirs(
            torch.tensor(tokenizer.library_ids)[given], token_type_ids=get_segment_ids(given, None)
        ).logits[0]
        ours_of_it = found[row] if kind.startswith("ForSeq") else found[row, : len(ids)]
        torch.testing.assert_close(ours_of_it, expected, atol=1e-4, rtol=1e-4)
    path, _ = export_run(run.path, tmp_path / "out")
    again, notes = getattr(transformers, f"XLNet{kind}").from_pretrained(path, output_loading_info=True)
    assert not notes["missing_keys"] and not notes["unexpected_keys"]
    inputs = torch.tensor(tokenizer.library_ids)[torch.tensor([rows[0]])]
    torch.testing.assert_close(again.eval()(inputs).logits, theirs(inputs).logits)
    assert again.config.id2label == NAMES


@torch.no_grad()
def test_a_model_without_a_head_is_an_encoder(tmp_path: Path) -> None:
    theirs: Any = make_folder(tmp_path / "folder", "Model")
    run = load_run(import_folder(str(tmp_path / "folder"), str(tmp_path / "run")).path)
    assert run.recipe.writer.kind == "states"
    (row,) = encode_texts(run.tokenizers.source, [("abc", "de")])
    given = torch.tensor([row])
    found = run.model.reader(given, torch.ones_like(given, dtype=torch.bool)).states
    inputs = torch.tensor(run.tokenizers.source.library_ids)[given]
    expected = theirs(inputs, token_type_ids=get_segment_ids(given, None)).last_hidden_state
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    path, _ = export_run(run.path, tmp_path / "out")
    again = transformers.XLNetModel.from_pretrained(path).eval()
    torch.testing.assert_close(again(inputs).last_hidden_state, theirs(inputs).last_hidden_state)
    model = Predictor.load(run.path, device="cpu")
    assert model.attention("abc").source_labels == ["␣", "a", "b", "c", "<end>", "<cls>"]


def test_an_unknown_summary_type_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path / "folder", "ForSequenceClassification", summary_type="mean")
    with pytest.raises(SaccadeError, match="summary_type = 'mean' is not supported; expected one of last, first"):
        import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
