"""The page on two models' senses: what it says, where there is much, little and nothing to say, in both languages."""

import re

import numpy as np
import pandas as pd
import pytest

from probe.cases import CaseSet
from probe.models import load_model
from tests.test_comparison import compare, parts, with_adapter
from tests.test_comparison_senses import slot_cases
from tests.test_contrasts import slot_case
from tests.test_study import words_of
from tests.tiny import tiny_bert


def slot_set(groups=24, *, contrasts=("fruit", "company")):
    return CaseSet(name="slots", cases=tuple(slot_cases(groups, contrasts=contrasts)))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A base, an adapter of it that does nothing, and one that does."""
    import transformers

    place = tmp_path_factory.mktemp("models")
    tiny_bert(place)
    for name, zero in (("zero", True), ("changed", False)):
        base = transformers.AutoModel.from_pretrained(place / "bert")
        with_adapter(base, zero=zero).save_pretrained(place / name)
    return place


def assert_all_differences_are_0(path):
    results = pd.read_parquet(path / "tables/results.parquet")
    gaps = results[(results["model"] == "B − A") & (results["n"] > 0)]
    told = gaps[gaps["contrast"].str.endswith("cue − neutral")]
    assert set(told["measure"]) == {"attention mass", "cut effect"} and set(told["query"]) >= {"target", "cue"}
    numbers = gaps[["estimate", "low", "high"]].to_numpy()
    assert ((numbers == 0) | np.isnan(numbers)).all() and (gaps["estimate"] == 0).all()
    states = pd.read_csv(path / "tables/state_differences.csv")
    assert (states[["estimate", "low", "high"]] == 0).all().all() and states["at"].tolist() == ["last", "best"]
    both = [part.drop(columns="model").reset_index(drop=True) for _, part in
            pd.read_csv(path / "tables/states.csv").groupby("model")]  # fmt: skip
    pd.testing.assert_frame_equal(*both, check_exact=True)
    text = words_of(path)
    assert "every difference is exactly 0" in text and "exactly the same for fruit" in text
    assert len(re.findall(r"groups: exactly the same\.", text)) == 2


@pytest.mark.parametrize("other", ["bert", "zero"])
def test_a_model_against_itself_and_against_an_adapter_that_does_nothing_differs_by_exactly_0(other, folders, tmp_path):
    cases = slot_set(groups=24, contrasts=("fruit", "company", "fruit", "fruit", "fruit", "fruit"))
    a, b = load_model(folders / "bert"), load_model(folders / other)
    assert_all_differences_are_0(compare(a, b, tmp_path / "run", cases))


@pytest.fixture(scope="module")
def changed(folders, tmp_path_factory):
    a, b = load_model(folders / "bert"), load_model(folders / "changed")
    cases = slot_set(groups=24, contrasts=("fruit", "company", "fruit", "fruit", "fruit", "fruit"))
    return compare(a, b, tmp_path_factory.mktemp("changed") / "run", cases)


def test_the_summary_says_what_the_tables_hold(changed):
    text = words_of(changed)
    results = pd.read_csv(changed / "tables/results.csv")
    told = results[results["contrast"].str.endswith("cue − neutral") & (results["measure"] == "attention mass")]
    tested = told[told["p_max"].notna()]
    counts = {name: (int((part["p_max"] < 0.05).sum()), len(part)) for name, part in tested.groupby("model")}
    assert set(counts) == {"bert", "changed", "B − A"} and counts["B − A"][1] == 24, "3 × 4 heads, two directions"
    assert "{} of {} in A, {} of {} in B".format(*counts["bert"], *counts["changed"]) in text
    assert "differs in {} of {} heads".format(*counts["B − A"]) in text
    cut = results[results["contrast"].str.endswith("cue − neutral") & (results["measure"] == "cut effect")]
    p = cut[cut["model"] == "B − A"].set_index("contrast")["p_max"]
    assert np.isnan(p["company: cue − neutral"]) and "too few cue words, for company" in text
    assert ("no difference can be shown for fruit" in text) == (p["fruit: cue − neutral"] >= 0.05)
    assert "24 pairs of cue and neutral word are compared" in text and "(A gives 24, B 24)" in text
    last = pd.read_csv(changed / "tables/state_differences.csv").iloc[0]
    assert f"right at {100 * last['accuracy A']:.1f} % in A (layer 3)" in text
    assert "every difference is exactly 0" not in text and "nan" not in text.lower().split()


def test_the_page_has_twelve_pictures_at_most_and_one_of_both_models_states(changed):
    pictures = {path.name for path in (changed / "figures").glob("*.png")}
    assert {"senses.png", "contrast_0_difference.png"} <= pictures and len(pictures) <= 12
    states = pd.read_csv(changed / "tables/states.csv")
    assert states.groupby("model").size().to_dict() == {"bert": 4, "changed": 4}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_models_of_other_depths_stand_on_one_scale_and_heads_are_only_counted(language, tmp_path):
    a, b = parts("bert", "bert", num_hidden_layers=5), parts("gpt2", "gpt2")
    path = compare(a, b, tmp_path / "run", slot_set(), language=language)
    text = words_of(path)
    said = {"en": "A has 6 state layers and B 4", "zh": "A 有 6 个状态层，B 有 4 个"}
    other = {"en": "read at the target, B at the later of target and cue", "zh": "A 取自目标词，B 取自目标词与线索词"}
    assert said[language] in text and other[language] in text and "nan" not in text.lower().split()
    results = pd.read_csv(path / "tables/results.csv")
    told = results[results["contrast"].str.endswith("cue − neutral") & (results["measure"] == "attention mass")]
    assert set(told["model"]) == {"bert", "gpt2"}


def test_with_more_cases_than_states_are_kept_of_that_is_said(tmp_path):
    path = compare(parts("bert", "a"), parts("bert", "b", seed=1), tmp_path / "run", slot_set(6), state_cases=4)
    assert "Senses in the states are not compared: with 12 cases" in words_of(path)
    assert not (path / "tables/states.csv").exists() and not (path / "figures/senses.png").exists()


def test_one_model_computed_in_two_ways_is_not_called_the_same(tmp_path):
    a, b = parts("bert", "a"), parts("bert", "b")
    assert a.fingerprint == b.fingerprint
    b.backbone.encoder.layer[0].register_forward_hook(lambda module, given, out: out + 0.1 * out.roll(1, -1))
    text = words_of(compare(a, b, tmp_path / "run", slot_set(4), cut=False))
    assert "yet not every number is the same" in text and "every difference is exactly 0" not in text


def test_without_cuts_and_with_few_words_the_rest_is_still_told(tmp_path):
    path = compare(parts("bert", "a"), parts("bert", "b", seed=1), tmp_path / "run", slot_set(4), cut=False)
    text = words_of(path)
    assert "no contrast has 20 cue words in these pairs" in text and "nan" not in text.lower().split()
    assert "cut edge to the cue" not in text


def test_a_text_that_one_of_the_two_has_to_cut_is_left_out_of_the_states_of_both(tmp_path):
    carrier = "我" * 100 + "他们{}了苹果酶氢"
    long = [
        slot_case(name, word, sense, group="long", carrier=carrier)
        for name, word, sense in (("long", "酸脱", "fruit"), ("other", "氢酶", "neutral"))
    ]
    cases = CaseSet(name="long", cases=(*slot_set(8).cases, *long))
    path = compare(parts("bert", "bert"), parts("llama", "llama"), tmp_path / "run", cases, cut_to_fit=True)
    assert pd.read_csv(path / "tables/states.csv").groupby("model")["cases"].max().to_dict() == {"bert": 8, "llama": 8}
