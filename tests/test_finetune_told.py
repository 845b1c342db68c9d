"""What a run tells on the way and when it is over: each step, λ and heads, and that a finished run is left as it is."""

import pytest
import yaml

from finetune.config import config_of, schema
from finetune.errors import DataError
from finetune.preflight import inspect_run
from finetune.records import load_records
from finetune.train import train
from tests.finished import language_model


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return language_model(tmp_path_factory.mktemp("told"))


def of(run, **more):
    told = yaml.safe_load((run / "config.yaml").read_text("utf-8"))
    return config_of({**told, "out": str(run), **more})


def test_a_run_that_came_to_its_end_is_left_as_it_is(run):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = train(of(run), resume=True, device="cpu")
    assert done.steps == 3 and "had come to its end at step 3" in done.notes[-1]
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_spoilt_adapter_is_written_anew_from_the_last_checkpoint(tmp_path):
    run = language_model(tmp_path / "run")
    weights = run / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "had come to its end" not in " ".join(train(of(run), resume=True, device="cpu").notes)
    assert weights.read_bytes() == whole


def test_each_step_is_told_and_the_weight_and_heads_of_the_loss_on_attention(run, tmp_path):
    told = []
    done = train(of(run, out=str(tmp_path / "again")), device="cpu", progress=lambda *line: told.append(line))
    assert [line[1:] for line in told if line[0] == "training"] == [(step, 3) for step in range(4)]
    assert any(note.startswith("loss on attention mass, weight 1, 4 heads in layers 2") for note in done.notes)


def test_every_key_of_the_schema_says_what_it_means():
    found = schema()
    parts = [found, *(part for part in found["$defs"].values() if "properties" in part)]
    assert [(name, key["description"]) for part in parts for name, key in part["properties"].items()]


def test_a_look_before_training_takes_early_stopping_on_a_share_of_the_texts(run, tmp_path):
    config = of(run, out=str(tmp_path / "new"), early_stopping={"patience": 2})
    assert inspect_run(config, examples=0).refusal is None


def test_a_label_column_that_is_not_there_is_named_with_those_that_are(tmp_path):
    (tmp_path / "a.csv").write_text("text,target,sense\n我喜欢苹果,苹果,fruit\n", encoding="utf-8")
    config = config_of({"model": "m", "task": "sense", "data": {"train": str(tmp_path / "a.csv")}})
    with pytest.raises(DataError, match=r"a\.csv:2: lacks 'label'; it has sense, target, text \(data\.label"):
        load_records(config.data, config.task, seed=0)
