"""Corpora: what each kind of file gives, how it is refused with its place, and parts that share nothing."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from finetune.corpusfiles import kind_of, rows_of
from finetune.dataconfig import DataConfig
from finetune.errors import DataError
from finetune.reading import OWN_RULE, Record, record_of, row_of
from finetune.records import load_records, split_by_group
from probe import Span, load_cases

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CIJING_DATA", ROOT.parent / "shared" / "data"))
WIC = DATA / "mcl-wic"
needs_wic = pytest.mark.skipif(not WIC.is_dir(), reason="shared data is not there: set CIJING_DATA")


def jsonl(folder, rows, name="corpus.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return str(path)


def raw(folder, content, name="corpus.jsonl"):
    path = folder / name
    path.write_bytes(content)
    return str(path)


def labelled(count=20, groups=10):
    return [
        {"id": str(place), "text": f"第{place}句说苹果", "target": "苹果", "label": "ab"[place % 2],
         "group": f"g{place % groups}"}
        for place in range(count)
    ]  # fmt: skip


def load(train, task="causal-lm", **settings):
    return load_records(DataConfig(train=train, **settings), task)


def refused(train, task="causal-lm", **settings):
    with pytest.raises(DataError) as error:
        load(train, task, **settings)
    said = str(error.value)
    assert said and "\n" not in said and len(said) < 500
    return said


# ---- configuration ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"train": ()}, "at least 1"),
        ({"train": "a.txt", "dev": "a.txt"}, "a.txt is named in train and in dev"),
        ({"train": "a.txt", "dev": "b.txt", "test": ["c.txt", "b.txt"]}, "b.txt is named in dev and in test"),
        ({"train": "me/set", "dev": "b.txt", "dev_split": "dev"}, "both given"),
        ({"train": "me/set", "test_split": "train"}, "trained on"),
        ({"train": "a.txt", "labels": ["a"]}, "two or more"),
        ({"train": "a.txt", "labels": ["a", "a"]}, "each once"),
        ({"train": "a.txt", "dev_share": 0.6}, "0.5"),
        ({"train": "a.txt", "trian": "b.txt"}, "Extra inputs"),
    ],
    ids=str,
)
def test_a_configuration_that_contradicts_itself_is_refused(settings, said):
    with pytest.raises(ValidationError, match=said):
        DataConfig(**settings)


def test_a_name_is_a_file_a_case_set_or_a_hub_id(tmp_path):
    assert kind_of("apple") == "cases" and kind_of("owner/some-set") == "hub" and kind_of("apple", "hub") == "hub"
    for name, kind in (("a.txt", "text"), ("a.csv", "csv"), ("a.tsv", "csv"), ("a.jsonl", "jsonl"), ("a.yml", "cases")):
        assert kind_of(raw(tmp_path, b"x", name)) == kind
    with pytest.raises(DataError, match="cannot be read"):
        kind_of(str(tmp_path / "gone.jsonl"))
    with pytest.raises(DataError, match="tells no kind"):
        kind_of(raw(tmp_path, b"x", "a.odt"))
    with pytest.raises(DataError, match="cannot be read"):
        kind_of(str(tmp_path), "text")


# ---- files -----------------------------------------------------------------------------------------------------

BROKEN = [
    (b'{"text": "a"}\n{"text": \n', ":2: is no JSON"),
    (b'{"text": "a"}\n["b"]\n', ":2: is a list; allowed is one JSON object a line"),
    (b'{"text": "a"}\n\n{"txet": "b"}\n', ":3: lacks 'text'; it has txet"),
    (b'{"text": "a"}\n{"text": 7}\n', ":2: text is 7; allowed is a text"),
    (b'{"text": "a"}\n{"text": "  "}\n', ":2: text is "),
    (b'{"text": "a\x00"}\n', ":1: has a NUL at offset 11"),
    (b'{"text": "a\\u0000b"}\n', ":1: text has a NUL at offset 1"),
    (b'{"text": "a\\ud800b"}\n', ":1: text has half a character at offset 1"),
    (b'{"text": "a"}\n{"text": "\xff"}\n', ":2: byte 10 is not UTF-8"),
    (b'\xff\xfe{\x00"\x00', ":1: byte 0 is not UTF-8"),
    (b'{"n": ' + b"9" * 5000 + b', "text": "a"}\n', ":1: is no usable JSON"),
    (b"[" * 100_000 + b"\n", ":1: is no usable JSON"),
    (b'{"text": "a", "group": [1]}\n', ":1: group is [1]"),
]


@pytest.mark.parametrize(("content", "said"), BROKEN, ids=[said for _, said in BROKEN])
def test_a_broken_line_is_named_with_file_and_line(tmp_path, content, said):
    path = raw(tmp_path, content)
    assert refused(path).startswith(path + said)


@pytest.mark.parametrize("content", [b"", b"\n \r\n", b"\xef\xbb\xbf"], ids=["nothing", "blank lines", "a BOM alone"])
@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.txt", "corpus.csv"])
def test_an_empty_corpus_is_refused(tmp_path, content, name):
    assert "holds no records (it is empty)" in refused(raw(tmp_path, content, name))


def test_a_byte_order_mark_and_windows_line_ends_belong_to_no_text(tmp_path):
    for name, content in (
        ("a.jsonl", '{"text": "一"}\r\n{"text": "二"}\r\n'),
        ("a.txt", "一\r\n\r\n二\r\n"),
        ("a.csv", "text\r\n一\r\n二\r\n"),
    ):
        path = raw(tmp_path, b"\xef\xbb\xbf" + content.encode(), name)
        assert load(path, dev_share=0).train["text"][:] == ["一", "二"]


def test_a_line_of_a_megabyte_is_read(tmp_path):
    text = "苹果" * 170_000
    for name, content in (("a.jsonl", json.dumps({"text": text})), ("a.txt", text), ("a.csv", f"text\n{text}\n")):
        (row,) = load(raw(tmp_path, content.encode(), name), dev_share=0).train
        assert row["text"] == text


def test_a_csv_gives_records_with_the_line_where_each_begins(tmp_path):
    content = 'text,label\n"两行\n的",a\n"say ""hi""",b\n三,a\n'.encode()
    part = load(raw(tmp_path, content, "a.csv"), "classification", dev_share=0).train
    assert part["text"][:] == ["两行\n的", 'say "hi"', "三"]
    assert [where.rpartition(":")[2] for where in part["where"]] == ["2", "4", "5"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"text,label\na,b,c\n", ":2: has 3 fields; the header names 2"),
        (b"text,text\na,b\n", ":1: the header has 'text', 'text'"),
        (b'text\n"a\n', ":2: is no CSV"),
        (b"text\na\x00\n", ":2: has a NUL"),
    ],
)
def test_a_broken_csv_is_named_with_file_and_line(tmp_path, content, said):
    path = raw(tmp_path, content, "a.csv")
    assert refused(path).startswith(path + said)


def test_a_parquet_file_gives_what_its_jsonl_gives(tmp_path):
    rows = [{"text": f"第{n}句", "group": str(n)} for n in range(5)]
    path = str(tmp_path / "a.parquet")
    datasets.Dataset.from_list(rows).to_parquet(path)
    kept = ("text", "group", "index")
    one, other = (load(source, dev_share=0).train for source in (path, jsonl(tmp_path, rows)))
    assert all(one[name][:] == other[name][:] for name in kept)
    assert one["where"][4] == f"{path}: row 5"


def test_a_broken_parquet_file_is_one_line(tmp_path):
    assert "is no readable Parquet" in refused(raw(tmp_path, b"PAR1 not really", "a.parquet"))


def test_columns_can_have_other_names(tmp_path):
    path = jsonl(tmp_path, [{"body": "一"}, {"body": "二"}])
    assert load(path, text="body", dev_share=0).train["text"][:] == ["一", "二"]
    assert "data.text names the column" in refused(path)


def test_a_hub_id_without_network_is_one_line():
    code = "from finetune.dataconfig import *; from finetune.records import *; from finetune.errors import *\n"
    code += "try: load_records(DataConfig(train='nobody-here/nothing'), 'causal-lm')\nexcept DataError as e: print(e)"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    (said,) = done.stdout.splitlines()
    assert said.startswith("nobody-here/nothing[train]: cannot be had from the hub (")


def test_a_folder_named_as_the_hub_gives_its_splits_and_the_names_of_its_classes(tmp_path):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    for split, offset in (("train", 0), ("validation", 10)):
        rows = [{"text": f"第{n + offset}句", "label": n % 2} for n in range(4)]
        datasets.Dataset.from_list(rows, features=features).to_parquet(str(tmp_path / f"{split}.parquet"))
    corpus = load(str(tmp_path), "classification", kind="hub", dev_split="validation", streaming=False)
    assert corpus.labels == ("no", "yes") and corpus.train["label"][:] == ["no", "yes"] * 2
    assert corpus.dev["text"][:] == [f"第{n}句" for n in range(10, 14)]
    assert "which is a file" in refused(jsonl(tmp_path, labelled()), dev_split="validation")


# ---- tasks -----------------------------------------------------------------------------------------------------


def test_messages_come_before_a_completion_and_that_before_a_text(tmp_path):
    messages = [{"role": "user", "content": "问"}, {"role": "assistant", "content": "答"}]
    rows = [{"messages": messages, "text": "x"}, {"prompt": "问", "completion": "答", "text": "x"}, {"text": "y"}]
    first, second, third = map(record_of, load(jsonl(tmp_path, rows), dev_share=0).train)
    assert first.messages == (("user", "问"), ("assistant", "答")) and not first.text
    assert (second.prompt, second.completion, second.text) == ("问", "答", "")
    assert third.text == "y"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": "hi"}, "messages is"),
        ({"messages": []}, "messages is []"),
        ({"messages": [{"from": "human", "value": "hi"}]}, "messages 1 is"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "messages holds no answer: its roles are user"),
        ({"messages": [{"role": "assistant", "content": ""}]}, "content of messages 1"),
        ({"completion": "答"}, "lacks 'prompt'"),
        ({"prompt": "问", "completion": ""}, "completion is"),
        ({"text": "苹果", "pairs": [{"query": "梨", "key": "苹"}]}, "pairs 1 query: '梨'"),
        ({"text": "苹果", "pairs": [{"query": "苹"}]}, "pairs 1 is"),
        ({"text": "苹果", "pairs": [{"query": "苹", "key": "果", "weight": -1}]}, "pairs 1: weight -1"),
        ({"text": "苹果", "pairs": {"query": "苹"}}, "pairs is"),
    ],
    ids=str,
)
def test_instruction_data_and_pairs_that_cannot_be_used_are_refused(tmp_path, row, said):
    path = jsonl(tmp_path, [{"text": "好"}, row])
    assert refused(path).startswith(f"{path}:2: {said}")


def test_a_target_is_a_word_a_span_or_an_occurrence(tmp_path):
    text = "苹果不是苹果酸"
    forms = ["酸", [4, 6], {"word": "苹果", "occurrence": 2}, {"word": "酸"}]
    rows = [{"text": text, "target": form, "label": "ab"[n % 2]} for n, form in enumerate(forms)]
    spans = [record_of(row).target for row in load(jsonl(tmp_path, rows), "sense", dev_share=0).train]
    assert spans == [Span(6, 7), Span(4, 6), Span(4, 6), Span(6, 7)]
    for form in ("苹果", "梨", [5, 9], [2, 2], [0], {"word": "苹果", "nth": 2}, 3, None, [True, False]):
        path = jsonl(tmp_path, [*rows, {"text": text, "target": form, "label": "a"}])
        assert ":5: " in refused(path, "sense", dev_share=0)


def test_pairs_in_the_data_become_spans(tmp_path):
    pairs = [{"query": "M1", "key": [0, 2], "weight": 2, "negatives": ["果园"]}, {"query": "M1", "key": "果园"}]
    (row,) = load(jsonl(tmp_path, [{"text": "苹果的M1不在果园", "pairs": pairs}]), dev_share=0).train
    first, second = record_of(row).pairs
    assert (first.query, first.key, first.negatives, first.weight) == (Span(3, 5), Span(0, 2), (Span(7, 9),), 2.0)
    assert second.weight == 1.0 and second.rule == OWN_RULE


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=2, max_size=20),
    st.integers(0, 9),
)
def test_a_record_survives_its_columns(text, index):
    record = Record(
        id="1", where="f:1", group="g", text=text, target=Span(0, 1), label="x", messages=(("user", text),)
    )  # fmt: skip
    row = row_of(record, index)
    assert record_of(row) == record and row["index"] == index


def test_word_in_context_takes_every_way_of_saying_yes_and_no(tmp_path):
    ways = ["T", "F", True, False, 1, 0, "same", "different"]
    rows = [
        {"text": f"苹果{n}", "second": f"吃苹果{n}", "target": "苹果", "second_target": "苹果", "label": way}
        for n, way in enumerate(ways)
    ]
    corpus = load(jsonl(tmp_path, rows), "word-in-context", dev_share=0)
    assert corpus.labels == ("different", "same") and corpus.train["label"][:] == ["same", "different"] * 4
    assert "label is" in refused(jsonl(tmp_path, [{**rows[0], "label": "maybe"}]), "word-in-context")


@needs_wic
def test_mcl_wic_is_read_with_its_offsets_and_split_by_lemma():
    corpus = load(str(WIC / "dev.zh-zh.data"), "word-in-context")
    assert len(corpus.train) + len(corpus.dev) == 1000 and 90 <= len(corpus.dev) <= 100
    assert Counter(corpus.train["label"][:] + corpus.dev["label"][:]) == {"same": 500, "different": 500}
    first = next(record for record in map(record_of, corpus.train) if record.id == "dev.zh-zh.1")
    assert first.target.cut(first.text) == first.second_target.cut(first.second) == first.group == "程序"
    assert not set(corpus.train["group"]) & set(corpus.dev["group"])


ENTRY = {"id": "1", "lemma": "苹果", "pos": "NOUN", "sentence1": "苹果", "sentence2": "吃苹果", "start1": "0",
         "end1": "2", "start2": "1", "end2": "3"}  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "gold", "said"),
    [
        (ENTRY, [], "a.gold has no tag for '1'"),
        (ENTRY, [{"id": "1", "tag": "T"}, {"id": "1", "tag": "F"}], "a.gold: entry 2: id '1' stands twice"),
        (ENTRY, [{"id": "1", "tag": "X"}], "a.data: entry 1: label is"),
        (ENTRY, {"1": "T"}, "a.gold:1: is no JSON list"),
        (ENTRY | {"end1": "-2"}, [{"id": "1", "tag": "T"}], "entry 1: start1, end1 are 0, -2"),
        (ENTRY | {"end1": "3"}, [{"id": "1", "tag": "T"}], "entry 1: target: "),
        (ENTRY | {"start2": 1}, [{"id": "1", "tag": "T"}], "entry 1: lacks start2"),
    ],
    ids=str,
)
def test_a_broken_mcl_wic_file_is_named_with_its_entry(tmp_path, entry, gold, said):
    (tmp_path / "a.data").write_text(json.dumps([entry]), "utf-8")
    (tmp_path / "a.gold").write_text(json.dumps(gold), "utf-8")
    assert said in refused(str(tmp_path / "a.data"), "word-in-context")


def test_a_mcl_wic_file_without_its_answers_or_with_broken_json_is_named(tmp_path):
    path = raw(tmp_path, b'[\n{"id": "1",\n]', "a.data")
    assert f"{tmp_path / 'a.gold'}: cannot be read" in refused(path, "word-in-context")
    (tmp_path / "a.gold").write_text("[]", "utf-8")
    assert refused(path, "word-in-context").startswith(f"{path}:3: is no JSON")


def test_our_case_sets_are_sense_data_with_their_cues_as_pairs():
    corpus = load("apple", "sense", label_map={"neutral": None, "device": "company", "chip": "company"}, dev_share=0)
    cases = {case.id: case for case in load_cases("apple").cases}
    kept = [case for case in cases.values() if case.sense != "neutral"]
    assert len(corpus.train) == len(kept) and corpus.labels == ("acid", "banana", "company", "fruit", "huawei")
    for record in map(record_of, corpus.train):
        case = cases[record.id]
        assert (record.text, record.target) == (case.text, case.target)
        assert [pair.key for pair in record.pairs] == list(case.cues)


def test_a_label_map_that_leaves_nothing_is_refused(tmp_path):
    path = jsonl(tmp_path, labelled())
    assert "label_map leaves out all 20" in refused(path, "sense", label_map={"a": None, "b": None})


# ---- parts -----------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 25)), min_size=4, max_size=60),
    st.floats(0.05, 0.5),
    st.integers(0, 3),
)
def test_no_group_and_no_text_stands_in_two_parts(drawn, share, seed):
    records = [
        Record(id=str(place), where=f"f:{place}", group=f"g{group}", text=f"文{text}")
        for place, (group, text) in enumerate(drawn)
    ]
    try:
        train, dev = split_by_group(records, share=share, seed=seed)
    except DataError as error:
        assert "none can be held out" in str(error)
        return
    assert sorted(map(id, train + dev)) == sorted(map(id, records)) and train and dev
    for what in ("group", "text"):
        assert not {getattr(one, what) for one in train} & {getattr(one, what) for one in dev}
    assert len(dev) <= max(1, round(share * len(records)))


def test_a_split_depends_on_the_seed_and_not_on_the_order(tmp_path):
    rows = labelled(200, groups=100)
    settings = DataConfig(train=jsonl(tmp_path, rows), dev_share=0.2)
    turned = DataConfig(train=jsonl(tmp_path, rows[::-1], "turned.jsonl"), dev_share=0.2)
    parts = [set(load_records(of, "sense", seed=seed).dev["id"]) for of, seed in
             ((settings, 1), (settings, 1), (turned, 1), (settings, 2))]  # fmt: skip
    assert parts[0] == parts[1] == parts[2] != parts[3] and len(parts[0]) == 40


def test_a_group_that_fills_everything_leaves_no_dev_and_is_refused(tmp_path):
    path = jsonl(tmp_path, labelled(groups=1))
    assert (
        "20 records in 1 sets that must stay together (one group, or texts in common), the smallest of 20"
        in refused(path, "sense")
    )
    assert load(path, "sense", dev_share=0).dev is None


def test_one_text_many_times_is_one_group(tmp_path):
    path = jsonl(tmp_path, [{"text": "同一句话", "group": str(n)} for n in range(10)])
    assert "10 records in 1 sets" in refused(path)


def test_a_label_keeps_training_records(tmp_path):
    rows = [*labelled(40, groups=20), {"text": "罕见的苹果", "target": "苹果", "label": "rare", "group": "rare"}]
    path = jsonl(tmp_path, rows)
    for seed in range(20):
        corpus = load_records(DataConfig(train=path, dev_share=0.5), "sense", seed=seed)
        assert "rare" in corpus.train["label"][:] and "rare" not in corpus.dev["label"][:]


def test_an_unknown_label_in_dev_is_refused_with_its_place(tmp_path):
    train, dev = jsonl(tmp_path, labelled()), jsonl(tmp_path, [labelled()[0] | {"label": "c", "text": "新苹果",
                                                               "group": "new"}], "dev.jsonl")  # fmt: skip
    assert refused(train, "sense", dev=dev) == f"{dev}:1: label 'c' in dev is unknown; known are a, b"
    assert refused(train, "sense", test=dev).startswith(f"{dev}:1: label 'c' in test")
    assert load(train, "sense", dev=dev, labels=["a", "b", "c"]).labels == ("a", "b", "c")
    assert refused(train, "sense", labels=["a", "c"]).startswith(f"{train}:2: label 'b' in train")


def test_a_single_label_is_no_task(tmp_path):
    rows = [row | {"label": "a"} for row in labelled()]
    assert "all records have the label 'a'" in refused(jsonl(tmp_path, rows), "classification")


@pytest.mark.parametrize(
    ("change", "said"), [({"text": "新的苹果"}, "the group 'g0'"), ({"group": "new"}, "this text")]
)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_group_or_text_in_two_given_parts_is_refused(tmp_path, change, said, streaming):
    train, dev = jsonl(tmp_path, labelled()), jsonl(tmp_path, [labelled()[0] | change], "dev.jsonl")
    with pytest.raises(DataError, match=f"{said} stands in"):
        list(load(train, "sense", dev=dev, streaming=streaming, labels=["a", "b"]).train)


def test_index_counts_the_records_of_each_part(tmp_path):
    corpus = load(jsonl(tmp_path, labelled(100, groups=50)), "sense")
    for part in (corpus.train, corpus.dev):
        assert part["index"][:] == list(range(len(part)))


def test_packing_is_refused_where_no_causal_mask_can_keep_documents_apart(tmp_path):
    assert "allowed with causal-lm" in refused(jsonl(tmp_path, labelled()), "masked-lm", packing=True)


# ---- streams ---------------------------------------------------------------------------------------------------


def test_a_stream_gives_every_record_once_and_the_same_at_every_pass(tmp_path):
    corpus = load(jsonl(tmp_path, labelled(200, groups=100)), "sense", streaming=True, labels=["a", "b"])
    train, dev = list(corpus.train), list(corpus.dev)
    assert isinstance(corpus.train, datasets.IterableDataset) and list(corpus.train) == train
    assert sorted(int(row["id"]) for row in train + dev) == list(range(200)) and 5 <= len(dev) <= 40
    assert not {row["group"] for row in train} & {row["group"] for row in dev}
    assert [row["index"] for row in train] == list(range(len(train)))
    assert all(record_of(row).target == Span.of(row["text"], "苹果") for row in train)


def test_a_stream_is_read_only_as_far_as_it_is_asked_for(tmp_path):
    path = raw(tmp_path, b'{"text": "a"}\n{"text": "b"}\n{broken\n')
    part = load(path, streaming=True, dev_share=0).train
    read = iter(part)
    assert [next(read)["text"], next(read)["text"]] == ["a", "b"]
    with pytest.raises(DataError, match=":3: is no JSON"):
        next(read)


def test_a_stream_of_labels_needs_their_names(tmp_path):
    assert "data.labels must name the classes" in refused(jsonl(tmp_path, labelled()), "sense", streaming=True)
    corpus = load(jsonl(tmp_path, labelled()), "sense", streaming=True, labels=["a", "c"], dev_share=0)
    with pytest.raises(DataError, match="label 'b' in train is unknown"):
        list(corpus.train)


def test_an_empty_stream_is_refused_when_it_is_read(tmp_path):
    with pytest.raises(DataError, match="it is empty"):
        list(load(raw(tmp_path, b""), streaming=True).train)
    with pytest.raises(DataError, match="the streamed part holds no records"):
        list(load(jsonl(tmp_path, [{"text": "一"}]), streaming=True, dev_share=0.0001).dev)


def test_rows_are_not_read_before_they_are_asked_for(tmp_path):
    path = raw(tmp_path, b'{"text": "a"}\n{broken\n')
    rows = rows_of(path, DataConfig(train=path), split="train")
    assert next(rows) == (f"{path}:1", {"text": "a"})
