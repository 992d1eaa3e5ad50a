"""Convert formulas from a subset of LaTeX to plain text and to MathML."""

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
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"  # not collapsed by browsers
RELATIONS = "=+<>≤≥≠≈→∈⊗∝⇒±≪≫"
LARGE_OPERATORS = ("∑", "∏")  # with limits below and above


@dataclass(frozen=True)
class Node:
    """A node of the formula's tree, with text (a leaf) or child nodes."""

    text: str = ""
    parts: tuple[Node, ...] = ()
    is_wordy: ClassVar[bool] = False  # several letters, or as wide as a word
    is_sign: ClassVar[bool] = False  # needs no space beside a word

    @property
    def is_empty(self) -> bool:
        return not self.text and not self.parts

    @property
    def base(self) -> Node:
        """The node that subscripts and superscripts belong to."""
        return self

    def to_text(self) -> str:
        return self.text

    def to_mathml(self) -> str:
        raise NotImplementedError

    def needs_spaces(self, *, first: bool) -> bool:
        """Whether the node is surrounded by spaces; a leading minus sign is not."""
        return False


class Letter(Node):
    def to_mathml(self) -> str:
        return f"<mi>{html.escape(self.text)}</mi>"


class Number(Node):
    def to_mathml(self) -> str:
        return f"<mn>{self.text}</mn>"


class Word(Node):
    is_wordy = True

    def to_mathml(self) -> str:
        return f'<mi mathvariant="normal">{html.escape(self.text).replace(" ", NO_BREAK_SPACE)}</mi>'


class Space(Node):
    is_sign = True

    def to_mathml(self) -> str:
        return f'<mspace width="{len(self.text) / 2}em"/>'


class Sign(Node):
    is_sign = True

    def to_mathml(self) -> str:
        size = ' largeop="true"' if self.text in LARGE_OPERATORS else ""
        return f"<mo{size}>{html.escape(self.text).replace('-', '−')}</mo>"

    def needs_spaces(self, *, first: bool) -> bool:
        return self.text in RELATIONS or (self.text in "-·×" and not first)


class Row(Node):
    def to_text(self) -> str:
        """Put spaces around relations, and between words and letters."""
        written, before = "", None
        for node in self.parts:
            text = node.to_text()
            if node.needs_spaces(first=before is None):
                text = f" {text} "
            elif node.text == ",":
                text = ", "
            elif before is not None and (_is_wordy(before) or _is_wordy(node)) and not (before.is_sign or node.is_sign):
                text = f" {text}"
            written, before = written + text, node
        return written

    def to_mathml(self) -> str:
        return f"<mrow>{''.join(part.to_mathml() for part in self.parts)}</mrow>"


class Fraction(Node):
    is_wordy = True

    def to_text(self) -> str:
        return " / ".join(map(_parenthesize, self.parts))

    def to_mathml(self) -> str:
        return f"<mfrac>{''.join(part.to_mathml() for part in self.parts)}</mfrac>"


class Root(Node):
    is_wordy = True

    def to_text(self) -> str:
        return f"√{_parenthesize(self.parts[0])}"

    def to_mathml(self) -> str:
        return f"<msqrt>{self.parts[0].to_mathml()}</msqrt>"


class Script(Node):
    """A base with a subscript and a superscript, either of which may be empty."""

    @property
    def base(self) -> Node:
        return self.parts[0]

    def to_text(self) -> str:
        base, below, above = self.parts
        return base.to_text() + _format_script("_", below) + _format_script("^", above)

    def to_mathml(self) -> str:
        base, below, above = self.parts
        tags = ("munder", "mover", "munderover") if base.text in LARGE_OPERATORS else ("msub", "msup", "msubsup")
        tag = tags[2] if not (below.is_empty or above.is_empty) else tags[0] if above.is_empty else tags[1]
        scripts = "".join(part.to_mathml() for part in (below, above) if not part.is_empty)
        return f"<{tag}>{base.to_mathml()}{scripts}</{tag}>"


def _is_wordy(node: Node) -> bool:
    return node.base.is_wordy or node.base.text in LARGE_OPERATORS


def _parenthesize(node: Node) -> str:
    text = node.to_text()
    return text if len(node.parts) <= 1 and " " not in text else f"({text})"


def _format_script(mark: str, node: Node) -> str:
    text = node.to_text().replace(" ", "")
    return "" if not text else f"{mark}{text}" if len(text) == 1 or text.isdigit() else f"{mark}{{{text}}}"


EMPTY = Row()


def parse(source: str) -> Node:
    """Parse a formula; LaTeX outside the supported subset raises ValueError."""
    tokens = [token for token in TOKEN.findall(source) if not token.isspace()]
    tokens.reverse()
    return _parse_row(tokens, end="")


def _parse_row(tokens: list[str], *, end: str) -> Node:
    parts: list[Node] = []
    while tokens and tokens[-1] != end:
        atom = _parse_atom(tokens)
        below: Node = EMPTY
        above: Node = EMPTY
        while tokens and tokens[-1] in ("_", "^"):
            if tokens.pop() == "_":
                below = _parse_atom(tokens)
            else:
                above = _parse_atom(tokens)
        parts.append(atom if below.is_empty and above.is_empty else Script(parts=(atom, below, above)))
    if end:
        if not tokens:
            raise ValueError(f"a formula lacks its '{end}'")
        tokens.pop()
    return Row(parts=tuple(parts))


def _parse_atom(tokens: list[str]) -> Node:
    if not tokens:
        raise ValueError("unexpected end of a formula")
    token = tokens.pop()
    if token == "{":
        return _parse_row(tokens, end="}")
    if token.startswith("\\"):
        return _parse_command(token[1:], tokens)
    if token[0].isdigit():
        return Number(token)
    return Letter(token) if token.isalpha() else Sign(token)


def _parse_command(name: str, tokens: list[str]) -> Node:
    if name == "frac":
        return Fraction(parts=(_parse_atom(tokens), _parse_atom(tokens)))
    if name == "sqrt":
        return Root(parts=(_parse_atom(tokens),))
    if name in ("mathrm", "text"):
        return Word(_parse_word(tokens))
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
    raise ValueError(f"\\{name} is outside the subset of LaTeX that formulas may use")


def _parse_word(tokens: list[str]) -> str:
    """Parse the letters between braces; `~` is a space."""
    if not tokens or tokens.pop() != "{":
        raise ValueError("\\mathrm needs { }")
    letters = []
    while tokens and (token := tokens.pop()) != "}":
        letters.append(token)
    return "".join(letters).replace("~", " ")


def to_text(source: str) -> str:
    """Convert a formula to one line of plain text."""
    return re.sub(r" +", " ", parse(source).to_text()).strip()


def to_mathml(source: str) -> str:
    """Convert a formula to a MathML block, which browsers render without scripts."""
    return f'<math display="block">{parse(source).to_mathml()}</math>'
