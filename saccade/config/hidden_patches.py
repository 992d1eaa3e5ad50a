"""Tables of a recipe: patches of a picture that are hidden, and restored from the others."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from saccade.config.table import ObjectiveTraits, Table, WriterTraits


class PatchWriter(Table, WriterTraits):
    """Draws the pixels of patches that were hidden from the reader."""

    is_head: ClassVar[bool] = True
    kind: Literal["patches"] = "patches"
    tie: Literal["none"] = "none"
    init: str = ""

    @property
    def tied(self) -> str:
        return self.tie


class Patches(Table, ObjectiveTraits):
    """The pixels of hidden patches given the others (He et al. 2022; Xie et al. 2022)."""

    kind: Literal["patches"] = "patches"
    hidden: Annotated[float, Field(gt=0, lt=1)] = 0.6  # the share of patches, others each time
    normalised: bool = True  # of each patch, how its pixels differ from their mean, in their standard deviation
    weight: float = 1.0
