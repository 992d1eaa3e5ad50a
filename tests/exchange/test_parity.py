"""Imported models compared with the originals: logits, gradients, greedy tokens, padding; and exported."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END, PAD, START
from saccade.exchange.exporting import export_run
from saccade.exchange.importing import import_folder
from saccade.model.run import read_weights
from saccade.model.writers.tokens import shift_right
from saccade.train.objectives.terms import compute_token_losses

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize(("kind", "close"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_logits_are_those_of_the_original(both: Any, kind: torch.dtype, close: float) -> None:
    theirs = both.in_our_order(both.theirs.to(kind)(**both.inputs()).logits)
    torch.testing.assert_close(both.ours(both.run.model.to(kind)), theirs, atol=close, rtol=close)


def test_own_special_tokens_get_no_probability(both: Any) -> None:
    batch, model = both.batch(), both.run.model.double()
    target = batch["target"]
    hidden = model.writer(shift_right(target.ids, START), target.mask, model.read(batch))
    _, nll = compute_token_losses(model.writer, hidden, target.ids, target.mask, 0.1)
    logits = both.theirs.double()(**both.inputs()).logits
    labels = both.order[target.ids].masked_fill(~target.mask, -100)
    theirs = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(nll, theirs)


def test_gradients_are_those_of_the_original(both: Any) -> None:
    model, theirs = both.run.model.double(), both.theirs.double()
    block = model.writer.stack.blocks[1]
    ours = [model.reader.embedding.tokens.weight, block.self.project.weight, block.residuals[1].norm.weight]
    names = dict(theirs.named_parameters())
    if "shared.weight" in names:
        table, layer = "shared", "decoder.block.1.layer"
        query, norm = f"{layer}.0.SelfAttention.{{}}.weight", f"{layer}.1.layer_norm.weight"
    else:
        table, layer = "model.shared", "model.decoder.layers.1"
        query, norm = f"{layer}.self_attn.{{}}_proj.weight", f"{layer}.encoder_attn_layer_norm.weight"
    others = [names[f"{table}.weight"], *(names[query.format(part)] for part in "qkv"), names[norm]]
    a = torch.autograd.grad(both.ours(model).square().mean(), ours)
    b = torch.autograd.grad(both.in_our_order(theirs(**both.inputs()).logits).square().mean(), others)
    known = both.order < theirs.config.vocab_size
    assert a[0][START].abs().sum() == 0  # the start token uses the embedding of another token
    if theirs.config.model_type == "marian":  # the original has no gradient for padding, its start token
        known[PAD] = False
    exact = {"atol": 1e-9, "rtol": 1e-7}
    torch.testing.assert_close(a[0][known], b[0][both.order[known]], **exact)
    torch.testing.assert_close(a[1], torch.stack([part.unflatten(0, (len(a[1]), -1)) for part in b[1:4]], 1), **exact)
    torch.testing.assert_close(a[2], b[4], **exact)


@torch.no_grad()
def test_greedy_tokens_are_those_of_the_original(both: Any) -> None:
    batch, inputs, steps = both.batch(), both.inputs(), 9
    begin = [both.run.tokenizers.target.library_ids[number] for number in both.run.tokenizers.target.prefix_ids]
    expected = both.theirs.generate(
        inputs["input_ids"], attention_mask=inputs["attention_mask"], num_beams=1, do_sample=False,
        max_new_tokens=steps, min_new_tokens=steps, decoder_start_token_id=both.first,
        forced_bos_token_id=begin[0] if begin else None, use_cache=False,  # the cache of T5 has the encoder's depth
    )  # fmt: skip
    model, target = both.run.model, both.run.tokenizers.target
    state, tokens = model.writer.start(model.read(batch), capacity=steps + 1), [torch.full((3, 1), START)]
    for step in range(steps):
        logits, state, _ = model.writer.step(tokens[-1], state)
        logits[:, END] = -torch.inf
        chosen = logits.argmax(-1, keepdim=True)
        tokens.append(chosen if step >= len(target.prefix_ids) else torch.full_like(chosen, target.prefix_ids[step]))
    assert torch.equal(both.order[torch.cat(tokens[1:], 1)], expected[:, 1:])


def test_padding_changes_nothing(both: Any) -> None:
    model = both.run.model.double()
    source = both.run.tokenizers.source
    alone, beside = (Batch({"source": pad(source.encode_all(texts))}) for texts in (["k"], ["k", "lkja hgf e"]))
    short = alone["source"].ids.shape[1]
    torch.testing.assert_close(model.read(alone).states, model.read(beside).states[:1, :short])


def test_what_is_exported_is_what_was_imported(both: Any, load_theirs: Callable[..., Any], tmp_path: Path) -> None:
    path, _ = export_run(both.run.path, tmp_path / "out")
    inputs = both.inputs()
    torch.testing.assert_close(load_theirs(path)(**inputs).logits, both.theirs(**inputs).logits)
    again = import_folder(str(path), str(tmp_path / "again"))
    before, after = (read_weights(folder / "model.safetensors") for folder in (both.run.path, again.path))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_exported_tokenizers_give_the_same_ids(both: Any, tmp_path: Path) -> None:
    path, _ = export_run(both.run.path, tmp_path / "out")
    texts = ["abc de", "k", "", "never seen", "a<mask>b <extra_id_0> c"]
    tokenizer = both.run.tokenizers.source
    ours = [[tokenizer.library_ids[number] for number in row] for row in tokenizer.encode_all(texts)]
    for folder in (path, both.folder):
        fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        assert fast(texts).input_ids == ours
