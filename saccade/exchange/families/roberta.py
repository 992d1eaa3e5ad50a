"""RoBERTa (Liu et al. 2019): BERT with positions that count from 2, and another head."""

from typing import Any

from saccade.config.schema import Recipe
from saccade.data.tokenization.tokenizer import PAD, START, Tokenizer
from saccade.exchange.families.bert import by_tensors, encoder_config, encoder_names, encoder_tables
from saccade.exchange.families.family import AFTER_TWO, LOGITS, ROWS, SAME, Config, Family, Names, part
from saccade.exchange.families.label_heads import TEXTS, WORDS, label_names

NAMES: Names = {
    **encoder_names("roberta", positions=AFTER_TWO),
    "writer.transform": part(SAME, "lm_head.dense"),
    "writer.norm": part(SAME, "lm_head.layer_norm"),
    "writer.output.weight": part(ROWS, "lm_head.decoder.weight"),
    "writer.output.bias": part(LOGITS, "lm_head.bias"),
}


def roberta_recipe(config: Config) -> dict[str, Any]:
    # Positions count from the one behind padding, and its tokenizer tells no parts of a text apart.
    config.plain({"pad_token_id": 1, "type_vocab_size": 1})
    return encoder_tables(config, length=config.take("max_position_embeddings") - 2)


def roberta_config(recipe: Recipe) -> dict[str, Any]:
    values = encoder_config(recipe, "Roberta")
    return {**values, "max_position_embeddings": values["max_position_embeddings"] + 2, "pad_token_id": 1}


def refuses(tokenizer: Tokenizer) -> str:
    """Positions there count pieces other than 1, which must therefore be one that no text has."""
    return "" if tokenizer.order.index(1) in (PAD, START) else "piece 1 of the tokenizer is neither padding nor start"


ROBERTA = Family(
    "roberta", "RobertaForMaskedLM", roberta_recipe, roberta_config,
    lambda recipe: label_names(NAMES, recipe, hidden="classifier.dense", output="classifier.out_proj"),
    others=("RobertaModel", f"Roberta{TEXTS}", f"Roberta{WORDS}"),
    encodes=True, prefix="roberta.", unread=(".position_ids",),
    copies={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias",
    },
    look=lambda tables, tensors: by_tensors(tables, NAMES, tensors), refuses=refuses,
)  # fmt: skip
