"""Formulas are written once, in a small part of LaTeX, and shown as plain text or as MathML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

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
BIG = ("∑", "∏")  # what carries its limits below and above


@dataclass(frozen=True)
class Node:
    """A part of a formula: a kind, its own text, and what it is made of."""

    kind: str  # row, letter, number, sign, word, space, frac, sqrt, script
    text: str = ""
    parts: tuple[Node, ...] = ()


def parse(source: str) -> Node:
    """The tree of a formula; what is outside our part of LaTeX is a ValueError."""
    tokens = [token for token in TOKEN.findall(source) if not token.isspace()]
    tokens.reverse()
    row = _row(tokens, end="")
    return row


def _row(tokens: list[str], *, end: str) -> Node:
    parts: list[Node] = []
    while tokens and tokens[-1] != end:
        atom = _atom(tokens)
        below = above = Node("row")
        while tokens and tokens[-1] in ("_", "^"):
            if tokens.pop() == "_":
                below = _atom(tokens)
            else:
                above = _atom(tokens)
        scripted = below != Node("row") or above != Node("row")
        parts.append(Node("script", parts=(atom, below, above)) if scripted else atom)
    if end:
        if not tokens:
            raise ValueError(f"a formula lacks its '{end}'")
        tokens.pop()
    return Node("row", parts=tuple(parts))


def _atom(tokens: list[str]) -> Node:
    if not tokens:
        raise ValueError("a formula ends where something must follow")
    token = tokens.pop()
    if token == "{":
        return _row(tokens, end="}")
    if token.startswith("\\"):
        return _command(token[1:], tokens)
    if token[0].isdigit():
        return Node("number", token)
    return Node("letter" if token.isalpha() else "sign", token)


def _command(name: str, tokens: list[str]) -> Node:
    if name == "frac":
        return Node("frac", parts=(_atom(tokens), _atom(tokens)))
    if name == "sqrt":
        return Node("sqrt", parts=(_atom(tokens),))
    if name in ("mathrm", "text"):
        return Node("word", _plain(tokens))
    if name in LETTERS:
        return Node("letter", LETTERS[name])
    if name in SIGNS:
        return Node("sign", SIGNS[name])
    if name in WORDS:
        return Node("word", name)
    if name in SPACES:
        return Node("space", SPACES[name])
    if name in "{}|":
        return Node("sign", name)
    raise ValueError(f"\\{name} is outside the part of LaTeX that formulas may use")


def _plain(tokens: list[str]) -> str:
    """The letters between braces, of which `~` is a space."""
    if not tokens or tokens.pop() != "{":
        raise ValueError("\\mathrm needs { }")
    letters = []
    while tokens and (token := tokens.pop()) != "}":
        letters.append(token)
    return "".join(letters).replace("~", " ")


# ---- as text


def as_text(source: str) -> str:
    """The formula in one line of plain text."""
    return re.sub(r" +", " ", _text(parse(source))).strip()


def _text(node: Node) -> str:
    match node.kind:
        case "row":
            return "".join(_spaced(node.parts))
        case "frac":
            return f"{_grouped(node.parts[0])} / {_grouped(node.parts[1])}"
        case "sqrt":
            return f"√{_grouped(node.parts[0])}"
        case "script":
            base, below, above = node.parts
            return _text(base) + _script("_", below) + _script("^", above)
    return node.text


def _spaced(parts: tuple[Node, ...]) -> Iterator[str]:
    """Signs of relation stand apart; a minus only where something stands before it; a word does not touch a letter."""
    before: Node | None = None
    for node in parts:
        text = _text(node)
        if node.kind == "sign" and (node.text in "=+<>≤≥≠≈→∈⊗∝⇒±≪≫" or (node.text in "-·×" and before is not None)):
            text = f" {text} "
        elif node.text == ",":
            text = ", "
        elif before is not None and (_wordy(before) or _wordy(node)) and not _is_sign(before) and not _is_sign(node):
            text = f" {text}"
        yield text
        before = node


def _wordy(node: Node) -> bool:
    """Whether this is written with several letters."""
    base = node.parts[0] if node.kind == "script" else node
    return base.kind in ("word", "frac", "sqrt") or base.text in BIG


def _is_sign(node: Node) -> bool:
    return node.kind in ("sign", "space")


def _grouped(node: Node) -> str:
    text = _text(node)
    return text if len(node.parts) <= 1 and " " not in text else f"({text})"


def _script(mark: str, node: Node) -> str:
    text = _text(node).replace(" ", "")
    return "" if not text else f"{mark}{text}" if len(text) == 1 or text.isdigit() else f"{mark}{{{text}}}"


# ---- as MathML


def as_mathml(source: str) -> str:
    """The formula as a block that browsers typeset by themselves."""
    return f'<math display="block">{_mathml(parse(source))}</math>'


def _mathml(node: Node) -> str:
    text = html.escape(node.text)
    match node.kind:
        case "row":
            return f"<mrow>{''.join(map(_mathml, node.parts))}</mrow>"
        case "frac":
            return f"<mfrac>{''.join(map(_mathml, node.parts))}</mfrac>"
        case "sqrt":
            return f"<msqrt>{_mathml(node.parts[0])}</msqrt>"
        case "script":
            return _scripted(*node.parts)
        case "number":
            return f"<mn>{text}</mn>"
        case "letter":
            return f"<mi>{text}</mi>"
        case "word":
            return f'<mi mathvariant="normal">{text.replace(" ", NO_BREAK)}</mi>'
        case "space":
            return f'<mspace width="{len(node.text) / 2}em"/>'
    size = ' largeop="true"' if node.text in BIG else ""
    return f"<mo{size}>{text.replace('-', '−')}</mo>"


def _scripted(base: Node, below: Node, above: Node) -> str:
    under, over = ("munder", "mover") if base.text in BIG else ("msub", "msup")
    both = "munderover" if base.text in BIG else "msubsup"
    if below.parts or below.text:
        if above.parts or above.text:
            return f"<{both}>{_mathml(base)}{_mathml(below)}{_mathml(above)}</{both}>"
        return f"<{under}>{_mathml(base)}{_mathml(below)}</{under}>"
    return f"<{over}>{_mathml(base)}{_mathml(above)}</{over}>"
