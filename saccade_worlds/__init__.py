"""Worlds: the tasks "navigate" (instructions in a map) and "play" (reinforcement learning), as a plugin of saccade.

saccade finds it by its entry points in pyproject.toml, and imports it when a recipe names one of these kinds. Importing
it does not import torch.
"""

from saccade_worlds.metrics import METRICS
from saccade_worlds.navigate import NAVIGATE
from saccade_worlds.play import PLAY
from saccade_worlds.tables import ActionWriter, TemporalDifference, ValuesWriter

KINDS = {
    "navigate": NAVIGATE,
    "play": PLAY,
    "actions": ActionWriter,
    "values": ValuesWriter,
    "temporal-difference": TemporalDifference,
    **{metric.name: metric for metric in METRICS},
}
