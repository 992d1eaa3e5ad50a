"""Which tokens are masked for non-autoregressive writers, counted by hand, padded and packed."""

import pytest
import torch

from saccade.data.batching.batch import Batch, Tokens, pad
from saccade.layers.memory import Memory
from saccade.layers.packing import get_batch_layout
from saccade.model.writers.fill import MASK
from saccade.train.batches.pack import pack_batch
from saccade.train.objectives import masking

ROWS = [[7, 6, 5, 11, 9, 2], [8, 2], [2], [10, 4, 12, 2]]
WORDS = torch.tensor([5, 1, 0, 3])
NOWHERE = Memory(torch.zeros(4, 1, 1), torch.ones(4, 1, dtype=torch.bool))


@pytest.fixture(params=["padded", "packed", "packed and filled up"])
def target(request):
    batch = Batch({"target": pad(ROWS)})
    if request.param == "padded":
        return batch["target"]
    return pack_batch(batch, budget=512 if "filled" in request.param else None)["target"]


class Guesser:
    """Predicts token `guess` at every position, and records its inputs."""

    def __init__(self, guess):
        self.guess = guess

    def __call__(self, canvas, mask, memory):
        self.canvas = canvas
        return torch.zeros(*canvas.shape, 3)

    def head(self, hidden):
        return torch.nn.functional.one_hot(torch.full(hidden.shape[:1], self.guess), 13).float()


def split_by_sequence(tokens, mask):
    """Values of a batch as lists, one for each real sequence."""
    if isinstance(mask, torch.Tensor):
        return [row[keep].tolist() for row, keep in zip(tokens, mask, strict=True)]
    bounds = mask.offsets.tolist()
    return [tokens[0, bounds[i] : bounds[i + 1]].tolist() for i in range(4)]


def test_any_number_from_one_to_all_is_hidden():
    noise = torch.tensor([0.0, 0.39, 0.41, 0.99])
    assert masking.sample_mask_counts(torch.tensor([5, 5, 5, 5]), noise).tolist() == [1, 2, 3, 5]
    assert masking.sample_mask_counts(torch.tensor([0, 1, 3, 3]), noise).tolist() == [0, 1, 2, 3]
    many = masking.sample_mask_counts(
        torch.full((4000,), 4), torch.rand(4000, generator=torch.Generator().manual_seed(1))
    )
    assert torch.bincount(many)[1:].tolist() == pytest.approx([1000] * 4, abs=90)


def test_more_errors_of_the_first_pass_reveal_more_tokens():
    words, missed = torch.tensor([6, 6, 6, 6, 0]), torch.tensor([0, 1, 3, 6, 0])
    assert masking.compute_glancing_counts(words, missed, 0.5).tolist() == [6, 6, 5, 3, 0]


def test_positions_with_the_least_noise_are_chosen():
    noise = torch.tensor([[0.9, 0.1, 0.5, 0.0], [0.3, 0.2, 0.1, 0.0]])
    chosen = masking.choose_positions(noise, torch.tensor([3, 1]), torch.tensor([2, 1]))
    assert chosen.tolist() == [[False, True, True, False], [True, False, False, False]]


def test_maskable_tokens_are_all_but_end(target):
    assert split_by_sequence(masking.get_maskable(target), target.mask) == [
        [True] * 5 + [False],
        [True, False],
        [False],
        [True] * 3 + [False],
    ]
    assert get_batch_layout(target.mask).lengths[:4].tolist() == [6, 2, 1, 4]
    assert get_batch_layout(target.mask).real_sequences.nonzero()[:, 0].tolist() == [0, 1, 2, 3]
    assert get_batch_layout(target.mask).sum_per_sequence(target.ids > 8)[:4].tolist() == [2, 0, 0, 2]


def test_positions_of_sequences_become_tokens_of_a_batch(target):
    width = 6 if isinstance(target.mask, torch.Tensor) else target.mask.max_length
    count = len(get_batch_layout(target.mask).lengths)
    places = torch.zeros(count, width, dtype=torch.bool)
    places[0, 4] = places[3, 1] = True
    layout = get_batch_layout(target.mask)
    assert split_by_sequence(layout.pack(places) & layout.keep, target.mask) == [
        [False] * 4 + [True, False], [False] * 2, [False], [False, True, False, False],
    ]  # fmt: skip


def test_first_pass_gets_a_fully_masked_canvas(target):
    writer = Guesser(5)
    wrong = masking.find_wrong_tokens(writer, target, NOWHERE)
    assert split_by_sequence(wrong, target.mask) == [
        [True, True, False, True, True, False], [True, False], [False], [True] * 3 + [False],
    ]  # fmt: skip
    assert split_by_sequence(writer.canvas, target.mask) == [[MASK] * 5 + [2], [MASK, 2], [2], [MASK] * 3 + [2]]


@pytest.mark.parametrize(
    ("guess", "shown", "hidden"),
    [(1, 0.5, [3, 1, 0, 2]), (1, 0.0, [5, 1, 0, 3]), (5, 0.5, [3, 1, 0, 2]), (1, 0.9, [1, 1, 0, 1])],
)
def test_glancing_masks_what_is_not_revealed(target, guess, shown, hidden):
    drawn = masking.choose_masked_tokens(
        Guesser(guess), target, NOWHERE, torch.Generator(), glancing=1.0, reveal_ratio=shown
    )
    assert [sum(row) for row in split_by_sequence(drawn, target.mask)] == hidden
    assert not (drawn & ~masking.get_maskable(target)).any()


def test_without_glancing_there_is_no_first_pass(target):
    drawn = masking.choose_masked_tokens(None, target, NOWHERE, torch.Generator(), glancing=0.0, reveal_ratio=0.5)
    counts = [sum(row) for row in split_by_sequence(drawn, target.mask)]
    assert all(min(1, n) <= count <= n for count, n in zip(counts, WORDS.tolist(), strict=True))
    assert not (drawn & ~masking.get_maskable(target)).any()


def test_a_share_of_the_sequences_uses_glancing():
    tokens = Tokens(*(torch.full((400, 6), 7), torch.ones(400, 6, dtype=torch.bool)))
    memory, generator = Memory(torch.zeros(400, 1, 1), torch.ones(400, 1, dtype=torch.bool)), torch.Generator()
    drawn = masking.choose_masked_tokens(Guesser(7), tokens, memory, generator, glancing=0.5, reveal_ratio=0.5).sum(1)
    # All of a text that was looked at, and right, is hidden; of the others a fifth is.
    assert (drawn == 5).sum().item() == pytest.approx(0.5 * 400 + 0.1 * 400, abs=30)


def test_the_same_generator_hides_the_same(target):
    draws = [
        masking.choose_masked_tokens(
            Guesser(5), target, NOWHERE, torch.Generator().manual_seed(3), glancing=0.5, reveal_ratio=0.5
        )
        for _ in range(2)
    ]
    assert torch.equal(*draws)
