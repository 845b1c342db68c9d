"""The section on cases without cues: what is said of made readings, in both languages."""

from dataclasses import replace

import pytest

from probe.capture import prepare
from probe.cases import case_of
from probe.experiments.readings import Reading, ReadWord, word_readings
from probe.messages import LANGUAGES
from probe.readings_story import reading_sections, reading_words
from probe.routes import route_of
from probe.spans import Span
from tests.planted import planted_cases, planted_model

EFFECTS = {"喜": 0.25, "欢": 0.1, "我": 0.0002, "派": 0.0}


def made(*, name="a", masses=(0.1, 0.05, 0.2, 0.01), correlation=0.4, left_out=0, special=0.01):
    """A reading of 我喜欢苹果派 with the effects above and masses in the same order."""
    case = case_of("我喜欢苹果派", target="苹果", id=name)
    words = [
        ReadWord(
            label=label, span=Span.of(case.text, label), special=False, distance=1, effect=effect, mass=mass,
            effect_rank=1.0, mass_rank=1.0,
        )
        for (label, effect), mass in zip(EFFECTS.items(), masses, strict=False)
    ]  # fmt: skip
    start = ReadWord(
        label="[CLS]", span=None, special=True, distance=4, effect=special, mass=0.6, effect_rank=None, mass_rank=None
    )
    return Reading(case=case, words=(start, *words), left_out=left_out, correlation=correlation)


def section_of(readings, language="en", *, total=None):
    (section,) = reading_sections(readings, language, total=len(readings) if total is None else total)
    return section


def cells(section, row=0):
    return dict(zip(section.tables[0].columns, section.tables[0].rows[row], strict=True))


def test_a_row_names_three_words_by_effect_and_the_word_of_most_mass_and_says_that_they_differ():
    found = cells(section_of([made()]))
    assert found["largest effects"] == "喜 0.250 (mass 10.0 %), 欢 0.100 (mass 5.0 %), 我 <0.001 (mass 20.0 %)"
    assert found["largest mass"] == "我 (20.0 %)" and found["same"] == "no"
    assert found["cut"] == 4 and found["left out"] == 0
    assert cells(section_of([made(masses=(0.3, 0.05, 0.2, 0.1))]))["same"] == "yes"


def test_the_summary_counts_cases_with_an_interval_from_five_on():
    same = [made(name=str(n), masses=(0.3, 0.1, 0.1, 0.1), correlation=0.1 * n) for n in range(4)]
    (four,) = reading_words([*same, made(correlation=float("nan"))], "en", seed=0)
    assert "in 4 of 5 cases" in four and "correlation is 0.15, in 4 cases with at least 3 words" in four
    (five,) = reading_words([*same, made(correlation=-0.9)], "en", seed=0)
    assert "correlation is −0.06 (−0" in five


def test_what_was_left_out_is_said():
    plain = section_of([made()])
    assert len(plain.text) == 1
    nothing = replace(made(), words=made().words[:1])
    text = section_of([made(left_out=7, special=0.9), nothing], total=9).text
    assert "2 of the 9 cases" in text[1] and "In 1 case the target can read no other word" in text[2]
    assert "In 1 of 2 cases the cut edge to a special token" in text[3] and "64" in text[4]


def test_where_nothing_can_be_read_or_nothing_moves_the_row_says_so():
    nothing = replace(made(), words=made().words[:1])
    still = replace(made(), words=tuple(replace(word, effect=0.0) for word in made().words))
    section = section_of([nothing, still])
    assert cells(section)["largest effects"] == "nothing to read" and cells(section)["same"] is None
    assert cells(section, 1)["largest effects"] == "no word moves it" and cells(section, 1)["same"] is None
    assert list(reading_words([nothing, still], "en", seed=0)) == []


def test_twenty_cases_are_shown_and_a_long_text_is_cut_around_its_target():
    text = "我" * 100 + "苹果" + "派" * 100
    long = replace(made(), case=case_of(text, target="苹果", id="long"))
    section = section_of([long, *(made(name=str(n)) for n in range(24))])
    assert len(section.tables[0].rows) == 20 and "the first 20 of 25 cases" in section.tables[0].caption
    assert cells(section)["text"] == "…" + "我" * 30 + "苹果" + "派" * 30 + "…"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_planted_cue_is_named_first_on_the_page(language):
    model, cases = planted_model(), planted_cases().cases
    items = [replace(item, cues=()) for item in prepare(model, cases)]
    readings = word_readings(model, route_of(model), items)
    section = section_of(readings, language)
    for case, row in zip(cases, section.tables[0].rows, strict=True):
        assert row[3][0] in case.cues[0].cut(case.text)
    (summary,) = reading_words(readings, language, seed=0)
    assert "12" in summary


def test_without_readings_there_is_no_section_and_no_sentence():
    assert list(reading_sections([], "en", total=0)) == [] and list(reading_words([], "en", seed=0)) == []
