"""What a page says of senses where data is thin or a model gives nothing to read: a sentence, and no number."""

import html

import numpy as np
import pandas as pd
import pytest
import torch

from probe.cases import Case, CaseSet
from probe.messages import message
from probe.models import model_from_parts
from probe.spans import Span
from tests.planted import CUES
from tests.test_contrasts import slot_case
from tests.test_study import look, words_of
from tests.tiny import FAMILIES

CARRIERS = ("他们{}了苹果酶氢", "我们{}了苹果酶氢", "但他{}了苹果酶氢", "被我{}了苹果酶氢")
FAMILY = pytest.mark.parametrize("language", ["en", "zh"])


def bert():
    model, tokenizer = FAMILIES["bert"](head=False)
    return model_from_parts(model, tokenizer, name="bert")


def singles(senses):
    """A case a sense, each of a group of its own, cue words and carriers in turn."""
    return [
        slot_case(f"s{n}", CUES[n % 12], sense, group=f"g{n}", carrier=CARRIERS[n % 4])
        for n, sense in enumerate(senses)
    ]


def minimal_groups(senses):
    """A group a sense: its cue case and its neutral case."""
    pairs = [
        (one, slot_case(f"n{n}", "酸脱", "neutral", group=f"g{n}", carrier=CARRIERS[n % 4]))
        for n, one in enumerate(singles(senses))
    ]
    return [case for pair in pairs for case in pair]


def page(cases, path, *, language="en", model=None, **settings):
    """The page's words and its folder."""
    case_set = CaseSet(name="thin", cases=tuple(cases))
    run = look(model or bert(), case_set, path / "run", language=language, reference_cases=0, **settings)
    text = html.unescape(words_of(run))
    assert "nan" not in text.lower().split()
    return text, run


def said(key, language, **values):
    return message(f"senses.{key}", language, **values).strip()


@FAMILY
def test_groups_of_one_case_are_said_to_be_no_minimal_groups(language, tmp_path):
    text, run = page(singles(["fruit", "company"] * 4), tmp_path, language=language)
    assert said("no_groups", language) in text
    assert language == "zh" or "No minimal group: no cue has a neutral word" in text
    assert said("contrasts", language) not in text and said("line_carrier", language) not in text
    results = pd.read_csv(run / "tables/results.csv")
    assert not results["contrast"].str.contains("neutral").any() and results["p_max"].isna().all()
    assert pd.read_csv(run / "tables/states.csv")["carrier alone"].isna().all()


@FAMILY
def test_a_contrast_below_twenty_cue_words_is_described_without_a_p(language, tmp_path):
    text, run = page(minimal_groups(["fruit"] * 3 + ["company"]), tmp_path, language=language)
    assert said("thin", language, names="company, fruit", fewest=20) in text
    assert language == "zh" or "described without a p: company, fruit" in text
    results = pd.read_csv(run / "tables/results.csv")
    slots = results[results["contrast"].str.contains("neutral")]
    assert len(slots) and slots[["p", "p_max"]].isna().all(axis=None)
    assert (slots["n"] < 20).all() and slots["estimate"].notna().any()


@FAMILY
def test_senses_of_two_sentences_are_named_and_left_out(language, tmp_path):
    text, run = page(singles(["fruit", "company"] * 4 + ["chip"] * 2), tmp_path / "some", language=language)
    assert said("states_few", language, names="苹果 chip") in text
    assert pd.read_csv(run / "tables/states.csv")["cases"].unique().tolist() == [8]
    text, run = page(singles(["fruit", "company"] * 2), tmp_path / "all", language=language)
    assert said("nothing_to_tell", language, fewest=3, words="苹果 (fruit 2, company 2)") in text
    assert not (run / "tables/states.csv").exists() and said("senses", language) not in text


@FAMILY
def test_a_model_of_zeros_and_one_that_attends_to_nothing_are_not_visible_instead_of_accurate(language, tmp_path):
    zero, deaf = bert(), bert()
    with torch.no_grad():
        for parameter in zero.backbone.parameters():
            parameter.zero_()
        deaf.backbone.embeddings.position_embeddings.weight.zero_()
        for layer in deaf.backbone.encoder.layer:
            layer.attention.output.dense.weight.zero_()
    for model in (zero, deaf):
        cases = minimal_groups(["fruit", "company"] * 4)
        text, run = page(cases, tmp_path / str(model is deaf), language=language, model=model)
        where = said("readout_target", language)
        assert said("states_invisible", language, readout=where, cause="") in text
        assert said("states_curve", language) not in text
        states = pd.read_csv(run / "tables/states.csv")
        numbers = ["accuracy", "low", "high", "silhouette", "cosine within", "cosine across", "carrier alone"]
        assert states[numbers].isna().all(axis=None) and not states["visible"].any()
        assert states["context embedding"].isna().all() == (model is zero), "its embeddings are the same too"


@FAMILY
def test_one_sense_alone_is_nothing_to_tell_apart(language, tmp_path):
    text, run = page(minimal_groups(["fruit"] * 6), tmp_path, language=language)
    assert said("nothing_to_tell", language, fewest=3, words="苹果 (fruit 6)") in text
    assert language == "zh" or "nothing to tell apart" in text
    assert not (run / "tables/states.csv").exists()


@FAMILY
def test_neutral_cases_alone_are_said_to_have_no_sense(language, tmp_path):
    cases = [case for case in minimal_groups(["fruit"] * 6) if case.sense == "neutral"]
    text, run = page(cases, tmp_path, language=language, cut=False)
    assert said("only_neutral", language) in text
    assert language == "zh" or "Every case that is labelled is neutral" in text
    results = pd.read_csv(run / "tables/results.csv")
    assert results.loc[results["key"].isin(["cue", "control"]), "estimate"].isna().all()
    assert not (run / "tables/states.csv").exists()


def test_a_set_that_names_no_sense_hears_nothing_of_senses(tmp_path):
    text, _ = page([*singles([""] * 4)], tmp_path)
    assert "Senses in the states" not in text and "No minimal group" not in text


@FAMILY
def test_senses_that_stand_in_one_group_each_are_not_decided(language, tmp_path):
    cases = [
        slot_case(f"{sense}{n}", CUES[n], sense, group=sense, carrier=CARRIERS[0])
        for sense, first in (("fruit", 0), ("company", 3))
        for n in range(first, first + 3)
    ]
    text, run = page(cases, tmp_path, language=language)
    assert said("states_undecided", language) in text
    states = pd.read_csv(run / "tables/states.csv")
    assert states[["accuracy", "context embedding", "two characters"]].isna().all(axis=None)


@FAMILY
def test_what_a_causal_model_cannot_see_is_said_word_by_word(language, tmp_path):
    model, tokenizer = FAMILIES["llama"](head=False)
    causal = model_from_parts(model, tokenizer, name="llama")
    first = [
        Case(id=f"a{n}", text=f"苹果{cue}了", target=Span(0, 2), cues=(), sense=sense)
        for n, (cue, sense) in enumerate(zip(CUES, ["fruit", "company"] * 4, strict=False))
    ]
    text, run = page(first, tmp_path / "first", language=language, model=causal)
    cause = message("senses.states_masked", language)
    where = said("readout_later", language)
    assert said("states_invisible", language, readout=where, cause=cause) in text
    later = [
        Case(id=f"b{n}", text=f"{cue}了梨子", target=Span(len(cue) + 1, len(cue) + 3), cues=(), sense=sense)
        for n, (cue, sense) in enumerate(zip(CUES, ["good", "bad"] * 4, strict=False))
    ]
    text, run = page([*first, *later], tmp_path / "both", language=language, model=causal)
    assert said("not_visible", language, layers="0") in text
    assert said("not_visible_words", language, layer=2, words="苹果") in text
    assert said("not_visible_words", language, layer=2, words="苹果, 梨子") not in text
    words = pd.read_csv(run / "tables/words.csv").set_index("word")
    assert np.isnan(words.loc["苹果", "accuracy"]) and words.loc["梨子", "accuracy"] >= 0
    states = pd.read_csv(run / "tables/states.csv")
    assert states["accuracy"].iloc[-1] == words.loc["梨子", "accuracy"], "the word that is not visible does not count"


@FAMILY
def test_the_carrier_alone_has_a_line_a_column_and_a_sentence_of_its_own(language, tmp_path):
    text, run = page(minimal_groups(["fruit", "company"] * 4), tmp_path, language=language)
    states = pd.read_csv(run / "tables/states.csv")
    last = states.iloc[-1]
    assert last["carrier cases"] == 8 and 0 <= last["carrier alone"] <= 1
    numbers = (last["carrier alone"], states["carrier alone"].max(), last["cue in the same groups"])
    shares = dict(zip(("alone", "most", "cued"), (f"{100 * number:.1f} %" for number in numbers), strict=True))
    assert said("carrier", language, cases=8, **shares) in text
    assert said("col_carrier", language) in text and said("carrier_text", language) in text


@FAMILY
def test_several_words_have_a_table_by_word_and_one_word_has_none(language, tmp_path):
    one = singles(["fruit", "company"] * 4)
    two = [
        Case(id=f"m{n}", text=f"他们{CUES[n]}了手机", target=Span(5, 7), cues=(Span(2, 4),), sense=sense)
        for n, sense in enumerate(["call", "gift", "call"] * 3)
    ]
    text, run = page([*one, *two], tmp_path / "two", language=language)
    caption = said("words_table", language, layer=3)
    words = pd.read_csv(run / "tables/words.csv").set_index("word")
    assert caption in text and words["senses"].tolist() == [2, 2] and words["cases"].tolist() == [8, 9]
    assert words["most frequent sense"].tolist() == pytest.approx([0.5, 2 / 3])
    assert words["carrier alone"].isna().all()
    assert caption not in page(one, tmp_path / "one", language=language)[0]
