"""The word-in-context benchmark: thresholds of other words, hand-worked accuracies, lines that are kept and reused."""

import csv
import json
import shutil

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from benchmarks import word_in_context
from benchmarks.public_senses import first_half
from benchmarks.word_in_context_table import Asked, Decided, accuracy, differences, margins_of, of_dev, of_test
from tests.test_compare_materials import CASES
from tests.test_finetune_word_in_context import pairs_of_texts
from tests.tiny import tiny_bert

WORDS = ("a", "a", "b", "b", "c", "c", "d", "d")


def asked(*same):
    return Asked(words=WORDS[: len(same)], same=np.array(same, dtype=bool))


# ---- decisions -------------------------------------------------------------------------------------------------


def test_each_half_is_decided_by_the_threshold_of_the_other():
    """Margins of one half stand ten higher than those of the other: its own threshold would decide all rightly."""
    same = np.array([True, False] * 4)
    half = first_half(WORDS)
    margins = np.where(same, 1.0, -1.0) + np.where(half, 10.0, 0.0)
    given = {"lora": [margins], "base": [np.where(same, 1.0, -1.0)]}
    other, crossed = of_dev(given, Asked(words=WORDS, same=same), choosing=False)
    assert set(other.words) == {word for word, own in zip(WORDS, half, strict=True) if not own}
    assert other.correct.shape == (2, 1, 4) and other.correct[1].all()
    assert other.correct[0, 0].tolist() == (~same[~half]).astype(float).tolist()  # all below: all are called different
    assert crossed.correct[0, 0, half].tolist() == same[half].astype(float).tolist()  # all above
    (chosen,) = of_dev(given, Asked(words=WORDS, same=same), choosing=True)
    assert chosen.correct.all() and set(chosen.words).isdisjoint(other.words)


def test_a_test_set_is_decided_by_the_threshold_of_all_of_dev():
    dev = {"lora": [np.array([5.0, 3.0, 5.0, 3.0])]}
    test = {"lora": [np.array([4.5, 3.9, 4.1])]}
    found = of_test(test, asked(True, False, False), dev=dev, chosen_on=asked(True, False, True, False))
    assert found.correct.tolist() == [[[1.0, 1.0, 0.0]]] and found.part == "test set"


def test_an_arm_without_training_stands_beside_every_seed():
    margins = {"base": [np.array([1.0, -1.0] * 4)], "lora": [np.array([1.0, -1.0] * 4), np.array([-1.0, 1.0] * 4)]}
    _, crossed = of_dev(margins, Asked(words=WORDS, same=np.array([True, False] * 4)), choosing=False)
    assert crossed.correct.shape == (2, 2, 8) and crossed.correct[0].all() and crossed.correct[1, 0].all()
    assert crossed.correct[1, 1].mean() == 0.5  # the best threshold of a reversed order says the same of all pairs


def test_means_and_differences_by_hand():
    correct = np.zeros((2, 2, 8))
    correct[0, 0, :6] = correct[0, 1, :4] = 1  # lora: 75 and 50 %
    correct[1, :, :2] = 1  # base: 25 %, all in word a
    found = Decided(part="x", arms=("lora", "base"), words=WORDS, correct=correct)
    seeds, mean, low, high = accuracy(found, "lora")
    assert seeds == [0.75, 0.5] and mean == 0.625 and low < mean < high
    (one,) = differences(found, [("lora", "base"), ("full", "lora")])
    assert one.value == pytest.approx(0.375) and one.low <= one.value <= one.high
    certain = Decided(
        part="x", arms=("lora", "base"), words=WORDS, correct=np.stack([np.ones((1, 8)), np.zeros((1, 8))])
    )
    (sure,) = differences(certain, [("lora", "base")])
    assert (sure.low, sure.high) == (1.0, 1.0) and sure.verdict == "lora is better than base"
    (none,) = differences(certain, [("lora", "lora")])
    assert none.p_holm == 1.0 and none.verdict.startswith("no difference between")


def test_margins_are_kept_in_hundredths():
    assert margins_of("-120 5 0").tolist() == [-1.2, 0.05, 0.0]


# ---- the run ---------------------------------------------------------------------------------------------------


def data_files(folder, name, mark, groups):
    """MCL-WiC's two files, with sentences of ours."""
    rows = [
        {**row, "id": f"{name}.{number}", "lemma": row["group"], "pos": "NOUN", "sentence1": row["text"],
         "sentence2": row["second"]}
        for number, row in enumerate(pairs_of_texts(mark, groups))
    ]  # fmt: skip
    for row in rows:
        for number in "12":
            start = row[f"sentence{number}"].index("苹果")
            row |= {f"start{number}": str(start), f"end{number}": str(start + 2)}
    for row in rows:
        for other in set(row) - {"id", "lemma", "pos", "label"}:
            if other[:-1] not in ("sentence", "start", "end"):
                del row[other]
    entries = [{key: value for key, value in row.items() if key != "label"} for row in rows]
    tags = [{"id": row["id"], "tag": "T" if row["label"] == "same" else "F"} for row in rows]
    for suffix, content in (("data", entries), ("gold", tags)):
        (folder / f"{name}.{suffix}").write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    return str(folder / f"{name}.data")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wic")
    tiny_bert(folder, max_position_embeddings=256)
    for name, mark, groups in (("train", "他", "abcd"), ("dev", "我", "uvwxyz"), ("test", "你", "klmn")):
        data_files(folder, name, mark, tuple(groups))
    (folder / "senses.yaml").write_text(CASES, encoding="utf-8")
    return folder


def table_of(place):
    return place / "out" / "small_test.csv"


def command(place, *more):
    files = [part for name in ("train", "dev", "test") for part in (f"--{name}", str(place / f"{name}.data"))]
    model = ("--model", str(place / "bert"), "--senses", str(place / "senses.yaml"))
    return ["--preset", "small", *model, "--out", str(place / "out"), *files, *more]


def test_every_arm_is_trained_measured_kept_and_not_done_again(place, capsys, monkeypatch):
    assert word_in_context.main(command(place, "--only", "lora:0")) == 0
    table = table_of(place)
    assert [line["arm"] for line in csv.DictReader(table.open(encoding="utf-8"))] == ["lora", "lora"]
    capsys.readouterr()
    assert word_in_context.main(command(place)) == 0
    said = capsys.readouterr().out
    lines = list(csv.DictReader(table.open(encoding="utf-8")))
    assert [(line["arm"], line["part"]) for line in lines[:2]] == [("lora", "dev"), ("lora", "test")]
    assert {(line["arm"], line["part"]) for line in lines} == {
        (arm, part) for arm in word_in_context.ALL for part in ("dev", "test")
    }
    assert {len(line["margins"].split()) for line in lines if line["part"] == "dev"} == {18}
    assert {bool(line["weight"]) for line in lines if line["arm"] in ("lora-attention", "lora-random")} == {True}
    assert "both halves, crossed" in said and "lora-attention - lora-random" in said and "苹果" not in table.read_text()
    assert len(list((place / "out").glob("*/*/report/report.html"))) == 1
    monkeypatch.setattr(word_in_context, "compare", None)  # nothing is left to do
    assert word_in_context.main(command(place)) == 0
    assert capsys.readouterr().out == said


def test_a_lost_table_is_written_again_and_lost_margins_are_measured_again_without_training(place, monkeypatch):
    kept = sorted(table_of(place).read_text().splitlines())
    table_of(place).unlink()
    (margins,) = (place / "out").glob("*/*/shared/margins/full-0.json")
    margins.unlink()
    monkeypatch.setattr("finetune.compare.jobs.train", None)
    assert word_in_context.main(command(place)) == 0
    assert sorted(table_of(place).read_text().splitlines()) == kept and margins.is_file()


def test_other_weights_are_another_table(place, tmp_path, capsys):
    model = shutil.copytree(place / "bert", tmp_path / "bert")
    weights = load_file(model / "model.safetensors")
    save_file({name: value + 1 for name, value in weights.items()}, model / "model.safetensors", {"format": "pt"})
    assert word_in_context.main([*command(place), "--model", str(model), "--only", "base"]) == 2
    assert "give another --table" in capsys.readouterr().err


def test_margins_are_those_of_the_trained_model(place):
    """The kept sign is what the comparison's own accuracy says of each pair."""
    import pandas as pd

    lines = csv.DictReader(table_of(place).open(encoding="utf-8"))
    (margins,) = [margins_of(line["margins"]) for line in lines if (line["arm"], line["part"]) == ("full", "dev")]
    (items,) = (place / "out").glob("*/*/jobs/full-0/items.parquet")
    frame = pd.read_parquet(items).query("measure == 'accuracy'").set_index("item").value
    records = word_in_context.records_of(place / "dev.data")
    clear = [(one, margin) for one, margin in zip(records, margins, strict=True) if abs(margin) > 0.01]
    assert clear and all(frame[one.id] == float((margin > 0) == (one.label == "same")) for one, margin in clear)


def test_bad_files_are_told_in_one_line_before_anything_is_trained(place, tmp_path, capsys):
    for name in ("dev.data", "dev.gold"):
        (tmp_path / f"copy{name[3:]}").write_text((place / name).read_text("utf-8"), "utf-8")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n", "utf-8")
    one = data_files(tmp_path, "one", "我", ("u",))
    for more, said in (
        (("--dev", str(place / "none.data")), "none.data"),
        (("--test", str(tmp_path / "copy.data")), "dev.0 stands in --dev as well"),
        (("--dev", one), "pairs of one word"),
        (("--table", str(tmp_path)), "is a folder"),
        (("--table", str(tmp_path / "other.csv")), "is no table of this benchmark"),
    ):
        assert word_in_context.main([*command(place), *more]) == 2
        told = capsys.readouterr().err
        assert said in told and told.count("\n") == 1
