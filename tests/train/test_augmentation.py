"""Augmentations of `train.augment`, which apply to whole batches."""

import torch

from saccade.config.load import validate
from saccade.data.batching.batch import Batch, Tokens
from saccade.data.tokenization.tokenizer import SPECIAL_TOKENS, UNKNOWN
from saccade.train.augment.augment import build_augmentation


def make_batch(ids: torch.Tensor) -> Batch:
    tokens = Tokens(ids, torch.ones_like(ids, dtype=torch.bool))
    return Batch({"source": tokens, "target": tokens}, {"source": ids.numel(), "target": ids.numel()})


def test_token_dropout_replaces_a_share_of_the_source_and_no_special_tokens():
    augment = build_augmentation(validate({"train": {"augment": [{"kind": "token-dropout", "prob": 0.25}]}}))
    ids = torch.arange(len(SPECIAL_TOKENS) + 7).repeat(200, 100)
    batch = augment(make_batch(ids), torch.Generator().manual_seed(3))
    special, changed = ids < len(SPECIAL_TOKENS), batch["source"].ids != ids
    assert not changed[special].any()
    assert abs(changed[~special].float().mean() - 0.25) < 0.01
    assert (batch["source"].ids[changed] == UNKNOWN).all()
    assert batch["target"].ids.equal(ids)


def test_augmentations_are_applied_in_their_order():
    def shift(batch, generator, *, by: int):
        return make_batch(batch["source"].ids * 2 + by)

    tables = {"train": {"augment": [{"kind": "shift", "by": 1}, {"kind": "shift", "by": 5}]}}
    augment = build_augmentation(validate(tables, kinds={"shift": shift}))
    assert augment(make_batch(torch.tensor([[3]])), torch.Generator())["source"].ids.item() == (3 * 2 + 1) * 2 + 5


def test_without_augmentation_there_is_no_function():
    assert build_augmentation(validate({})) is None
