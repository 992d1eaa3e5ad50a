"""Small molecules in SMILES (Weininger 1988), made by a grammar, and what is wrong with a text that should be one."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from saccade.data.synthetic.heldout import is_heldout

ENDS = ("C", "C", "O", "N", "F", "Cl", "Br", "C#N", "C(=O)O", "C(=O)N", "OC", "S")  # with one bond to what is before
LINKS = ("C", "C", "C", "N", "O", "C(=O)", "C=C", "C(C)", "S", "C(=O)N", "C(=O)O")  # with one more behind them
LONGEST = 4  # links of a chain

# The most bonds that an atom may have.
VALENCES = {"B": 3, "C": 4, "Si": 4, "N": 3, "O": 2, "P": 5, "S": 6, "Se": 6, "F": 1, "Cl": 1, "Br": 1, "I": 1}
BONDS = {"-": 1, "/": 1, "\\": 1, "=": 2, "#": 3}
TOKEN = re.compile(r"Cl|Br|[BCNOPSFI]|[bcnops]|\[[^\[\]]*\]|[-/\\=#()]|[1-9]|%[1-9][0-9]")
BRACKET = re.compile(  # isotope, element, hand, hydrogens, charge
    r"\[[0-9]*(Cl|Br|Si|Se|[BCNOPSFI]|[bcnops])@{0,2}(H[1-9]?)?(?:(\++|-+)([1-9]?))?\]"
)


# ---- made


def molecules(count: int, *, seed: int, heldout: bool = False) -> Iterator[str]:
    """So many molecules: chains and rings with what hangs on them; one in ten, by its own hash, is held out."""
    rng = random.Random(f"molecules {seed}")
    while count:
        text = rng.choice(("", *ENDS[:4])) + _chain(rng, ring=1)
        if is_heldout(text) == heldout:
            yield text
            count -= 1


def _chain(rng: random.Random, *, ring: int) -> str:
    """Links and then an end or a ring; rings inside of rings have other numbers."""
    links = "".join(rng.choice(LINKS) for _ in range(rng.randint(0, LONGEST) if ring == 1 else rng.randint(0, 1)))
    return links + (_ring(rng, ring) if ring < 3 and rng.random() < 0.6 else rng.choice(ENDS))


def _ring(rng: random.Random, number: int) -> str:
    kinds = ("cccccc", "ccnccc", "cccoc", "ccccs", "CCCCCC", "CCCNC", "CCOCC")
    first, *atoms = list(rng.choice(kinds))
    places = [place for place, atom in enumerate(atoms) if atom in "cC"]
    where, hung = rng.choice(places[:-1]), rng.random() < 0.7
    inside = [
        f"{atom}({_chain(rng, ring=number + 1)})" if hung and i == where else atom for i, atom in enumerate(atoms)
    ]
    return f"{first}{number}{''.join(inside)}{number}"


# ---- read


@dataclass
class _Atom:
    element: str
    most: int  # bonds
    bonds: int  # those to hydrogen that are written with it, and then all others
    double: bool = False  # whether one of them is more than single
    bound: list[int] = field(default_factory=list)  # the atoms that it is bound to
    shared: list[int] = field(default_factory=list)  # those among them with which it shares an aromatic bond


@dataclass
class _Reading:
    atoms: list[_Atom] = field(default_factory=list)
    open_rings: dict[str, tuple[int, int]] = field(default_factory=dict)  # number: atom, bond
    branches: list[int] = field(default_factory=list)
    last: int = -1  # the atom to which the next one is bound
    bond: int = 0  # of the sign before it; 0 where there was none


def wrong_with(text: str) -> str:
    """What is wrong with a molecule: signs, branches, rings or bonds; nothing where it is one, or several with dots."""
    return next(filter(None, map(_wrong_with_one, text.split("."))), "")


def _wrong_with_one(text: str) -> str:
    tokens, reading = TOKEN.findall(text), _Reading()
    if not text or "".join(tokens) != text:
        return "it has signs that are none of SMILES" if text else "it is empty"
    before = ""
    for token in tokens:
        if problem := _read(token, before, reading):
            return problem
        before = token
    if reading.bond or before == "(":
        return "it ends before a bond does"
    if reading.branches:
        return "a branch is not closed"
    if reading.open_rings:
        return f"ring {next(iter(reading.open_rings))} is not closed"
    return next(filter(None, (_overbound(number, reading.atoms) for number in range(len(reading.atoms)))), "")


def _read(token: str, before: str, reading: _Reading) -> str:
    if token in BONDS:
        if reading.bond or reading.last < 0:
            return "a bond has no atom before it"
        reading.bond = BONDS[token]
        return ""
    if token in "()":
        return _branch(token, before, reading)
    if token[-1].isdigit():
        return _ring_bond(token, reading)
    atom = _atom_of(token)
    if atom is None:
        return f"{token} is no atom"
    reading.atoms.append(atom)
    number = len(reading.atoms) - 1
    if reading.last >= 0:
        _bind(reading.atoms, reading.last, number, reading.bond)
    reading.last, reading.bond = number, 0
    return ""


def _branch(token: str, before: str, reading: _Reading) -> str:
    if token == "(":
        reading.branches.append(reading.last)
        return "a branch begins nowhere" if reading.last < 0 or before == "(" or reading.bond else ""
    if not reading.branches or before == "(" or reading.bond:
        return "a branch ends that holds nothing, or was not begun"
    reading.last = reading.branches.pop()
    return ""


def _ring_bond(number: str, reading: _Reading) -> str:
    if reading.last < 0:
        return "a ring begins nowhere"
    bond, reading.bond = reading.bond, 0
    if number not in reading.open_rings:
        reading.open_rings[number] = (reading.last, bond)
        return ""
    other, first = reading.open_rings.pop(number)
    if reading.last in (other, *reading.atoms[other].bound):
        return f"ring {number} has fewer than three atoms"
    _bind(reading.atoms, other, reading.last, bond or first)
    return ""


def _atom_of(token: str) -> _Atom | None:
    element, hydrogens, charge = token, 0, 0
    if token.startswith("["):
        if (found := BRACKET.fullmatch(token)) is None:
            return None
        element, held, signs, times = found.groups()
        hydrogens = int(held[1:] or 1) if held else 0
        charge = int(f"{signs[0]}{times or len(signs)}") if signs else 0
    kind = element.capitalize()
    # What carbon gains or loses, it has no bond by; boron has one more by what it gains, all others by what they lose.
    more = {"C": -abs(charge), "Si": -abs(charge), "B": -charge}.get(kind, charge)
    return _Atom(element, VALENCES[kind] + more, bonds=hydrogens)


def _bind(atoms: list[_Atom], one: int, other: int, bond: int) -> None:
    shared = not bond and atoms[one].element.islower() and atoms[other].element.islower()
    for here, there in ((one, other), (other, one)):
        atoms[here].bonds += bond or 1
        atoms[here].double |= bond > 1
        atoms[here].bound.append(there)
        if shared:
            atoms[here].shared.append(there)


def _overbound(number: int, atoms: list[_Atom]) -> str:
    """An atom in no ring, though aromatic, or with too many bonds.

    Of c, one more bond is shared in the ring, unless it has a double one to something outside.
    """
    atom = atoms[number]
    most = atom.most - (atom.element == "c" and not atom.double)
    if atom.element.islower() and not _in_ring(number, atoms):
        return f"{atom.element} is in no aromatic ring"
    return f"{atom.element} has {atom.bonds} bonds, at most {most}" if atom.bonds > most else ""


def _in_ring(number: int, atoms: list[_Atom]) -> bool:
    """Whether a way along shared bonds leads from an atom back to it, and not by the bond that it began with."""
    for first in atoms[number].shared:
        seen, waiting = {number, first}, [first]
        while waiting:
            here = waiting.pop()
            around = atoms[here].shared
            if here != first and number in around:
                return True
            waiting += [there for there in around if there not in seen]
            seen.update(around)
    return False
