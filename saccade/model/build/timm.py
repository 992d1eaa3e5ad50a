"""Builds readers of pictures from networks of the package timm."""

from typing import Any

from torch import Tensor

from saccade.config.schema import TimmReader
from saccade.data.sources.lines import did_you_mean
from saccade.errors import SaccadeError
from saccade.extras import get_install_command
from saccade.layers.vision.patches import Backbone, ColorNormalization


def build_backbone(reader: TimmReader) -> Backbone:
    """Build the network with initialized weights, truncated after the feature map that the reader uses."""
    network = create_network(reader)
    config, half = get_pretrained_config(import_timm(), reader.name), (0.5, 0.5, 0.5)
    colors = ColorNormalization(half, half) if config is None else ColorNormalization(config.mean, config.std)
    channels = network.feature_info.channels()[-1]
    channels_last = network.output_fmt == "NHWC"
    return Backbone(
        network,
        reader.dim,
        channels=channels,
        normalization=colors,
        trainable=reader.trainable,
        channels_last=channels_last,
    )


def download_weights(reader: TimmReader) -> dict[str, Tensor]:
    """Return the pretrained weights that timm lists for the network, downloaded or from its cache."""
    try:
        weights: dict[str, Tensor] = create_network(reader, pretrained=True).state_dict()
    except SaccadeError:
        raise
    except Exception as error:  # timm may raise anything for a network, a cache or a file
        raise SaccadeError(
            f"reader.pretrained = true: cannot load the weights of timm's {reader.name} ({summarize_error(error)}); "
            "try again, or set reader.pretrained = false"
        ) from None
    return weights


def create_network(reader: TimmReader, *, pretrained: bool = False) -> Any:
    timm = import_timm()
    check_name(timm, reader.name)
    config = get_pretrained_config(timm, reader.name)
    size = {"img_size": reader.image_shape} if config is not None and config.fixed_input_size else {}
    try:
        strides = timm.create_model(reader.name, features_only=True, **size).feature_info.reduction()
    except (RuntimeError, TypeError, AssertionError, AttributeError) as error:
        raise SaccadeError(
            f"timm's {reader.name} cannot return its feature maps ({summarize_error(error)}); "
            "choose another reader.name"
        ) from None
    if reader.stride not in strides:
        known = ", ".join(map(str, sorted(set(strides))))
        raise SaccadeError(
            f"the feature maps of timm's {reader.name} have strides of {known} pixels, got reader.stride = "
            f"{reader.stride}; choose one of them"
        )
    index = len(strides) - 1 - strides[::-1].index(reader.stride)
    return timm.create_model(reader.name, features_only=True, out_indices=(index,), pretrained=pretrained, **size)


def check_name(timm: Any, name: str) -> None:
    known = timm.list_models()
    if name.partition(".")[0] not in known:
        near = did_you_mean(name, known)
        raise SaccadeError(f"timm has no network {name!r}{near}; `python -c 'import timm; print(timm.list_models())'`")


def get_pretrained_config(timm: Any, name: str) -> Any:
    """Return timm's pretrained configuration of a network; None where no weights are published."""
    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise SaccadeError(
            f"timm has no such weights ({summarize_error(error)}); change reader.name = {name!r}"
        ) from None


def import_timm() -> Any:
    try:
        import timm
    except ImportError:
        raise SaccadeError(
            f'reader.kind = "timm" needs the package timm; install it with: {get_install_command("timm")}'
        ) from None
    except RuntimeError as error:  # torchvision, which timm imports, was built for another torch
        raise SaccadeError(
            f"timm cannot be imported ({summarize_error(error)}); install the torchvision of this torch"
        ) from None
    return timm


def summarize_error(error: Exception) -> str:
    """Return the first non-empty line of an error message, or the name of its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
