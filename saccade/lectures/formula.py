"""Formulas are written once, in a small part of LaTeX, and shown as plain text or as MathML."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import ClassVar

TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:[.,]\d+)*|\s+|.")
LETTERS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "theta": "θ", "lambda": "λ", "mu": "μ",
    "pi": "π", "rho": "ρ", "sigma": "σ", "omega": "ω", "Delta": "Δ", "infty": "∞", "top": "T", "ell": "ℓ", "R": "ℝ",
}  # fmt: skip
SIGNS = {
    "sum": "∑", "prod": "∏", "le": "≤", "ge": "≥", "neq": "≠", "approx": "≈", "cdot": "·", "times": "×", "in": "∈",
    "to": "→", "partial": "∂", "odot": "⊙", "otimes": "⊗", "circ": "∘", "propto": "∝", "dots": "…", "lceil": "⌈",
    "rceil": "⌉", "subset": "⊂", "notin": "∉", "Rightarrow": "⇒", "pm": "±", "ll": "≪", "gg": "≫",
}  # fmt: skip
WORDS = ("softmax", "min", "max", "log", "exp", "tanh", "sin", "cos", "ReLU", "Var", "E", "LN", "argmax")
SPACES = {"quad": "  ", ",": " ", ";": " ", " ": " "}
NO_BREAK = "\N{NO-BREAK SPACE}"  # which a browser does not take away at the edge of a word
RELATIONS = "=+<>≤≥≠≈→∈⊗∝⇒±≪≫"
BIG = ("∑", "∏")  # what carries its limits below and above


@dataclass(frozen=True)
class Node:
    """A part of a formula: a text of its own, or what it is made of. It can be written as plain text and as MathML."""

    text: str = ""
    parts: tuple[Node, ...] = ()
    is_wordy: ClassVar[bool] = False  # written with several letters
    is_sign: ClassVar[bool] = False  # no word touches it

    @property
    def is_empty(self) -> bool:
        return not self.text and not self.parts

    @property
    def base(self) -> Node:
        """What scripts stand at."""
        return self

    def as_text(self) -> str:
        return self.text

    def as_mathml(self) -> str:
        raise NotImplementedError

    def is_spaced(self, *, first: bool) -> bool:
        """Whether spaces stand around it; a minus has them only where something stands before it."""
        return False


class Letter(Node):
    def as_mathml(self) -> str:
        return f"<mi>{html.escape(self.text)}</mi>"


class Number(Node):
    def as_mathml(self) -> str:
        return f"<mn>{self.text}</mn>"


class Word(Node):
    is_wordy = True

    def as_mathml(self) -> str:
        return f'<mi mathvariant="normal">{html.escape(self.text).replace(" ", NO_BREAK)}</mi>'


class Space(Node):
    is_sign = True

    def as_mathml(self) -> str:
        return f'<mspace width="{len(self.text) / 2}em"/>'


class Sign(Node):
    is_sign = True

    def as_mathml(self) -> str:
        size = ' largeop="true"' if self.text in BIG else ""
        return f"<mo{size}>{html.escape(self.text).replace('-', '−')}</mo>"

    def is_spaced(self, *, first: bool) -> bool:
        return self.text in RELATIONS or (self.text in "-·×" and not first)


class Row(Node):
    def as_text(self) -> str:
        """Relations stand apart, and a word does not touch a letter."""
        written, before = "", None
        for node in self.parts:
            text = node.as_text()
            if node.is_spaced(first=before is None):
                text = f" {text} "
            elif node.text == ",":
                text = ", "
            elif before is not None and (_wordy(before) or _wordy(node)) and not (before.is_sign or node.is_sign):
                text = f" {text}"
            written, before = written + text, node
        return written

    def as_mathml(self) -> str:
        return f"<mrow>{''.join(part.as_mathml() for part in self.parts)}</mrow>"


class Fraction(Node):
    is_wordy = True

    def as_text(self) -> str:
        return " / ".join(map(_grouped, self.parts))

    def as_mathml(self) -> str:
        return f"<mfrac>{''.join(part.as_mathml() for part in self.parts)}</mfrac>"


class Root(Node):
    is_wordy = True

    def as_text(self) -> str:
        return f"√{_grouped(self.parts[0])}"

    def as_mathml(self) -> str:
        return f"<msqrt>{self.parts[0].as_mathml()}</msqrt>"


class Script(Node):
    """What stands below and above another part; either may be empty."""

    @property
    def base(self) -> Node:
        return self.parts[0]

    def as_text(self) -> str:
        base, below, above = self.parts
        return base.as_text() + _script("_", below) + _script("^", above)

    def as_mathml(self) -> str:
        base, below, above = self.parts
        tags = ("munder", "mover", "munderover") if base.text in BIG else ("msub", "msup", "msubsup")
        tag = tags[2] if not (below.is_empty or above.is_empty) else tags[0] if above.is_empty else tags[1]
        scripts = "".join(part.as_mathml() for part in (below, above) if not part.is_empty)
        return f"<{tag}>{base.as_mathml()}{scripts}</{tag}>"


def _wordy(node: Node) -> bool:
    return node.base.is_wordy or node.base.text in BIG


def _grouped(node: Node) -> str:
    text = node.as_text()
    return text if len(node.parts) <= 1 and " " not in text else f"({text})"


def _script(mark: str, node: Node) -> str:
    text = node.as_text().replace(" ", "")
    return "" if not text else f"{mark}{text}" if len(text) == 1 or text.isdigit() else f"{mark}{{{text}}}"


EMPTY = Row()


def parse(source: str) -> Node:
    """The tree of a formula; what is outside our part of LaTeX is a ValueError."""
    tokens = [token for token in TOKEN.findall(source) if not token.isspace()]
    tokens.reverse()
    return _row(tokens, end="")


def _row(tokens: list[str], *, end: str) -> Node:
    parts: list[Node] = []
    while tokens and tokens[-1] != end:
        atom = _atom(tokens)
        below: Node = EMPTY
        above: Node = EMPTY
        while tokens and tokens[-1] in ("_", "^"):
            if tokens.pop() == "_":
                below = _atom(tokens)
            else:
                above = _atom(tokens)
        parts.append(atom if below.is_empty and above.is_empty else Script(parts=(atom, below, above)))
    if end:
        if not tokens:
            raise ValueError(f"a formula lacks its '{end}'")
        tokens.pop()
    return Row(parts=tuple(parts))


def _atom(tokens: list[str]) -> Node:
    if not tokens:
        raise ValueError("a formula ends where something must follow")
    token = tokens.pop()
    if token == "{":
        return _row(tokens, end="}")
    if token.startswith("\\"):
        return _command(token[1:], tokens)
    if token[0].isdigit():
        return Number(token)
    return Letter(token) if token.isalpha() else Sign(token)


def _command(name: str, tokens: list[str]) -> Node:
    if name == "frac":
        return Fraction(parts=(_atom(tokens), _atom(tokens)))
    if name == "sqrt":
        return Root(parts=(_atom(tokens),))
    if name in ("mathrm", "text"):
        return Word(_plain(tokens))
    if name in LETTERS:
        return Letter(LETTERS[name])
    if name in SIGNS:
        return Sign(SIGNS[name])
    if name in WORDS:
        return Word(name)
    if name in SPACES:
        return Space(SPACES[name])
    if name in "{}|":
        return Sign(name)
    raise ValueError(f"\\{name} is outside the part of LaTeX that formulas may use")


def _plain(tokens: list[str]) -> str:
    """The letters between braces, of which `~` is a space."""
    if not tokens or tokens.pop() != "{":
        raise ValueError("\\mathrm needs { }")
    letters = []
    while tokens and (token := tokens.pop()) != "}":
        letters.append(token)
    return "".join(letters).replace("~", " ")


def as_text(source: str) -> str:
    """The formula in one line of plain text."""
    return re.sub(r" +", " ", parse(source).as_text()).strip()


def as_mathml(source: str) -> str:
    """The formula as a block that browsers typeset by themselves."""
    return f'<math display="block">{parse(source).as_mathml()}</math>'
