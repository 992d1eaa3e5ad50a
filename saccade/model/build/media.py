"""Readers of pictures and sound from their settings."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from saccade.config import schema
from saccade.config.kinds import Custom
from saccade.config.schema import NoPositions, RecurrentReading, TimmReader, Train
from saccade.config.sound import FrameReader as Settings
from saccade.config.sound import PyramidStack as Pyramid
from saccade.data.sources.lines import did_you_mean
from saccade.errors import SaccadeError
from saccade.layers.attention import positions
from saccade.layers.audio.downsampling import PyramidStack, Stem
from saccade.layers.blocks.recurrent import RecurrentStack
from saccade.layers.blocks.reversible import ReversibleStack
from saccade.layers.vision.joining import Concat, Glimpses, Hops, QuestionAlone
from saccade.layers.vision.patches import Backbone, Colours, Convolutions, ConvolvedPatches, Patches
from saccade.model.build.recurrent import build_recurrent
from saccade.model.build.transformer import build_transformer
from saccade.model.readers.media import FrameReader, JoinedReader, PictureReader

# ---- The reader of sound from its part of a recipe.


def build_frames(reader: Settings, *, train: Train, kinds: Any) -> FrameReader:
    """Stem, positions and stack together; a user's own stack is called with its settings alone."""
    stack = frame_stack(reader, train=train, kinds=kinds)
    stem = Stem(reader.sound.bands, stack.dim, strides=reader.strides, kernel=reader.kernel)
    where = None
    if reader.positions == "sinusoidal":  # those of Whisper
        where = positions.Sinusoidal(stack.dim, layout="concatenated", frequencies="tensor2tensor")
    return FrameReader(stem, stack, positions=where, dropout=reader.dropout)


def frame_stack(reader: Settings, *, train: Train, kinds: Any) -> Any:
    settings = reader.stack
    if isinstance(settings, Custom):
        return kinds[settings.kind](**settings.settings())
    if isinstance(settings, Pyramid):
        return PyramidStack(settings.dim, cell=settings.cell, layers=settings.layers, dropout=settings.dropout)
    if isinstance(settings, RecurrentReading):
        return build_recurrent(settings, memory_dim=None, recompute=train.recompute, cells=False)
    return build_transformer(settings, NoPositions(), memory_dim=None, causal=False, train=train)


# ---- Networks of the package timm as readers of pictures.


def build_backbone(reader: TimmReader) -> Backbone:
    """The network with fresh weights, cut off behind the map that the reader asks for."""
    network = created(reader)
    told, half = told_of(the_package(), reader.name), (0.5, 0.5, 0.5)
    colours = Colours(half, half) if told is None else Colours(told.mean, told.std)
    channels = network.feature_info.channels()[-1]
    last = network.output_fmt == "NHWC"
    return Backbone(network, reader.dim, channels=channels, colours=colours, tuned=reader.tuned, last=last)


def published_weights(reader: TimmReader) -> dict[str, Tensor]:
    """Those that timm knows an address for; they are downloaded, or come from its cache."""
    try:
        found: dict[str, Tensor] = created(reader, pretrained=True).state_dict()
    except SaccadeError:
        raise
    except Exception as error:  # whatever a network, a cache or a file may raise
        raise SaccadeError(
            f"reader.pretrained = true: the weights of timm's {reader.name} cannot be had ({said(error)}); try again, "
            "or set reader.pretrained = false"
        ) from None
    return found


def created(reader: TimmReader, *, pretrained: bool = False) -> Any:
    timm = the_package()
    check_name(timm, reader.name)
    told = told_of(timm, reader.name)
    sides = {"img_size": reader.sides} if told is not None and told.fixed_input_size else {}
    try:
        steps = timm.create_model(reader.name, features_only=True, **sides).feature_info.reduction()
    except (RuntimeError, TypeError, AssertionError, AttributeError) as error:
        raise SaccadeError(
            f"timm's {reader.name} cannot give the maps inside it ({said(error)}); choose another reader.name"
        ) from None
    if reader.step not in steps:
        known = ", ".join(map(str, sorted(set(steps))))
        raise SaccadeError(
            f"the cells of timm's {reader.name} have sides of {known} pixels, got reader.step = {reader.step}; "
            "choose one of them"
        )
    at = len(steps) - 1 - steps[::-1].index(reader.step)
    return timm.create_model(reader.name, features_only=True, out_indices=(at,), pretrained=pretrained, **sides)


def check_name(timm: Any, name: str) -> None:
    known = timm.list_models()
    if name.partition(".")[0] not in known:
        near = did_you_mean(name, known)
        raise SaccadeError(f"timm has no network {name!r}{near}; `python -c 'import timm; print(timm.list_models())'`")


def told_of(timm: Any, name: str) -> Any:
    """What timm knows of a network and its weights; nothing where nobody published any."""
    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise SaccadeError(f"timm has no such weights ({said(error)}); change reader.name = {name!r}") from None


def the_package() -> Any:
    try:
        import timm
    except ImportError:
        raise SaccadeError('reader.kind = "timm" needs the package timm: pip install timm') from None
    except RuntimeError as error:  # torchvision, which timm imports, was built for another torch
        raise SaccadeError(f"timm cannot be imported ({said(error)}); install the torchvision of this torch") from None
    return timm


def said(error: Exception) -> str:
    """The first line of what somebody else's code complains of."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


# ----


def build_media_reader(reader: schema.MediaReader, *, train: schema.Train, kinds: Mapping[str, Any]) -> Any:
    if isinstance(reader, schema.FrameReader):
        return build_frames(reader, train=train, kinds=kinds)
    assert isinstance(reader, schema.CellReader), "nothing else reads media"
    stack = build_cell_stack(reader.stack, train=train, kinds=kinds)
    cells, dim = build_cells(reader, stack)
    return PictureReader(
        cells, stack, dim=dim, grid=reader.grid, dropout=reader.dropout,
        positions=build_positions(reader.positions, dim, length=reader.states),
        first=isinstance(reader, schema.PatchReader) and reader.first,
        columns=build_columns(reader, dim),
    )  # fmt: skip


def build_cells(reader: schema.CellReader, stack: Any) -> tuple[nn.Module, int]:
    """What makes cells of a picture, and how wide they are."""
    match reader:
        case schema.TimmReader():
            return build_backbone(reader), reader.dim
        case schema.GridReader():
            made = Convolutions(reader.channels, depth=reader.depth, flat=reader.flat, attention=reader.attention)
            return made, reader.channels[-1]
    dim, patch, colours = int(stack.dim), reader.patch, colours_of(reader)
    if reader.stem:
        return ConvolvedPatches(dim, patch=patch, channels=reader.stem, colours=colours), dim
    return Patches(dim, patch=patch, colours=colours), dim


def build_cell_stack(
    settings: schema.TransformerStack | Custom | None, *, train: schema.Train, kinds: Mapping[str, Any]
) -> Any:
    """What goes over the cells, none of which has another before it."""
    if settings is None:
        return None
    if isinstance(settings, Custom):
        return kinds[settings.kind](**settings.settings())
    return build_transformer(settings, schema.NoPositions(), memory_dim=None, causal=False, train=train)


def build_columns(reader: schema.PictureReader, dim: int) -> RecurrentStack | None:
    """What goes over the columns of a grid, where that is wanted."""
    layers = reader.columns if isinstance(reader, schema.GridReader) else 0
    return RecurrentStack(dim, cell="lstm", layers=layers).without_cells() if layers else None


def build_positions(kind: str, dim: int, *, length: int) -> nn.Module | None:
    if kind == "none":
        return None
    return positions.Sinusoidal(dim) if kind == "sinusoidal" else positions.Learned(dim, length=length)


def colours_of(reader: schema.PatchReader) -> Colours | None:
    """None where numbers from -1 to 1 are what is wanted."""
    colours = Colours(reader.mean, reader.std)
    return None if set(colours.mean + colours.std) == {0.5} else colours


# ---- The reader of a picture and a question from its part of a recipe.


def build_joined(
    reader: schema.JoinedReader, build_ask: Callable[[schema.TokenReader], Any], *, train: schema.Train, kinds: Any
) -> JoinedReader:
    """Both readers and their join; `build_ask` makes the reader of questions.

    A user's own join is called with the widths of cells and of words.
    """
    ask = build_ask(reader.ask)
    if isinstance(reader.join, schema.QuestionJoin):
        return JoinedReader(None, ask, QuestionAlone(ask.dim), grid=reader.look.grid)
    look = build_media_reader(reader.look, train=train, kinds=kinds)
    join = build_join(reader, look.dim, ask, train=train, kinds=kinds)
    return JoinedReader(look, ask, join, grid=look.grid, blind=reader.blind)


def build_join(
    reader: schema.JoinedReader, cells: int, ask: Any, *, train: schema.Train, kinds: Mapping[str, Any]
) -> Any:
    join = reader.join
    if isinstance(join, Custom):
        return kinds[join.kind](cells, ask.dim, **join.settings())
    if isinstance(join, schema.GlimpsesJoin):
        return Glimpses(cells, ask.dim, hidden=join.hidden, glimpses=join.glimpses, dropout=join.dropout)
    if isinstance(join, schema.HopsJoin):
        words = int(ask.stack.entry if isinstance(ask.stack, ReversibleStack) else ask.stack.dim)
        return Hops(cells, words, ask.dim, dim=join.dim, hops=join.hops, dropout=join.dropout)
    assert isinstance(join, schema.ConcatJoin), "a question alone has no join"
    stack = build_cell_stack(join.stack, train=train, kinds=kinds)
    if stack is not None and stack.dim != join.dim:
        raise SaccadeError(
            f"reader.join.stack.dim must be that of the join, {join.dim}, got {stack.dim}; set one to the other"
        )
    return Concat(cells, ask.dim, dim=join.dim, stack=stack)
