"""A trained run that acts: it says what to do at a picture, or plays a whole episode in its world."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from saccade.config.schema import Corpus, Decoding, PictureReader
from saccade.data.tokenization.labels import NONE
from saccade.data.worlds.episodes import DIGITS, HELD_OUT, Episode, Episodes, pictures_of
from saccade.errors import SaccadeError
from saccade.predict.inputs import Asked, Tell
from saccade.predict.outputs import AttentionMaps, Hypothesis
from saccade.predict.predictors.media import OfMedia
from saccade.predict.predictors.playing import play
from saccade.view.background import Background
from saccade.view.viewing import View

ADDRESS = "writer.stack.recurrence.cross"  # of the looks that are shown
TOGETHER = 64  # episodes that are played at a time


class Player(OfMedia):
    """Pictures in, actions out; a whole number is that of an episode to play, which no model has learned from."""

    plays_episodes = True

    @property
    def actions(self) -> tuple[str, ...]:
        return self.labels.names

    def inputs(self, lines: Iterable[str], *, tell: Tell | None = None) -> Iterator[str]:
        for line in lines:
            text = line.strip()
            yield from [text] if is_number(text) else super().inputs([text], tell=tell)

    def world(self, corpus: Corpus | None = None) -> Episodes:
        """That of a name; without one, that in which the run was tried, or else that in which it learned."""
        data = self.recipe.data
        valid = data.valid if isinstance(data.valid, tuple) else ()
        known = [corpus] if corpus else [*valid, *data.train]
        if not known:
            raise SaccadeError("this run names no world to play in; give a picture, or name one with --data")
        assert isinstance(self.reader, PictureReader), "the recipe was checked"
        found = Episodes(known[0], self.reader, longest=data.max_length)
        if found.actions != self.actions:
            raise SaccadeError(
                f"{known[0].files[0]} has the actions {', '.join(found.actions)}, but the model was made for "
                f"{', '.join(self.actions)}"
            )
        return found

    def play(
        self, numbers: Sequence[int], *, world: Episodes | None = None, first: int = HELD_OUT, align: bool = False
    ) -> list[Episode]:
        """Episodes of these numbers, counted from `first`; with `align`, also what was looked at in each picture."""
        world, states = world or self.world(), self.reader.states or 1
        played: list[Episode] = []
        with self._inference():
            for begin in range(0, len(numbers), TOGETHER):
                some = [first + number for number in numbers[begin : begin + TOGETHER]]
                played += play(self.model, world, some, states=states, align=align)
        for episode in played:
            episode.looks = [self._shown(ADDRESS, look) for look in episode.looks]
        return played

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        raise SaccadeError("an action has a value and no probability; use predict, or `saccade evaluate`")

    def described(self, text: str, found: Sequence[Hypothesis]) -> dict[str, Any]:
        """What is done at a picture and what each action is worth there; or what was done in an episode."""
        best = found[0]
        if is_number(text):
            done = [self.actions[action] for action in best.ids]
            return {"input": text, "actions": done, "success": best.finish == SUCCESS, "reward": best.score}
        values = dict(zip(self.actions, best.log_probs or [], strict=False))
        return {"input": text, "action": best.text, "value": best.score, "values": values}

    def attention(self, source: str, target: str | None = None) -> AttentionMaps:
        """What was looked at in the picture, or in each picture of an episode."""
        return self._seen(self._episode(source, target))

    def view(
        self, source: str, target: str | None = None, *, decoding: Decoding | None = None, title: str = ""
    ) -> View:
        """The same to be shown, picture by picture."""
        episode = self._episode(source, target)
        seen = self._seen(episode)
        images = [picture.transpose(1, 2, 0) for picture in episode.pictures[: len(episode)]]
        return View(
            title=title or self.recipe.name,
            input=f"episode {source}" if is_number(source) else self._called(source),
            output=seen.text,
            labels=seen.labels,
            maps=list(seen.values()),
            background=Background.series(images, self._grid(None)),
        )

    # ---- inside

    def _episode(self, source: str, target: str | None) -> Episode:
        """That which is to be shown; a picture is one of a single step."""
        if target is not None:
            raise SaccadeError(f"actions are not given, so that there is no target, got {target!r}")
        if is_number(source):
            [episode] = self.play([int(source)], align=True)
        else:
            [row] = self._read([source], "file")
            with self._inference():
                values, looks = self._values(row.values, align=True)
            episode = Episode(0, pictures=[row.values[0]], actions=[int(values[0].argmax())], over=True)
            episode.looks = [] if looks is None else [self._shown(ADDRESS, looks[0]).cpu().numpy()]
        if not episode.looks:
            raise SaccadeError('this model does not attend to what it sees (writer.stack.attention = "none")')
        return episode

    def _seen(self, episode: Episode) -> AttentionMaps:
        labels, words = self._source_labels(None)
        return AttentionMaps(
            maps={ADDRESS: torch.as_tensor(np.stack(episode.looks))[None].float()},
            source_labels=labels,
            target_labels=[self.actions[action] for action in episode.actions],
            text=self._told(episode),
            seen_labels=[],
            words={"source": words},
        )

    def _told(self, episode: Episode) -> str:
        done = " ".join(self.actions[action] for action in episode.actions)
        return f"{done} ({outcome(episode)})" if episode.rewards else done

    def _values(
        self, pictures: np.ndarray, *, align: bool = False
    ) -> tuple[Float[Tensor, "B A"], Float[Tensor, "B S"] | None]:
        """What each action is worth at single pictures."""
        seen = pictures_of(pictures, states=self.reader.states or 1).to(self.device)
        model: Any = self.model
        before = torch.full((len(pictures),), NONE, device=self.device)
        step = model.writer.step(before, model.reader(seen.values, seen.mask), None, align=align)
        return step.logits.float().cpu(), step.weights

    def _decode_lines(self, texts: Sequence[str], asked: Asked) -> list[list[Hypothesis]]:
        if asked.align:
            raise SaccadeError("an action is not written word by word, so that nothing can be aligned; ask without it")
        outputs = [[Hypothesis([], "", 0.0, 0.0)] for _ in texts]
        numbers = [i for i, text in enumerate(texts) if is_number(text)]
        files = [i for i, text in enumerate(texts) if text.strip() and not is_number(text)]
        for i, episode in zip(numbers, self.play([int(texts[i]) for i in numbers]) if numbers else [], strict=True):
            told = self._told(episode)
            outputs[i] = [Hypothesis(episode.actions, told, episode.total, 0.0, finish=outcome(episode))]
        for begin in range(0, len(files), TOGETHER):
            some = files[begin : begin + TOGETHER]
            rows = self._read([texts[i] for i in some], "line", first=asked.first)
            with self._inference():
                values, _ = self._values(np.concatenate([row.values for row in rows]))
            for i, row in zip(some, values, strict=True):
                outputs[i] = self._ranked(row, asked.decoding)
        return outputs

    def _ranked(self, values: Float[Tensor, " A"], decoding: Decoding) -> list[Hypothesis]:
        best, chosen = values.topk(min(decoding.n_best, len(self.actions)))
        return [
            Hypothesis([number], self.actions[number], value, 0.0, log_probs=values.tolist())
            for number, value in zip(chosen.tolist(), best.tolist(), strict=True)
        ]

    def _fitting(self, texts: Sequence[str], decoding: Decoding) -> int:
        """How many stand before the first file that cannot be read."""
        files = [(i, text) for i, text in enumerate(texts) if not is_number(text)]
        fitting = super()._fitting([text for _, text in files], decoding)
        return files[fitting][0] if fitting < len(files) else len(texts)


def is_number(text: str) -> bool:
    """Whether a text is the number of an episode, and not the name of a file."""
    return text.isdecimal() and len(text) <= DIGITS


SUCCESS, FAILURE = "success", "failure"


def outcome(episode: Episode) -> str:
    return SUCCESS if episode.success else FAILURE
