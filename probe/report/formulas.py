"""Formulas as small trees, for a page (MathML, drawn by browsers themselves) and for a terminal (one line)."""

from dataclasses import dataclass

from probe.errors import FigureError

_LEAVES = ("mi", "mn", "mo", "mtext")
_SIGNS = {sign: f" {sign} " for sign in "=+−×⊙·←"} | {"\u2062": " ", ",": ", ", ";": "; "}
_LOOSE = "=+−←,;()"  # signs beside which a fraction keeps its ends
_BRANCHES = {"mrow": None, "msub": 2, "msup": 2, "msubsup": 3, "mfrac": 2, "msqrt": 1, "munder": 2, "mover": 2}


@dataclass(frozen=True, kw_only=True)
class Formula:
    """One element of MathML Core: a leaf with text, or a branch with parts; nothing else can be built."""

    tag: str
    text: str = ""
    parts: "tuple[Formula, ...]" = ()

    def __post_init__(self) -> None:
        if self.tag not in (*_LEAVES, *_BRANCHES):
            raise FigureError(f"formula element {self.tag!r}: allowed are {', '.join((*_LEAVES, *_BRANCHES))}")
        leaf = self.tag in _LEAVES
        if leaf != bool(self.text) or leaf == bool(self.parts):
            raise FigureError(f"formula element {self.tag!r}: a leaf has text, a branch has parts")
        count = _BRANCHES.get(self.tag)
        if count is not None and len(self.parts) != count:
            raise FigureError(f"formula element {self.tag!r} has {len(self.parts)} parts, it takes {count}")


Part = Formula | str


def row(*parts: Part) -> Formula:
    """Put parts side by side; a string is a number, a name, or else a sign."""
    return Formula(tag="mrow", parts=tuple(map(_leaf, parts)))


def words(text: str) -> Formula:
    """Give words inside a formula."""
    return Formula(tag="mtext", text=text)


def named(function: str, argument: Part) -> Formula:
    """Give a named function of an argument: sin θ, with brackets where the argument is more than one name."""
    inner = _leaf(argument)
    if _is_name(inner):
        return row(words(f"{function}\u00a0"), inner)
    return row(words(function), "(", inner, ")")


def times(*factors: Part) -> Formula:
    """Give a product without a sign."""
    parts = [part for factor in factors for part in (Formula(tag="mo", text="\u2062"), factor)]
    return row(*parts[1:])


def sub(base: Part, index: Part) -> Formula:
    """Give a base with an index below."""
    return Formula(tag="msub", parts=(_leaf(base), _leaf(index)))


def power(base: Part, exponent: Part) -> Formula:
    """Give a base with an exponent."""
    return Formula(tag="msup", parts=(_leaf(base), _leaf(exponent)))


def over(above: Part, below: Part) -> Formula:
    """Give a fraction."""
    return Formula(tag="mfrac", parts=(_leaf(above), _leaf(below)))


def root(inside: Part) -> Formula:
    """Give a square root."""
    return Formula(tag="msqrt", parts=(_leaf(inside),))


def total(index: Part, *body: Part) -> Formula:
    """Give a sum over an index."""
    return row(Formula(tag="munder", parts=(_leaf("∑"), _leaf(index))), *body)


def linear_text(formula: Formula) -> str:
    """Give the formula on one line, for a terminal, with the brackets that fractions and roots do without on a page."""
    inner = [linear_text(part) for part in formula.parts]
    match formula.tag:
        case "mo":
            return _SIGNS.get(formula.text, formula.text)
        case "mrow":
            return "".join(_bracketed_beside(formula.parts, place) for place in range(len(inner)))
        case "msub":
            return f"{inner[0]}_{_grouped(formula.parts[1])}"
        case "msup":
            return f"{_grouped(formula.parts[0])}^{_grouped(formula.parts[1], names=False)}"
        case "msubsup":
            return f"{inner[0]}_{_grouped(formula.parts[1])}^{_grouped(formula.parts[2], names=False)}"
        case "mfrac":
            return f"{_grouped(formula.parts[0])} / {_grouped(formula.parts[1])}"
        case "msqrt":
            return f"√{_grouped(formula.parts[0])}"
        case "munder":
            return f"{inner[0]}_{_grouped(formula.parts[1])} "
        case "mover":
            return inner[0]
        case _:
            return formula.text


def _bracketed_beside(parts: tuple[Formula, ...], place: int) -> str:
    """One part of a row: a fraction that a neighbour multiplies would lose its end without brackets."""
    text = linear_text(parts[place])
    if _only(parts[place]).tag != "mfrac":
        return text
    beside = (*parts[max(0, place - 1) : place], *parts[place + 1 : place + 2])
    return text if all(one.tag == "mo" and one.text in _LOOSE for one in beside) else f"({text})"


def _only(formula: Formula) -> Formula:
    """What stands alone inside rows of one part."""
    while formula.tag == "mrow" and len(formula.parts) == 1:
        (formula,) = formula.parts
    return formula


def _is_name(formula: Formula) -> bool:
    inner = _only(formula)
    return inner.tag in _LEAVES or (inner.tag == "msub" and all(map(_is_name, inner.parts)))


def _grouped(formula: Formula, *, names: bool = True) -> str:
    """In brackets, unless nothing beside it could tear it apart; names: an index may go without."""
    inner, text = _only(formula), linear_text(formula)
    whole = inner.tag in _LEAVES or (names and inner.tag in ("msub", "msup", "msqrt"))
    return text if whole else f"({text})"


def _leaf(part: Part) -> Formula:
    if isinstance(part, Formula):
        return part
    if part.replace(".", "", 1).replace(" ", "").isdigit():
        return Formula(tag="mn", text=part)
    return Formula(tag="mi" if part.rstrip("′").isalnum() else "mo", text=part)
