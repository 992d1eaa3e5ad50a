"""A trained run that acts: it says what to do at a picture, or plays a whole episode in its world."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from saccade.config.schema import Corpus, Decoding
from saccade.data.tokenization.labels import NONE
from saccade.data.worlds.episodes import DIGITS, HELD_OUT, Episode, Episodes, pictures_of
from saccade.errors import SaccadeError
from saccade.predict.outputs import AttentionMaps, Hypothesis
from saccade.predict.predictors.labels import get_labels
from saccade.predict.predictors.media import PictureCodec
from saccade.predict.predictors.parts import Decoder, Options, Parts, Presenter, Report
from saccade.predict.predictors.playing import play
from saccade.predict.predictors.predictor import Predictor
from saccade.view.background import Background
from saccade.view.viewing import View

ADDRESS = "writer.stack.recurrence.cross"  # of the attention that is shown
TOGETHER = 64  # episodes that are played at a time
SUCCESS, FAILURE = "success", "failure"


class EpisodeCodec(PictureCodec):
    """Reads pictures; a whole number is that of an episode to play."""

    def expand(self, lines: Iterable[str], *, report: Report | None = None) -> Iterator[str]:
        for line in lines:
            text = line.strip()
            yield from [text] if is_number(text) else super().expand([text], report=report)

    def validate(self, texts: Sequence[str], decoding: Decoding) -> None:
        self.encode([text for text in texts if not is_number(text)], "line")

    def name_input(self, source: str) -> str:
        return f"episode {source}" if is_number(source) else super().name_input(source)


class ActionDecoder(Decoder):
    """Chooses the action with the highest value at a picture, or at each picture of an episode."""

    codec: EpisodeCodec

    @property
    def actions(self) -> tuple[str, ...]:
        return get_labels(self.loaded).names

    def get_world(self, corpus: Corpus | None) -> Episodes:
        data = self.recipe.data
        valid = data.valid if isinstance(data.valid, tuple) else ()
        known = [corpus] if corpus else [*valid, *data.train]
        if not known:
            raise SaccadeError("this run names no world to play in; give a picture, or name one with --data")
        found = Episodes(known[0], self.codec.reader, longest=data.max_length)
        if found.actions != self.actions:
            raise SaccadeError(
                f"{known[0].files[0]} has the actions {', '.join(found.actions)}, but the model was made for "
                f"{', '.join(self.actions)}"
            )
        return found

    def play(self, numbers: Sequence[int], world: Episodes, *, first: int = HELD_OUT, align: bool) -> list[Episode]:
        """Whole episodes; with `align`, also the attention in each picture."""
        states, played = self.codec.reader.states or 1, list[Episode]()
        with self.loaded.inference():
            for begin in range(0, len(numbers), TOGETHER):
                some = [first + number for number in numbers[begin : begin + TOGETHER]]
                played += play(self.loaded.single, world, some, states=states, align=align)
        for episode in played:
            episode.looks = [self.codec.crop_weights(ADDRESS, look) for look in episode.looks]
        return played

    def look(self, source: str) -> Episode:
        """One episode with its attention; a picture is one of a single step."""
        if is_number(source):
            [episode] = self.play([int(source)], self.get_world(None), align=True)
            return episode
        [row] = self.codec.encode([source], "file")
        with self.loaded.inference():
            values, looks = self._values(row.values, align=True)
        episode = Episode(0, pictures=[row.values[0]], actions=[int(values[0].argmax())], over=True)
        episode.looks = [] if looks is None else [self.codec.crop_weights(ADDRESS, looks[0]).cpu().numpy()]
        return episode

    def decode_lines(self, texts: Sequence[str], options: Options) -> list[list[Hypothesis]]:
        if options.align:
            raise SaccadeError("an action is not written word by word, so that nothing can be aligned; ask without it")
        outputs = [[Hypothesis([], "", 0.0, 0.0)] for _ in texts]
        numbers = [i for i, text in enumerate(texts) if is_number(text)]
        files = [i for i, text in enumerate(texts) if text.strip() and not is_number(text)]
        if numbers:
            played = self.play([int(texts[i]) for i in numbers], self.get_world(None), align=False)
            for i, episode in zip(numbers, played, strict=True):
                text = self.describe_episode(episode)
                outputs[i] = [Hypothesis(episode.actions, text, episode.total, 0.0, finish=outcome(episode))]
        for begin in range(0, len(files), TOGETHER):
            some = files[begin : begin + TOGETHER]
            rows = self.codec.encode([texts[i] for i in some], "line")
            with self.loaded.inference():
                values, _ = self._values(np.concatenate([row.values for row in rows]))
            for i, row in zip(some, values, strict=True):
                outputs[i] = self._ranked(row, options.decoding)
        return outputs

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        raise SaccadeError("an action has a value and no probability; use predict, or `saccade evaluate`")

    def describe_episode(self, episode: Episode) -> str:
        done = " ".join(self.actions[action] for action in episode.actions)
        return f"{done} ({outcome(episode)})" if episode.rewards else done

    def _values(
        self, pictures: np.ndarray, *, align: bool = False
    ) -> tuple[Float[Tensor, "B A"], Float[Tensor, "B S"] | None]:
        """What each action is worth at single pictures."""
        model, device = self.loaded.single, self.loaded.device
        seen = pictures_of(pictures, states=self.codec.reader.states or 1).to(device)
        before = torch.full((len(pictures),), NONE, device=device)
        step = model.writer.step(before, model.reader(seen.values, seen.mask), None, align=align)
        return step.logits.float().cpu(), step.weights

    def _ranked(self, values: Float[Tensor, " A"], decoding: Decoding) -> list[Hypothesis]:
        best, chosen = values.topk(min(decoding.n_best, len(self.actions)))
        return [
            Hypothesis([number], self.actions[number], value, 0.0, log_probs=values.tolist())
            for number, value in zip(chosen.tolist(), best.tolist(), strict=True)
        ]


class ActionPresenter(Presenter):
    """Actions with their values, and the attention in each picture."""

    decoder: ActionDecoder

    def describe(self, text: str, found: Sequence[Hypothesis]) -> dict[str, Any]:
        """What is done at a picture and what each action is worth there; or what was done in an episode."""
        best, actions = found[0], self.decoder.actions
        if is_number(text):
            done = [actions[action] for action in best.ids]
            return {"input": text, "actions": done, "success": best.finish == SUCCESS, "reward": best.score}
        values = dict(zip(actions, best.log_probs or [], strict=False))
        return {"input": text, "action": best.text, "value": best.score, "values": values}

    def attention(self, source: str, target: str | None) -> AttentionMaps:
        return self._maps(self._look(source, target))

    def view(self, source: str, target: str | None, *, decoding: Decoding | None, title: str) -> View:
        """The same picture by picture."""
        episode = self._look(source, target)
        seen = self._maps(episode)
        images = [picture.transpose(1, 2, 0) for picture in episode.pictures[: len(episode)]]
        return View(
            title=title or self.loaded.recipe.name,
            input=self.codec.name_input(source),
            output=seen.text,
            labels=seen.labels,
            maps=list(seen.values()),
            background=Background.series(images, self.decoder.codec.get_grid()),
        )

    def _look(self, source: str, target: str | None) -> Episode:
        if target is not None:
            raise SaccadeError(f"actions are not given, so that there is no target, got {target!r}")
        episode = self.decoder.look(source)
        if not episode.looks:
            raise SaccadeError('this model does not attend to what it sees (writer.stack.attention = "none")')
        return episode

    def _maps(self, episode: Episode) -> AttentionMaps:
        labels, words = self.codec.label_source(None)
        return AttentionMaps(
            maps={ADDRESS: torch.as_tensor(np.stack(episode.looks))[None].float()},
            source_labels=labels,
            target_labels=[self.decoder.actions[action] for action in episode.actions],
            text=self.decoder.describe_episode(episode),
            seen_labels=[],
            words={"source": words},
        )


class Player(Predictor):
    """Pictures in, actions out; a whole number is that of an episode to play, which no model has learned from."""

    default_parts = Parts(EpisodeCodec, ActionDecoder, ActionPresenter)
    decoder: ActionDecoder

    @property
    def actions(self) -> tuple[str, ...]:
        return self.decoder.actions

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the cells of a picture."""
        return self.decoder.codec.get_grid()

    def world(self, corpus: Corpus | None = None) -> Episodes:
        """That of a name; without one, that in which the run was tried, or else that in which it learned."""
        return self.decoder.get_world(corpus)

    def play(
        self, numbers: Sequence[int], *, world: Episodes | None = None, first: int = HELD_OUT, align: bool = False
    ) -> list[Episode]:
        """Episodes of these numbers, counted from `first`; with `align`, also what was looked at in each picture."""
        return self.decoder.play(numbers, world or self.world(), first=first, align=align)


def is_number(text: str) -> bool:
    """Whether a text is the number of an episode, and not the name of a file."""
    return text.isdecimal() and len(text) <= DIGITS


def outcome(episode: Episode) -> str:
    return SUCCESS if episode.success else FAILURE
