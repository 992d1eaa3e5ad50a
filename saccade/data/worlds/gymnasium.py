"""Worlds of gymnasium: one of them used as ours are (`gym:NAME`), and ours among them (`saccade/Greeting-v0`)."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saccade.data.worlds.greeting import SIDE, Greeting
from saccade.errors import SaccadeError

GYMNASIUM = "gym:"  # what names of its worlds begin with
OURS = "saccade/Greeting-v0"


def make_greeting(render_mode: str | None = None) -> Any:
    """Our world as an environment of gymnasium."""
    import gymnasium

    class GreetingEnv(gymnasium.Env[NDArray[np.uint8], np.int64]):
        metadata = {"render_modes": ["rgb_array"], "render_fps": 2}

        def __init__(self) -> None:
            self.world, self.render_mode = Greeting(), render_mode
            self.action_space = gymnasium.spaces.Discrete(len(Greeting.actions))
            self.observation_space = gymnasium.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
            super().reset(seed=seed)  # without a seed the next visit follows from the one before
            self._seen, told = self.world.reset(seed=int(self.np_random.integers(2**31)))
            return self._seen, told

        def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
            self._seen, *rest = self.world.step(int(action))
            return self._seen, *rest  # type: ignore[return-value]

        def render(self) -> Any:
            return self._seen if self.render_mode == "rgb_array" else None

    return GreetingEnv()


class Foreign:
    """An environment of gymnasium whose observations are pictures and whose actions can be counted."""

    def __init__(self, name: str) -> None:
        if importlib.util.find_spec("gymnasium") is None:
            raise SaccadeError(f"{GYMNASIUM}{name} needs the package gymnasium: pip install gymnasium")
        if ":" in name:  # gymnasium would import what stands before it, and a recipe may come from anywhere
            raise SaccadeError(
                f"{GYMNASIUM}{name} names a module, which is not imported; import it in Python before saccade.train, "
                f"and name the world alone: {GYMNASIUM}{name.rpartition(':')[2]}"
            )
        import gymnasium

        register()
        try:
            self._world: Any = gymnasium.make(name)
        except (gymnasium.error.Error, ImportError) as error:
            why = (str(error) or type(error).__name__).splitlines()[0]
            raise SaccadeError(f"gymnasium cannot make {name!r}: {why}") from None
        choices, seen = self._world.action_space, self._world.observation_space
        if not isinstance(choices, gymnasium.spaces.Discrete):
            raise SaccadeError(f"{GYMNASIUM}{name} must have actions that can be counted (Discrete), got {choices}")
        shape = seen.shape or ()
        if seen.dtype != np.uint8 or len(shape) != 3 or shape[2] != 3:
            raise SaccadeError(
                f"{GYMNASIUM}{name} must show pictures (high, wide, 3) of uint8, got {seen}; wrap it so that it does"
            )
        self._first = int(choices.start)
        self.actions = tuple(str(number) for number in range(self._first, self._first + int(choices.n)))

    def reset(self, *, seed: int | None = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        seen, told = self._world.reset(seed=seed)
        return seen, told

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        seen, reward, over, cut, told = self._world.step(action + self._first)
        return seen, float(reward), bool(over), bool(cut), told


def register() -> None:
    """Makes our world known to gymnasium."""
    import gymnasium

    if OURS not in gymnasium.registry:
        gymnasium.register(OURS, entry_point=f"{__name__}:make_greeting")
