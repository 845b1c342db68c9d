"""The walk as a page and as lines: the example's digits, the model's steps, formulas that no text can break out of."""

import dataclasses
import math
import re
from html import unescape

import numpy as np
import pytest
import tiny

from probe.errors import FigureError
from probe.messages import LANGUAGES, Language
from probe.models import model_from_parts
from probe.report import Formula, Section, StepBlock, Vector, linear_text, render_report
from probe.report.cells import FIRST, STRIP, cells_of
from probe.report.formulas import named, over, power, root, row, sub, times, total, words
from probe.walking.blocks import MOST_ROWS, walk_steps
from probe.walking.formulas import formulas_of
from probe.walking.lines import lines_of
from probe.walking.story import (
    example_heads,
    example_steps,
    page_of_walk,
    real_heads,
    real_summary,
    walk_sections,
)
from probe.walking.walk import Walk, walk
from probe.worked import sinusoidal_rows


@pytest.fixture(scope="module")
def followed() -> Walk:
    loaded = model_from_parts(*tiny.tiny_bert(), name="tiny bert")
    return walk(loaded, "我喜欢苹果", target="苹果", head=2)


def page(*steps: StepBlock) -> str:
    return render_report([Section(key="s", title="S", steps=steps)], title="T", language="en")


def text_of(html: str) -> str:
    return re.sub(r"<[^>]+>", " ", re.sub(r"<(style|script).*?</\1>", "", html, flags=re.DOTALL))


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_holds_the_example_to_the_digit_and_the_true_rows(followed, language) -> None:
    shown = text_of(page_of_walk(followed, language))
    for number in ("0.36", "0.81", "1.01", "0.180", "0.405", "0.505", "0.27500", "0.34439", "0.38061", "99.2 %"):
        assert number in shown, number
    for number in ("0.3338", "0.4826", "0.5768", "0.3206", "0.33388", "0.48276", "0.57668", "0.32056", "1.8"):
        assert number in shown, number
    for number in ("0.8415", "0.5403", "−0.4161", "0.9998"):
        assert number in shown, number


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_holds_every_step_heads_growth_and_the_single_map(followed, language) -> None:
    sections = {section.key: section for section in walk_sections(followed, language)}
    assert list(sections) == ["example", "model", "heads", "growth", "single"]
    assert len(sections["model"].steps) == len(followed.steps) + 1  # the tokens stand first
    assert all(step.verdict for step in sections["model"].steps[1:])
    assert len(sections["growth"].tables[0].rows) == 10 and len(sections["single"].tables[0].rows) == 7


def test_the_four_heads_stand_beside_four_real_ones(followed) -> None:
    example, real = example_heads("en"), real_heads(followed, "en")
    assert len(example.vectors) == len(real.vectors) == 4
    assert np.allclose([vector.values[:3].sum() for vector in example.vectors], 1)
    assert np.allclose([vector.values.sum() for vector in real.vectors], 1, atol=1e-6)
    assert [vector.marked for vector in real.vectors] == [False, False, True, False]
    assert real.vectors[2].values.tolist() == followed.rows[2].tolist()


def test_a_step_shows_both_sides_or_says_why_not(followed) -> None:
    blocks = walk_steps(followed, "en")
    scores = blocks[1 + [step.name for step in followed.steps].index("scores")]
    assert [vector.label for vector in scores.vectors] == ["by the formula", "in the model"]
    assert scores.passed and "largest gap" in scores.verdict and scores.vectors[0].columns[0] == "[CLS]"
    gpt = walk(model_from_parts(*tiny.tiny_gpt2(), name="g"), "我喜欢苹果", target="苹果")
    assert "11 of" not in real_summary(gpt, "en") and f"{len(gpt.equal)} of" in real_summary(gpt, "en")


def test_lines_for_the_terminal_hold_the_same_digits() -> None:
    cells = [cell for _, _, _, rows, _ in lines_of(example_steps("en"), "en") for row in rows for cell in row]
    for number in ("0.36", "0.81", "1.01", "0.27500", "0.33388", "0.3338", "-0.4161", "1.8"):
        assert number in cells, number
    formulas = [formula for _, formula, _, _, _ in lines_of(example_steps("en"), "en")]
    assert "s_j = q · k_j" in formulas and "z_j = s_j / √d" in formulas
    assert "a_j = e^(z_j) / (∑_i e^(z_i))" in formulas


def test_a_formula_is_mathml_and_one_line() -> None:
    formula = row("o", "=", total("j", times(sub("a", "j"), sub("v", "j"))), "+", over("1", root(named("sin", "θ"))))
    assert linear_text(formula) == "o = ∑_j a_j v_j + 1 / √(sin\u00a0θ)"
    html = page(StepBlock(title="t", formulas=(formula,)))
    assert '<math display="block"><mrow><mi>o</mi><mo>=</mo><mrow><munder><mo>∑</mo><mi>j</mi></munder>' in html


def test_the_foot_says_which_command_makes_the_page_again(followed) -> None:
    shown = unescape(text_of(page_of_walk(followed, "en"))).replace("'", "")  # quoted for a shell
    assert "python -m probe walk 我喜欢苹果 --model" in shown and "--layer 1 --head 2 --target 苹果" in shown
    assert "run folder" not in shown and "--occurrence" not in shown


BAD = "</mtext></math><script>alert(1)</script>&<b>"


def test_no_text_breaks_out_of_a_formula_a_cell_or_a_step() -> None:
    vectors = (
        Vector(label=BAD, values=np.arange(3.0), columns=(BAD, "b", "c")),
        Vector(label=BAD, values=np.arange(90.0)),
    )
    step = StepBlock(title=BAD, text=(BAD,), formulas=(row(words(BAD), sub(BAD, "j")),), vectors=vectors, verdict=BAD)
    html = page(step)
    assert "<script>alert" not in html and "<b>" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 7


@pytest.mark.parametrize("wrong", [{"tag": "script", "text": "x"}, {"tag": "mi"}, {"tag": "msub", "text": "x"},
                                   {"tag": "mfrac", "parts": (Formula(tag="mi", text="x"),)},
                                   {"tag": "mi", "text": "x", "parts": (Formula(tag="mi", text="x"),)}])  # fmt: skip
def test_nothing_but_the_safe_elements_can_be_built(wrong) -> None:
    with pytest.raises(FigureError, match="formula element"):
        Formula(**wrong)


def test_cells_are_coloured_by_sign_and_size_on_one_scale() -> None:
    step = StepBlock(title="t", vectors=(Vector(label="a", values=np.array([-2.0, 0.0, 0.01])),
                                         Vector(label="b", values=np.array([4.0, 2.0, -np.inf]))))  # fmt: skip
    (group,) = cells_of(step)
    assert [cell.colour for cell in group.rows[0].cells] == ["m4", "p0", "p1"]
    assert [cell.colour for cell in group.rows[1].cells] == ["p8", "p4", "p0"]
    assert [cell.text for cell in group.rows[1].cells] == ["4.0000", "2.0000", "−∞"]
    assert group.rows[0].cells[0].text == "−2.0000"


def test_a_long_vector_shows_its_first_numbers_and_a_strip_without_inline_style() -> None:
    html = page(StepBlock(title="t", vectors=(Vector(label="a", values=np.ones(384)),)))
    assert html.count("<rect") == STRIP and f"first {STRIP} of 384, length 19.6" in html
    assert html.count('<td class="n ') == FIRST == html.count(">1.0000</td>")
    assert 'style="' not in html


def test_every_colour_of_a_cell_stands_in_the_style_sheet() -> None:
    html = page(StepBlock(title="t", vectors=(Vector(label="a", values=np.linspace(-1, 1, 15)),)))
    colours = set(re.findall(r'<td class="n ([pm]\d)"', html))
    assert len(colours) > 12 and all(f".{colour} {{" in html or f".{colour}," in html for colour in colours)


@pytest.mark.parametrize("wrong", [{"values": np.ones((2, 2))}, {"values": np.ones(0)},
                                   {"values": np.ones(2), "columns": ("a",)}])  # fmt: skip
def test_vectors_that_do_not_fit_are_refused(wrong) -> None:
    with pytest.raises(FigureError, match="vector 'a'"):
        Vector(label="a", **wrong)


def line(step: str, form: str = "", terms: tuple[str, ...] = ()) -> str:
    return " ; ".join(" ".join(linear_text(formula).split()) for formula in formulas_of(step, form, terms))


def test_each_kind_of_norm_and_turn_has_its_own_formula() -> None:
    norms = {line("read", form, ("scale",)) for form in ("layer_norm", "rms_norm", "rms_norm_one")}
    turns = {line("query_turned", form) for form in ("halves_all", "neighbours_first", "neighbours_sorted_all")}
    assert len(norms) == len(turns) == 3 and formulas_of("state", "given") == ()


def test_a_formula_holds_exactly_the_parts_that_a_family_has() -> None:
    assert line("query", "alone", ("bias",)) == "q = W_Q u + b_Q" and line("query", "alone") == "q = W_Q u"
    assert line("added", "", ("e", "g", "p")) == "x_t = e_t + g_t + p_t"
    assert line("added", "scaled", ("c", "e", "p")) == "x_t = c · e_t + p_t"
    assert line("table_row", "scaled", ("c",)) == "e_t = c · E[w_t]" and line("table_row") == "e_t = E[w_t]"
    assert (
        line("position_row", "learned", ("2",)) == "p_t = P[t + 2]" and line("segment_row", "", ("0",)) == "g_t = G[0]"
    )
    assert line("read", "layer_norm", ("scale", "shift")).endswith("⊙ γ + β")
    assert line("read", "layer_norm") == "u = (x − μ) / √(σ^2 + ε)"
    assert (
        line("next", "three", ("x", "y", "f")) == "x′ = x + y + f" and line("next", "two", ("h", "f")) == "x′ = h + f"
    )
    assert line("weights", "", ("sink",)) == "a_j = e^(z_j) / (e^(z_∅) + ∑_i e^(z_i))"


def computed(text: str, **values: float) -> float:
    """A formula's line as Python reads it, signs put plainly."""
    plain = text.split(" = ")[1]
    for sign, meant in (("^", "**"), ("2i", "2*i"), ("⊙", "*"), ("−", "-"), ("·", "*"), ("√", "sqrt")):
        plain = plain.replace(sign, meant)
    return float(eval(plain, {"sin": math.sin, "cos": math.cos, "sqrt": math.sqrt, **values}))


def test_the_line_of_the_sine_formula_computes_the_true_rows() -> None:
    sine, cosine = line("position_row", "sinusoidal").split(" ; ")
    rows = sinusoidal_rows(range(3), 4)
    for t in range(3):
        for i in range(2):
            assert computed(sine, t=t, i=i, d=4) == pytest.approx(rows[t, 2 * i])
            assert computed(cosine, t=t, i=i, d=4) == pytest.approx(rows[t, 2 * i + 1])


def test_the_lines_of_norms_and_angles_compute_what_they_say() -> None:
    norm = line("residual_normed", "layer_norm", ("scale", "shift")).replace("ĥ", "out")
    assert computed(norm, h=3, μ=1, σ=2, ε=5, γ=7, β=0.5) == pytest.approx(2 / 3 * 7 + 0.5)
    assert computed(line("angles", "by_base"), t=3, b=10000, i=2, d=8) == pytest.approx(3 / 10000**0.5)
    turn = line("query_turned", "halves_all").split(" ; ")[0]
    assert turn == "q′_i = q_i cos θ_i − q_(i + d/2) sin θ_i"
    assert linear_text(times(over("1", "d"), total("i", power(sub("x", "i"), "2")))) == "(1 / d) ∑_i x_i^2"


def blocks_of(found: Walk, language: Language = "en") -> dict[str, StepBlock]:
    return dict(zip(["tokens", *(step.name for step in found.steps)], walk_steps(found, language), strict=True))


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_added_part_is_a_step_and_a_letter_of_the_sum(followed, language) -> None:
    blocks = blocks_of(followed, language)
    assert {"table_row", "position_row", "segment_row", "added"} <= set(blocks)
    assert linear_text(blocks["added"].formulas[0]) == "x_t = e_t + g_t + p_t"
    steps = {step.name: step for step in followed.steps}
    parts = [steps[name].own[0] for name in ("table_row", "position_row", "segment_row")]
    assert np.allclose(sum(parts), steps["added"].own[0], atol=1e-6)
    assert not np.allclose(parts[0] + parts[1], steps["added"].own[0], atol=1e-3)


def test_every_step_says_why_it_is_there_and_a_long_reason_only_once(followed) -> None:
    blocks = walk_steps(followed, "en")[1:]
    assert all(block.text and block.text[0].endswith((".", ").")) for block in blocks)
    told = [n for n, block in enumerate(blocks, 2) if any("LayerNorm: μ" in part for part in block.text)]
    again = [block for block in blocks if any(f"Explained in step {told[0]}." in part for part in block.text)]
    assert len(told) == 1 and len(again) == 2


def test_hidden_keys_are_minus_infinity_in_the_terminal_and_on_the_page() -> None:
    found = walk(model_from_parts(*tiny.tiny_llama(head=False), name="l"), "我喜欢苹果", target="喜")
    block = blocks_of(found)["masked"]
    hidden = len(found.tokens) - 1 - found.target
    assert hidden > 0 and f"{hidden} are hidden here" in block.text[1]
    assert np.isneginf(block.vectors[0].values).sum() == np.isneginf(block.vectors[1].values).sum() == hidden
    ((_, _, _, rows, _),) = lines_of((block,), "en")
    assert rows[1].count("−∞") == hidden and page(block).count(">−∞</td>") == 2 * hidden
    assert linear_text(block.formulas[0]) == "z_j ← z_j + M_j"


def test_the_first_pair_is_turned_with_its_numbers_after_its_angles() -> None:
    found = walk(model_from_parts(*tiny.tiny_llama(head=False), name="l"), "我喜欢苹果", target="苹果")
    names = [step.name for step in found.steps]
    assert names.index("angles") + 1 == names.index("query_turned")
    steps, blocks = {step.name: step for step in found.steps}, blocks_of(found)
    assert [vector.label for vector in blocks["angles"].vectors] == ["cos θ_i", "sin θ_i"]
    assert np.allclose((steps["angles"].own ** 2).sum(axis=0), 1)
    said = blocks["query_turned"].text[1]
    sums = re.findall(r"([(−\d.)× +]+?) = (−?[\d.]+) \(number (\d+)\)", said)
    assert len(sums) == 2 and "×" in sums[0][0]
    for worked, result, place in sums:
        plain = worked.strip().replace("×", "*").replace("−", "-")
        assert eval(plain) == pytest.approx(float(result.replace("−", "-")), abs=2e-4)
        assert float(result.replace("−", "-")) == pytest.approx(steps["query_turned"].own[0, int(place)], abs=1e-4)


def test_the_network_that_is_not_opened_is_a_step_taken_as_given(followed) -> None:
    steps = {step.name: step for step in followed.steps}
    assert steps["fed"].form == "given" and steps["summed"].terms == ("ĥ", "f")
    total = steps["residual_normed"].own + steps["fed"].own
    assert np.allclose(total, steps["summed"].own, atol=1e-6)
    assert "taken as" in blocks_of(followed)["fed"].verdict


def test_long_vectors_say_how_many_numbers_they_have_and_how_long_they_are(followed) -> None:
    width = followed.width
    lines = list(lines_of((blocks_of(followed)["residual"],), "en"))
    ((_, _, _, rows, _),) = lines
    assert rows[0][-3:-1] == ("…", f"({width} numbers)") and rows[0][-1].startswith("length ")
    ((_, _, _, rows, _),) = lines_of((blocks_of(followed, "zh")["residual"],), "zh")
    assert rows[0][-2] == f"（{width} 个数）" and rows[0][-1].startswith("长度")


def test_rows_that_are_left_out_are_counted_and_the_words_own_is_not() -> None:
    loaded = model_from_parts(*tiny.tiny_llama(head=False), name="l")
    found = walk(loaded, "我喜欢我喜欢我喜欢我喜欢我喜欢我喜欢苹果我", target="苹果")
    block = blocks_of(found)["key"]
    assert len(found.tokens) > MOST_ROWS == len(block.vectors)
    assert f"{MOST_ROWS} of {len(found.tokens)} rows are shown." in block.text[1]
    assert [vector.marked for vector in block.vectors] == [False] * (MOST_ROWS - 1) + [True]


def test_a_word_that_is_not_one_token_is_said_to_be_so(followed) -> None:
    assert len(followed.places) == 2 and followed.target == followed.places[-1]
    assert "苹果 is 2 tokens here, 苹 · 果; the last one is followed" in blocks_of(followed)["tokens"].text[0]
    assert "“苹果”在这里是 2 个词元：苹 · 果" in blocks_of(followed, "zh")["tokens"].text[0]
    loaded = model_from_parts(*tiny.tiny_llama(head=False), name="l")  # it has 苹果 as one token
    wider = walk(loaded, "我喜欢苹果", target="果")
    assert wider.covers == "苹果" and len(wider.places) == 1
    said = blocks_of(wider)["tokens"].text[0]
    assert "no token for 果 alone: what is followed belongs to 苹果" in said and "tokens here" not in said
    whole = blocks_of(walk(loaded, "我喜欢苹果", target="苹果"))["tokens"].text[0]
    assert "tokens here" not in whole and "alone" not in whole


def test_heads_times_size_is_held_against_the_width_of_this_model(followed) -> None:
    def said(found: Walk) -> str:
        return " ".join(next(section.text for section in walk_sections(found, "en") if section.key == "heads"))

    product = followed.heads * followed.head_size
    assert f"{followed.heads} heads × {followed.head_size} = {product} numbers side by side, as wide" in said(followed)
    other = dataclasses.replace(followed, width=20)
    assert f"= {product} numbers side by side, and a state has 20. Here W_O changes the width" in said(other)


def test_chosen_heads_are_said_to_be_chosen() -> None:
    found = walk(model_from_parts(*tiny.tiny_bert(), name="b"), "我喜欢苹果", target="苹果")
    many = dataclasses.replace(found, heads=12, rows=np.repeat(found.rows, 3, axis=0), head=9)
    block = real_heads(many, "en")
    assert block.text == ("4 of 12 heads are shown, head 9 of the steps above among them.",)
    assert real_heads(found, "en").text == ()


def test_steps_not_exposed_are_counted_only_where_there_are_any(followed) -> None:
    assert "Not exposed" not in real_summary(followed, "en") and "不给出" not in real_summary(followed, "zh")
    less = dataclasses.replace(followed.steps[3], ours=None, missing="other_sum")
    some = dataclasses.replace(followed, steps=(*followed.steps, less))
    assert "Not exposed by this family, each with the reason: 1." in real_summary(some, "en")


def test_the_textbook_says_what_is_given_where_it_ends_and_which_article_it_is_from(followed) -> None:
    texts = [part for step in example_steps("en") for part in step.text]
    assert any("not computed from the vector above" in part for part in texts)
    assert any("numbers end here; W_O, residual and norm follow in the real model" in part for part in texts)
    assert "a beginners' article in Chinese that this project grew from" in walk_sections(followed, "en")[0].text[0]
    assert linear_text(example_steps("en")[2].formulas[0]) == "q = W_Q x"


def test_a_narrow_screen_scrolls_formulas_and_tables_with_a_hint() -> None:
    style = page(StepBlock(title="t"))
    assert ".scroll, .formula {" in style and "background: none; min-width: 0" not in style
    assert all(len(formulas_of("position_row", form)) == 2 for form in ("sinusoidal", "sinusoidal_halves"))
