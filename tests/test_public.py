"""What `import saccade` offers, and that nothing else is promised."""

import inspect
import pydoc
import re
import subprocess
import sys

import pytest

import saccade
from saccade.predict.predictors.predictor import Predictor
from saccade.train.api import train

FUNCTIONS = ("compare", "evaluate", "export", "import_model", "load", "plan", "recipes", "sweep", "train", "view")


def test_the_public_names():
    assert saccade.__all__ == ["SaccadeError", "__version__", *FUNCTIONS]
    assert dir(saccade) == sorted(saccade.__all__)
    assert all(callable(getattr(saccade, name)) for name in FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_shows_the_signature_of_each_function(name):
    import saccade.plan.estimate
    import saccade.train.loop
    import saccade.view.maps  # makes `saccade.view` the package, as the two before

    function = getattr(saccade, name)
    parameters = inspect.signature(function).parameters
    text = pydoc.plain(pydoc.render_doc(function, renderer=pydoc.plaintext))
    assert f"{saccade.find_function(name).__name__}(" in text
    assert all(parameter in text for parameter in parameters)
    assert (inspect.getdoc(saccade.find_function(name)) or "").splitlines()[0] in text


def test_importing_saccade_imports_no_torch():
    code = "import saccade, sys; saccade.recipes(); print(sorted({'torch', 'pandas', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


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
