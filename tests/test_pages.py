"""The page: which sections and pictures stand on it for one model and for several, in both languages."""

import pytest

from probe.pages import page_of
from tests.planted import planted_cases, planted_model
from tests.test_models_story import run, sense_cases, stories, tiny
from tests.test_study import words_of


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_a_page_of_any_number_of_models_keeps_its_pictures_and_keys_apart(count, tmp_path):
    found = stories(["bert", "gpt2", "t5", "bert b", "gpt2 b", "t5 b"][:count], sense_cases(), tmp_path)
    page = page_of(found)
    keys = [section.key for section in page.sections]
    shown = [figure for section in page.sections for figure in section.figures]
    assert len(set(keys)) == len(keys) and 1 <= len(shown) <= 12
    assert {figure.source for figure in shown} == {f"figures/{name}" for name in page.pictures}
    assert all(page.pictures[figure.source.removeprefix("figures/")] == figure.png for figure in shown)
    if count == 1:
        assert not any(key == "models" for key in keys) and len(shown) > 4
        return
    assert keys[0] == "models" and keys[-1] == "reading"
    for number, story in enumerate(found, 1):
        own = [section for section in page.sections if section.key.startswith(f"m{number}-")]
        assert {"findings", "causes", "checks"} <= {section.key.split("-", 1)[1] for section in own}
        assert all(section.title.startswith(f"{story.model.name}: ") for section in own)
        names = [figure.source for section in own for figure in section.figures]
        assert names and all(name.startswith(f"figures/{number}_") for name in names)


def test_the_chinese_page_of_two_models_has_no_english_heading(tmp_path):
    path = run((tiny(name) for name in ("bert", "gpt2")), sense_cases(), tmp_path / "run", language="zh")
    text = words_of(path)
    assert "各模型并列" in text and "2 个模型怎样读《two senses》" in text and "切得不同" in text
    assert "bert：发现了什么" in text and "gpt2：这个模型是因果的" in text
    assert "side by side" not in text and "What" not in text.split("自检")[0]


def test_what_stands_on_the_page_of_one_model_is_not_named_by_it(tmp_path):
    page = page_of(stories(["bert"], sense_cases(), tmp_path))
    assert page.title == "How the model reads “t”" and page.subtitle == "bert · 12 cases"
    assert not any("bert" in section.title for section in page.sections)
    assert "map_cue.png" in page.pictures


def test_title_and_provenance_name_every_model(tmp_path):
    page = page_of(stories(["bert", "gpt2"], planted_cases(), tmp_path))
    assert page.title == "How 2 models read “t”" and page.subtitle == "bert, gpt2 · 12 cases"
    assert [value for name, value in page.provenance if name == "model"] == ["bert", "gpt2"]


def test_how_a_causal_model_reads_is_said_if_any_is_causal(tmp_path):
    for names, said in ((["bert", "bert b"], False), (["bert", "gpt2"], True)):
        (tmp_path / names[1]).mkdir()
        *_, reading = page_of(stories(names, planted_cases(), tmp_path / names[1])).sections
        told = [text for text in reading.text if "This model is causal" in text]
        assert [text.split(":")[0] for text in told] == (["gpt2"] if said else [])


def test_single_heads_stand_on_the_page_with_what_is_said_of_them_first(tmp_path):
    text = words_of(run(planted_model(), planted_cases(), tmp_path / "run", head_cut_cases=24))
    assert "head chosen by mass and cause mass on cue" in text
    assert "fewer than 7 cue words are left to judge the heads" in text
