"""CTC prefix scores against a sum over all label sequences."""

from itertools import product

import pytest
import torch

from saccade.layers.losses.ctc import extend_prefixes, force_blank_padding, init_prefixes, score_next_labels

BLANK, END, S, V = 0, 2, 4, 5
LETTERS = (1, 3, 4)


def log_probs(seed: int = 0, rows: int = 2):
    logits = torch.randn(rows, S, V, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    logits[..., END] = -torch.inf  # nobody says it
    return logits.log_softmax(-1)


def texts(row) -> dict[tuple[int, ...], float]:
    """The probability of every text: all ways to say it, repetitions and blanks taken out."""
    found: dict[tuple[int, ...], float] = {}
    for said in product((BLANK, *LETTERS), repeat=S):
        text = tuple(x for i, x in enumerate(said) if x != BLANK and (i == 0 or said[i - 1] != x))
        found[text] = found.get(text, 0.0) + row[range(S), said].sum().exp().item()
    return found


@pytest.mark.parametrize("start", [(), (1,), (1, 1), (3, 1), (1, 3, 1)])
def test_the_next_letter_is_as_likely_as_all_texts_that_begin_so(start):
    given = log_probs()
    state = init_prefixes(given, blank=BLANK)
    for letter in start:
        state = extend_prefixes(state, torch.tensor([letter, letter]), blank=BLANK)
    found = score_next_labels(state, blank=BLANK, end=END).exp()
    for row in range(2):
        known = texts(given[row])
        begun = {text: p for text, p in known.items() if text[: len(start)] == start}
        total = sum(begun.values())
        assert found[row, END].item() == pytest.approx(begun[start] / total)
        for letter in LETTERS:
            share = sum(p for text, p in begun.items() if text[: len(start) + 1] == (*start, letter)) / total
            assert found[row, letter].item() == pytest.approx(share)


def test_a_text_is_as_likely_as_torchs_loss_says():
    given, text = log_probs(7), (1, 1, 3)
    state, total = init_prefixes(given, blank=BLANK), torch.zeros(2, dtype=torch.float64)
    for letter in (*text, END):
        total += score_next_labels(state, blank=BLANK, end=END)[:, letter]
        state = extend_prefixes(state, torch.tensor([letter, letter]), blank=BLANK) if letter != END else state
    finite = given.clamp(min=-1e4)
    lengths = torch.tensor([S, S]), torch.tensor([3, 3])
    loss = torch.nn.functional.ctc_loss(finite.transpose(0, 1), torch.tensor([text, text]), *lengths, reduction="none")
    torch.testing.assert_close(total, -loss)


def test_padding_says_nothing():
    given, state = log_probs(3), []
    longer = torch.cat((given, log_probs(4)), 1)
    mask = (torch.arange(2 * S) < S).expand(2, -1)
    for part in (given, force_blank_padding(longer, mask, BLANK)):
        row = extend_prefixes(init_prefixes(part, blank=BLANK), torch.tensor([1, 3]), blank=BLANK)
        state.append(score_next_labels(row, blank=BLANK, end=END))
    torch.testing.assert_close(*state)


def test_rows_are_reordered_with_all_they_know():
    state = extend_prefixes(init_prefixes(log_probs(), blank=BLANK), torch.tensor([1, 3]), blank=BLANK)
    turned = score_next_labels(state.reorder(torch.tensor([1, 0, 1])), blank=BLANK, end=END)
    torch.testing.assert_close(turned, score_next_labels(state, blank=BLANK, end=END)[[1, 0, 1]])
