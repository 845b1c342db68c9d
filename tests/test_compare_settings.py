"""A comparison's file: unknown keys, arms that make no sense, what an arm cannot be without, the runs that follow."""

import pytest
import yaml

from finetune.compare.arms import ARMS
from finetune.compare.settings import compare_of, load_compare, run_of, runs_needed
from finetune.errors import ConfigError

GIVEN = {
    "model": "builtin:gemma3-270m", "task": "causal-lm", "data": {"train": "biochem/train", "test": "biochem/test"},
    "pairs": {"file": "biochem", "direction": "either"}, "training": {"max_steps": 3}, "questions": "biochem",
    "more_text": "chips/train", "glosses": "glosses.jsonl", "arms": ["base", "lora", "lora-attention"], "seeds": [0, 1],
}  # fmt: skip
ALL_BUT_FULL = [name for name in ARMS if name != "full"]


def test_all_arms_go_together_where_everything_is_given():
    config = compare_of({**GIVEN, "arms": ALL_BUT_FULL})
    assert [arm.name for arm in config.chosen] == ALL_BUT_FULL
    assert config.questions == ("biochem",) and config.passages.k == 3 and config.edge_bias == 2.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"traning": {}}, "traning: unknown key; did you mean training?"),
        ({"data": {"train": "a", "txt": "b"}}, r"data\.txt: unknown key; did you mean text?"),
        ({"passages": {"K": 2}}, r"passages\.K: unknown key.*allowed: k, budget, encoder"),
        ({"arms": ["base", "lroa"]}, "no arm 'lroa'; did you mean lora?.*allowed: base, gloss, edge-bias"),
        ({"arms": ["lora"]}, "arms: base is missing"),
        ({"arms": ["base"]}, "base alone is compared with nothing"),
        ({"arms": ["base", "lora", "lora"]}, "arms: lora is named 2 times; allowed is once"),
        ({"seeds": [0, 1, 1]}, "seeds: 1 is named 2 times"),
        ({"seeds": []}, "seeds: .*at least 1"),
        ({"seeds": [True]}, r"seeds: \[true\] is no number"),
        ({"pairs": None}, "pairs: lora-attention needs them"),
        ({"pairs": None, "arms": ["base", "lora-random"]}, "pairs: lora-random needs them"),
        ({"pairs": None, "arms": ["base", "lora-attention-rag"]}, "pairs: lora-attention-rag needs them"),
        ({"arms": ["base", "lora-more-text"], "more_text": []}, "more_text: lora-more-text needs sources"),
        ({"more_text": "biochem/train"}, r"more_text: biochem/train stands in data\.train already"),
        ({"arms": ["base", "gloss"], "glosses": []}, "glosses: gloss needs them"),
        ({"arms": ["base", "rag"], "questions": []}, "questions: rag is measured on them"),
        ({"arms": ["base", "edge-bias"], "questions": []}, "questions: edge-bias is measured on them"),
        ({"edge_bias": 0}, "edge_bias: 0 changes nothing"),
        ({"edge_bias": 1000}, "edge_bias: .*50"),
        ({"edge_bias": float("nan")}, "edge_bias: .*finite"),
        ({"task": "sense"}, "questions: they are put to causal language models, and the task is sense"),
        ({"task": "sense", "questions": [], "arms": ["base", "rag"]}, "rag makes no sense for task sense"),
        ({"task": "masked-lm", "questions": [], "arms": ["base", "edge-bias"]}, "edge-bias makes no sense for"),
        ({"task": "sense", "questions": [], "pairs": None, "arms": ["base", "edge-bias"]}, "edge-bias needs them"),
        ({"attention": {"mode": "random"}}, "attention: mode is not set here: each arm has its own"),
        ({"training": {"push_to_hub": True}}, "push_to_hub is not set here: no run of a comparison is uploaded"),
        ({"training": {"max_step": 3}}, "no TrainingArguments field 'max_step'; did you mean max_steps?"),
        ({"training": {"metric_for_best_model": "pair_mass"}}, "'pair_mass' is not measured on dev"),
        ({"data": {"train": "biochem/train", "streaming": True}, "arms": ["base", "rag"]}, "rag finds passages"),
        (
            {
                "task": "word-in-context", "questions": [], "arms": ["base", "lora-random"],
                "data": {"train": "a.jsonl", "pair_encoding": "separate"},
            },
            r"arm lora-random: .*attention\.mode random with word-in-context",
        ),
        ({"pairs": {"targets": True}, "arms": ["base", "lora"]}, r"pairs\.targets: allowed with task word-in-context"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_in_one_line(changes, said):
    with pytest.raises(ConfigError, match=said) as caught:
        compare_of({**GIVEN, **changes}, name="mine.yaml")
    assert str(caught.value).startswith("mine.yaml") and "\n" not in str(caught.value)


def test_several_contradictions_are_told_together():
    with pytest.raises(ConfigError, match=r"seeds: 1 is named 2 times.*pairs: lora-attention needs them"):
        compare_of({**GIVEN, "seeds": [1, 1], "pairs": None})


def test_an_arm_that_needs_the_run_of_another_has_it_trained_though_it_is_not_compared():
    def names(*arms):
        return [arm.name for arm in runs_needed(compare_of({**GIVEN, "arms": ["base", *arms]}))]

    assert names("lora-random") == ["lora-attention", "lora-random"]
    assert names("lora-more-text") == ["lora", "lora-more-text"]
    assert names("lora-attention-rag", "lora-rag") == ["lora", "lora-attention"]
    assert names("rag", "gloss", "edge-bias") == []


def test_the_runs_differ_in_what_their_arms_say_and_in_nothing_else():
    config = compare_of({**GIVEN, "arms": ALL_BUT_FULL, "lora": {"r": 5}, "attention": {"threshold": 0.4}})
    runs = {arm.name: run_of(config, arm, seed=7) for arm in runs_needed(config)}
    assert {name: (run.supervised, run.attention.mode) for name, run in runs.items() if run.pairs} == {
        "lora-attention": (True, "pairs"), "lora-random": (True, "random"),
    }  # fmt: skip
    assert {run.attention.threshold for run in runs.values() if run.pairs} == {0.4}
    assert runs["lora-more-text"].data.train == ("biochem/train", "chips/train")
    shared = [run.model_dump(exclude={"pairs", "attention", "data"}) for run in runs.values()]
    assert all(one == shared[0] for one in shared) and shared[0]["seed"] == 7 and shared[0]["lora"]["r"] == 5
    others = {run.data.model_dump_json(exclude={"train"}) for run in runs.values()}
    assert len(others) == 1


def test_full_fine_tuning_is_asked_for_without_an_adapter():
    full = ARMS["full"]
    assert full.overrides == {"method": "full"} and not full.adapted and full.trained and not full.supervised


def test_a_file_is_read_with_options_over_it_and_named_in_what_is_wrong(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(GIVEN), encoding="utf-8")
    assert load_compare(file, overrides={"seeds": 4, "arms": ["base", "rag"]}).seeds == (4,)
    with pytest.raises(ConfigError, match=r"mine\.yaml: lora\.rr: unknown key"):
        load_compare(file, overrides={"lora.rr": 3})
    with pytest.raises(ConfigError, match="cannot be read"):
        load_compare(tmp_path / "none.yaml")


def test_full_fine_tuning_may_take_smaller_steps_than_an_adapter():
    config = compare_of({**GIVEN, "arms": list(ARMS), "training_full": {"learning_rate": 1e-5}})
    rates = {arm.name: run_of(config, arm, seed=0).training for arm in runs_needed(config)}
    assert rates.pop("full") == {"max_steps": 3, "learning_rate": 1e-5}
    assert all(training == {"max_steps": 3} for training in rates.values())
    assert run_of(config, ARMS["lora"], seed=0).training == {"max_steps": 3}  # after full's was made
    with pytest.raises(ConfigError, match="training_full: the arm full is not among arms"):
        compare_of({**GIVEN, "training_full": {"learning_rate": 1e-5}})
    with pytest.raises(ConfigError, match="training_full: max_steps would have full trained on other steps"):
        compare_of({**GIVEN, "arms": list(ARMS), "training_full": {"max_steps": 9}})
    with pytest.raises(ConfigError, match="no TrainingArguments field 'learning_rat'"):
        compare_of({**GIVEN, "arms": list(ARMS), "training_full": {"learning_rat": 1e-5}})
