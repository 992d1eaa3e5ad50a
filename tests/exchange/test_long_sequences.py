"""GPT-Neo and Reformer: language models with local and LSH attention."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_decoders import without_float32
from tokenizers import Tokenizer, decoders, models, normalizers
from torch import Tensor, nn

from saccade.data.tokenization.tokenizers import END, START
from saccade.errors import SaccadeError
from saccade.exchange.exporting import export_run
from saccade.exchange.importing import import_folder
from saccade.model.run import Run, load_run, read_weights, write_tensors

transformers = pytest.importorskip("transformers")
PIECES = ["<pad>", "<unk>", "</s>", *"▁abcdefghijkl"]
LENGTH, CHUNK = 24, 4
CLASSES = {"gpt_neo": "GPTNeoForCausalLM", "reformer": "ReformerModelWithLMHead"}
FORMS = {
    "reformer": {},
    "reformer-learned": {"axial_pos_embds": False, "num_buckets": [2, 4], "local_attn_chunk_length": 8},
    "reformer-local": {"attn_layers": ["local"] * 2, "chunk_size_feed_forward": 1},
}


def config_of(form: str) -> Any:
    if form == "gpt_neo":
        return transformers.GPTNeoConfig(
            vocab_size=len(PIECES), hidden_size=12, num_layers=4, num_heads=3, intermediate_size=17, window_size=5,
            attention_types=[[["global", "local"], 2]], max_position_embeddings=LENGTH, layer_norm_epsilon=1e-4,
            bos_token_id=2, eos_token_id=2,
        )  # fmt: skip
    settings = {
        "hidden_size": 12, "num_attention_heads": 3, "attention_head_size": 5, "feed_forward_size": 17,
        "vocab_size": len(PIECES), "attn_layers": ["local", "lsh", "local", "lsh"], "lsh_attn_chunk_length": CHUNK,
        "local_attn_chunk_length": CHUNK, "num_hashes": 2, "num_buckets": 6, "is_decoder": True, "hash_seed": 11,
        "max_position_embeddings": LENGTH, "axial_pos_shape": [4, 6], "axial_pos_embds_dim": [5, 7],
        "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "local_attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": 1e-5,
    }  # fmt: skip
    return transformers.ReformerConfig(**{**settings, **FORMS[form]})


def letters() -> Tokenizer:
    core = Tokenizer(models.Unigram([(piece, -1.0) for piece in PIECES], unk_id=1))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.decoder = decoders.Metaspace(prepend_scheme="never")
    core.add_special_tokens(PIECES[:3])
    return core


@pytest.fixture(params=["gpt_neo", *FORMS])
def made(request: Any, tmp_path: Path) -> tuple[Path, nn.Module]:
    name = request.param.partition("-")[0]
    model = getattr(transformers, CLASSES[name])(config_of(request.param)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    folder = tmp_path / "folder"
    model.save_pretrained(folder)
    letters().save(str(folder / "tokenizer.json"))
    return folder, model


@pytest.fixture
def both(made: Any, tmp_path: Path) -> tuple[Run, nn.Module]:
    return load_run(import_folder(str(made[0]), str(tmp_path / "run")).path), made[1]


def ours_and_theirs(run: Run, theirs: nn.Module, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Logits of two texts of maximum length, ordered by our ids."""
    order = torch.tensor(run.tokenizers.target.library_ids)
    ids = torch.randint(4, len(order) - 1, (2, length), generator=torch.Generator().manual_seed(1))
    ids[:, 0] = START
    there = torch.where(ids == START, order[END], order[ids])
    known = order < theirs.config.vocab_size
    mine = run.model.writer.head(run.model.writer(ids, torch.ones_like(ids, dtype=torch.bool), None))
    logits = theirs(there, attention_mask=torch.ones_like(there)).logits
    return mine[..., known], logits[..., order[known]]


@pytest.mark.parametrize(("kind", "close"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("length", [LENGTH, 3])
def test_logits_are_those_of_the_original(
    both: Any, kind: torch.dtype, close: float, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, theirs = both
    run.model.to(kind)
    theirs.to(kind)
    if kind == torch.float64 and run.recipe.name == "gpt_neo":
        for block in theirs.transformer.h:
            attend = block.attn.attention._attn
            monkeypatch.setattr(block.attn.attention, "_attn", without_float32(attend, monkeypatch))
    if kind == torch.float32:
        one_round(run.model, theirs)
    torch.testing.assert_close(*ours_and_theirs(run, theirs, length), atol=close, rtol=close)


@pytest.mark.parametrize(
    "settings", [{"num_buckets": None}, {"local_attn_chunk_length": 6}, {"local_attn_chunk_length": 3}], ids=str
)
@torch.no_grad()
def test_lengths_need_not_be_multiples_of_the_chunk(settings: dict[str, Any], tmp_path: Path) -> None:
    """The original pads them to the least common multiple of both chunk lengths, and counts buckets by that length."""
    config = config_of("reformer")
    for key, value in settings.items():
        setattr(config, key, value)
    model = transformers.ReformerModelWithLMHead(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(tmp_path / "folder")
    letters().save(str(tmp_path / "folder" / "tokenizer.json"))
    run = load_run(import_folder(str(tmp_path / "folder"), str(tmp_path / "run")).path)
    run.model.double()
    for length in (4, 5, 7, 11, 13, 18, 23):
        # A new model for each length: it keeps the number of buckets of the first.
        theirs = transformers.ReformerModelWithLMHead.from_pretrained(tmp_path / "folder").eval().double()
        torch.testing.assert_close(*ours_and_theirs(run, theirs, length), atol=1e-9, rtol=1e-9)


def one_round(ours: nn.Module, theirs: nn.Module) -> None:
    """Use one hash round: the original combines rounds with little precision in float32."""
    for module in (*ours.modules(), *theirs.modules()):
        if hasattr(module, "hashing"):
            module.hashing = replace(module.hashing, rounds=1)
        elif hasattr(module, "num_hashes"):
            module.num_hashes = 1


def test_gradients_are_those_of_the_original(both: Any) -> None:
    run, theirs = both
    run.model.double().train()
    theirs.double().train()  # seeded hashes, no dropout
    mine, logits = ours_and_theirs(run, theirs)
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (mine * weights).sum().backward()
    (logits * weights).sum().backward()
    named, close = dict(theirs.named_parameters()), 1e-9 if run.recipe.name == "reformer" else 1e-5
    order = torch.tensor(run.tokenizers.target.library_ids)
    known = order < theirs.config.vocab_size
    known[START] = False  # shares the embedding of END
    if run.recipe.name == "gpt_neo":
        pairs = [(run.model.writer.embedding.positions.table.weight, named["transformer.wpe.weight"])]
    else:
        tokens, there = run.model.writer.embedding.tokens.weight, named["reformer.embeddings.word_embeddings.weight"]
        block, layer = run.model.writer.stack.blocks[0], theirs.reformer.encoder.layers[0]
        pairs = [
            (block.feedforward.up.weight, layer.feed_forward.dense.dense.weight),
            (block.attention.out.weight, layer.attention.output.dense.weight),
        ]
        torch.testing.assert_close(tokens.grad[known], there.grad[order[known]], atol=1e-9, rtol=1e-9)
    for ours, other in pairs:
        torch.testing.assert_close(ours.grad, other.grad, atol=close, rtol=close)


@torch.no_grad()
def test_greedy_tokens_are_those_of_the_original(both: Any) -> None:
    """Within one chunk, where LSH attention is exact."""
    run, theirs = both
    target, writer = run.tokenizers.target, run.model.writer
    steps = 6 if run.recipe.name == "gpt_neo" else CHUNK - 2
    prompt = [START, *target.encode("a")[:-1]]
    there = torch.tensor([[target.library_ids[END], *(target.library_ids[number] for number in prompt[1:])]])
    expected = theirs.generate(
        there, attention_mask=torch.ones_like(there), max_new_tokens=steps, min_new_tokens=steps, do_sample=False,
        pad_token_id=0,
    )  # fmt: skip
    logits, state, _ = writer.step(torch.tensor([prompt]), writer.start(None, rows=1, capacity=len(prompt) + steps))
    written = []
    for _ in range(steps):
        logits[:, END] = -torch.inf
        written.append(int(logits.argmax()))
        logits, state, _ = writer.step(torch.tensor([written[-1:]]), state)
    assert [target.library_ids[number] for number in written] == expected[0, len(prompt) :].tolist()


def test_what_is_exported_is_what_was_imported(made: Any, load_theirs: Callable[..., Any], tmp_path: Path) -> None:
    folder, theirs = made
    run = import_folder(str(folder), str(tmp_path / "run")).path
    path, family = export_run(run, tmp_path / "out")
    assert family == theirs.config.model_type
    ids = torch.arange(3, 15)[None].repeat(1, 2)
    again = load_theirs(path)
    torch.testing.assert_close(again(ids).logits, theirs(ids).logits, atol=1e-4, rtol=1e-4)
    second = import_folder(str(path), str(tmp_path / "again")).path
    before, after = (read_weights(one / "model.safetensors") for one in (run, second))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("form", "change", "message"),
    [
        ("reformer", {"attn_layers": ["local", "full"]}, r"attn_layers = .* expected a list of 'lsh' and 'local'"),
        (
            "reformer",
            {"lsh_num_chunks_before": 2},
            "lsh_num_chunks_before = 2 is not supported; only 1 can be imported",
        ),
        ("reformer", {"is_decoder": False}, "is_decoder = False is not supported; only True can be imported"),
        ("gpt_neo", {"attention_layers": ["global"] * 4}, "attention_layers = .* is not supported; only"),
        ("gpt_neo", {"attention_types": [[["global"], 3]]}, "attention_types = .* for each of num_layers"),
    ],
)
def test_unsupported_settings_are_refused(tmp_path: Path, form: str, change: dict[str, Any], message: str) -> None:
    folder = tmp_path / "folder"
    getattr(transformers, CLASSES[form])(config_of(form)).save_pretrained(folder)
    letters().save(str(folder / "tokenizer.json"))
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(SaccadeError, match=message):
        import_folder(str(folder), str(tmp_path / "run"))


def test_a_bias_that_gpt_neo_lacks_cannot_be_exported(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    transformers.GPTNeoForCausalLM(config_of("gpt_neo")).save_pretrained(folder)
    letters().save(str(folder / "tokenizer.json"))
    run = import_folder(str(folder), str(tmp_path / "run")).path
    weights = read_weights(run / "model.safetensors")
    weights["writer.stack.blocks.0.self.project.bias"][0, 0, 0] = 1.0
    write_tensors(weights, run / "model.safetensors", vocabulary=load_run(run).tokenizers.hash_vocabulary())
    with pytest.raises(SaccadeError, match="self.project.bias is not 0, but gpt_neo has no such tensor"):
        export_run(run, tmp_path / "out")
