"""A run from a stream: as far as it is told, no text twice in a pass, resumed to the same weights, never held whole."""

import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from finetune.arguments import arguments_of
from finetune.batches import collator_of
from finetune.begun import CHECKPOINTS
from finetune.dataconfig import DataConfig
from finetune.encode import Encoding
from finetune.errors import ConfigError, DataError, PairError
from finetune.pairs import Reach
from finetune.preflight import inspect_run, lines_of
from finetune.prepare import prepare_run
from finetune.records import load_records
from finetune.streams import ExampleStream, shuffled
from finetune.train import train
from tests.streamed import jsonl, learn, pairs, streamed, texts, tiny_base
from tests.tiny import byte_fallback_tokenizer

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream")
    tiny_base(folder / "base")
    jsonl(folder / "train.jsonl", texts(40))
    pairs(folder / "pairs.yaml")
    return folder


def manifest(run):
    return json.loads((run.folder / "manifest.json").read_text("utf-8"))


def adapter(folder):
    return load_file(folder / "adapter_model.safetensors")


def gap(one, other):
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.fixture(scope="module")
def whole(desk):
    """A streamed run to its end: 6 steps of 4 are less than a pass of 40."""
    return train(streamed(desk, "whole", training={"save_steps": 2}), device="cpu")


# ---- the stream ------------------------------------------------------------------------------------------------


def stream_of(folder, *, rows=30, buffer=8, look_ahead=4, packing=False, seed=0):
    data = DataConfig(
        train=str(jsonl(folder / "t.jsonl", [{"text": f"苹果{n}"} for n in range(rows)])), streaming=True, dev_share=0,
        shuffle_buffer=buffer, look_ahead=look_ahead, packing=packing,
    )  # fmt: skip
    encoding = Encoding(task="causal-lm", max_length=64, reach=Reach(causal=True, window=None, longest=None))
    part = load_records(data, "causal-lm").train
    return ExampleStream(part, byte_fallback_tokenizer(), encoding, data=data, seed=seed)


def taken(stream, count):
    rows = iter(stream)
    return [next(rows) for _ in range(count)]


def test_each_pass_gives_every_text_once_in_an_order_of_its_own(tmp_path):
    drawn = taken(stream_of(tmp_path), 90)
    passes = [[one.index for one in drawn[start : start + 30]] for start in (0, 30, 60)]
    assert all(sorted(order) == list(range(30)) for order in passes)
    assert len({tuple(order) for order in passes}) == 3 and list(range(30)) not in passes
    assert [one.draw for one in drawn] == [0] * 30 + [1] * 30 + [2] * 30  # a masked text is masked anew
    assert [one.index for one in taken(stream_of(tmp_path), 90)] == [*passes[0], *passes[1], *passes[2]]
    assert [one.index for one in taken(stream_of(tmp_path, seed=1), 30)] != passes[0]


def test_a_buffer_of_none_keeps_the_order_and_a_larger_one_mixes_further():
    draw = lambda size: list(shuffled(range(1000), size=size, random=np.random.default_rng(0)))  # noqa: E731
    assert draw(0) == list(range(1000)) and draw(1) == list(range(1000))
    far = [np.abs(np.array(draw(size)) - np.arange(1000)).mean() for size in (5, 50, 500)]
    assert far[0] < far[1] < far[2]
    assert sorted(draw(50)) == list(range(1000)) and max(draw(50)[:10]) < 60


def test_packed_rows_of_a_stream_lose_and_repeat_nothing(tmp_path):
    rows = taken(stream_of(tmp_path, packing=True), 8)
    assert all(isinstance(row, tuple) and sum(len(one.input_ids) for one in row) <= 64 for row in rows)
    seen = [(one.draw, one.index) for row in rows for one in row]
    assert len(seen) == len(set(seen)) and len(seen) > 16
    batch = collator_of(byte_fallback_tokenizer(), "causal-lm")(rows)
    assert "position_ids" in batch


def test_what_is_looked_at_first_is_what_is_drawn_first(tmp_path):
    stream = stream_of(tmp_path, look_ahead=4)
    assert stream.drawn == 0
    assert [one.index for one in stream.documents] == [one.index for one in taken(stream, 4)]
    assert stream.drawn == 4


def test_a_stream_whose_texts_teach_nothing_is_refused_and_does_not_spin(tmp_path):
    rows = [{"prompt": "我喜欢苹果" * 4, "completion": "苹果"}]
    data = DataConfig(train=str(jsonl(tmp_path / "t.jsonl", rows)), streaming=True, dev_share=0, max_length=8)
    encoding = Encoding(task="causal-lm", max_length=8, reach=Reach(causal=True, window=None, longest=None))
    with pytest.raises(DataError, match="counts no token"):
        ExampleStream(
            load_records(data, "causal-lm").train, byte_fallback_tokenizer(), encoding, data=data, seed=0
        )  # fmt: skip


# ---- runs ------------------------------------------------------------------------------------------------------


def test_a_streamed_run_says_what_it_looked_at_and_how_much_it_drew(whole):
    told = manifest(whole)
    assert whole.steps == told["steps"] == 6
    assert told["stream"] == {"looked_at": 16, "shuffle_buffer": 8}
    assert 24 <= told["records"]["train"] <= 28  # a loader reads one batch ahead
    (note,) = [note for note in told["notes"] if note.startswith("streamed")]
    assert "first 16 documents" in note and "buffer of 8" in note and note in whole.notes
    card = (whole.folder / "README.md").read_text("utf-8")
    assert "records drawn from a stream" in card and "streamed: the first 16" in card


@pytest.mark.parametrize(
    ("more", "steps"),  # 4 steps of 8 are within a pass of 40, 8 reach into the second
    [({}, 4), ({"data": {"packing": True}}, 8), ({"attention": {"mode": "random"}}, 8)],
)
def test_a_run_that_goes_on_from_a_checkpoint_ends_as_one_that_did_not_stop(desk, tmp_path, more, steps):
    for name in ("base", "train.jsonl", "pairs.yaml"):
        (tmp_path / name).symlink_to(desk / name)
    training = {"max_steps": steps, "save_steps": 2, "save_total_limit": 10, "gradient_accumulation_steps": 2}
    config = streamed(tmp_path, "run", **{**more, "training": training})
    first = train(config, device="cpu")
    wanted, told = adapter(first.folder), manifest(first)
    for number in range(4, steps + 1, 2):
        shutil.rmtree(first.folder / CHECKPOINTS / f"checkpoint-{number}")
    (first.folder / "adapter_model.safetensors").unlink()
    again = train(config, device="cpu", resume=True)
    assert gap(wanted, adapter(again.folder)) <= 1e-6
    assert manifest(again)["records"] == told["records"]
    start = load_file(first.folder / CHECKPOINTS / "checkpoint-2" / "adapter_model.safetensors")
    assert gap(wanted, start) > 1e-4


def test_heads_and_weight_are_those_of_the_first_documents_in_the_control_too(desk):
    auto = {"weight": "auto", "heads": "auto"}
    true, control = (
        train(streamed(desk, f"auto-{mode}", attention={**auto, "mode": mode}), device="cpu")
        for mode in ("pairs", "random")
    )
    one, other = manifest(true)["attention"], manifest(control)["attention"]
    assert one["heads"] == other["heads"] and one["weight"] == other["weight"] > 0
    assert other["control"]["pairs"] > 0 and other["control"]["true_mass"] > 0
    assert gap(adapter(true.folder), adapter(control.folder)) > 1e-5


def test_the_control_of_a_stream_is_that_of_the_same_texts_read_whole(desk):
    """Whatever the adapter has learned meanwhile, a text's other spans are chosen by the base model."""
    random = {"mode": "random", "heads": [[2, 0], [2, 1]]}
    stream = prepare_run(streamed(desk, "a", attention=random), device="cpu")
    plain = prepare_run(streamed(desk, "b", attention=random, data={"streaming": False}), device="cpu")
    whole = {one.index: one.pairs for one in plain.train.documents}
    for name, weight in stream.learner.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=1.0)
    drawn = taken(stream.train, 40)
    assert {one.index: one.pairs for one in drawn} == whole
    true = {one.index: one.pairs for one in plain.true}
    assert true != whole and any(true.values()) and {one.index for one in stream.true} < set(true)
    assert all(weight.requires_grad for name, weight in stream.learner.model.named_parameters() if "lora_" in name)


def test_a_part_cut_off_from_a_stream_is_dev_and_no_text_of_it_is_trained_on(desk):
    config = streamed(desk, "dev", data={"dev_share": 0.3, "look_ahead": 5}, training={"max_steps": 20})
    prepared = prepare_run(config, device="cpu")
    assert len(prepared.dev.documents) == 5
    drawn = {one.id for one in taken(prepared.train, 60)}
    held_out = {row["id"] for row in prepared.corpus.dev}
    assert not drawn & held_out and drawn | held_out == {f"t{n}" for n in range(40)}
    told = manifest(train(config, device="cpu"))
    assert told["records"]["dev"] == 5 and "eval_loss" in told["metrics"] and "eval_pair_mass" in told["metrics"]


def test_a_dev_file_beside_a_stream_is_read_whole(desk):
    file = jsonl(
        desk / "dev.jsonl",
        [{**row, "id": f"d{n}", "group": f"d{n}", "text": row["text"] + "完"} for n, row in enumerate(texts(9))],
    )
    prepared = prepare_run(streamed(desk, "dev2", data={"dev": str(file), "look_ahead": 4}), device="cpu")
    assert len(prepared.dev.documents) == 9


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "txt", "hub"])
def test_every_kind_of_source_is_streamed(desk, kind):
    rows = texts(40)
    path = desk / f"rows.{kind}"
    if kind == "parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    elif kind == "txt":
        path.write_text("\n".join(row["text"] for row in rows), encoding="utf-8")
    elif kind == "hub":  # a folder that `datasets` reads by the same call as a hub id
        path = desk / "repository"
        (path / "data").mkdir(parents=True)
        datasets.Dataset.from_list(rows).to_parquet(path / "data" / "train-00000.parquet")
    else:
        separator = "," if kind == "csv" else "\t"
        lines = [separator.join(rows[0]), *(separator.join(row.values()) for row in rows)]
        path.write_text("\n".join(lines), encoding="utf-8")
    more = {"kind": "hub"} if kind == "hub" else {}
    prepared = prepare_run(streamed(desk, kind, source=path, data=more), device="cpu")
    assert sorted(one.index for one in taken(prepared.train, 40)) == list(range(40))
    assert len({one.input_ids.tobytes() for one in taken(prepared.train, 40)}) == 40


# ---- memory ----------------------------------------------------------------------------------------------------


def long_file(path, rows):
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            file.write(json.dumps({"text": f"第{number}份里苹果在前，后来谈到光刻。"}, ensure_ascii=False) + "\n")
    return path


def test_of_a_long_file_only_what_is_trained_on_is_encoded_and_nothing_is_kept(desk):
    """Of 20,000 lines, 6 steps of 4 need 24; what is held is the same as for 2,000."""
    peaks = []
    for rows in (2_000, 20_000):
        file = long_file(desk / f"long{rows}.jsonl", rows)
        config = streamed(desk, f"long{rows}", source=file, attention={"heads": "all"})
        prepared = prepare_run(config, device="cpu")
        tracemalloc.start()
        for _ in taken(prepared.train, 200):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    told = manifest(train(config, device="cpu"))
    assert told["records"]["train"] <= 24 + 4 and told["stream"]["looked_at"] == 16
    assert peaks[1] < 1.3 * peaks[0], peaks
    assert peaks[1] < 3_000_000


# ---- several processes -----------------------------------------------------------------------------------------


def in_processes(count, config):
    settings = json.dumps(config.model_dump(mode="json"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}", "--module"]
    done = subprocess.run(
        [sys.executable, *command, "tests.streamed", settings], env=environment, capture_output=True, text=True,
        timeout=300, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((config.folder / f"seen{rank}.json").read_text()) for rank in range(count)]


def test_two_processes_share_a_stream_and_take_the_steps_of_one(desk):
    training = {"max_steps": 5, "per_device_train_batch_size": 4, "optim": "sgd", "learning_rate": 0.05}
    seen = in_processes(2, streamed(desk, "two", training=training))
    alone = streamed(desk, "one", training={**training, "per_device_train_batch_size": 8})
    learn(alone.model_dump(mode="json"))
    wanted = json.loads((alone.folder / "seen0.json").read_text())
    assert [len(batches) for batches in seen] == [5, 5]
    both = [sorted(one + other) for one, other in zip(*seen, strict=True)]
    assert both == [sorted(batch) for batch in wanted]
    assert sorted(index for batch in both for index in batch) == list(range(40))  # a whole pass, no text twice
    weights = [
        torch.load(config.folder / CHECKPOINTS / "weights.pt", weights_only=True)
        for config in (alone, streamed(desk, "two"))
    ]
    assert gap(*weights) < 1e-5 * max(float(weight.abs().max()) for weight in weights[0].values())


def test_accelerate_is_told_not_to_cut_ragged_batches(desk, tmp_path):
    config = streamed(desk, "x")
    assert arguments_of(config, tmp_path, has_dev=False).accelerator_config.dispatch_batches is False
    file = tmp_path / "accelerator.json"
    file.write_text(json.dumps({"dispatch_batches": True}))
    with pytest.raises(ConfigError, match="dispatch_batches: false"):
        arguments_of(
            streamed(desk, "x", training={"accelerator_config": str(file)}), tmp_path, has_dev=False
        )  # fmt: skip


# ---- refusals and the look before ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"max_steps": -1}, "training.max_steps must say where to stop"),
        ({"dataloader_num_workers": 2}, "dataloader_num_workers 2: allowed is 0"),
        ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches: allowed is false"),
        ({"train_sampling_strategy": "group_by_length"}, "a stream is read in its order"),
    ],
)
def test_what_a_stream_cannot_do_is_one_line(desk, training, said):
    with pytest.raises(ConfigError) as caught:
        streamed(desk, "x", training=training)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_too_few_pairs_are_told_with_how_far_the_stream_was_read(desk):
    config = streamed(desk, "few", pairs={"absent_limit": 0.0}, data={"look_ahead": 2})
    with pytest.raises(PairError, match=r"first 2 documents of the stream, data\.look_ahead") as caught:
        prepare_run(config, device="cpu")
    assert str(inspect_run(config).refusal) == str(caught.value)


def test_the_look_before_reads_a_stream_no_further_than_training_looks(desk):
    file = long_file(desk / "look.jsonl", 60)
    with file.open("a", encoding="utf-8") as stream:
        stream.write("{broken\n")  # beyond 16 documents and a buffer of 8
    found = inspect_run(streamed(desk, "look", source=file))
    assert found.examples == 16 and found.refusal is None and found.work.steps == 6
    text = "\n".join(lines_of(found))
    assert "a stream, of which 16 examples were read" in text and "6 steps (batches of 4) of a stream" in text
    prepared = prepare_run(streamed(desk, "look", source=file), device="cpu")
    assert prepared.pairs == found.pairs
