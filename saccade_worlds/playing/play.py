"""Play episodes: the model chooses the action with the highest value in each observation."""

from collections.abc import Sequence

import numpy as np
import torch

from saccade.data.tokenization.labels import NO_CLASS
from saccade.model.model import Model
from saccade_worlds.playing.episodes import Episode, VectorEnvironment, to_pictures


@torch.no_grad()
def play(
    model: Model,
    episodes: VectorEnvironment,
    numbers: Sequence[int],
    *,
    states: int,
    epsilon: float = 0.0,
    seed: int = 0,
    align: bool = False,
) -> list[Episode]:
    """Play whole episodes in parallel; those that are over leave the batch.

    A share `epsilon` of the actions is random (epsilon-greedy), determined by the episode's number and `seed`. With
    `align`, attention weights are kept.
    """
    device, running = next(model.parameters()).device, episodes.reset(numbers)
    generators = [np.random.default_rng([seed, number]) for number in numbers]
    active, state = list(range(len(running))), None
    last_actions = torch.full((len(running),), NO_CLASS, device=device)
    while active:
        observations = to_pictures(np.stack([running[i].pictures[-1] for i in active]), num_states=states).to(device)
        step = model.writer.step(last_actions, model.reader(observations.values, observations.mask), state, align=align)
        values = step.logits.float().cpu().numpy()
        for row, i in enumerate(active):
            action = int(values[row].argmax())
            if epsilon and generators[i].random() < epsilon:
                action = int(generators[i].integers(values.shape[1]))
            running[i].values.append(values[row])
            if step.weights is not None:
                running[i].attention.append(step.weights[row].float().cpu().numpy())
            episodes.step(i, action)
        remaining = [row for row, i in enumerate(active) if not running[i].done]
        active = [active[row] for row in remaining]
        last_actions = torch.tensor([running[i].actions[-1] + 1 for i in active], device=device)
        state = step.state.reorder(torch.tensor(remaining, dtype=torch.long, device=device)) if active else None
    return running
