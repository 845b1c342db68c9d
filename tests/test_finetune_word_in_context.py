"""Two sentences, one word: its targets as a supervised pair, the control beside it, and what a comparison measures."""

import json

import pytest
import torch
from transformers import AutoModel

from finetune.compare.arms import ARMS, ArmModel
from finetune.compare.measuring import JobMaterial, measure_job
from finetune.config import config_of
from finetune.encode import TARGET_RULE
from finetune.errors import ConfigError
from finetune.material import texts_of
from finetune.prepare import prepare_run
from finetune.runfolder import open_run_folder
from finetune.scoring import class_scores
from finetune.train import train
from probe import load_model
from tests.finished import lines
from tests.tiny import tiny_bert

FRUIT = ("我喜欢苹果", "他讨厌苹果", "牛顿被苹果砸中", "我们热爱苹果")
FIRM = ("苹果公司发布了新品", "苹果手机", "公司发布了苹果手机", "新品苹果手机")


def pairs_of_texts(name, groups):
    """Both labels, two sentences each, groups apart."""
    rows = []
    for number, group in enumerate(groups):
        for label, first, second in (("same", FRUIT, FRUIT), ("same", FIRM, FIRM), ("different", FRUIT, FIRM)):
            one, two = first[number % 4], second[(number + 1) % 4]
            rows.append({
                "id": f"{name}{group}{len(rows)}", "group": group, "text": f"{name}{one}", "target": "苹果",
                "second": f"{two}{name}", "second_target": "苹果", "label": label,
            })  # fmt: skip
    return rows


@pytest.fixture
def given(tmp_path):
    tiny_bert(tmp_path)
    train_file, test_file = (
        lines(tmp_path / f"{name}.jsonl", pairs_of_texts(mark, groups))
        for name, mark, groups in (("train", "他", ("a", "b", "c", "d")), ("test", "我", ("x", "y")))
    )

    def config(**more):
        data = {"train": train_file, "test": test_file, "dev_share": 0, "max_length": 48, **more.pop("data", {})}
        return {
            "model": str(tmp_path / "bert"), "task": "word-in-context", "data": data, "out": str(tmp_path / "run"),
            "training": {"max_steps": 3, "per_device_train_batch_size": 4, "use_cpu": True, "save_strategy": "no"},
            **more,
        }  # fmt: skip

    return config


def test_two_targets_of_one_sense_are_a_pair_both_ways_and_those_of_two_senses_none(given):
    prepared = prepare_run(config_of(given(pairs={"targets": True})), device="cpu")
    same = prepared.encoding.labels.index("same")
    for document in prepared.train.documents:
        ends = {(pair.queries, pair.keys) for pair in document.pairs}
        there, back = (document.second_target, document.target), (document.target, document.second_target)
        assert ends == ({there, back} if document.label == same else set())
        assert {pair.rule for pair in document.pairs} <= {TARGET_RULE}
    assert prepared.pairs.met_in_all == 16


def test_without_being_asked_for_no_target_is_a_pair_and_the_file_is_as_it_was(given):
    config = config_of(given(pairs={}, attention={"mode": "none"}))
    assert not any(document.pairs for document in prepare_run(config, device="cpu").train.documents)
    assert "targets" not in config.model_dump()["pairs"]
    assert config_of(given(pairs={"targets": True})).model_dump()["pairs"]["targets"] is True


def test_the_control_of_targets_stands_on_other_words(given):
    asked = {"pairs": {"targets": True}, "attention": {"mode": "random"}}
    prepared = prepare_run(config_of(given(**asked)), device="cpu")
    assert len(prepared.swaps) == 16 and any(swap.random is not None for swap in prepared.swaps)
    for document in prepared.train.documents:
        targets = {*document.target, *document.second_target}
        assert not targets & {place for pair in document.pairs for place in (*pair.queries, *pair.keys)}


def test_the_control_is_matched_by_what_the_model_reads_token_types_among_it(given, tmp_path):
    """A tokenizer that tells the two sentences apart: the base mass of a pair is that of the batch's own input."""
    folder = tmp_path / "bert"
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    model = load_model(str(folder), device="cpu").model
    with torch.no_grad():
        model.embeddings.token_type_embeddings.weight[1] += torch.linspace(-3, 3, 32)
    model.save_pretrained(folder)
    asked = {"pairs": {"targets": True}, "attention": {"mode": "random", "heads": [[1, 0]]}}
    prepared = prepare_run(config_of(given(**asked)), device="cpu")
    eager = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    document = prepared.true[0]
    assert document.token_types is not None and document.token_types.max() == 1
    ids, types = (torch.tensor(part[None]) for part in (document.input_ids, document.token_types))
    with torch.no_grad():
        rows = eager(input_ids=ids, token_type_ids=types, output_attentions=True).attentions[1][0, 0]
    pair, swap = document.pairs[0], prepared.swaps[0]
    wanted = float(rows[list(pair.queries)][:, list(pair.keys)].sum(-1).mean())
    assert swap.true_mass == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    "more", [{"data": {"pair_encoding": "separate"}}, {"task": "sense"}], ids=["two sequences", "one sentence"]
)
def test_targets_that_share_no_sequence_are_refused(given, more):
    with pytest.raises(ConfigError, match=r"pairs\.targets: allowed with task word-in-context and .* joint"):
        config_of(given(pairs={"targets": True}, **more))


@pytest.mark.parametrize("asked", [{"pairs": {"targets": True}}, {"data": {"pair_encoding": "separate"}}])
def test_a_comparison_measures_which_pairs_are_told_rightly(given, asked):
    run = open_run_folder(train(config_of(given(**asked)), device="cpu").folder, device="cpu")
    texts = texts_of(run.config, run.learner.loaded, data=run.config.data, seed=0, tell=lambda *_: None)
    arm = ArmModel(arm=ARMS["lora"], seed=0, loaded=run.learner.loaded, model=run.model, run=run)
    found = measure_job(arm, JobMaterial(texts=texts))
    told = {one.item: one.value for one in found.items if one.measure == "accuracy"}
    wanted = class_scores(run.model, texts.documents, collator=texts.collator).argmax(1)
    assert told == {one.id: float(one.label == said) for one, said in zip(texts.documents, wanted, strict=True)}
    assert len(told) == 6 and {one.unit for one in found.items if one.measure == "accuracy"} == {"x", "y"}
    masses = [one for one in found.items if one.measure == "mass"]
    assert {one.part for one in masses} == ({"pairs of targets"} if "pairs" in asked else set())
