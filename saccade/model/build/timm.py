"""Networks of the package timm as readers of pictures."""

from typing import Any

from torch import Tensor

from saccade.config.schema import TimmReader
from saccade.data.sources.lines import did_you_mean
from saccade.errors import SaccadeError
from saccade.layers.vision.patches import Backbone, Colours


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
