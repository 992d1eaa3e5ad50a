"""A model in a world: it sees, does what it holds for best, and sees what comes of it."""

from collections.abc import Sequence

import numpy as np
import torch

from saccade.data.tokenization.labels import NONE
from saccade.data.worlds.episodes import Episode, Episodes, pictures_of
from saccade.model.model import Model


@torch.no_grad()
def play(
    model: Model,
    episodes: Episodes,
    numbers: Sequence[int],
    *,
    states: int,
    explore: float = 0.0,
    seed: int = 0,
    align: bool = False,
) -> list[Episode]:
    """Whole episodes, all at a time; those that are over leave.

    A share `explore` of what is done is drawn, always the same for one episode and `seed`. With `align`, what was
    looked at is kept.
    """
    device, begun = next(model.parameters()).device, episodes.begin(numbers)
    draws = [np.random.default_rng([seed, number]) for number in numbers]
    going, state = list(range(len(begun))), None
    before = torch.full((len(begun),), NONE, device=device)
    while going:
        seen = pictures_of(np.stack([begun[i].pictures[-1] for i in going]), states=states).to(device)
        step = model.writer.step(before, model.reader(seen.values, seen.mask), state, align=align)
        values = step.logits.float().cpu().numpy()
        for row, i in enumerate(going):
            action = int(values[row].argmax())
            if explore and draws[i].random() < explore:
                action = int(draws[i].integers(values.shape[1]))
            begun[i].values.append(values[row])
            if step.weights is not None:
                begun[i].looks.append(step.weights[row].float().cpu().numpy())
            episodes.act(i, action)
        left = [row for row, i in enumerate(going) if not begun[i].over]
        going = [going[row] for row in left]
        before = torch.tensor([begun[i].actions[-1] + 1 for i in going], device=device)
        state = step.state.reorder(torch.tensor(left, dtype=torch.long, device=device)) if going else None
    return begun
