"""The whole look: a planted head is found by the page's own numbers, runs repeat byte for byte, thin data is said."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from probe import attention_story, causes_story, pages, summary_story
from probe.capture import capture, prepare
from probe.captures import CaptureOptions
from probe.cases import Case, CaseSet, case_of, load_cases
from probe.errors import ModelError
from probe.findings import MASS_BACK, MASS_ON_CONTROL, MASS_ON_CUE, crossed_frame, crossed_pairs, results_of
from probe.measures.focus import FOCUS
from probe.models import facts_of, load_model, model_from_parts
from probe.observing import StudySettings, observe
from probe.routes import route_of
from probe.runs import open_run
from probe.selfcheck import check_model
from probe.spans import Span
from probe.story import Story
from probe.study import polysemy_of, run_report
from tests.browsing import opened
from tests.planted import HEAD, LAYER, planted_cases, planted_model
from tests.tiny import FAMILIES


def look(model, cases, path, **settings):
    with open_run(path) as folder:
        run_report(model, cases, settings=StudySettings(**settings), folder=folder)
    return path


def told(loaded, cases, path, **settings):
    """The story of a look, before it becomes a page."""
    settings, case_set = StudySettings(**settings), CaseSet(name="t", cases=tuple(cases))
    route, items = route_of(loaded), prepare(loaded, case_set.cases)
    with open_run(path / "run") as folder:
        observed = observe(
            loaded, route, items, settings=settings, folder=folder,
            append=lambda frame: None, tell=lambda *_: None,
        )  # fmt: skip
        folder.write_text("report.html", "")
    return Story(
        model=facts_of(loaded), case_set=case_set, observed=observed, results=results_of(observed),
        crossed=pd.DataFrame(),
        check=check_model(loaded), route=route, language="en", polysemy=polysemy_of(observed, language="en"),
        reference=(), scores=(), readings=(), under_cuts=None,
    )  # fmt: skip


def words_of(path):
    """The page as text, its script and style left out."""
    page = (path / "report.html").read_text()
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return look(planted_model(), planted_cases(), tmp_path_factory.mktemp("planted") / "run")


def test_the_planted_head_is_found_by_the_pages_own_numbers(planted):
    results = pd.read_csv(planted / "tables/results.csv")
    gaps = results[(results["contrast"] == "cue − control") & (results["query"] == "target") & (results["head"] >= 0)]
    best = gaps.loc[gaps["estimate"].idxmax()]
    assert (best["layer"], best["head"]) == (LAYER, HEAD)
    assert best["low"] > 0.2 and gaps.drop(best.name)["estimate"].abs().max() < 1e-6
    text = words_of(planted)
    assert f"layer {LAYER}, head {HEAD}" in text and "the cue has more" in text
    assert "moves it more in 12 of 12 cases" in text and "the cue moves it more" in text
    assert "One head stands out: layer" in text, "a model of one stack need not name it"
    assert "These sentences are the user's own" in text.replace("&#39;", "'")


@pytest.mark.browser
def test_the_written_page_opens_without_error_or_request_and_shows_the_planted_head(browser, planted):
    with opened(browser, planted / "report.html", width=1280) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= 1280
        assert f"layer {LAYER}, head {HEAD}" in tab.locator("main").inner_text()
        tab.locator(".cases li").nth(1).click()
        assert "苹" in tab.locator(".sentence").inner_text()
        assert tab.locator("main img").count() == len(list((planted / "figures").glob("*.png")))


def test_effects_stand_where_the_head_was_planted(planted):
    results = pd.read_csv(planted / "tables/results.csv")
    cuts = results[(results["measure"] == "cut effect") & (results["key"] == "cue") & (results["contrast"] == "mean")]
    by_layer = cuts.set_index("layer")["estimate"]
    assert by_layer[LAYER] > 0.01 and by_layer[0] == by_layer[1] == 0


def test_every_number_can_be_traced_to_a_table(planted):
    observations = pd.read_parquet(planted / "tables/observations.parquet")
    results = pd.read_parquet(planted / "tables/results.parquet")
    assert list(observations.columns) == [
        "model", "arm", "seed", "case", "stack", "layer", "head", "query", "key", "weighting", "measure", "value",
    ]  # fmt: skip
    assert list(results.columns) == [
        "model", "stack", "layer", "head", "query", "key", "weighting", "measure", "contrast", "unit", "n",
        "estimate", "low", "high", "control", "p", "p_max",
    ]  # fmt: skip
    one = observations[
        (observations["measure"] == "attention mass")
        & (observations["query"] == "target") & (observations["key"] == "cue")
        & (observations["layer"] == LAYER) & (observations["head"] == HEAD)
    ]  # fmt: skip
    row = results[
        (results["measure"] == "attention mass") & (results["query"] == "target") & (results["key"] == "cue")
        & (results["layer"] == LAYER) & (results["head"] == HEAD) & (results["contrast"] == "mean")
    ]  # fmt: skip
    assert len(one) == 12 and row["estimate"].item() == pytest.approx(one["value"].mean(), abs=1e-6)
    manifest = json.loads((planted / "manifest.json").read_text())
    assert manifest["check"]["path"] == "tap" and manifest["data"]["cases"] == 12
    assert {"capture", "cut edges", "statistics", "page"} <= manifest["seconds"].keys()
    assert len(list((planted / "figures").glob("*.png"))) in range(4, 13)


def test_the_same_run_gives_the_same_bytes(planted, tmp_path):
    again = look(planted_model(), planted_cases(), tmp_path / "again")
    files = [
        path.relative_to(planted) for path in planted.rglob("*") if path.is_file() and path.name != "manifest.json"
    ]
    assert len(files) > 8
    for name in files:
        assert (planted / name).read_bytes() == (again / name).read_bytes(), name


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_causal_models_and_encoder_decoders_say_how_they_read(family, language, tmp_path):
    model, tokenizer = FAMILIES[family](head=False)
    path = look(model_from_parts(model, tokenizer, name=family), planted_cases(), tmp_path / "run", language=language)
    text = words_of(path)
    said = {
        ("gpt2", "en"): "This model is causal",
        ("gpt2", "zh"): "这个模型是因果的",
        ("t5", "en"): "both sides of this encoder-decoder",
        ("t5", "zh"): "两侧放的是同一文本",
    }
    assert said[family, language] in text
    assert f'lang="{"zh" if language == "zh" else "en"}' in (path / "report.html").read_text()


@pytest.mark.parametrize(
    ("cases", "words"),
    [
        ([case_of("我喜欢苹果但讨厌梨子", target="苹果", cues=["喜欢"], id="one")], "too few units for an interval"),
        ([case_of("苹", target="苹", id="one")], "1 case was read, 0 with a cue word"),
        ([case_of("苹果喜欢", target="苹果", cues=["喜欢"], id="one")], "1 case has no other word that could serve"),
        ([case_of("我喜欢苹果", target="苹果", id=str(i)) for i in range(3)], "Too few cue words"),
        ([case_of("我喜欢苹果", target="苹果", id="one")], "Without cues: in"),
    ],
    ids=["one case", "one character", "no control", "no cues", "no cut"],
)
def test_thin_data_is_said_and_never_computed_into_nonsense(cases, words, tmp_path):
    model, tokenizer = FAMILIES["bert"](head=False)
    path = look(
        model_from_parts(model, tokenizer, name="thin"), CaseSet(name="thin", cases=tuple(cases)), tmp_path / "r"
    )
    text = words_of(path)
    assert words in text and "nan" not in text.lower().split()
    assert any(case.cues for case in cases) or "Edges were not cut" not in text, "every word's edge was cut"


def test_without_a_cut_layer_there_is_no_curve_and_no_row_of_dashes(tmp_path):
    path = look(planted_model(), planted_cases(), tmp_path / "run", layer_cut_cases=0, reference_cases=0)
    assert "No edges were cut layer by layer" in words_of(path)
    assert not (path / "figures/cut_effect.png").exists()


@pytest.mark.parametrize(
    ("cue_mass", "words"),
    [
        (np.full(12, 0.4), ("One head stands out: layer", "the cue has more")),
        (np.full(12, 0.2), ("No head holds up: layer", "by −10.0", "the cue has less")),
        (np.tile([0.1, 0.5], 6), ("No head holds up: layer", "no difference can be shown")),
    ],
    ids=["above", "below", "holds zero"],
)
def test_what_is_said_of_the_chosen_head_follows_its_interval(cue_mass, words, tmp_path):
    story = told(planted_model(), planted_cases().cases, tmp_path)
    grid = story.observed.focus.copy()
    grid[:, FOCUS.index(MASS_ON_CUE)] = cue_mass[:, None, None]
    grid[:, FOCUS.index(MASS_ON_CONTROL)] = 0.3
    (said,) = summary_story._head_words(replace(story, observed=replace(story.observed, focus=grid)))
    assert all(word in said for word in words), said
    assert "more than the control" not in said or words[0].startswith("One")


def test_kinds_are_compared_on_cases_with_both_words_only(tmp_path):
    model, tokenizer = FAMILIES["bert"](head=False)
    cases = (
        case_of("苹果喜欢", target="苹果", cues=["喜欢"], id="no control"),
        case_of("我们喜欢苹果", target="苹果", cues=["喜欢"], id="both"),
    )
    loaded = model_from_parts(model, tokenizer, name="bert")
    cut, uncut = (
        words_of(look(loaded, CaseSet(name="two", cases=cases), tmp_path / str(cut), cut=cut, reference_cases=0))
        for cut in (True, False)
    )
    assert "n with control, cut" in cut and "Cut-edge effect (every layer) and" in cut
    row = cut.split("mass on control", 1)[-1]
    assert re.search(r"– 2 1 0\.\d+ 0\.\d+ 1 0\.\d+ 0\.\d+", row)
    assert "n with control kind" not in uncut and "Cut-edge effect" not in uncut
    assert re.search(r"– 2 1 0\.\d+ 0\.\d+ ", uncut)


def test_where_no_case_has_a_cue_there_is_no_table_of_heads_and_none_of_kinds(tmp_path):
    cases = [case_of(text, target="苹果", id=text) for text in ("我喜欢苹果", "苹果手机")]
    without = told(planted_model(), cases, tmp_path / "without")
    assert attention_story.maps_section(without, {}).tables == ()
    assert list(attention_story.kind_sections(without)) == []
    story = told(planted_model(), planted_cases().cases, tmp_path / "with")
    assert len(attention_story.maps_section(story, {}).tables[0].rows) == 10
    (kinds,) = attention_story.kind_sections(story)
    assert sum(row[1] for row in kinds.tables[0].rows) == 12


def test_where_no_sentence_was_to_be_kept_there_is_no_viewer(tmp_path):
    none = told(planted_model(), planted_cases().cases, tmp_path / "none", sentences=0)
    assert list(attention_story.sentence_sections(none)) == []
    (some,) = attention_story.sentence_sections(
        told(planted_model(), planted_cases().cases, tmp_path / "some", sentences=5)
    )
    assert len(some.sentences.items) == 5 and some.sentences.omitted == 7


def test_the_curve_draws_the_cue_on_the_cases_that_have_a_control(tmp_path):
    model, tokenizer = FAMILIES["bert"](head=False)
    loaded = model_from_parts(model, tokenizer, name="bert")
    cases = [case_of("苹果喜欢", target="苹果", cues=["喜欢"], id="alone"), *planted_cases().cases]
    story = told(loaded, cases, tmp_path)
    frame = causes_story.paired_layers(story)
    gap = story.results[(story.results["measure"] == "cut effect") & (story.results["contrast"] == "cue − control")]
    gap = gap[gap["layer"] >= 0]
    cue = frame[frame["edge"] == "edge to the cue"]["estimate"].to_numpy()
    assert cue == pytest.approx((gap["control"] + gap["estimate"]).to_numpy(), abs=1e-6)
    alone = story.results[(story.results["measure"] == "cut effect") & (story.results["contrast"] == "mean")]
    alone = alone[(alone["key"] == "cue") & (alone["layer"] >= 0)]["estimate"].to_numpy()
    assert np.abs(cue - alone).max() > 1e-6, "the case without a control would have moved the line"


def test_where_the_cue_reads_the_viewer_and_the_crossed_pairs_take_its_row(tmp_path):
    model, tokenizer = FAMILIES["gpt2"](head=False)
    loaded = model_from_parts(model, tokenizer, name="gpt2")
    text = "苹果手机和香蕉公司"
    cases = [
        Case(id="back", text=text, target=Span(0, 2), cues=(Span(2, 4),), group="g"),
        Case(id="other", text=text, target=Span(5, 7), cues=(Span(2, 4),), group="h"),
        Case(id="pair", text=text, target=Span(5, 7), cues=(Span(7, 9),), group="g"),
    ]
    story = told(loaded, cases, tmp_path)
    assert set(story.observed.cue_rows) == {0, 2}
    back, other, _ = attention_story.sentences_section(story).sentences.items
    item = story.observed.items[0]
    assert (
        back.target == item.cues[0] and back.cues == item.target and back.note == "cue → target: the later word reads"
    )
    assert other.target == story.observed.items[1].target and not other.note
    given = back.weights[..., list(item.target)].sum(-1)
    assert given == pytest.approx(story.observed.values(MASS_BACK)[0], abs=1e-6) and (given > 0).all()
    crossed = crossed_frame(story.observed, crossed_pairs(story.observed.items, most=9), None).set_index("case")
    assert crossed.loc["back", "mass on own"] == pytest.approx(given.mean(), abs=1e-6)
    assert np.isnan(crossed.loc["back", "mass on other"]), "the other's cue comes later"
    assert crossed.loc["pair", "mass on other"] > 0


def test_only_shipped_sentences_are_said_to_be_written_for_this_tool():
    shipped = load_cases("apple")
    assert pages._is_shipped(shipped)
    own = CaseSet(name="apple", cases=(case_of("我的苹果", target="苹果", id="own"),))
    assert not pages._is_shipped(own) and not pages._is_shipped(planted_cases())


def test_a_model_on_the_eager_path_gets_a_report_that_says_so(tmp_path):
    import transformers

    from tests.tiny import byte_level_tokenizer

    tokenizer = byte_level_tokenizer(start=None, end="<|endoftext|>", pad="<|pad|>")
    config = transformers.BloomConfig(vocab_size=len(tokenizer), hidden_size=32, n_layer=2, n_head=4)
    model = model_from_parts(transformers.BloomModel(config), tokenizer, name="bloom")
    text = words_of(look(model, planted_cases(), tmp_path / "run"))
    assert "not from the tap" in text and "Edges were not cut" in text


def test_chosen_layers_and_heads_keep_their_numbers(tmp_path):
    path = look(planted_model(), planted_cases(), tmp_path / "run", layers=frozenset({0, 2}), heads=frozenset({1, 3}))
    results = pd.read_csv(path / "tables/results.csv")
    assert set(results.loc[results["measure"] == "entropy", "layer"]) == {0, 2}
    assert set(results.loc[results["measure"] == "entropy", "head"]) == {1, 3}
    gaps = results[(results["contrast"] == "cue − control") & (results["head"] >= 0) & (results["query"] == "target")]
    assert gaps.loc[gaps["estimate"].idxmax(), ["layer", "head"]].tolist() == [LAYER, HEAD]


def test_a_model_of_zeros_gets_a_page_that_says_why_no_edge_was_measured(tmp_path):
    model, tokenizer = FAMILIES["llama"](head=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    text = words_of(look(model_from_parts(model, tokenizer, name="zero"), planted_cases(), tmp_path / "run"))
    assert "last states are all zero" in text and "nan" not in text.lower().split()


def test_a_last_state_that_is_not_finite_is_refused_and_nothing_is_left(tmp_path):
    model, tokenizer = FAMILIES["bert"](head=False)
    with torch.no_grad():
        model.encoder.layer[2].output.dense.weight.fill_(float("nan"))
    with pytest.raises(ModelError, match=r"last state of case .* not finite"):
        look(model_from_parts(model, tokenizer, name="nan"), planted_cases(), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_nothing_behind(tmp_path):
    with pytest.raises(Exception, match="99"):
        look(planted_model(), planted_cases(), tmp_path / "run", layers=frozenset({99}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("asked", "device", "tokens"), [(None, "cpu", 512), (None, "cuda", 8192), (64, "cpu", 64), (64, "cuda", 64)]
)
def test_a_batch_has_as_many_tokens_as_asked_for_or_as_suit_the_device(asked, device, tokens):
    settings = StudySettings(batch_tokens=asked)
    assert settings.tokens_on(torch.device(device)) == settings.options(torch.device(device)).batch_tokens == tokens


@pytest.mark.real
@pytest.mark.parametrize("name", ["builtin:e5-small", "builtin:gemma3-270m"])
def test_every_shipped_case_is_captured_on_both_real_models(name):
    model = load_model(name)
    for cases in (load_cases("relations"), load_cases("apple")):
        count = 0
        for one in capture(model, cases.cases, options=CaptureOptions(states=False)):
            count += 1
            shown = "".join(dict.fromkeys(one.tokens.labels[token] for token in one.target))
            assert one.case.target.cut(one.case.text) in shown, "the tokens of a target hold its characters"
            assert np.isfinite(one.rows).all() and np.allclose(one.rows.sum(-1), 1, atol=1e-5)
            if model.kind == "decoder":
                later = np.arange(one.rows.shape[3])[None, :] > np.array(one.queries)[:, None]
                assert (one.rows[:, :, later] == 0).all()
        assert count == len(cases.cases)


@pytest.mark.real
@pytest.mark.parametrize("name", ["builtin:e5-small", "builtin:gemma3-270m"])
def test_both_real_models_read_the_shipped_cases(name, tmp_path):
    whole = load_cases("relations")
    some = CaseSet(name="relations", cases=whole.cases[:20])
    path = look(load_model(name), some, tmp_path / "run", layer_cut_cases=2)
    manifest = json.loads((path / "manifest.json").read_text())
    assert "fail" not in manifest["check"].values(), manifest["check"]
    results = pd.read_csv(path / "tables/results.csv")
    cut = results[(results["measure"] == "cut effect") & (results["layer"] == -1)]
    mean = cut[cut["contrast"] == "mean"].set_index("key")["estimate"]
    assert 0 < mean["control"] < mean["cue"] < 1, "real cues move a real model more than their controls"
    masses = results[results["measure"] == "attention mass"]["estimate"].dropna()
    assert len(masses) > 200 and masses.between(-1, 1).all()
    text = words_of(path)
    assert "我喜欢苹果但讨厌梨子" in text
