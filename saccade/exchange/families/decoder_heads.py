"""Heads of decoders that label texts or words: what would write reads, and its states are asked."""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import processors

from saccade.config.schema import Recipe
from saccade.data.tokenization.text_pairs import encode_texts, separators
from saccade.data.tokenization.tokenizer import END, Tokenizer
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.exchange.families.family import SAME, Config, Names, part
from saccade.exchange.families.label_heads import label_suffix, label_tables
from saccade.exchange.formats.vocabulary import release

LAST = {"pooling": "before-end", "hidden": None, "bias": False, "dropout": 0.0}  # no text of theirs ends with END


def decoder_tables(config: Config, tables: dict[str, Any]) -> dict[str, Any]:
    """Tables of a recipe: those given, or of a folder that labels something, with what would write as its reader."""
    head = label_tables(config, {"dropout": 0.1, "dim": None})
    if not head:
        return tables
    config.ignore("eos_token_id", "pad_token_id")  # `check_ends` looks at the latter
    if head["writer"]["kind"] != "tags":
        head["writer"] |= LAST
    reader = {key: value for key, value in tables["writer"].items() if key != "tie"}
    return {**tables, **head, "reader": {**reader, "causal": True}}


def check_ends(config: Config, found: Tokenizers, *, ended: bool = False) -> None:
    """Theirs ask the last piece that is no padding, ours the one before END: both must be the last one of a text.

    Where texts are `ended` there too, both ask END, which must be the last one.
    """
    source, labels = found.source, found.labels
    added, padding = source.core.get_added_tokens_decoder(), config.values.get("pad_token_id")
    if not ended and padding is not None and padding not in added:
        raise config.refusal("pad_token_id", "texts may end with that piece, which would be taken for padding")
    for count in range(1, 2 if labels is None else labels.texts + 1):
        row = encode_texts(source, [("",) * count])[0]
        last = len(row) - 1 - len(source.after)  # END
        ours = [source.order[number] for number in row[: last + ended]]
        theirs = source.core.encode("", "" if count > 1 else None).ids
        if ours != theirs and not (ended and source.core.post_processor is None):  # where the file says nothing of it
            put, known = (" ".join(map(str, map(source.core.id_to_token, ids))) or "nothing" for ids in (theirs, ours))
            raise SaccadeError(
                f"{config.origin}: around the texts of a label ({count}) its tokenizer puts {put}, and only "
                f"{known} can be imported; is it the tokenizer that the model was trained with?"
            )


def decoder_of(recipe: Recipe) -> Any:
    """The table of what is a decoder there."""
    return recipe.reader if recipe.writer.is_label_head else recipe.writer


def decoder_names(names: Names, recipe: Recipe, *, of_words: str = "classifier") -> Names:
    """The names of a family, or where it labels something, the same of what reads, and those of its head."""
    if not recipe.writer.is_label_head:
        return names
    read = {name.replace("writer.", "reader.", 1): place for name, place in names.items()}
    return {**read, "writer.output": part(SAME, of_words if recipe.writer.labels_words else "score")}


def decoder_head(recipe: Recipe, family: str) -> dict[str, Any]:
    """What config.json says of the head; nothing where texts are written."""
    if not recipe.writer.is_label_head:
        return {}
    writer: Any = recipe.writer
    dropout = {"classifier_dropout": writer.dropout} if writer.labels_words else {}
    return {"architectures": [family + label_suffix(writer)], **dropout}


def release_open(tokenizer: Tokenizer, size: int) -> str:
    """The tokenizer.json of theirs, with nothing behind texts, and END between two of them where it has a row."""
    core = tokenizers.Tokenizer.from_str(release(tokenizer, size, ends=False))
    between = [tokenizer.order[END]] * separators(tokenizer) if tokenizer.order[END] < size else []
    before = [tokenizer.order[number] for number in tokenizer.begin]
    first, middle = ([core.id_to_token(number) for number in part] for part in (before, between))
    core.post_processor = processors.TemplateProcessing(
        single=[*first, "$A"], pair=[*first, "$A", *middle, "$B"],
        special_tokens=[(core.id_to_token(number), number) for number in {*before, *between}],
    )  # fmt: skip
    return str(core.to_str(pretty=True))
