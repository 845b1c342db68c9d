"""Evaluation against numbers worked by hand, against eager attention, and against effects that were planted."""

import json
import math
from hashlib import sha256
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from finetune.batches import collator_of
from finetune.control import mean_attention
from finetune.domains import load_questions
from finetune.edgemeasures import cues_of, pair_masses, placed_pairs, right_class_logs
from finetune.encode import Encoded
from finetune.errors import ConfigError, DataError
from finetune.evaluate import evaluate
from finetune.evaluation import lines_of, rows_of, save_evaluation
from finetune.heads import mass_by_head
from finetune.intervals import (
    Paired,
    accuracy,
    bits_per_character,
    compared,
    interval,
    macro_f1,
    mean,
    perplexity,
)
from finetune.material import data_with_test, material_of, part_of_fact
from finetune.prepare import batches_with_pairs
from finetune.runfolder import open_run_folder
from finetune.scoring import batched, token_scores
from tests.finished import classifier, language_model, lines, sense_reader, texts
from tests.tiny import byte_fallback_tokenizer, tiny_bert, tiny_llama

MEASURES = {"mean": mean}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("evaluated")


@pytest.fixture(scope="module")
def run(root):
    return open_run_folder(language_model(root / "lm"), device="cpu")


@pytest.fixture(scope="module")
def reader(root):
    """Taught for some steps to tell two senses of 苹果."""
    return open_run_folder(sense_reader(root / "sense", count=40, training__max_steps=40), device="cpu")


@pytest.fixture(autouse=True)
def no_shared_data(monkeypatch):
    monkeypatch.delenv("CIJING_DATA", raising=False)


def paired(base, tuned, units):
    arms = [np.stack([np.array(values, dtype=float), np.ones(len(values))], axis=1) for values in (base, tuned)]
    return Paired(base=arms[0], tuned=arms[1], units=units, unit="group", part="here")


# ---- measures by hand ------------------------------------------------------------------------------------------


def test_perplexity_and_bits_are_those_of_the_sums():
    sums = np.array([[2 * math.log(8), 2.0, 3.0], [math.log(2), 1.0, 1.0]])
    assert perplexity(sums[0]) == pytest.approx(8.0)
    assert perplexity(sums.sum(0)) == pytest.approx(2 ** (7 / 3))
    assert bits_per_character(sums.sum(0)) == pytest.approx(7 / 4)


def test_accuracy_and_macro_f1_of_a_table_worked_by_hand():
    table = np.array([[8.0, 2.0, 0.0], [4.0, 6.0, 0.0], [0.0, 0.0, 0.0]])  # the third class does not occur
    assert accuracy(table.ravel()) == pytest.approx(0.7)
    assert macro_f1(table.ravel()) == pytest.approx((16 / 22 + 12 / 18) / 2)


def test_a_class_that_is_only_answered_counts_as_wrong():
    table = np.array([[1.0, 1.0], [0.0, 0.0]])
    assert macro_f1(table.ravel()) == pytest.approx((2 / 3 + 0.0) / 2)


def test_the_difference_is_paired_and_exactly_nothing_where_both_are_the_same():
    values, units = np.random.default_rng(0).random(20), [str(number) for number in range(20)]
    found = compared(paired(values, values, units), MEASURES, seed=0).set_index("arm")
    assert found.loc["difference", ["estimate", "low", "high"]].tolist() == [0.0, 0.0, 0.0]
    shifted = compared(paired(values, values + 0.25, units), MEASURES, seed=0).set_index("arm")
    assert shifted.loc["difference", ["low", "high"]].tolist() == pytest.approx([0.25, 0.25])
    assert shifted.loc["base", "high"] - shifted.loc["base", "low"] > 0.1  # unpaired it could not be so narrow


def test_what_is_drawn_are_groups_and_not_their_texts():
    values = np.repeat(np.random.default_rng(1).random(10), 40)
    by_text = compared(paired(values, values, [str(n) for n in range(400)]), MEASURES, seed=0).iloc[0]
    by_group = compared(paired(values, values, [str(n // 40) for n in range(400)]), MEASURES, seed=0).iloc[0]
    assert by_group.units == 10 and by_group["items"] == 400
    assert by_group.high - by_group.low > 4 * (by_text.high - by_text.low)


def test_an_interval_holds_the_truth_as_often_as_it_says():
    random = np.random.default_rng(2)
    held = 0
    for seed in range(200):
        values = random.normal(size=40)
        found = compared(paired(values, values, [str(n) for n in range(40)]), MEASURES, seed=seed).iloc[0]
        held += found.low <= 0.0 <= found.high
    assert 178 <= held <= 199


def test_below_five_units_there_is_no_interval():
    found = compared(paired([1.0] * 4, [2.0] * 4, list("abcd")), MEASURES, seed=0)
    assert found.low.isna().all() and found.high.isna().all() and found.estimate.tolist() == [1.0, 2.0, 1.0]
    assert all(math.isnan(end) for end in interval(np.full(10, np.nan), units=9))


def test_arms_of_other_items_are_refused():
    with pytest.raises(ValueError, match="items of here"):
        paired([1.0, 2.0], [1.0, 2.0], ["a"])


# ---- a model with known probabilities --------------------------------------------------------------------------


class Bigram(torch.nn.Module):
    """A language model whose next token depends on the last one by a table."""

    def __init__(self, table):
        super().__init__()
        self.table = torch.nn.Parameter(table)

    def forward(self, input_ids, attention_mask, use_cache):
        return SimpleNamespace(logits=self.table[input_ids])


def document(ids, index):
    labels = np.array([-100, *ids[1:]], dtype=np.int64)
    return Encoded(id=str(index), index=index, input_ids=np.array(ids, dtype=np.int64), labels=labels)


def test_perplexity_of_a_model_with_known_probabilities():
    tokenizer = byte_fallback_tokenizer()
    me, like = (tokenizer.convert_tokens_to_ids(word) for word in ("我", "喜欢"))
    table = torch.full((len(tokenizer), len(tokenizer)), -1e9)
    table[:, me], table[:, like] = math.log(0.25), math.log(0.75)
    table[me, me], table[me, like] = math.log(0.5), math.log(0.5)
    start = tokenizer.bos_token_id
    documents = [document([start, me, like], 0), document([start, like, like, like], 1), document([start, me], 2)]
    found = token_scores(Bigram(table), tokenizer, documents, collator=collator_of(tokenizer, "causal-lm"))
    log_1, log_2, log_3 = math.log(4), math.log(2), math.log(4 / 3)
    assert found.nats == pytest.approx([log_1 + log_2, 3 * log_3, log_1], rel=1e-6)
    assert found.tokens.tolist() == [2, 3, 1] and found.characters.tolist() == [3, 6, 1]
    assert perplexity(found.sums.sum(0)) == pytest.approx(math.exp((2 * log_1 + log_2 + 3 * log_3) / 6), rel=1e-6)


def test_an_end_token_is_no_word_of_the_text():
    tokenizer = byte_fallback_tokenizer()
    me = tokenizer.convert_tokens_to_ids("我")
    table = torch.full((len(tokenizer), len(tokenizer)), -1e9)
    table[:, me], table[:, tokenizer.eos_token_id] = math.log(0.9), math.log(0.1)
    documents = [document([tokenizer.bos_token_id, me, me, tokenizer.eos_token_id], 0)]
    found = token_scores(Bigram(table), tokenizer, documents, collator=collator_of(tokenizer, "causal-lm"))
    assert perplexity(found.sums[0]) == pytest.approx(1 / 0.9) and found.tokens.tolist() == [2]
    assert mean(found.end_sums[0]) == pytest.approx(math.log(10)) and found.ends.tolist() == [1]


def test_pieces_of_a_long_text_are_one_text():
    tokenizer = byte_fallback_tokenizer()
    table = torch.zeros(len(tokenizer), len(tokenizer))
    found = token_scores(
        Bigram(table), tokenizer, [document([2, 270, 271], 4), document([2, 272], 4), document([2, 273], 7)],
        collator=collator_of(tokenizer, "causal-lm"),
    )  # fmt: skip
    assert found.index.tolist() == [4, 7] and found.tokens.tolist() == [3, 1]
    assert perplexity(found.sums[0]) == pytest.approx(len(tokenizer), rel=1e-5)


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary(run):
    model, tokenizer = tiny_llama()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    material = material_of(run, test=None, seed=0, tell=lambda stage, done, total: None)
    found = token_scores(model, tokenizer, material.documents, collator=material.collator)
    assert perplexity(found.sums.sum(0)) == pytest.approx(len(tokenizer), rel=1e-5)


def test_progress_is_told_to_its_end():
    said = []
    assert [list(group) for group in batched(list(range(5)), 2, lambda done, total: said.append((done, total)))] == [
        [0, 1], [2, 3], [4],
    ]  # fmt: skip
    assert said == [(2, 5), (4, 5), (5, 5)]


# ---- attention and edges against eager attention ---------------------------------------------------------------


def test_attention_on_pairs_is_that_of_eager_attention(run):
    material = material_of(run, test=None, seed=0, tell=lambda stage, done, total: None)
    heads = {"some": {0: (1, 3), 2: (0,)}}
    arguments = {"collator": material.collator, "depths": material.depths, "heads": heads}
    found = pair_masses(run.model, material.documents, **arguments)["some"]
    eager = open_run_folder(run.folder, device="cpu").model
    eager.base_model.model.set_attn_implementation("eager")
    by_index = {document.index: document for document in material.documents}
    placed = placed_pairs(material.documents)
    assert len(found) == len(placed) == 24
    for one, mass in zip(placed, found, strict=True):
        ids = torch.tensor(by_index[one.index].input_ids)[None]
        with torch.inference_mode():
            rows = eager(input_ids=ids, output_attentions=True).attentions
        by_head = [
            float(rows[layer][0, head, list(one.pair.queries)][:, list(one.pair.keys)].sum(1).mean())
            for layer, chosen in heads["some"].items()
            for head in chosen
        ]
        assert mass == pytest.approx(np.mean(by_head), abs=1e-6)


def test_a_pass_for_rows_makes_logits_of_one_position_and_reads_the_groups_once(run):
    material = material_of(run, test=None, seed=0, tell=lambda stage, done, total: None)
    widths = []
    hook = run.model.base_model.model.lm_head.register_forward_hook(
        lambda module, given, logits: widths.append(logits.shape[1])
    )
    batches = batches_with_pairs(material.documents, material.collator, size=8, most=9, device="cpu")
    mass_by_head(run.model, batches, layers=[0, 1])
    mean_attention(run.model, [2, 5, 6, 7], heads={0: (1,)})
    hook.remove()
    assert widths == [1, 1, 1, 1]
    assert material.groups is material.groups  # a column of a data set is read from its file at each access


def test_a_cut_edge_is_a_mask_at_that_edge(reader):
    material = material_of(reader, test=None, seed=0, tell=lambda stage, done, total: None)
    cues, unread = cues_of(material.documents, material.parts, causal=False)
    assert len(cues) == 20 and not unread and {cue.part for cue in cues} == {"pairs of the data"}
    cut = right_class_logs(reader.model, cues, collator=material.collator, cut=True)
    for cue, log in zip(cues[:4], cut[:4], strict=True):
        ids = torch.tensor(cue.document.input_ids)[None]
        mask = torch.zeros(1, 1, ids.shape[1], ids.shape[1])
        for place in cue.document.target:
            mask[0, 0, place, list(cue.places)] = -1e30
        marked = torch.zeros_like(ids, dtype=torch.bool)
        marked[0, list(cue.document.target)] = True
        with torch.inference_mode():
            states = reader.model(input_ids=ids, attention_mask=mask).last_hidden_state
            logits = reader.model.reading_head(states, {"target_mask": marked})
        assert log == pytest.approx(float(logits.log_softmax(-1)[0, cue.document.label]), abs=1e-5)


def test_a_causal_target_reads_no_cue_behind_it(reader):
    material = material_of(reader, test=None, seed=0, tell=lambda stage, done, total: None)
    cues, unread = cues_of(material.documents, material.parts, causal=True)
    assert unread == 10 and len(cues) == 10  # 苹果公司 stands in half of the texts, 喜欢苹果 in the others


# ---- whole evaluations -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def general(root):
    path = root / "general.txt"
    path.write_text("\n".join(f"牛顿被苹果砸中{number}" for number in range(9)), encoding="utf-8")
    return path


def questions_file(root):
    facts = [f"{part} fact {number}" for part in ("train", "test") for number in range(8)]
    rows = [
        {"id": f"q{number}", "group": group, "prompt": "苹果公司发布了", "right": "新品", "wrong": "菠菜",
         "pair": ["苹果", "新品"] if number % 2 else None}
        for number, group in enumerate([*facts, "?"])
    ]  # fmt: skip
    return lines(root / "questions.jsonl", rows)


@pytest.mark.parametrize("make", [language_model, sense_reader])
def test_an_adapter_that_was_not_trained_makes_no_difference_at_all(tmp_path, general, root, make):
    folder = make(tmp_path / "run", training__learning_rate=0.0)
    causal = make is language_model
    more = {"general": general, "questions": questions_file(root)} if causal else {}
    found = evaluate(open_run_folder(folder, device="cpu"), **more)
    differences = found.results[(found.results.arm == "difference") & ~found.results.part.str.contains("always")]
    assert len(differences) >= (14 if causal else 4)
    assert (differences.estimate == 0.0).all()
    assert set(differences.low.dropna()) == set(differences.high.dropna()) == {0.0}


def test_what_was_learned_shows_in_perplexity_and_on_trained_pairs(root, general):
    folder = language_model(root / "long", count=40, training__max_steps=40)
    found = evaluate(open_run_folder(folder, device="cpu"), general=general)
    perplexities = found.results.query("measure == 'perplexity' and part == 'test'").set_index("arm")
    assert perplexities.loc["tuned", "high"] < perplexities.loc["base", "low"]
    assert perplexities.loc["difference", "high"] < 0 and perplexities.loc["difference", "units"] == 12
    assert found.value("attention", "train pairs, supervised heads", "difference") > 0.2
    table = found.tables["pairs"].query("heads == 'supervised heads'")
    assert dict(zip(table.pair, table.part, strict=True)) == {
        "苹果 → 喜欢": "train pairs", "手机 → 公司": "train pairs",
        "和平 → 热爱": "held-out pairs", "菠菜 → 讨厌": "held-out pairs",
    }  # fmt: skip
    texts_table = found.tables["texts"]
    tuned = math.exp(texts_table.nats_tuned.sum() / texts_table.tokens.sum())
    assert found.value("perplexity", "test", "tuned") == pytest.approx(tuned)
    assert len(found.tables["general"]) == 9


def test_accuracy_stands_beside_the_most_frequent_class_and_its_items(reader):
    found = evaluate(reader)
    predicted = found.tables["predictions"]
    assert (predicted.tuned == predicted.label).mean() == pytest.approx(found.value("accuracy", "test", "tuned"))
    always = [part for part in found.results.part.unique() if "always" in part]
    assert found.value("accuracy", always[0], "base") == 0.5
    assert any("head that the run trained" in note for note in found.notes)


def beside_cue(part, count):
    """Texts that differ in the cue alone."""
    return [
        {"group": f"{part} {n}", "text": f"{part}{n}{cue}苹果", "target": "苹果", "label": ("fruit", "company")[n % 2],
         "pairs": [{"query": "苹果", "key": cue}]}
        for n in range(count)
        for cue in [("喜欢", "公司")[n % 2]]
    ]  # fmt: skip


def test_an_answer_that_rests_on_its_cue_is_found_by_cutting_the_edge(tmp_path):
    """In the base no layer writes what attention reads, so its answer rests on no edge; the adapter changes that."""
    model, tokenizer = tiny_bert(num_hidden_layers=1)
    with torch.no_grad():
        model.encoder.layer[0].attention.output.dense.weight.zero_()
    for each in (model, tokenizer):
        each.save_pretrained(tmp_path / "deaf")
    folder = sense_reader(
        tmp_path / "run", model=str(tmp_path / "deaf"), data__train=lines(tmp_path / "a.jsonl", beside_cue("a", 40)),
        data__test=lines(tmp_path / "b.jsonl", beside_cue("b", 20)), training__max_steps=60,
        training__learning_rate=2e-2,
    )  # fmt: skip
    found = evaluate(open_run_folder(folder, device="cpu"))
    assert found.value("accuracy", "test", "base") == 0.5 and found.value("accuracy", "test", "tuned") > 0.9
    moved = found.results.query("measure == 'cut_edge_change'").set_index("arm")
    assert moved.loc["base", ["estimate", "low", "high"]].abs().max() < 1e-6
    assert moved.loc["tuned", "high"] < -0.1 and moved.loc["difference", "high"] < -0.1


@pytest.mark.parametrize(("task", "measure"), [("classification", "macro_f1"), ("masked-lm", "perplexity_of_masked")])
def test_other_tasks_have_their_measures_and_say_what_they_lack(tmp_path, general, task, measure):
    run = open_run_folder(classifier(tmp_path, task=task), device="cpu")
    found = evaluate(run, general=general)
    again = evaluate(run, general=general)
    assert found.results.equals(again.results)
    assert math.isfinite(found.value(measure, "test", "tuned"))
    assert {"cut edge", "questions"} <= set(found.missing)
    assert ("perplexity, general text" in found.missing) == (task == "classification")


def test_facts_that_were_trained_on_chosen_by_and_held_out_are_told_apart(run, root):
    found = evaluate(run, questions=questions_file(root))
    table = found.tables["questions"]
    dev = {row["group"] for row in material_of(run, test=None, seed=0, tell=lambda *told: None).corpus.dev}
    assert dev and set(table[table.part == "dev facts"].group) == dev
    assert set(table[table.part == "trained facts"].group) == {f"train fact {n}" for n in range(8)} - dev
    assert len(table[table.part == "held-out facts"]) == 8 and table[table.part == "other facts"].group.tolist() == [
        "?"
    ]
    assert table.moved_tuned.notna().sum() == 8
    moved = found.results.query("measure == 'answer_moved' and part == 'held-out facts' and arm == 'tuned'").iloc[0]
    assert moved["items"] == 4
    question = load_questions("chips")[0]
    assert part_of_fact(question, trained=set(), dev=set(), test=set()) == "other facts"


# ---- what is missing or wrong ----------------------------------------------------------------------------------


def test_what_cannot_be_measured_is_said_and_never_left_out(run, tmp_path, monkeypatch):
    found = evaluate(run)
    assert "--general FILE" in found.missing["perplexity, general text"]
    assert "--questions FILE" in found.missing["questions"]
    assert any(line.startswith("missing: perplexity, general text: ") for line in lines_of(found))
    passages = tmp_path / "cmrc-retrieval" / "corpus.jsonl"
    passages.parent.mkdir()
    lines(
        passages, [{"_id": f"P{number}", "title": "t", "text": f"我们热爱和平与苹果{number}"} for number in range(30)]
    )
    monkeypatch.setenv("CIJING_DATA", str(tmp_path))
    with_passages = evaluate(run, general_limit=6)
    assert "perplexity, general text" not in with_passages.missing
    drawn = with_passages.tables["general"].id.tolist()
    assert len(drawn) == 6 and set(drawn) <= {f"P{number}" for number in range(30)}
    assert drawn == evaluate(run, general_limit=6).tables["general"].id.tolist()


def test_a_run_without_a_test_part_says_so_and_takes_one_by_name(tmp_path):
    folder = language_model(tmp_path / "run", data__test=())
    run = open_run_folder(folder, device="cpu")
    with pytest.raises(DataError, match=r"nothing can be measured: perplexity, test: .*--test FILE"):
        evaluate(run)
    other = lines(tmp_path / "other.jsonl", texts("test", 12))
    assert evaluate(run, test=[other]).results.query("measure == 'perplexity'").units.tolist() == [6, 6, 6]


def test_a_test_text_that_was_trained_on_is_refused(run, tmp_path):
    seen = lines(tmp_path / "seen.jsonl", [*texts("test", 4), {**texts("train", 1)[0], "group": "new"}])
    with pytest.raises(DataError, match="this text stands in"):
        evaluate(run, test=[seen])
    with pytest.raises(ConfigError, match="is named in train and in test"):
        evaluate(run, test=[run.config.data.train[0]])


def test_the_held_out_part_of_a_shipped_domain_is_taken_by_itself(run):
    data = run.config.data.model_copy(update={"train": ("chips/train",), "test": ()})
    assert data_with_test(data, None).test == ("chips/test",)
    assert data_with_test(data, ["mine.jsonl"]).test == ("mine.jsonl",)
    assert data_with_test(run.config.data, None) is run.config.data


# ---- files -----------------------------------------------------------------------------------------------------


def test_the_tables_are_written_twice_the_same_with_the_hash_of_what_was_read(run, general):
    found = evaluate(run, general=general)
    folder = save_evaluation(found, run)
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert save_evaluation(evaluate(run, general=general), run) == folder
    assert first == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert not [path for path in run.folder.iterdir() if path.name.startswith(".")]
    for name in ("results", "texts", "general", "pairs", "missing"):
        text, table = pd.read_csv(folder / f"{name}.csv"), pd.read_parquet(folder / f"{name}.parquet")
        pd.testing.assert_frame_equal(text, table, check_dtype=False, check_exact=False, rtol=1e-12)
    told = json.loads((folder / "manifest.json").read_text("utf-8"))
    by_use = {one["use"]: one for one in told["data"]}
    assert set(by_use) == {"train", "test", "pairs", "general"}
    assert by_use["general"]["sha256"] == sha256(general.read_bytes()).hexdigest()
    assert told["adapter"] == dict(run.hashes) and told["missing"] == dict(found.missing)


def test_every_result_has_a_line_with_base_tuned_and_difference(run):
    found = evaluate(run)
    rows = rows_of(found)
    assert len(rows) == len(found.results) // 3
    assert all(all(cells) for cells in rows)
    assert rows[0][:2] == ["perplexity", "test"] and "[" in rows[0][4]
    with pytest.raises(KeyError, match="0 results"):
        found.value("perplexity", "nowhere", "base")
