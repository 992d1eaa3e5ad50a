"""Environments of gymnasium, by `gym:NAME`; and our own as one of them, `saccade/Greeting-v0`."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saccade.errors import SaccadeError
from saccade.extras import get_install_command
from saccade_worlds.playing.greeting import SIDE, Greeting

GYMNASIUM_PREFIX = "gym:"  # of names of its environments
ENVIRONMENT_ID = "saccade/Greeting-v0"


def make_greeting(render_mode: str | None = None) -> Any:
    """Create our environment as one of gymnasium."""
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
            super().reset(seed=seed)  # without a seed, the next episode follows from the state of the generator
            self._observation, info = self.world.reset(seed=int(self.np_random.integers(2**31)))
            return self._observation, info

        def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
            self._observation, *rest = self.world.step(int(action))
            return self._observation, *rest  # type: ignore[return-value]

        def render(self) -> Any:
            return self._observation if self.render_mode == "rgb_array" else None

    return GreetingEnv()


class GymnasiumEnvironment:
    """An environment of gymnasium with pictures as observations and discrete actions."""

    def __init__(self, name: str) -> None:
        if importlib.util.find_spec("gymnasium") is None:
            raise SaccadeError(
                f"{GYMNASIUM_PREFIX}{name} needs the package gymnasium; install it with: "
                f"{get_install_command('worlds')}"
            )
        if ":" in name:  # gymnasium would import the module before it, but recipes may not be trusted
            raise SaccadeError(
                f"{GYMNASIUM_PREFIX}{name} names a module, which is not imported; import it in Python before "
                f"saccade.train, and name only the environment: {GYMNASIUM_PREFIX}{name.rpartition(':')[2]}"
            )
        import gymnasium

        register()
        try:
            self._env: Any = gymnasium.make(name)
        except (gymnasium.error.Error, ImportError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise SaccadeError(f"gymnasium cannot make {name!r}: {reason}") from None
        actions, observations = self._env.action_space, self._env.observation_space
        if not isinstance(actions, gymnasium.spaces.Discrete):
            raise SaccadeError(f"{GYMNASIUM_PREFIX}{name} must have discrete actions (Discrete), got {actions}")
        shape = observations.shape or ()
        if observations.dtype != np.uint8 or len(shape) != 3 or shape[2] not in (3, 4):
            raise SaccadeError(
                f"{GYMNASIUM_PREFIX}{name} must have observations (height, width, 3) of uint8, or 4 with depth as "
                f"the last channel, got {observations}; wrap it accordingly"
            )
        self._first_action = int(actions.start)
        self.actions = tuple(str(number) for number in range(self._first_action, self._first_action + int(actions.n)))

    def reset(self, *, seed: int | None = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        observation, info = self._env.reset(seed=seed)
        return observation, info

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self._env.step(action + self._first_action)
        return observation, float(reward), bool(terminated), bool(truncated), info


def register() -> None:
    """Register our environment with gymnasium."""
    import gymnasium

    if ENVIRONMENT_ID not in gymnasium.registry:
        gymnasium.register(ENVIRONMENT_ID, entry_point=f"{__name__}:make_greeting")
