"""Several models side by side: a row a model, the confound in words, and one model in memory at a time."""

import json
import weakref
from dataclasses import replace

import pandas as pd
import pytest
import transformers
import yaml

from probe.cases import Case, CaseSet
from probe.changes import changes_between, load_run, summary_of
from probe.experiments.causes import EVERYWHERE
from probe.models import model_from_parts
from probe.models_story import _accuracy_curve, _gap_curve, side_by_side
from probe.observing import StudySettings
from probe.runs import open_run
from probe.spans import Span
from probe.study import run_report
from tests.planted import CUES, planted_cases
from tests.test_study import told, words_of
from tests.tiny import FAMILIES, tiny_bert, wordpiece_tokenizer

QUICK = {"reference_cases": 0, "layer_cut_cases": 6, "head_cut_cases": 5, "sentences": 4}
SIZES = {"bert": {}, "gpt2": {"n_layer": 2, "n_positions": 128}, "t5": {}}


def tiny(family, *, name="", **changes):
    model, tokenizer = FAMILIES[family](head=False, **{**SIZES.get(family, {}), **changes})
    return model_from_parts(model, tokenizer, name=name or family)


def sense_cases():
    """Two senses in six groups, so that the states of the targets are told apart."""
    cases = []
    for number, cue in enumerate(CUES):
        text = f"我们{cue}了苹果酶氢他们被"
        where = text.index("苹果")
        sense, group = ("fruit", "firm")[number % 2], f"g{number // 2}"
        cue_at = (Span(2, 2 + len(cue)),)
        cases.append(
            Case(
                id=f"s{number}", text=text, target=Span(where, where + 2), cues=cue_at, sense=sense, group=group
            )
        )  # fmt: skip
    return CaseSet(name="two senses", cases=tuple(cases))


def run(models, cases, path, **settings):
    with open_run(path) as folder:
        run_report(models, cases, settings=StudySettings(**{**QUICK, **settings}), folder=folder)
    return path


def stories(names, cases, tmp_path):
    found = []
    for place, name in enumerate(names):
        (tmp_path / str(place)).mkdir()
        found.append(told(tiny(name.split()[0], name=name), cases.cases, tmp_path / str(place), **QUICK))
    return found


def cells(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    names = ("bert", "gpt2")
    path = tmp_path_factory.mktemp("both") / "run"
    return run((tiny(name) for name in names), sense_cases(), path, reference_cases=12)


def test_every_table_has_the_rows_of_both_models(both):
    for table in ("observations.parquet", "results.parquet", "results.csv", "cases.csv", "states.csv"):
        path = both / "tables" / table
        frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
        assert list(dict.fromkeys(frame["model"])) == ["bert", "gpt2"], table
    results = pd.read_csv(both / "tables/results.csv")
    assert results.groupby("model")["layer"].max().to_dict() == {"bert": 2, "gpt2": 1}


def test_the_cases_table_counts_each_models_own_tokens(both):
    frame = pd.read_csv(both / "tables/cases.csv").set_index(["model", "case"])
    for name in ("bert", "gpt2"):
        tokenizer = tiny(name).tokenizer
        for case in sense_cases().cases:
            assert frame.loc[(name, case.id), "tokens"] == len(tokenizer(case.text)["input_ids"])
    assert set(frame.loc["bert", "target tokens"]) == {2} and set(frame.loc["gpt2", "target tokens"]) == {1}


def test_manifest_and_config_hold_both_models(both):
    manifest = json.loads((both / "manifest.json").read_text())
    assert list(manifest["model"]) == list(manifest["check"]) == ["bert", "gpt2"]
    assert manifest["model"]["bert"]["fingerprint"] != manifest["model"]["gpt2"]["fingerprint"]
    assert {check["path"] for check in manifest["check"].values()} == {"tap"}
    config = yaml.safe_load((both / "config.yaml").read_text())
    assert config["model"] == ["bert", "gpt2"] and config["device"] == ["cpu", "cpu"]


def test_one_model_is_recorded_as_itself_and_not_as_a_list(tmp_path):
    path = run(tiny("bert"), planted_cases(), tmp_path / "run")
    assert yaml.safe_load((path / "config.yaml").read_text())["model"] == "bert"
    assert json.loads((path / "manifest.json").read_text())["model"]["name"] == "bert"


def test_the_tables_have_a_row_a_model_with_its_own_numbers(tmp_path):
    found = stories(["bert", "gpt2"], sense_cases(), tmp_path)
    given, shown, sensed = side_by_side(found, {}).tables
    assert [row["model"] for row in cells(given)] == [row["model"] for row in cells(shown)] == ["bert", "gpt2"]
    assert [(row["layers"], row["heads"]) for row in cells(given)] == [(3, 4), (2, 4)]
    assert [(row["tokens per target"], row["one-token targets"]) for row in cells(given)] == [(2.0, 0), (1.0, 12)]
    for story, row in zip(found, cells(shown), strict=True):
        results = story.results[(story.results["measure"] == "cut effect") & (story.results["head"] < 0)]
        everywhere = results[(results["layer"] == EVERYWHERE) & (results["contrast"] == "cue − control")]
        assert row["cut: cue − control"] == pytest.approx(everywhere["estimate"].item(), abs=1e-6)
    for story, row in zip(found, cells(sensed), strict=True):
        assert row["sense accuracy, last layer"] == pytest.approx(story.polysemy.states.accuracy[-1])


def test_a_column_without_numbers_is_left_out_and_so_is_a_table(tmp_path):
    found = stories(["bert", "gpt2"], planted_cases(), tmp_path)
    tables = side_by_side(found, {}).tables
    assert [table.caption for table in tables] == ["What each model was given", "What each model shows"]
    assert "random weights: cut" not in tables[1].columns
    assert all(value is not None for table in tables for row in table.rows for value in row)


def test_the_random_twins_stand_in_the_models_own_rows(both):
    text = words_of(both)
    assert "random weights: cut" in text and "random weights: accuracy" in text


def test_the_confound_is_said_where_targets_have_different_tokens(tmp_path):
    text = side_by_side(stories(["bert", "gpt2"], planted_cases(), tmp_path), {}).text
    assert "cut the targets differently" in text[1] and "bert 2.00, gpt2 1.00" in text[1]


def test_the_confound_is_ruled_out_where_they_are_the_same(tmp_path):
    text = side_by_side(stories(["bert", "bert again"], planted_cases(), tmp_path), {}).text
    assert "cannot explain a difference" in text[1] and "differently" not in text[1]


def test_equal_means_of_unlike_targets_are_still_a_confound(tmp_path):
    one, other = stories(["bert", "bert again"], planted_cases(), tmp_path)
    items = list(other.observed.items)
    items[:2] = replace(items[0], target=(3,)), replace(items[1], target=(3, 4, 5))
    changed = replace(other, observed=replace(other.observed, items=tuple(items)))
    assert "differently" in side_by_side([one, changed], {}).text[1]


@pytest.mark.parametrize(
    ("names", "told"), [(["m"] * 2, ["m", "m (2)"]), (["m", "m (2)", "m", "m"], ["m", "m (2)", "m (3)", "m (4)"])]
)
def test_models_of_one_name_are_told_apart(names, told, tmp_path):
    path = run((tiny("bert", name=name) for name in names), planted_cases(), tmp_path / "run", cut=False)
    frame = pd.read_csv(path / "tables/cases.csv")
    assert list(dict.fromkeys(frame["model"])) == told
    assert frame.groupby("model").size().tolist() == [12] * len(told)


def test_curves_of_unlike_depth_end_at_the_whole_depth(tmp_path):
    for story, layers in zip(stories(["bert", "gpt2"], sense_cases(), tmp_path), (3, 2), strict=True):
        cut, senses = _gap_curve(story), _accuracy_curve(story)
        assert cut["depth"].tolist() == pytest.approx([(n + 1) / layers for n in range(layers)])
        assert senses["depth"].tolist() == pytest.approx([n / layers for n in range(layers + 1)])


def test_two_runs_of_two_models_can_be_held_against_each_other(both, tmp_path):
    again = run((tiny(name) for name in ("bert", "gpt2")), sense_cases(), tmp_path / "again", reference_cases=12)
    assert changes_between(load_run(both), load_run(again)).nothing
    other = run((tiny(name, seed=int(name == "gpt2")) for name in ("bert", "gpt2")), sense_cases(), tmp_path / "other")
    found = changes_between(load_run(both), load_run(other))
    assert set(found.rows["model"]) == {"gpt2"} and found.only_a == found.only_b == 0
    assert ("model", "gpt2 fingerprint") in {(fact.what, fact.name) for fact in found.facts}
    assert not summary_of(found)[0].startswith("nothing changed")


BACKBONES: list[weakref.ref] = []
ALIVE: list[int] = []


class Watched(transformers.BertModel):
    """A BERT that notes, when it is built, how many of those built before it are still in memory."""

    def __init__(self, config):
        super().__init__(config, add_pooling_layer=False)
        ALIVE.append(sum(other() is not None for other in BACKBONES))
        BACKBONES.append(weakref.ref(self))


def watched(seed):
    return model_from_parts(Watched(tiny_bert(seed=seed)[0].config), wordpiece_tokenizer(), name=f"seed {seed}")


def test_each_model_is_let_go_before_its_twin_is_built_and_before_the_next_comes(tmp_path):
    ALIVE.clear(), BACKBONES.clear()
    run(map(watched, (0, 1, 2)), planted_cases(), tmp_path / "run", reference_cases=12)
    assert ALIVE == [0] * 6, "model and twin, three times"
