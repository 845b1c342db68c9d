"""The formulas of each step of the walk, one a line, with exactly the parts that a family has."""

from collections.abc import Callable

from probe.report.formulas import Formula, named, over, power, root, row, sub, times, total

Formulas = tuple[Formula, ...]

_X = sub("x", "t")
_HEADS = row("[", sub("o", "0"), ";", "…", ";", sub("o", row("H", "−", "1")), "]")
_SCORE = sub("z", "j")
# A norm's result and what it was given, by step; elsewhere the same letter stands for the new numbers.
_LETTERS = {
    "embedded": ("x", "x"), "read": ("u", "x"), "query_normed": ("q", "q"), "key_normed": ("k", "k"),
    "value_normed": ("v", "v"), "written_normed": ("y", "y"), "residual_normed": ("ĥ", "h"), "next": ("x′", "r"),
}  # fmt: skip


def formulas_of(step: str, form: str = "", terms: tuple[str, ...] = ()) -> Formulas:
    """Give the formulas of a step in the form that a family has; none where there is nothing to compute."""
    if form in ("layer_norm", "rms_norm", "rms_norm_one"):
        return (_norm(form, terms, *_LETTERS[step]),)
    if step.endswith("_turned"):
        return _turned(step[0], form)
    if step.endswith("_scaled"):
        return (row(step[0], "←", over(step[0], root("d"))),)
    if step in _WITH_TERMS and (step, form) not in _FORMS:
        return (_WITH_TERMS[step](terms),)
    return _FORMS.get((step, form)) or _FORMS.get((step, ""), ())


def _norm(form: str, terms: tuple[str, ...], out: str, given: str) -> Formula:
    if form == "layer_norm":
        core = over(row(given, "−", "μ"), root(row(power("σ", "2"), "+", "ε")))
    else:
        squares = times(over("1", "d"), total("i", power(sub(given, "i"), "2")))
        core = over(given, root(row(squares, "+", "ε")))
    parts: list[Formula | str] = [out, "←" if out == given else "=", core]
    if "scale" in terms:
        parts += ["⊙", "(", "1", "+", "γ", ")"] if form == "rms_norm_one" else ["⊙", "γ"]
    return row(*parts, *(("+", "β") if "shift" in terms else ()))


def _turned(name: str, form: str) -> Formulas:
    """The two numbers of pair i after the turn."""
    first, second = ("2i", "2i+1") if form.startswith("neighbours") else ("i", "i+d/2")
    after = ("i", "i+d/2") if form.startswith("neighbours_sorted") else (first, second)
    angle = sub("θ", "i")

    def part(place: str, one: str, sign: str, other: str) -> Formula:
        cosine = times(sub(name, _index(one)), named("cos", angle))
        sine = times(sub(name, _index(other)), named("sin", angle))
        return row(sub(f"{name}′", _index(place)), "=", cosine, sign, sine)

    return part(after[0], first, "−", second), part(after[1], second, "+", first)


def _index(text: str) -> Formula:
    pieces = {"2i": ("2", "i"), "2i+1": ("2", "i", "+", "1"), "i": ("i",), "i+d/2": ("i", "+", "d", "/", "2")}
    return row(*pieces[text])


def _mapped(out: Formula | str, matrix: str, given: Formula | str, terms: tuple[str, ...]) -> Formula:
    bias = ("+", sub("b", matrix)) if "bias" in terms else ()
    return row(out, "=", times(sub("W", matrix), given), *bias)


def _added(terms: tuple[str, ...]) -> Formula:
    parts: list[Formula | str] = []
    for letter in terms or ("e", "p"):
        if letter != "c":
            parts += ["+", row("c", "·", sub("e", "t")) if letter == "e" and "c" in terms else sub(letter, "t")]
    return row(_X, "=", *parts[1:])


def _sum_of(out: str, letters: tuple[str, ...]) -> Formula:
    return row(out, "=", *[part for letter in letters for part in ("+", letter)][1:])


def _softmax(terms: tuple[str, ...]) -> Formula:
    below = total("i", power("e", sub("z", "i")))
    if "sink" in terms:
        below = row(power("e", sub("z", "∅")), "+", below)
    return row(sub("a", "j"), "=", over(power("e", _SCORE), below))


def _sines(sine_at: Formula, cosine_at: Formula) -> Formulas:
    rate = over("t", power("10000", row("2", "i", "/", "d")))
    places = (("sin", sine_at), ("cos", cosine_at))
    return tuple(row(sub("p", row("t", ",", place)), "=", named(name, rate)) for name, place in places)


_WITH_TERMS: dict[str, Callable[[tuple[str, ...]], Formula]] = {
    "position_row": lambda terms: row(sub("p", "t"), "=", "P", "[", "t", *("+" if terms else ""), *terms, "]"),
    "segment_row": lambda terms: row(sub("g", "t"), "=", "G", "[", *terms, "]"),
    "other_row": lambda terms: row(sub("n", "t"), "=", "N", "[", *terms, "]"),
    "embedded": lambda terms: row("x", "←", times("W", "x"), *(("+", "b") if "bias" in terms else ())),
    "added": _added,
    "query": lambda terms: _mapped("q", "Q", "u", terms),
    "key": lambda terms: _mapped(sub("k", "j"), "K", sub("u", "j"), terms),
    "value": lambda terms: _mapped(sub("v", "j"), "V", sub("u", "j"), terms),
    "written": lambda terms: _mapped("y", "O", _HEADS, terms),
    "weights": _softmax,
    "summed": lambda terms: _sum_of("r", terms),
    "next": lambda terms: _sum_of("x′", terms),
}
_FORMS: dict[tuple[str, str], Formulas] = {
    ("table_row", ""): (row(sub("e", "t"), "=", "E", "[", sub("w", "t"), "]"),),
    ("table_row", "scaled"): (row(sub("e", "t"), "=", "c", "·", "E", "[", sub("w", "t"), "]"),),
    ("position_row", "sinusoidal"): _sines(row("2", "i"), row("2", "i", "+", "1")),
    ("position_row", "sinusoidal_halves"): _sines(row("i"), row("i", "+", "d", "/", "2")),
    ("read", "as_it_is"): (row("u", "=", "x"),),
    ("given", ""): (
        row("q", "=", times(sub("W", "Q"), "x")),
        row(sub("k", "j"), "=", times(sub("W", "K"), sub("x", "j"))),
        row(sub("v", "j"), "=", times(sub("W", "V"), sub("x", "j"))),
    ),
    ("angles", ""): (row(sub("θ", "i"), "=", over("t", power("b", row("2", "i", "/", "d")))),),
    ("scores", ""): (row(sub("s", "j"), "=", "q", "·", sub("k", "j")),),
    ("scaled", ""): (row(_SCORE, "=", over(sub("s", "j"), root("d"))),),
    ("scaled", "by_number"): (row(_SCORE, "=", "c", "·", sub("s", "j")),),
    ("scaled", "by_one"): (row(_SCORE, "=", sub("s", "j")),),
    ("softcap", ""): (row(_SCORE, "←", "c", "·", named("tanh", over(_SCORE, "c"))),),
    ("bias_row", "buckets"): (row(sub("b", "j"), "=", "B", "[", "j", "−", "t", "]"),),
    ("bias_row", "alibi"): (row(sub("b", "j"), "=", "m", "·", "(", "j", "−", "t", ")"),),
    ("biased", ""): (row(_SCORE, "←", _SCORE, "+", sub("b", "j")),),
    ("masked", ""): (row(_SCORE, "←", _SCORE, "+", sub("M", "j")),),
    ("sink", ""): (row("1", "−", total("j", sub("a", "j"))),),
    ("mixed", ""): (row("o", "=", total("j", times(sub("a", "j"), sub("v", "j")))),),
    ("heads", ""): (_HEADS,),
    ("residual", ""): (row("h", "=", "x", "+", "y"),),
}  # fmt: skip
