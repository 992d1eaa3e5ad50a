"""What describes a Hugging Face architecture: conversions between config.json and recipes, and a map of its tensors."""

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

RecipeTable = dict[str, Any]  # a table of a recipe as plain values, before validation
MASKED_LOGIT = -1e4  # output bias of tokens that the foreign vocabulary does not have: far below every logit

# Activation functions: Hugging Face name -> ours, and the inverse.
# The others of the same function differ only in how they compute it.
ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh", "silu": "silu", "swish": "silu", "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu-tanh", "gelu_python_tanh": "gelu-tanh", "gelu_fast": "gelu-tanh",
    "gelu_accurate": "gelu-tanh",
}  # fmt: skip
ACTIVATION_NAMES = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
# Output matrices, which may be tied to the embedding or not.
OUTPUT_WEIGHTS = (
    "lm_head.weight", "cls.predictions.decoder.weight", "lm_head.decoder.weight", "lm_loss.weight",
    "predictions.decoder.weight",
)  # fmt: skip
# Keys of config.json that do not affect the outputs of a trained model: notes, generation, other heads, training.
IGNORED_KEYS = {
    "architectures", "attn_implementation", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
    "chunk_size_feed_forward", "classif_dropout", "classifier_dropout", "cls_token_id", "custom_pipelines",
    "decoder_layerdrop", "diversity_penalty", "do_sample", "dtype", "early_stopping", "encoder_layerdrop",
    "encoder_no_repeat_ngram_size", "eos_token_ids", "exponential_decay_length_penalty", "extra_pos_embeddings",
    "finetuned_from", "finetuning_task", "force_bos_token_to_be_generated", "forced_eos_token_id",
    "gradient_checkpointing", "guidance_scale", "id2label", "init_std", "initializer_factor", "initializer_range",
    "is_encoder_decoder", "label2id", "length_penalty", "mask_token_id", "matryoshka_dimensions", "max_length",
    "max_new_tokens", "max_seq_length", "min_length", "min_new_tokens", "model_max_length", "model_type",
    "name_or_path", "no_repeat_ngram_size", "num_assistant_tokens", "num_beam_groups", "num_beams",
    "num_hidden_layers", "num_labels", "num_return_sequences", "output_attentions", "output_hidden_states",
    "output_past", "output_scores", "penalty_alpha", "prefix", "problem_type", "remove_invalid_values",
    "renormalize_logits", "repetition_penalty", "replacing_rate", "return_all_scores", "return_dict",
    "return_dict_in_generate", "save_step", "sbert_ce_default_activation_function", "sentence_transformers",
    "sep_token_id", "student_decoder_layers", "student_encoder_layers", "suppress_tokens", "task_specific_params",
    "temperature", "tf_legacy_loss", "tokenizer_class", "tokenizer_name", "top_k", "top_p", "torch_dtype",
    "torchscript", "transformers_version", "typical_p", "unk_token_id", "unsloth_fixed", "unsloth_version",
    "use_bfloat16", "use_cache", "use_return_dict", "xla_device",
}  # fmt: skip
# Keys of config.json that do affect them, with the only value that is supported.
REQUIRED_VALUES: dict[str, Any] = {
    "add_cross_attention": False, "cross_attention_hidden_size": None,
    "is_decoder": False, "pruned_heads": {}, "quantization_config": None, "tie_encoder_decoder": False,
}  # fmt: skip


class Config:
    """The values of a config.json; `check_unused` refuses keys that were neither read nor ignored."""

    def __init__(self, values: Mapping[str, Any], *, origin: str = "config.json") -> None:
        self.values, self.origin = dict(values), origin
        self.given = set(values)  # without the keys of `set_defaults`
        self.used: set[str] = set()
        self.ignored = set(IGNORED_KEYS)

    def set_defaults(self, defaults: Mapping[str, Any]) -> None:
        """Add the values that missing keys have in transformers."""
        self.values = {**defaults, **self.values}

    def take(self, key: str, *default: Any) -> Any:
        """Return the value of a key, which must exist unless a default is given."""
        self.used.add(key)
        if key not in self.values and not default:
            raise SaccadeError(f"{self.origin} lacks the key {key!r}; is it complete?")
        return self.values.get(key, *default)

    def take_choice(self, key: str, choices: Mapping[Any, Any], *default: Any) -> Any:
        """Return `choices[value]` for the value of a key, which must be one of the choices."""
        value = self.take(key, *default)
        if value not in choices:
            raise self.build_error(key, f"expected one of {', '.join(map(str, choices))}")
        return choices[value]

    def require(self, settings: Mapping[str, Any]) -> None:
        """Check that each of these keys has this value or is missing."""
        for key, value in settings.items():
            if self.take(key, value) != value:
                raise self.build_error(key, f"only {value!r} can be imported")

    def ignore(self, *keys: str) -> None:
        """Declare that these keys do not affect the outputs of this architecture."""
        self.ignored.update(keys)

    def build_error(self, key: str, reason: str) -> SaccadeError:
        return SaccadeError(f"{self.origin}: {key} = {self.values.get(key)!r} is not supported; {reason}")

    @contextmanager
    def convert_errors(self) -> Iterator[None]:
        """Inside the block, report a value of the wrong type, such as a string for an int, as an error of the file."""
        try:
            yield
        except SaccadeError:
            raise
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise SaccadeError(f"{self.origin}: a value has an unexpected type ({error}); is it complete?") from error

    def check_unused(self) -> None:
        """Refuse keys that nothing has read, unless they are known not to affect the outputs.

        Keys that begin with _ are notes of transformers; null is the value of an option that is not used.
        """
        self.require({key: value for key, value in REQUIRED_VALUES.items() if key not in self.used})
        for key in sorted(self.given - self.used - self.ignored):
            if key.startswith("_") or self.values[key] is None:
                continue
            raise self.build_error(key, "it is unknown and may change the outputs")


# ---- tensors


class VocabularyMapping(NamedTuple):
    """The rows of a foreign table with one row per token that belong to our token ids."""

    their_ids: list[int]  # for each of our ids, the foreign row; -1 if there is none
    unmapped: list[int]  # our ids that the foreign vocabulary does not have, and that are never generated
    size: int  # rows of the foreign table

    def to_ours(self, rows: Tensor, *, fill: float) -> Tensor:
        """Reorder foreign rows by our ids; missing rows are filled with `fill`."""
        index = torch.tensor(self.their_ids)
        result = rows[index.clamp(min=0)]
        result[index < 0] = fill
        return result

    def to_theirs(self, rows: Tensor) -> Tensor:
        """Reorder our rows by the foreign ids; rows of unmapped ids are left out."""
        unmapped = set(self.unmapped)
        pairs = [(ours, theirs) for ours, theirs in enumerate(self.their_ids) if ours not in unmapped]
        here, there = zip(*pairs, strict=True)
        result = rows.new_zeros(self.size, *rows.shape[1:])
        result[list(there)] = rows[list(here)]
        return result


class TensorConversion(NamedTuple):
    """Conversion of one or more foreign tensors to one of ours, and back."""

    to_ours: Callable[[Sequence[Tensor], Sequence[int], VocabularyMapping], Tensor]  # also gets the shape of our tensor
    to_theirs: Callable[[Tensor, VocabularyMapping], list[Tensor]]


def _stack_heads(theirs: Sequence[Tensor], shape: Sequence[int], mapping: VocabularyMapping) -> Tensor:
    """Stack (H E, D) matrices of queries, keys and values to (H, matrices, E, D); biases have no D."""
    return torch.stack([part.unflatten(0, (shape[0], -1)) for part in theirs], 1)


def _transpose(tensor: Tensor) -> Tensor:
    """Transpose a matrix; a bias is returned unchanged."""
    return tensor.T if tensor.dim() == 2 else tensor


def _split_joined_heads(theirs: Sequence[Tensor], shape: Sequence[int], mapping: VocabularyMapping) -> Tensor:
    """Split (D, 3 H E), with queries, keys and values side by side, to (H, 3, E, D)."""
    return _transpose(theirs[0]).unflatten(0, (shape[1], shape[0], -1)).transpose(0, 1)


def _to_interleaved_rotary(theirs: Sequence[Tensor], shape: Sequence[int], mapping: VocabularyMapping) -> Tensor:
    """Stack heads as `_stack_heads` does, for grouped queries, and reorder features for rotary positions.

    Hugging Face rotates feature i with i + E/2, saccade rotates neighbouring features.
    """
    groups, _, head_dim = shape[:3]
    query, key, value = (part.unflatten(0, (groups, -1, head_dim)) for part in theirs)
    pairs = (part.unflatten(2, (2, -1)).transpose(2, 3).flatten(2, 3) for part in (query, key))
    return torch.cat((*pairs, value), 1)


def _to_half_rotary(ours: Tensor, mapping: VocabularyMapping) -> list[Tensor]:
    query, key, value = ours[:, :-2], ours[:, -2:-1], ours[:, -1:]
    halves = (part.unflatten(2, (-1, 2)).transpose(2, 3).flatten(2, 3) for part in (query, key))
    return [part.flatten(0, 2) for part in (*halves, value)]


def _extend_bias(theirs: Sequence[Tensor], shape: Sequence[int], mapping: VocabularyMapping) -> Tensor:
    there = theirs[0].flatten() if theirs else torch.zeros(mapping.size)
    bias = mapping.to_ours(there, fill=MASKED_LOGIT)
    bias[mapping.unmapped] = MASKED_LOGIT
    return bias


IDENTITY = TensorConversion(lambda theirs, shape, mapping: theirs[0], lambda ours, mapping: [ours])
TRANSPOSED = TensorConversion(
    lambda theirs, shape, mapping: _transpose(theirs[0]), lambda ours, mapping: [_transpose(ours)]
)
JOINED_HEADS = TensorConversion(
    _split_joined_heads, lambda ours, mapping: [_transpose(ours.transpose(0, 1).flatten(0, 2))]
)
ROTARY_HEADS = TensorConversion(_to_interleaved_rotary, _to_half_rotary)
HEADS = TensorConversion(_stack_heads, lambda ours, mapping: [part.flatten(0, 1) for part in ours.unbind(1)])
TOKEN_ROWS = TensorConversion(
    lambda theirs, shape, mapping: mapping.to_ours(theirs[0], fill=0.0),
    lambda ours, mapping: [mapping.to_theirs(ours)],
)
FINAL_BIAS = TensorConversion(_extend_bias, lambda ours, mapping: [mapping.to_theirs(ours)[None]])
# FINAL_BIAS without its leading dimension of 1
OUTPUT_BIAS = TensorConversion(_extend_bias, lambda ours, mapping: [mapping.to_theirs(ours)])
NO_OUTPUT_BIAS = TensorConversion(_extend_bias, lambda ours, mapping: [])
POSITIONS_FROM_TWO = TensorConversion(  # learned positions whose first two rows are unused
    lambda theirs, shape, mapping: theirs[0][2:],
    lambda ours, mapping: [torch.cat((ours.new_zeros(2, ours.shape[1]), ours))],
)


class TensorMapping(NamedTuple):
    """The foreign tensors that make up one of ours; {} in a name stands for the index of a block."""

    conversion: TensorConversion
    names: tuple[str, ...]


def map_tensor(conversion: TensorConversion, *names: str) -> TensorMapping:
    return TensorMapping(conversion, names)


TensorMap = Mapping[
    str, TensorMapping
]  # by our tensor name; without .weight or .bias where both models use the same suffix


@dataclass(frozen=True)
class Family:
    """A Hugging Face architecture that can be imported and exported."""

    name: str  # config["model_type"]
    architecture: str
    to_recipe: Callable[[Config], dict[str, Any]]  # tables of a recipe, from config.json
    to_config: Callable[[Recipe], dict[str, Any]]  # the inverse; omits what config.json cannot express
    get_tensor_map: Callable[[Recipe], TensorMap]
    # tensors that repeat another one, if stored: name -> original
    duplicates: Mapping[str, str] = field(default_factory=dict)
    ignored_suffixes: tuple[str, ...] = ()  # suffixes of stored tensors that are not weights
    untied: str = "none"  # writer.tie if the output matrix is not the embedding
    has_encoder: bool = True  # otherwise a decoder-only language model
    is_encoder_only: bool = False  # whether it has no decoder
    prefix: str = ""  # of all tensor names; files of the base model omit it
    added_tokens: tuple[str, ...] = ()  # tokens behind those of a SentencePiece file
    other_architectures: tuple[str, ...] = ()  # can be imported too; `to_config` chooses one for an export
    refine_recipe: Callable[[dict[str, Any], Any], None] | None = None  # changes tables by the stored tensors
    complete_tokenizer: Callable[[Any, dict[str, Any]], None] | None = None  # adds what a SentencePiece file lacks
    reader_kind: str = "tokens"  # reader.kind
    uses_text: bool = True  # whether it reads or writes text
    read_preprocessor: Callable[[Config, dict[str, Any]], None] | None = (
        None  # adds preprocessor_config.json to the tables
    )
    to_preprocessor: Callable[[Recipe], dict[str, Any]] | None = None  # the inverse
    compute_constants: Callable[[Recipe], Mapping[str, Tensor]] | None = None  # tensors that are not learned
    get_prompt: Callable[[Config, Any], list[str]] | None = None  # tokens between start token and text
    check_tokenizer: Callable[[Tokenizer], str] | None = None  # why it cannot use a tokenizer, or ""
    optional_biases: str = "\n"  # part of the names of biases that are 0 where they are not stored
    needs_padding: bool = False  # whether transformers fails without a padding token
    defaults: Mapping[str, Any] = field(default_factory=dict)  # values of keys that a config.json may lack
    unused_tensors: Callable[[Recipe], Mapping[str, Tensor]] | None = (
        None  # without effect, but transformers wants them
    )


def get_max_length(positions: PositionTraits, recipe: Recipe) -> int:
    """Return the maximum length: that of the learned positions if there are any, else `data.max_length`."""
    return recipe.data.max_length if positions.learned_table is None else positions.learned_table.length


def find_tensor(name: str, tensor_map: TensorMap) -> tuple[TensorConversion, list[str]]:
    """Return the conversion and the foreign names of one of our tensors."""
    if name in tensor_map:  # a block whose tensors differ from those of other blocks
        return tensor_map[name].conversion, list(tensor_map[name].names)
    words = name.split(".")
    block = next((word for before, word in pairwise(words) if before == "blocks"), "")
    general = name.replace(f"blocks.{block}.", "blocks.{}.", 1) if block else name
    if general in tensor_map:
        return tensor_map[general].conversion, [there.format(block) for there in tensor_map[general].names]
    module, _, kind = general.rpartition(".")
    found = tensor_map[module]
    return found.conversion, [f"{there.format(block)}.{kind}" for there in found.names]


def find_unknown_tensors(stored: Iterable[str], used: Iterable[str], family: Family) -> list[str]:
    """Return stored tensors that no tensor of ours uses."""
    return sorted(
        name
        for name in set(stored) - set(used) - set(family.duplicates)
        if not name.endswith(family.ignored_suffixes or ("\n",))
    )
