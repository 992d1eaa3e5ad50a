"""Marian (Junczys-Dowmunt et al. 2018; the OPUS-MT models): the Transformer of the paper, sines beside cosines."""

from typing import Any

from saccade.exchange.families.bart import COPIES, NAMES, config_of, sides
from saccade.exchange.families.family import Config, Family


def marian_recipe(config: Config) -> dict[str, Any]:
    config.plain({"normalize_embedding": False, "static_position_embeddings": True})
    config.plain({"share_encoder_decoder_embeddings": True, "decoder_vocab_size": config.values.get("vocab_size")})
    return sides(config, positions={"kind": "sinusoidal", "layout": "concatenated"}, embedding_norm=False)


MARIAN = Family(
    "marian", "MarianMTModel", marian_recipe, config_of, lambda recipe: NAMES, copies=COPIES,
    unread=(".embed_positions.weight",), apart="",
)  # fmt: skip
