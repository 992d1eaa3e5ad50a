import json
from itertools import islice

import numpy as np
import pytest

from saccade.config.schema import Data, Recipe, Tokenizer
from saccade.data.batching import batches
from saccade.data.batching.batches import BatchStream, iter_validation_batches, shuffle_rows, sort_by_length
from saccade.data.prepare import prepare
from saccade.errors import SaccadeError


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("pairs")


def prepare_store(cache, *, examples=(211,), weights=(1.0,), **tokenizer):
    train = tuple(
        {"files": (name,), "examples": count, "weight": weight}
        for name, count, weight in zip(("embedded:dates", "embedded:dates-test"), examples, weights, strict=False)
    )
    recipe = Recipe(data=Data(train=train), tokenizer=Tokenizer(**{"kind": "characters", **tokenizer}))
    return prepare(recipe, cache=cache, report=lambda _: None).train


@pytest.fixture
def store(cache):
    return prepare_store(cache)


def stream(store, **settings):
    return BatchStream(store, **{"batch_tokens": 300, "seed": 3, **settings})


def rows(batch):
    """The sources of a batch, as tuples without padding."""
    tokens = batch["source"]
    return [tuple(ids[mask].tolist()) for ids, mask in zip(tokens.ids, tokens.mask, strict=True)]


def same(first, second):
    return all(
        a[name].ids.equal(b[name].ids) and a[name].mask.equal(b[name].mask)
        for a, b in zip(first, second, strict=True)
        for name in ("source", "target")
    )


def epoch_of(store, **settings):
    given, batches = stream(store, **settings), []
    while given.epoch < 1:
        batches.append(next(given))
    return batches


def everything(store):
    tokens, lengths = store.gather(np.arange(len(store)), side=0)
    return sorted(tuple(row.tolist()) for row in np.split(tokens, np.cumsum(lengths)[:-1]))


def test_an_epoch_has_every_pair_once(store):
    assert sorted(row for batch in epoch_of(store) for row in rows(batch)) == everything(store)


def test_source_and_target_of_a_row_belong_together(store, cache):
    made_for = {}
    for row in range(len(store)):
        source, target = (tuple(store.gather(np.array([row]), side=side)[0].tolist()) for side in (0, 1))
        made_for[source] = target
    for batch in epoch_of(store):
        for source, ids, mask in zip(rows(batch), batch["target"].ids, batch["target"].mask, strict=True):
            assert made_for[source] == tuple(ids[mask].tolist())


def test_no_batch_exceeds_the_budget_and_most_are_nearly_full(store):
    sizes = [max(tokens.ids.numel() for tokens in batch.fields.values()) for batch in epoch_of(store)]

    assert max(sizes) <= 300
    assert np.median(sizes) > 240


def test_counts_are_those_of_the_mask(store):
    batch = next(stream(store))

    assert batch.counts["source"] == int(batch["source"].mask.sum())


def test_a_pair_longer_than_the_budget_is_a_batch_alone(store):
    assert {len(batch["source"].ids) for batch in epoch_of(store, batch_tokens=5)} == {1}


def test_the_order_follows_from_seed_and_epoch(store):
    first, again, other = (list(islice(stream(store, seed=seed), 40)) for seed in (3, 3, 4))
    epochs = stream(store)
    one = [rows(next(epochs)) for _ in range(len(epoch_of(store)))]
    two = [rows(next(epochs)) for _ in one]

    assert same(first, again) and not same(first, other)
    assert one != two and 1.5 < epochs.epoch <= 2.1


def test_batches_of_an_epoch_do_not_come_by_length(store):
    widths = [batch["source"].ids.shape[1] for batch in epoch_of(store)]

    assert widths != sorted(widths)


@pytest.mark.parametrize("gone", [0, 1, 7, 26, 27, 53, 80])
@pytest.mark.parametrize("pool", [2**17, 50])
def test_a_position_is_restored_exactly(store, gone, pool, monkeypatch):
    monkeypatch.setattr(batches, "POOL_SIZE", pool)
    original = stream(store)
    for _ in range(gone):
        next(original)
    state = json.loads(json.dumps(original.state()))
    found = stream(store)
    found.restore(state)

    assert found.state() == original.state()
    assert (found.epoch, found.padding_ratio) == (original.epoch, original.padding_ratio)
    assert same(islice(original, 40), islice(found, 40))


def test_pools_cover_every_pair_too(store, monkeypatch):
    monkeypatch.setattr(batches, "POOL_SIZE", 37)

    assert sorted(row for batch in epoch_of(store) for row in rows(batch)) == everything(store)


def test_finding_a_place_makes_no_batches(store, monkeypatch):
    state = stream(store).state() | {"epoch": 500}
    monkeypatch.setattr(batches, "collate_batch", None)
    found = stream(store)
    found.restore(state)

    assert found.epoch == 500


def test_a_position_in_other_data_is_refused(store):
    state = stream(store).state()

    with pytest.raises(SaccadeError, match="saved position in the data: batch_tokens was 300, is 400; start a new run"):
        stream(store, batch_tokens=400).restore(state)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_one_stream(store, world):
    alone = list(islice(stream(store), 24 * world))
    ranks = [stream(store, rank=rank, world=world) for rank in range(world)]

    for step in range(24):
        assert same([next(rank) for rank in ranks], alone[step * world : (step + 1) * world])
        assert all(rank.state() == ranks[0].state() for rank in ranks)


def test_a_position_of_two_ranks_is_one_of_one_rank(store):
    two, one = stream(store, rank=1, world=2), stream(store)
    for _ in range(9):
        next(two)
    one.restore(two.state())

    assert same(islice(two, 3), list(islice(one, 6))[1::2])


def test_weights_are_passes_over_a_corpus(cache):
    store = prepare_store(cache, examples=(50, 30), weights=(0.5, 2.3))
    epochs = [np.bincount(shuffle_rows(store, seed=1, epoch=epoch), minlength=80) for epoch in range(40)]

    assert all(seen[:50].sum() == 25 and seen[:50].max() == 1 for seen in epochs)
    assert all(seen[50:].sum() == 69 and set(seen[50:]) == {2, 3} for seen in epochs)
    assert np.sum(epochs, axis=0).min() > 5  # another half each time
    assert sum(len(batch["source"].ids) for batch in epoch_of(store)) == 94


def test_a_tiny_weight_leaves_one_pair_an_epoch(cache):
    store = prepare_store(cache, examples=(50,), weights=(0.001,))

    assert len(shuffle_rows(store, seed=1, epoch=0)) == 1
    assert len(next(stream(store))["source"].ids) == 1


def test_epochs_go_through_the_variants(cache):
    store = prepare_store(cache, kind="bpe", size=300, dropout=0.4, variants=2)
    sums = []
    for epoch in range(3):
        given = stream(store)
        given.restore(given.state() | {"epoch": epoch})
        count = 0
        while given.epoch < epoch + 1:
            count += next(given).counts["source"]
        sums.append(count)

    whole = [int(store.get_lengths(np.arange(len(store)), side=0, variant=n).sum()) for n in (0, 1)]
    assert sums == [whole[0], whole[1], whole[0]] and whole[0] != whole[1]


def test_padding_is_measured_on_both_sides(store):
    given = stream(store)
    real = padded = 0
    for batch in islice(given, 50):
        real += sum(batch.counts.values())
        padded += sum(tokens.ids.numel() for tokens in batch.fields.values())

    assert given.padding_ratio == pytest.approx(1 - real / padded)
    assert stream(store).padding_ratio == 0


def test_padding_of_sentence_pairs_is_small():
    """Lengths like those of a corpus of captions: the target about as long as the source, give or take three."""
    rng = np.random.default_rng(1)
    source = np.clip(rng.normal(14, 4, 29_000).round(), 4, 60).astype(np.int64)
    target = np.clip(source + rng.normal(0, 3, 29_000).round(), 4, 60).astype(np.int64)
    order = sort_by_length(source, target)
    bounds = batches._split_by_budget(np.maximum(source, target)[order], 4096)
    widths = sum(np.maximum.reduceat(side[order], bounds[:-1]) for side in (source, target))

    assert 1 - (source.sum() + target.sum()) / (widths * np.diff(bounds)).sum() < 0.08


def test_validation_gives_every_pair_once_shortest_first(store):
    given = list(iter_validation_batches(store, batch_tokens=300))
    widths = [max(tokens.ids.shape[1] for tokens in batch.fields.values()) for batch in given]

    assert sorted(row for batch in given for row in rows(batch)) == everything(store)
    assert widths == sorted(widths)
