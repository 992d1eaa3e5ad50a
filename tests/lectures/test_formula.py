"""Formulas: one source, plain text and MathML."""

from xml.etree import ElementTree

import pytest

from saccade.lectures.catalogue import load_rows
from saccade.lectures.formula import to_mathml, to_text

FORMULAS = {row.row: row.formula for row in load_rows() if row.measure is not None}


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"\softmax(\frac{Q K^\top}{\sqrt{d_k}}) V", "softmax((QK^T) / √d_k)V"),
        (r"c_t = \sum_i a_{t,i} h_i", "c_t = ∑_i a_{t,i}h_i"),
        (r"d^{-0.5} \cdot \min(a, b)", "d^{-0.5} · min(a, b)"),
        (r"x_i \in \R^{D \times K}", "x_i ∈ ℝ^{D×K}"),
        (r"\text{for~all~} i \neq j", "for all i ≠ j"),
    ],
)
def test_text(latex, text):
    assert to_text(latex) == text


def test_mathml_has_fractions_roots_and_scripts():
    found = to_mathml(r"\frac{1}{\sqrt{d_k^2}}")
    assert found == (
        '<math display="block"><mrow><mfrac><mrow><mn>1</mn></mrow><mrow><msqrt><mrow><msubsup><mi>d</mi><mi>k</mi>'
        "<mn>2</mn></msubsup></mrow></msqrt></mrow></mfrac></mrow></math>"
    )


def test_limits_of_a_sum_stand_below_it():
    assert '<munder><mo largeop="true">∑</mo><mi>i</mi></munder>' in to_mathml(r"\sum_i a_i")


def test_what_could_be_markup_is_escaped():
    assert "&lt;" in to_mathml("a < b")


@pytest.mark.parametrize("row", FORMULAS)
def test_every_formula_can_be_shown(row):
    assert to_text(FORMULAS[row])
    assert "\\" not in to_text(FORMULAS[row])
    ElementTree.fromstring(to_mathml(FORMULAS[row]))


@pytest.mark.parametrize("latex", [r"\unknown{x}", r"\frac{1}", r"{x", r"\mathrm x", "x^"])
def test_what_is_outside_the_subset_is_refused(latex):
    with pytest.raises(ValueError, match="formula|LaTeX|mathrm"):
        to_text(latex)
