"""What a family of foreign models is to us: a way between two tables of settings, and a map of names of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.config.schema import Recipe
from saccade.config.table import PositionTraits
from saccade.data.tokenization.tokenizer import Tokenizer
from saccade.errors import SaccadeError

Settings = dict[str, Any]  # a table of a recipe as plain values, before it is validated
NEVER = -1e4  # the logit of what has no place in the other vocabulary: far below every other

# Of a feed-forward network: theirs to ours, and the way back.
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh", "silu": "silu", "swish": "silu"}
NAMED = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
# Keys that change no number of a trained model: notes, generation, heads for other tasks, training alone.
HARMLESS = {
    "_attn_implementation_autoset", "_name_or_path", "_num_labels", "architectures", "bad_words_ids", "bos_token_id",
    "classif_dropout", "classifier_dropout", "decoder_layerdrop", "diversity_penalty", "do_sample", "dtype",
    "early_stopping", "encoder_layerdrop", "encoder_no_repeat_ngram_size", "extra_pos_embeddings", "finetuning_task",
    "force_bos_token_to_be_generated", "forced_eos_token_id", "gradient_checkpointing", "id2label", "init_std",
    "initializer_factor", "initializer_range", "is_encoder_decoder", "label2id", "length_penalty", "max_length",
    "min_length", "model_type", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_hidden_layers",
    "num_labels", "num_return_sequences", "output_attentions", "output_hidden_states", "output_past", "output_scores",
    "prefix", "problem_type", "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate",
    "task_specific_params", "temperature", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
    "transformers_version", "typical_p", "use_bfloat16", "use_cache",
}  # fmt: skip
# Keys that would change them, with the one value that we have.
PLAIN: dict[str, Any] = {
    "add_cross_attention": False, "chunk_size_feed_forward": 0, "cross_attention_hidden_size": None,
    "is_decoder": False, "pruned_heads": {}, "quantization_config": None, "tie_encoder_decoder": False,
}  # fmt: skip


class Config:
    """The values of a config.json, of which each must be used or known to change nothing."""

    def __init__(self, values: Mapping[str, Any], *, origin: str = "config.json") -> None:
        self.values, self.origin = dict(values), origin
        self.used: set[str] = set()
        self.harmless = set(HARMLESS)

    def take(self, key: str, *default: Any) -> Any:
        """The value of a key, which must be there unless a default is given."""
        self.used.add(key)
        if key not in self.values and not default:
            raise SaccadeError(f"{self.origin} lacks the key {key!r}; is it whole?")
        return self.values.get(key, *default)

    def among(self, key: str, known: Mapping[Any, Any], *default: Any) -> Any:
        """What stands for the value of a key, which must be one of those that are known."""
        value = self.take(key, *default)
        if value not in known:
            raise self.refusal(key, f"expected one of {', '.join(map(str, known))}")
        return known[value]

    def plain(self, settings: Mapping[str, Any]) -> None:
        """Keys that may be missing, but may not say anything else."""
        for key, value in settings.items():
            if self.take(key, value) != value:
                raise self.refusal(key, f"only {value!r} can be imported")

    def ignore(self, *keys: str) -> None:
        """Keys that change nothing in this family."""
        self.harmless.update(keys)

    def refusal(self, key: str, why: str) -> SaccadeError:
        return SaccadeError(f"{self.origin}: {key} = {self.values.get(key)!r} is not supported; {why}")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Inside, a value of another kind than its key has, such as a text for a number, is a mistake of the file."""
        try:
            yield
        except SaccadeError:
            raise
        except (TypeError, ValueError, LookupError, ZeroDivisionError) as error:
            raise SaccadeError(f"{self.origin}: a setting is not what was expected ({error}); is it whole?") from error

    def check_rest(self) -> None:
        """Whatever nobody asked for must be known to change nothing."""
        self.plain({key: value for key, value in PLAIN.items() if key not in self.used})
        for key in sorted(self.values.keys() - self.used - self.harmless):
            raise self.refusal(key, "it may change the numbers, and nothing is known of it")


# ---- tensors


class Numbering(NamedTuple):
    """Whose rows a table with one row for each piece has, in our order."""

    order: list[int]  # the row there of each of our ids; -1 where there is none
    dead: list[int]  # our ids that are never written: they have no place there
    size: int  # rows there

    def take(self, rows: Tensor, *, empty: float) -> Tensor:
        """Rows in our order."""
        index = torch.tensor(self.order)
        taken = rows[index.clamp(min=0)]
        taken[index < 0] = empty
        return taken

    def put(self, rows: Tensor) -> Tensor:
        """Rows in their order; of those that share one there, the living one counts."""
        dead = set(self.dead)
        pairs = [(ours, theirs) for ours, theirs in enumerate(self.order) if ours not in dead]
        here, there = zip(*pairs, strict=True)
        put = rows.new_zeros(self.size, *rows.shape[1:])
        put[list(there)] = rows[list(here)]
        return put


class Form(NamedTuple):
    """How tensors of theirs become one of ours, and the way back."""

    into: Callable[[Sequence[Tensor], Sequence[int], Numbering], Tensor]  # given the shape of ours
    back: Callable[[Tensor, Numbering], list[Tensor]]


def _heads_into(given: Sequence[Tensor], shape: Sequence[int], numbering: Numbering) -> Tensor:
    """(H E, D) for each of queries, keys, values -> (H, parts, E, D); or the same without D."""
    return torch.stack([part.unflatten(0, (shape[0], -1)) for part in given], 1)


def _turned(tensor: Tensor) -> Tensor:
    """The transpose of a matrix; a bias stays as it is."""
    return tensor.T if tensor.dim() == 2 else tensor


def _joined_into(given: Sequence[Tensor], shape: Sequence[int], numbering: Numbering) -> Tensor:
    """(D, 3 H E), queries, keys and values side by side -> (H, 3, E, D)."""
    return _turned(given[0]).unflatten(0, (shape[1], shape[0], -1)).transpose(0, 1)


def _rotary_into(given: Sequence[Tensor], shape: Sequence[int], numbering: Numbering) -> Tensor:
    """As HEADS, for several queries to each key; theirs turn feature i with i + E/2, ours with its neighbour."""
    groups, _, head_dim = shape[:3]
    query, key, value = (part.unflatten(0, (groups, -1, head_dim)) for part in given)
    pairs = (part.unflatten(2, (2, -1)).transpose(2, 3).flatten(2, 3) for part in (query, key))
    return torch.cat((*pairs, value), 1)


def _rotary_back(ours: Tensor, numbering: Numbering) -> list[Tensor]:
    query, key, value = ours[:, :-2], ours[:, -2:-1], ours[:, -1:]
    halves = (part.unflatten(2, (-1, 2)).transpose(2, 3).flatten(2, 3) for part in (query, key))
    return [part.flatten(0, 2) for part in (*halves, value)]


def _bias_into(given: Sequence[Tensor], shape: Sequence[int], numbering: Numbering) -> Tensor:
    there = given[0].flatten() if given else torch.zeros(numbering.size)
    bias = numbering.take(there, empty=NEVER)
    bias[numbering.dead] = NEVER
    return bias


SAME = Form(lambda given, shape, numbering: given[0], lambda ours, numbering: [ours])
TURNED = Form(lambda given, shape, numbering: _turned(given[0]), lambda ours, numbering: [_turned(ours)])
JOINED = Form(_joined_into, lambda ours, numbering: [_turned(ours.transpose(0, 1).flatten(0, 2))])
ROTARY = Form(_rotary_into, _rotary_back)
HEADS = Form(_heads_into, lambda ours, numbering: [part.flatten(0, 1) for part in ours.unbind(1)])
ROWS = Form(
    lambda given, shape, numbering: numbering.take(given[0], empty=0.0), lambda ours, numbering: [numbering.put(ours)]
)
BIAS = Form(_bias_into, lambda ours, numbering: [numbering.put(ours)[None]])
LOGITS = Form(_bias_into, lambda ours, numbering: [numbering.put(ours)])  # the same without a dimension of 1
NO_BIAS = Form(_bias_into, lambda ours, numbering: [])
AFTER_TWO = Form(  # positions count from 2
    lambda given, shape, numbering: given[0][2:],
    lambda ours, numbering: [torch.cat((ours.new_zeros(2, ours.shape[1]), ours))],
)


class Part(NamedTuple):
    """Where one of our tensors stands there; {} is the number of a block."""

    form: Form
    names: tuple[str, ...]


def part(form: Form, *names: str) -> Part:
    return Part(form, names)


Names = Mapping[str, Part]  # by our name, without its last part (.weight or .bias) where theirs ends so too


@dataclass(frozen=True)
class Family:
    name: str  # config["model_type"]
    architecture: str
    recipe: Callable[[Config], dict[str, Any]]  # tables of a recipe
    config: Callable[[Recipe], dict[str, Any]]  # the way back; what cannot be said there is simply not said
    names: Callable[[Recipe], Names]
    copies: Mapping[str, str] = field(default_factory=dict)  # tensors that repeat another one, where they are there
    unread: tuple[str, ...] = ()  # ends of the names of tensors that nobody reads
    apart: str = "none"  # writer.tie where the output is another matrix than the embedding
    reads: bool = True  # whether there is a reader; else it is a language model
    encodes: bool = False  # whether there is nothing else: no token is written after another
    prefix: str = ""  # of all names, which some files leave out
    added: tuple[str, ...] = ()  # pieces behind those of a SentencePiece file
    others: tuple[str, ...] = ()  # more architectures that can be imported; config(recipe) says which one is exported
    look: Callable[[dict[str, Any], Any], None] | None = None  # what tensors tell more exactly than config.json does
    dress: Callable[[Any, dict[str, Any]], None] | None = None  # its tokenizer gets what else such a file does not say
    reader: str = "tokens"  # the kind of what reads
    texts: bool = True  # whether any are read or written
    sense: Callable[[Config, dict[str, Any]], None] | None = None  # how files become numbers, by a file of its own
    senses: Callable[[Recipe], dict[str, Any]] | None = None  # the way back
    fixed: Callable[[Recipe], Mapping[str, Tensor]] | None = None  # tensors that follow from settings, and never learn
    prompt: Callable[[Config, Any], list[str]] | None = None  # pieces before every text, which its files do not say
    refuses: Callable[[Tokenizer], str] | None = None  # why a tokenizer cannot be that of such a model, if it cannot


def longest(positions: PositionTraits, recipe: Recipe) -> int:
    """The longest text: the length of the table of learned positions, where there is one."""
    return recipe.data.max_length if positions.learned is None else positions.learned.length


def place_of(name: str, names: Names) -> tuple[Form, list[str]]:
    """The form and the foreign names of one of our tensors."""
    if name in names:  # that of one block, where another one has another form
        return names[name].form, list(names[name].names)
    words = name.split(".")
    block = next((word for before, word in pairwise(words) if before == "blocks"), "")
    general = name.replace(f"blocks.{block}.", "blocks.{}.", 1) if block else name
    if general in names:
        return names[general].form, [there.format(block) for there in names[general].names]
    module, _, kind = general.rpartition(".")
    found = names[module]
    return found.form, [f"{there.format(block)}.{kind}" for there in found.names]


def unknown_names(given: Iterable[str], used: Iterable[str], family: Family) -> list[str]:
    """Tensors of a folder that nobody asked for."""
    return sorted(
        name for name in set(given) - set(used) - set(family.copies) if not name.endswith(family.unread or ("\n",))
    )
