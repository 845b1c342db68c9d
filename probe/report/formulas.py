"""Formulas as small trees, for a page (MathML, drawn by browsers themselves) and for a terminal (one line)."""

from dataclasses import dataclass

from probe.errors import FigureError

_LEAVES = ("mi", "mn", "mo", "mtext")
_SIGNS = {sign: f" {sign} " for sign in "=+−×⊙·"} | {"\u2062": " ", ",": ", ", ";": "; "}
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


def named(function: str, *argument: Part) -> Formula:
    """Give a named function of an argument, as sin θ."""
    return row(words(f"{function}\u00a0"), *argument)


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
    """Give the formula on one line, for a terminal: q·k / √(d)."""
    inner = [linear_text(part) for part in formula.parts]
    match formula.tag:
        case "mo":
            return _SIGNS.get(formula.text, formula.text)
        case "mrow":
            return "".join(inner)
        case "msub":
            return f"{inner[0]}_{_grouped(inner[1])}"
        case "msup":
            return f"{inner[0]}^{_grouped(inner[1])}"
        case "msubsup":
            return f"{inner[0]}_{_grouped(inner[1])}^{_grouped(inner[2])}"
        case "mfrac":
            return f"{_grouped(inner[0])} / {_grouped(inner[1])}"
        case "msqrt":
            return f"√{_grouped(inner[0])}"
        case "munder":
            return f"{inner[0]}_{_grouped(inner[1])} "
        case "mover":
            return inner[0]
        case _:
            return formula.text


def _leaf(part: Part) -> Formula:
    if isinstance(part, Formula):
        return part
    if part.replace(".", "", 1).replace(" ", "").isdigit():
        return Formula(tag="mn", text=part)
    return Formula(tag="mi" if part.isalnum() else "mo", text=part)


def _grouped(text: str) -> str:
    whole = len(text) <= 2 or text.replace("_", "").isalnum() or text.startswith("√")
    return text if whole else f"({text})"
