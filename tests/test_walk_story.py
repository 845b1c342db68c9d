"""The walk as a page and as lines: the example's digits, the model's steps, formulas that no text can break out of."""

import re
from html import unescape

import numpy as np
import pytest
import tiny

from probe.errors import FigureError
from probe.messages import LANGUAGES
from probe.models import model_from_parts
from probe.report import Formula, Section, StepBlock, Vector, linear_text, render_report
from probe.report.cells import STRIP, cells_of
from probe.report.formulas import named, over, root, row, sub, times, total, words
from probe.walking.formulas import formula_of
from probe.walking.lines import lines_of
from probe.walking.story import (
    example_heads,
    example_steps,
    page_of_walk,
    real_heads,
    real_summary,
    walk_sections,
    walk_steps,
)
from probe.walking.walk import Walk, walk


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
    cells = [cell for _, _, _, rows, _ in lines_of(example_steps("en")) for row in rows for cell in row]
    for number in ("0.36", "0.81", "1.01", "0.27500", "0.33388", "0.3338", "-0.4161", "1.8"):
        assert number in cells, number
    formulas = [formula for _, formula, _, _, _ in lines_of(example_steps("en"))]
    assert "s_j = q · k_j" in formulas and "s_j / √d" in formulas


def test_a_formula_is_mathml_and_one_line() -> None:
    formula = row("o", "=", total("j", times(sub("a", "j"), sub("v", "j"))), "+", over("1", root(named("sin", "θ"))))
    assert linear_text(formula) == "o = ∑_j a_j v_j + 1 / √(sin\u00a0θ)"
    html = page(StepBlock(title="t", formula=formula))
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
    step = StepBlock(title=BAD, text=(BAD,), formula=row(words(BAD), sub(BAD, "j")), vectors=vectors, verdict=BAD)
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


def test_a_long_vector_is_a_strip_without_inline_style_that_says_how_much_it_shows() -> None:
    html = page(StepBlock(title="t", vectors=(Vector(label="a", values=np.ones(384)),)))
    assert html.count("<rect") == STRIP and f"first {STRIP} of 384, length 19.6" in html
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


def test_each_kind_of_norm_and_turn_has_its_own_formula() -> None:
    norms = {form: formula_of("read", form) for form in ("layer_norm", "rms_norm", "rms_norm_one")}
    assert len({linear_text(formula) for formula in norms.values() if formula}) == 3
    turns = {formula_of("query_turned", form) for form in ("halves_all", "neighbours_first")}
    assert len(turns) == 2 and None not in turns and formula_of("state", "given") is None
