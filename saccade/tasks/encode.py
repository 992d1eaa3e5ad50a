"""Pretrain an encoder: masked or permuted language modelling, masked patches, or sentence vectors."""

from __future__ import annotations

from saccade.tasks import BaseTask


class Encode(BaseTask):
    name = "encode"


TASK = Encode()
