"""The formula of each step of the walk."""

from collections.abc import Callable

from probe.report.formulas import Formula, named, over, power, root, row, sub, times, total

_X = sub("x", "t")


def formula_of(step: str, form: str) -> Formula | None:
    """Give the formula of a step in the form that a family has; None where there is nothing to compute."""
    if form in _NORMS:
        return _NORMS[form]
    return _FORMS.get((step, form)) or _turned(step, form) or _FORMS.get((step, ""))


def _turned(step: str, form: str) -> Formula | None:
    if not step.endswith("_turned"):
        return None
    first, second = ("2i", "2i+1") if form.startswith("neighbours") else ("i", "i+r/2")
    name = step[0]
    angle = sub("θ", "i")

    def part(sign: str, one: str, other: str) -> Formula:
        return row(sub(name, _index(one)), named("cos", angle), sign, sub(name, _index(other)), named("sin", angle))

    return row("(", part("−", first, second), ",", part("+", second, first), ")")


def _index(text: str) -> Formula:
    pieces = {"2i": ("2", "i"), "2i+1": ("2", "i", "+", "1"), "i": ("i",), "i+r/2": ("i", "+", "r", "/", "2")}
    return row(*pieces[text])


def _softmax() -> Formula:
    score = sub("s", "j")
    return row(sub("a", "j"), "=", over(power("e", score), total("i", power("e", sub("s", "i")))))


_NORMS: dict[str, Formula] = {
    "layer_norm": row(
        over(row("x", "−", "μ"), root(row(power("σ", "2"), "+", "ε"))), "⊙", "γ", "+", "β"
    ),
    "rms_norm": row(over("x", root(row(over("1", "d"), total("i", power(sub("x", "i"), "2")), "+", "ε"))), "⊙", "γ"),
    "rms_norm_one": row(
        over("x", root(row(over("1", "d"), total("i", power(sub("x", "i"), "2")), "+", "ε"))),
        "⊙", "(", "1", "+", "γ", ")",
    ),
}  # fmt: skip
_PROJECTED: Callable[[str, str], Formula] = lambda name, matrix: row(  # noqa: E731
    name, "=", times(sub("W", matrix), "x"), "+", sub("b", matrix)
)
_RATE = over("t", power("10000", row("2", "i", "/", "d")))
_FORMS: dict[tuple[str, str], Formula] = {
    ("table_row", ""): row(sub("e", "t"), "=", "E", "[", sub("w", "t"), "]"),
    ("position_row", ""): row(sub("p", "t"), "=", "P", "[", "t", "]"),
    ("position_row", "sinusoidal"): row(
        sub("p", row("t", ",", "2", "i")), "=", named("sin", _RATE), ",",
        sub("p", row("t", ",", "2", "i", "+", "1")), "=", named("cos", _RATE),
    ),
    ("added", ""): row(_X, "=", sub("e", "t"), "+", sub("p", "t")),
    ("query", ""): _PROJECTED("q", "Q"),
    ("key", ""): _PROJECTED("k", "K"),
    ("value", ""): _PROJECTED("v", "V"),
    ("query_scaled", ""): over("q", root("d")),
    ("angles", ""): row(
        named("cos", sub("θ", "i")), ",", sub("θ", "i"), "=", over("t", power("b", row("2", "i", "/", "r"))),
    ),
    ("scores", ""): row(sub("s", "j"), "=", "q", "·", sub("k", "j")),
    ("scaled", ""): over(sub("s", "j"), root("d")),
    ("scaled", "by_number"): row("c", "·", sub("s", "j")),
    ("softcap", ""): row("c", "·", "tanh", "(", over(sub("s", "j"), "c"), ")"),
    ("bias_row", "alibi"): row(sub("b", "j"), "=", "m", "·", "(", "j", "−", "t", ")"),
    ("biased", ""): row(sub("s", "j"), "+", sub("b", "j")),
    ("weights", ""): _softmax(),
    ("mixed", ""): row("o", "=", total("j", times(sub("a", "j"), sub("v", "j")))),
    ("heads", ""): row("[", sub("o", "1"), ";", "…", ";", sub("o", "H"), "]"),
    ("written", ""): row("y", "=", sub("W", "O"), "[", sub("o", "1"), ";", "…", ";", sub("o", "H"), "]", "+", "b"),
    ("residual", ""): row("x", "+", "y"),
    ("summed", ""): row("h", "+", "f"),
    ("next", "two"): row("h", "+", "f"),
    ("next", "three"): row("x", "+", "y", "+", "f"),
}  # fmt: skip
