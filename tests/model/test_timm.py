"""Networks of timm as readers, and the message when the package is missing."""

import sys
from types import SimpleNamespace

import pytest
import torch

from saccade.config.load import load
from saccade.data.batching.batch import Pictures
from saccade.errors import SaccadeError
from saccade.layers.vision.patches import Backbone, ColorNormalization
from saccade.model.build.model import build
from saccade.model.build.timm import download_weights, get_pretrained_config
from saccade.train.transfer.warm import warm_start

TINY = ["reader={kind='timm', name='test_resnet', size=64, stride=16, dim=12}"]


class Two(torch.nn.Module):
    """A network of one convolution that returns two feature maps."""

    def __init__(self):
        super().__init__()
        self.made, self.norm = torch.nn.Conv2d(3, 5, 4, stride=4), torch.nn.BatchNorm2d(5)

    def forward(self, x):
        return [x, self.norm(self.made(x))]


def recipe(*changes):
    return load("cnn-self-attention", overrides=[*TINY, *changes])


def build_reader_cells(tuned):
    return Backbone(Two(), 7, channels=5, normalization=ColorNormalization((0.5,) * 3, (0.5,) * 3), trainable=tuned)


def test_features_are_the_positions_of_the_last_map_row_by_row():
    cells, pictures = build_reader_cells(tuned=True).eval(), torch.rand(2, 3, 8, 12) * 255
    found = cells(pictures)
    expected = cells.network(pictures / 127.5 - 1)[-1]
    assert found.shape == (2, 6, 7)
    torch.testing.assert_close(found[1, 4], cells.project(expected[1, :, 1, 1]))


class Turned(Two):
    """The same with channels last."""

    def forward(self, x):
        return [x.permute(0, 2, 3, 1) for x in super().forward(x)]


def test_channels_may_come_last():
    """With as many channels as rows, so that shapes are ambiguous."""
    first, pictures = build_reader_cells(tuned=True).eval(), torch.rand(2, 3, 20, 20) * 255
    network = Turned().eval()
    network.load_state_dict(first.network.state_dict())
    last = Backbone(network, 7, channels=5, normalization=first.normalization, trainable=True, channels_last=True)
    last.project = first.project
    torch.testing.assert_close(last(pictures), first(pictures))


def test_a_network_whose_channels_come_last_says_so():
    pytest.importorskip("timm")
    swin = "reader={kind='timm', name='swin_tiny_patch4_window7_224', size=224, stride=32, dim=12}"
    model = build(recipe(swin), source_size=9, target_size=7)
    assert model.reader.cells.channels_last
    assert not build(recipe(), source_size=9, target_size=7).reader.cells.channels_last


def test_a_network_that_is_not_tuned_stays_as_it_is():
    cells = build_reader_cells(tuned=False).train()
    before = {name: tensor.clone() for name, tensor in cells.network.state_dict().items()}
    cells(torch.rand(2, 3, 8, 8) * 255).sum().backward()
    assert all(torch.equal(tensor, before[name]) for name, tensor in cells.network.state_dict().items())
    assert all(parameter.grad is None for parameter in cells.network.parameters())
    assert cells.project.weight.grad is not None
    tuned = build_reader_cells(tuned=True).train()
    tuned(torch.rand(2, 3, 8, 8) * 255).sum().backward()
    assert tuned.network.made.weight.grad is not None
    assert tuned.network.training


def test_the_missing_package_is_reported_with_its_installation(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(SaccadeError, match=r'"timm" needs the package timm; .*pip install .*\[timm\]'):
        build(recipe(), source_size=9, target_size=7)


def test_a_torchvision_of_another_torch_is_reported_in_one_line(monkeypatch, tmp_path):
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SaccadeError, match=r"torchvision::nms does not exist\); install the torchvision of this torch"):
        build(recipe(), source_size=9, target_size=7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("reader.stride=24", "size must be a multiple of stride = 24, got 64"),
        ("reader.stack={kind='transformer', dim=16, heads=2}", "stack.dim must be dim = 12, got 16"),
    ],
)
def test_incompatible_settings_are_reported(change, message):
    with pytest.raises(SaccadeError, match=message):
        recipe(change)


def test_a_grid_follows_from_sizes_alone():
    assert (recipe().reader.grid, recipe().reader.states) == ((4, 4), 16)


def test_a_network_of_timm_reads():
    pytest.importorskip("timm")
    above = "reader.stack={kind='transformer', layers=1, dim=12, heads=2, ff=8}"
    model = build(recipe(above), source_size=9, target_size=7)
    pictures = Pictures(torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8), torch.ones(2, 16).bool())
    memory = model.eval().reader(pictures.values, pictures.mask)
    assert memory.states.shape == (2, 16, 12)
    assert memory.grid == (4, 4)
    assert model.writer(memory).shape == (2, 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("reader.name='resnet_test'", "timm has no network 'resnet_test'"),
        ("reader.stride=1", "strides of 2, 4, 8, 16, 32 pixels, got reader.stride = 1"),
    ],
)
def test_what_timm_does_not_have_is_reported(change, message):
    pytest.importorskip("timm")
    with pytest.raises(SaccadeError, match=message):
        build(recipe(change), source_size=9, target_size=7)


def test_published_weights_are_asked_for_only_where_a_run_begins(monkeypatch):
    timm = pytest.importorskip("timm")
    model = build(recipe("reader.pretrained=true"), source_size=9, target_size=7)  # nothing is downloaded
    whole, asked = timm.create_model, []

    def create(name, *, pretrained=False, **settings):
        asked.append(pretrained)
        return whole(name, **settings)

    monkeypatch.setattr(timm, "create_model", create)
    notes = warm_start(model, recipe("reader.pretrained=true"), None)
    assert asked[-1]
    assert "published weights" in notes[0]


def test_weights_that_cannot_be_had_are_reported(monkeypatch):
    timm = pytest.importorskip("timm")
    whole = timm.create_model

    def create(name, *, pretrained=False, **settings):
        if pretrained:
            raise OSError("no way to the outside\nmore")
        return whole(name, **settings)

    monkeypatch.setattr(timm, "create_model", create)
    with pytest.raises(
        SaccadeError, match=r"cannot load the weights of timm.s .* \(no way to the outside\); try again, or set reader"
    ):
        download_weights(recipe("reader.pretrained=true").reader)


def test_missing_pretrained_weights_are_reported():
    def unknown(name):
        raise RuntimeError(f"Invalid pretrained tag (none) for {name}.")

    with pytest.raises(SaccadeError, match=r"timm has no such weights .* change reader.name = 'resnet.none'"):
        get_pretrained_config(SimpleNamespace(get_pretrained_cfg=unknown), "resnet.none")
