"""The message table: both languages say the same things with the same values."""

from string import Formatter

import pytest

from probe.messages import LANGUAGES, MESSAGES, message, messages_under


@pytest.mark.parametrize("key", MESSAGES)
def test_both_languages_have_the_string_with_the_same_values(key):
    texts = {language: MESSAGES[key].text(language) for language in LANGUAGES}
    assert all(text.strip() for text in texts.values())
    names = {
        language: sorted(name for _, name, _, _ in Formatter().parse(text) if name is not None)
        for language, text in texts.items()
    }
    assert names["en"] == names["zh"]
    assert all(name.isidentifier() for name in names["en"])


def test_a_string_is_filled_in_with_its_values():
    assert message("viewer.where", "en", layer=7, head=3) == "layer 7, head 3"
    assert message("viewer.where", "zh", layer=7, head=3) == "层 7，头 3"


@pytest.mark.parametrize("values", [{}, {"layer": 1}, {"layer": 1, "head": 2, "hue": 3}])
def test_missing_and_surplus_values_are_refused(values):
    with pytest.raises(KeyError, match="wants"):
        message("viewer.where", "en", **values)


def test_an_unknown_key_or_language_is_refused():
    with pytest.raises(KeyError, match=r"no\.such"):
        message("no.such", "en")
    with pytest.raises(ValueError, match="en, zh"):
        message("page.source", "fr")


def test_a_group_of_strings_comes_without_its_prefix():
    assert messages_under("checks.", "zh")["pass"] == "通过"


def test_chinese_strings_use_chinese_punctuation():
    for key, found in MESSAGES.items():
        assert not set(found.text("zh")) & set(",;!?") or key == "page.brand", key


def test_a_bracket_before_the_unit_takes_no_space_in_chinese():
    values = {"stack": "", "layer": 1, "head": 2, "units": 9, "verdict": "看不出差别"}
    ends = [message("study.head_fails", "zh", **values, score=score) for score in ("+1.2（0.4 至 2.0）", "+1.2")]
    assert "2.0）个百分点" in ends[0] and "+1.2 个百分点" in ends[1]
