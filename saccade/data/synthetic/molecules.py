"""Generated small molecules in SMILES notation (Weininger 1988), and a check of SMILES."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from saccade.data.synthetic.heldout import is_heldout

# with one bond, to the left
TERMINAL_GROUPS = (
    "C",
    "C",
    "O",
    "N",
    "F",
    "Cl",
    "Br",
    "C#N",
    "C(=O)O",
    "C(=O)N",
    "OC",
    "S",
)
LINKERS = ("C", "C", "C", "N", "O", "C(=O)", "C=C", "C(C)", "S", "C(=O)N", "C(=O)O")  # with bonds to both sides
MAX_LINKERS = 4  # of a chain

# Maximum number of bonds of an atom
VALENCES = {"B": 3, "C": 4, "Si": 4, "N": 3, "O": 2, "P": 5, "S": 6, "Se": 6, "F": 1, "Cl": 1, "Br": 1, "I": 1}
BONDS = {"-": 1, "/": 1, "\\": 1, "=": 2, "#": 3}
TOKEN = re.compile(r"Cl|Br|[BCNOPSFI]|[bcnops]|\[[^\[\]]*\]|[-/\\=#()]|[1-9]|%[1-9][0-9]")
BRACKET_ATOM = re.compile(  # isotope, element, chirality, hydrogens, charge
    r"\[[0-9]*(Cl|Br|Si|Se|[BCNOPSFI]|[bcnops])@{0,2}(H[1-9]?)?(?:(\++|-+)([1-9]?))?\]"
)


# ---- Generation


def generate_molecules(count: int, *, seed: int, heldout: bool = False) -> Iterator[str]:
    """Yield `count` molecules of one split: chains and rings with side chains."""
    rng = random.Random(f"molecules {seed}")
    while count:
        text = rng.choice(("", *TERMINAL_GROUPS[:4])) + _generate_chain(rng, ring=1)
        if is_heldout(text) == heldout:
            yield text
            count -= 1


def _generate_chain(rng: random.Random, *, ring: int) -> str:
    """Sample linkers that end with a terminal group or a ring; nested rings have higher numbers."""
    links = "".join(rng.choice(LINKERS) for _ in range(rng.randint(0, MAX_LINKERS) if ring == 1 else rng.randint(0, 1)))
    return links + (_generate_ring(rng, ring) if ring < 3 and rng.random() < 0.6 else rng.choice(TERMINAL_GROUPS))


def _generate_ring(rng: random.Random, number: int) -> str:
    kinds = ("cccccc", "ccnccc", "cccoc", "ccccs", "CCCCCC", "CCCNC", "CCOCC")
    first, *atoms = list(rng.choice(kinds))
    places = [place for place, atom in enumerate(atoms) if atom in "cC"]
    position, has_side_chain = rng.choice(places[:-1]), rng.random() < 0.7
    inside = [
        f"{atom}({_generate_chain(rng, ring=number + 1)})" if has_side_chain and i == position else atom
        for i, atom in enumerate(atoms)
    ]
    return f"{first}{number}{''.join(inside)}{number}"


# ---- Validation


@dataclass
class _Atom:
    element: str
    max_bonds: int
    bonds: int  # initially those to explicit hydrogens
    has_multiple_bond: bool = False  # a double or triple bond
    neighbors: list[int] = field(default_factory=list)
    aromatic_neighbors: list[int] = field(default_factory=list)


@dataclass
class _ParserState:
    atoms: list[_Atom] = field(default_factory=list)
    open_rings: dict[str, tuple[int, int]] = field(default_factory=dict)  # number: atom, bond
    branches: list[int] = field(default_factory=list)
    last: int = -1  # atom that the next one is bound to
    bond: int = 0  # bond symbol before the next atom; 0: none


def find_smiles_error(text: str) -> str:
    """Describe the first error in SMILES: symbols, branches, rings or bonds; empty if there is none."""
    return next(filter(None, map(_find_molecule_error, text.split("."))), "")


def _find_molecule_error(text: str) -> str:
    tokens, reading = TOKEN.findall(text), _ParserState()
    if not text or "".join(tokens) != text:
        return "it has symbols that are not SMILES" if text else "it is empty"
    before = ""
    for token in tokens:
        if problem := _parse_token(token, before, reading):
            return problem
        before = token
    if reading.bond or before == "(":
        return "it ends before a bond does"
    if reading.branches:
        return "a branch is not closed"
    if reading.open_rings:
        return f"ring {next(iter(reading.open_rings))} is not closed"
    return next(filter(None, (_find_atom_error(number, reading.atoms) for number in range(len(reading.atoms)))), "")


def _parse_token(token: str, previous: str, state: _ParserState) -> str:
    if token in BONDS:
        if state.bond or state.last < 0:
            return "a bond has no atom before it"
        state.bond = BONDS[token]
        return ""
    if token in "()":
        return _parse_branch(token, previous, state)
    if token[-1].isdigit():
        return _parse_ring_bond(token, state)
    atom = _parse_atom(token)
    if atom is None:
        return f"{token} is no atom"
    state.atoms.append(atom)
    number = len(state.atoms) - 1
    if state.last >= 0:
        _add_bond(state.atoms, state.last, number, state.bond)
    state.last, state.bond = number, 0
    return ""


def _parse_branch(token: str, previous: str, state: _ParserState) -> str:
    if token == "(":
        state.branches.append(state.last)
        return "a branch begins nowhere" if state.last < 0 or previous == "(" or state.bond else ""
    if not state.branches or previous == "(" or state.bond:
        return "a branch ends that holds nothing, or was not begun"
    state.last = state.branches.pop()
    return ""


def _parse_ring_bond(number: str, state: _ParserState) -> str:
    if state.last < 0:
        return "a ring begins nowhere"
    bond, state.bond = state.bond, 0
    if number not in state.open_rings:
        state.open_rings[number] = (state.last, bond)
        return ""
    other, first = state.open_rings.pop(number)
    if state.last in (other, *state.atoms[other].neighbors):
        return f"ring {number} has fewer than three atoms"
    _add_bond(state.atoms, other, state.last, bond or first)
    return ""


def _parse_atom(token: str) -> _Atom | None:
    element, hydrogens, charge = token, 0, 0
    if token.startswith("["):
        if (found := BRACKET_ATOM.fullmatch(token)) is None:
            return None
        element, held, signs, times = found.groups()
        hydrogens = int(held[1:] or 1) if held else 0
        charge = int(f"{signs[0]}{times or len(signs)}") if signs else 0
    kind = element.capitalize()
    # A charge costs carbon and silicon a bond; boron gains one by a negative charge, other elements by a positive one.
    more = {"C": -abs(charge), "Si": -abs(charge), "B": -charge}.get(kind, charge)
    return _Atom(element, VALENCES[kind] + more, bonds=hydrogens)


def _add_bond(atoms: list[_Atom], one: int, other: int, bond: int) -> None:
    shared = not bond and atoms[one].element.islower() and atoms[other].element.islower()
    for here, there in ((one, other), (other, one)):
        atoms[here].bonds += bond or 1
        atoms[here].has_multiple_bond |= bond > 1
        atoms[here].neighbors.append(there)
        if shared:
            atoms[here].aromatic_neighbors.append(there)


def _find_atom_error(number: int, atoms: list[_Atom]) -> str:
    """Describe what is wrong with an atom: aromatic but in no ring, or with too many bonds.

    Aromatic carbon has one more bond in the ring, unless it has a double bond to an atom outside.
    """
    atom = atoms[number]
    most = atom.max_bonds - (atom.element == "c" and not atom.has_multiple_bond)
    if atom.element.islower() and not _is_in_ring(number, atoms):
        return f"{atom.element} is in no aromatic ring"
    return f"{atom.element} has {atom.bonds} bonds, at most {most}" if atom.bonds > most else ""


def _is_in_ring(number: int, atoms: list[_Atom]) -> bool:
    """Whether an atom is in a cycle of aromatic bonds."""
    for first in atoms[number].aromatic_neighbors:
        seen, waiting = {number, first}, [first]
        while waiting:
            here = waiting.pop()
            around = atoms[here].aromatic_neighbors
            if here != first and number in around:
                return True
            waiting += [there for there in around if there not in seen]
            seen.update(around)
    return False
