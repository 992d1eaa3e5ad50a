"""Inference with a run that acts: choose an action for a picture, or play a whole episode."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from saccade.config.schema import Corpus, Decoding
from saccade.data.tokenization.labels import NO_CLASS
from saccade.errors import SaccadeError
from saccade.predict.outputs import AttentionMaps, Hypothesis
from saccade.predict.predictors.labels import get_labels
from saccade.predict.predictors.media import PictureCodec
from saccade.predict.predictors.parts import Decoder, DecodingOptions, PredictorParts, Presenter, Report
from saccade.predict.predictors.predictor import Predictor
from saccade.view.background import Background
from saccade.view.viewing import View
from saccade_worlds.playing.episodes import (
    FIRST_HELDOUT_SEED,
    MAX_SEED_DIGITS,
    Episode,
    VectorEnvironment,
    build_environment,
    to_pictures,
)
from saccade_worlds.playing.play import play

ATTENTION_ADDRESS = "writer.stack.recurrence.cross"  # the displayed attention layer
EPISODES_PER_BATCH = 64  # played in parallel
SUCCESS, FAILURE = "success", "failure"


class EpisodeCodec(PictureCodec):
    """Reads pictures; a whole number stands for an episode to play."""

    def expand(self, lines: Iterable[str], *, report: Report | None = None) -> Iterator[str]:
        for line in lines:
            text = line.strip()
            yield from [text] if is_episode_number(text) else super().expand([text], report=report)

    def validate(self, texts: Sequence[str], decoding: Decoding) -> None:
        self.encode([text for text in texts if not is_episode_number(text)], "line")

    def name_input(self, source: str) -> str:
        return f"episode {source}" if is_episode_number(source) else super().name_input(source)


class ActionDecoder(Decoder):
    """Chooses the action with the highest value for a picture, or for each picture of an episode."""

    codec: EpisodeCodec

    @property
    def actions(self) -> tuple[str, ...]:
        return get_labels(self.loaded).names

    def get_world(self, corpus: Corpus | None) -> VectorEnvironment:
        """Return the environment of a corpus; by default that of the validation data, else of the training data."""
        data = self.recipe.data
        valid = data.valid if isinstance(data.valid, tuple) else ()
        corpora = [corpus] if corpus else [*valid, *data.train]
        if not corpora:
            raise SaccadeError("this run names no world to play in; give a picture, or name one with --data")
        world = build_environment(corpora[0], self.recipe)
        if world.actions != self.actions:
            raise SaccadeError(
                f"{corpora[0].files[0]} has the actions {', '.join(world.actions)}, but the model was made for "
                f"{', '.join(self.actions)}"
            )
        return world

    def play(
        self, numbers: Sequence[int], world: VectorEnvironment, *, first: int = FIRST_HELDOUT_SEED, align: bool
    ) -> list[Episode]:
        """Play whole episodes; with `align`, also return the attention in each picture."""
        states, played = self.codec.reader.states or 1, list[Episode]()
        with self.loaded.inference():
            for begin in range(0, len(numbers), EPISODES_PER_BATCH):
                batch = [first + number for number in numbers[begin : begin + EPISODES_PER_BATCH]]
                played += play(self.loaded.single, world, batch, states=states, align=align)
        for episode in played:
            episode.attention = [self.codec.crop_weights(ATTENTION_ADDRESS, weights) for weights in episode.attention]
        return played

    def record_episode(self, source: str) -> Episode:
        """Return one episode with its attention; a picture is an episode of a single step."""
        if is_episode_number(source):
            [episode] = self.play([int(source)], self.get_world(None), align=True)
            return episode
        [row] = self.codec.encode([source], "file")
        with self.loaded.inference():
            values, weights = self._compute_action_values(row.values, align=True)
        episode = Episode(0, pictures=[row.values[0]], actions=[int(values[0].argmax())], done=True)
        episode.attention = (
            [] if weights is None else [self.codec.crop_weights(ATTENTION_ADDRESS, weights[0]).cpu().numpy()]
        )
        return episode

    def decode_lines(self, texts: Sequence[str], options: DecodingOptions) -> list[list[Hypothesis]]:
        if options.align:
            raise SaccadeError("an action is not written word by word, so nothing can be aligned; leave out align")
        outputs = [[Hypothesis([], "", 0.0, 0.0)] for _ in texts]
        numbers = [i for i, text in enumerate(texts) if is_episode_number(text)]
        files = [i for i, text in enumerate(texts) if text.strip() and not is_episode_number(text)]
        if numbers:
            played = self.play([int(texts[i]) for i in numbers], self.get_world(None), align=False)
            for i, episode in zip(numbers, played, strict=True):
                text = self.describe_episode(episode)
                outputs[i] = [Hypothesis(episode.actions, text, episode.total_reward, 0.0, finish=get_outcome(episode))]
        for begin in range(0, len(files), EPISODES_PER_BATCH):
            batch = files[begin : begin + EPISODES_PER_BATCH]
            rows = self.codec.encode([texts[i] for i in batch], "line")
            with self.loaded.inference():
                values, _ = self._compute_action_values(np.concatenate([row.values for row in rows]))
            for i, row in zip(batch, values, strict=True):
                outputs[i] = self._rank_actions(row, options.decoding)
        return outputs

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        raise SaccadeError("an action has a value and no probability; use predict, or `saccade evaluate`")

    def describe_episode(self, episode: Episode) -> str:
        done = " ".join(self.actions[action] for action in episode.actions)
        return f"{done} ({get_outcome(episode)})" if episode.rewards else done

    def _compute_action_values(
        self, pictures: np.ndarray, *, align: bool = False
    ) -> tuple[Float[Tensor, "B A"], Float[Tensor, "B S"] | None]:
        """Return the value of each action for single pictures, and the attention weights."""
        model, device = self.loaded.single, self.loaded.device
        inputs = to_pictures(pictures, num_states=self.codec.reader.states or 1).to(device)
        last_actions = torch.full((len(pictures),), NO_CLASS, device=device)
        step = model.writer.step(last_actions, model.reader(inputs.values, inputs.mask), None, align=align)
        return step.logits.float().cpu(), step.weights

    def _rank_actions(self, values: Float[Tensor, " A"], decoding: Decoding) -> list[Hypothesis]:
        best, chosen = values.topk(min(decoding.n_best, len(self.actions)))
        return [
            Hypothesis([number], self.actions[number], value, 0.0, log_probs=values.tolist())
            for number, value in zip(chosen.tolist(), best.tolist(), strict=True)
        ]


class ActionPresenter(Presenter):
    """Actions with their values, and the attention in each picture."""

    decoder: ActionDecoder

    def describe(self, text: str, hypotheses: Sequence[Hypothesis]) -> dict[str, Any]:
        """Return the action for a picture with all values, or all actions of an episode, as a JSON object."""
        best, actions = hypotheses[0], self.decoder.actions
        if is_episode_number(text):
            done = [actions[action] for action in best.ids]
            return {"input": text, "actions": done, "success": best.finish == SUCCESS, "reward": best.score}
        values = dict(zip(actions, best.log_probs or [], strict=False))
        return {"input": text, "action": best.text, "value": best.score, "values": values}

    def attention(self, source: str, target: str | None) -> AttentionMaps:
        return self._build_maps(self._record_episode(source, target))

    def view(self, source: str, target: str | None, *, decoding: Decoding | None, title: str) -> View:
        """Return the attention picture by picture."""
        episode = self._record_episode(source, target)
        maps = self._build_maps(episode)
        images = [picture[:3].transpose(1, 2, 0) for picture in episode.pictures[: len(episode)]]
        return View(
            title=title or self.loaded.recipe.name,
            input=self.codec.name_input(source),
            output=maps.text,
            labels=maps.labels,
            maps=list(maps.values()),
            background=Background.of_series(images, self.decoder.codec.get_grid()),
        )

    def _record_episode(self, source: str, target: str | None) -> Episode:
        if target is not None:
            raise SaccadeError(f"actions cannot be given, so there is no target, got {target!r}; leave it out")
        episode = self.decoder.record_episode(source)
        if not episode.attention:
            raise SaccadeError('this model has no attention (writer.stack.attention = "none")')
        return episode

    def _build_maps(self, episode: Episode) -> AttentionMaps:
        labels, words = self.codec.label_source(None)
        weights = torch.as_tensor(np.stack(episode.attention, -2)).float()  # (T, S), or (N, T, S) of N streams
        return AttentionMaps(
            maps={ATTENTION_ADDRESS: weights.reshape(-1, *weights.shape[-2:])},
            source_labels=labels,
            target_labels=[self.decoder.actions[action] for action in episode.actions],
            text=self.decoder.describe_episode(episode),
            seen_labels=[],
            words={"source": words},
        )


class Player(Predictor):
    """Pictures in, actions out; a whole number is that of a held-out episode to play."""

    default_parts = PredictorParts(EpisodeCodec, ActionDecoder, ActionPresenter)
    decoder: ActionDecoder

    @property
    def actions(self) -> tuple[str, ...]:
        return self.decoder.actions

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the cells of a picture."""
        return self.decoder.codec.get_grid()

    def get_world(self, corpus: Corpus | None = None) -> VectorEnvironment:
        """Return the environment of a corpus; by default that of the validation data, else of the training data."""
        return self.decoder.get_world(corpus)

    def play(
        self,
        numbers: Sequence[int],
        *,
        world: VectorEnvironment | None = None,
        first: int = FIRST_HELDOUT_SEED,
        align: bool = False,
    ) -> list[Episode]:
        """Play episodes with these numbers, counted from `first`; with `align`, also return their attention."""
        return self.decoder.play(numbers, world or self.get_world(), first=first, align=align)


def is_episode_number(text: str) -> bool:
    """Return whether an input is the number of an episode, not a file name."""
    return text.isdecimal() and len(text) <= MAX_SEED_DIGITS


def get_outcome(episode: Episode) -> str:
    return SUCCESS if episode.success else FAILURE
