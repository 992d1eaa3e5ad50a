"""What `import saccade` offers, and that nothing else is promised."""

import inspect
import re

import pytest

import saccade
from saccade.predict.predictors.predictor import Predictor
from saccade.train.api import train


def test_the_public_names():
    assert saccade.__all__ == ["SaccadeError", "__version__", "load", "train"]
    assert dir(saccade) == sorted(saccade.__all__)
    assert all(callable(getattr(saccade, name)) for name in ("SaccadeError", "load", "train"))


def test_the_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+", saccade.__version__)


def test_load_is_the_predictors():
    assert saccade.load == Predictor.load


def test_train_can_be_called_though_it_is_a_package_too():
    import saccade.train.loop  # makes `saccade.train` the package

    with pytest.raises(saccade.SaccadeError, match="unknown recipe 'none'"):
        saccade.train("none")
    assert inspect.isfunction(train)
    assert saccade.train.loop


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'saccade' has no attribute 'trian'"):
        saccade.trian  # noqa: B018


def test_mistakes_are_value_errors():
    assert issubclass(saccade.SaccadeError, ValueError)
