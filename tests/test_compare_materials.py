"""Comparisons measured for good: every arm of a language model and of a sense reader, on the same items."""

import json
from pathlib import Path

import pytest

from finetune.compare.arms import ARMS
from finetune.compare.items import MEASURES
from finetune.compare.materials import measurer
from finetune.compare.run import compare
from finetune.compare.settings import compare_of
from tests.comparisons import comparison
from tests.finished import lines, sense_texts
from tests.tiny import tiny_bert

CASES = """
cases:
  - {id: f0, text: "我喜欢苹果", target: 苹果, cues: [喜欢], sense: fruit, group: a}
  - {id: f1, text: "他讨厌苹果", target: 苹果, cues: [讨厌], sense: fruit, group: b}
  - {id: c0, text: "新品苹果公司", target: 苹果, cues: [公司], sense: company, group: c}
  - {id: c1, text: "发布苹果手机", target: 苹果, cues: [手机], sense: company, group: d}
"""
KEY = ["measure", "part", "item", "unit", "weight"]


def done(given, folder):
    config = compare_of(given)
    return compare(config, folder=folder, measure=measurer(config, folder, "cpu"), device="cpu")


def by_arm(found):
    return {arm: set(map(tuple, rows[KEY].to_numpy())) for arm, rows in found.items.groupby("arm")}


@pytest.fixture(scope="module")
def senses(tmp_path_factory):
    file = tmp_path_factory.mktemp("cases") / "senses.yaml"
    file.write_text(CASES, encoding="utf-8")
    return str(file)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory, senses):
    """Every arm of a language model but full."""
    place = tmp_path_factory.mktemp("lm")
    arms = [name for name in ARMS if name != "full"]
    given = comparison(
        place / "files", arms=arms, senses=senses, passages={"encoder": "none", "budget": 200, "k": 2},
    )  # fmt: skip
    return done(given, place / "out")


def test_every_arm_of_a_language_model_is_measured_on_the_same_items(spoken):
    assert spoken.missing == {}
    items = by_arm(spoken)
    assert set(items) == set(ARMS) - {"full"}
    own = ("ablated", "passage_share")  # of arms with taught heads, and of those with passages
    shared = {arm: {one for one in given if one[0] not in own} for arm, given in items.items()}
    assert all(given == shared["base"] for given in shared.values())
    assert {one[0] for one in shared["base"]} == set(MEASURES) - set(own)
    heads = {arm for arm, given in items.items() if any(one[0] == "ablated" for one in given)}
    assert heads == {"lora-attention", "lora-random", "lora-attention-rag"}
    shares = {arm for arm, given in items.items() if any(one[0] == "passage_share" for one in given)}
    assert {"rag", "lora-rag", "lora-attention-rag"} <= shares


def test_what_an_arm_is_asked_with_changes_the_answers_and_nothing_else(spoken):
    values = spoken.items.pivot(index=KEY[:3], columns="arm", values="value")
    for arm in ("rag", "gloss", "edge-bias"):
        both = values[[arm, "base"]].dropna()
        moved_measures = set(both[both[arm] != both.base].index.get_level_values("measure"))
        assert "margin" in moved_measures and not moved_measures & {"perplexity", "sense_accuracy", "mass"}
    tokens = spoken.costs.set_index("arm").prompt_tokens
    assert tokens.rag == tokens["lora-rag"] > tokens.base == tokens.lora and tokens.gloss > tokens.base


def test_what_cannot_be_measured_is_said(tmp_path, senses, monkeypatch):
    monkeypatch.delenv("CIJING_DATA", raising=False)
    given = comparison(tmp_path / "files", arms=["base", "gloss"], senses=senses, general=None)
    found = done(given, tmp_path / "out")
    told = json.loads((tmp_path / "out" / "material.json").read_text("utf-8"))["missing"]
    assert "no text was named" in told["general_perplexity"]
    assert "general_perplexity" not in set(found.items.measure)


def test_a_sense_reader_and_its_base_answer_on_the_same_items(tmp_path, senses):
    tiny_bert(tmp_path)
    given = {
        "model": str(tmp_path / "bert"), "task": "sense", "senses": senses, "pairs": {}, "seeds": 0,
        "arms": ["base", "edge-bias", "lora", "lora-attention"], "training": {"max_steps": 2, "use_cpu": True},
        "data": {
            "train": lines(tmp_path / "train.jsonl", sense_texts("train", 24)),
            "test": lines(tmp_path / "test.jsonl", sense_texts("test", 12)), "max_length": 48, "dev_share": 0.2,
        },
    }  # fmt: skip
    found = done(given, tmp_path / "out")
    assert found.missing == {}
    assert json.loads((tmp_path / "out" / "material.json").read_text("utf-8")) == {"missing": {}}
    items = by_arm(found)
    assert all(given == items["base"] for given in items.values())
    assert {one[0] for one in items["base"]} >= {"accuracy", "cut", "mass", "sense_accuracy", "sink"}
    right = found.items[found.items.measure == "accuracy"].groupby("arm").value.mean()
    assert right.base > 0.8  # its head is fitted; two steps of the others' teach hardly anything
    assert Path(tmp_path / "out" / "report" / "tables" / "items.parquet").is_file()
