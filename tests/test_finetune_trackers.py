"""TensorBoard, trackio and MLflow: our metrics and the whole configuration arrive, in the run folder."""

import contextlib
import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from finetune.config import config_of
from finetune.errors import ConfigError
from finetune.trackers import TRACKERS, trackers_of
from finetune.train import train
from tests.finished import language_model

ROOT = Path(__file__).resolve().parents[1]
OURS = ("task_loss", "attention_loss", "task_gradient", "attention_gradient", "pair_mass", "sink_mass", "pairs_met")
PROGRAM = """
import sys
from pathlib import Path
from tests.finished import language_model
language_model(
    Path(sys.argv[1]), training__report_to=[sys.argv[2]], training__logging_steps=1, attention__norms_every=1,
    training__eval_strategy="epoch", data__dev_share=0.5,  # or the dev part holds no pair to train on
)
"""


def tracked(folder, name, **environment):
    """A run in a process of its own, whose current directory is `folder`."""
    if not any(map(importlib.util.find_spec, TRACKERS[name][0])):
        pytest.skip(f"{name} is not installed: pip install 'cijing[trackers]'")
    paths = os.pathsep.join([str(ROOT), *(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path)])
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW", "TRACKIO", "TENSORB"))}
    (folder / "here").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), name], cwd=folder / "here", capture_output=True, text=True,
        env={**plain, "PYTHONPATH": paths, "HF_HOME": str(folder / "home"), **environment}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert not list((folder / "here").iterdir()), "the tracker wrote into the current directory"
    assert done.stdout == ""
    return folder / "run" / "tracking" / name


def test_tensorboard_holds_our_metrics_and_the_configuration(tmp_path):
    folder = tracked(tmp_path, "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    events = EventAccumulator(str(folder))
    events.Reload()
    assert {f"train/{name}" for name in OURS} <= set(events.Tags()["scalars"])
    assert {"eval/loss", "eval/pair_mass"} <= set(events.Tags()["scalars"])
    steps = [event.step for event in events.Scalars("train/task_loss")]
    assert steps == [1, 2, 3]
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    told = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert told["run.lora.r"].number_value == 8 and told["run.attention.loss"].string_value == "mass"
    assert "run.training.hub_token" not in told


def test_trackio_holds_our_metrics_and_the_configuration(tmp_path):
    folder = tracked(tmp_path, "trackio")
    (file,) = folder.glob("*.db")
    with contextlib.closing(sqlite3.connect(file)) as database:
        logs = [json.loads(row[0]) for row in database.execute("select metrics from metrics")]
        config = json.loads(database.execute("select config from configs").fetchone()[0])
    assert {f"train/{name}" for name in OURS} <= set().union(*logs)
    assert config["run.lora.r"] == 8 and config["run.attention.loss"] == "mass"


def test_mlflow_holds_our_metrics_and_the_configuration(tmp_path):
    folder = tracked(tmp_path, "mlflow")
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as database:
        metrics = {row[0] for row in database.execute("select key from metrics")}
        parameters = dict(database.execute("select key, value from params"))
    assert set(OURS) <= metrics
    assert parameters["run.lora.r"] == "8" and parameters["run.attention.loss"] == "mass"


def test_the_environments_place_wins(tmp_path):
    asked = tmp_path / "elsewhere"
    folder = tracked(tmp_path, "tensorboard", TENSORBOARD_LOGGING_DIR=str(asked))
    assert list(asked.glob("events*")) and not folder.exists()


def test_a_tracker_that_is_not_there_is_said_before_a_model_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    given = {
        "model": "no/model", "task": "causal-lm", "data": {"train": "nothing.jsonl"}, "out": str(tmp_path / "run"),
        "training": {"report_to": ["mlflow"]},
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"report_to mlflow: not installed; pip install mlflow-skinny"):
        train(config_of(given))
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=r"report_to 'tensorbaord': allowed is none, all, tensorboard, trackio"):
        trackers_of({"report_to": "tensorbaord"})
    assert trackers_of({"report_to": "none"}) == trackers_of({}) == trackers_of({"report_to": []}) == ()


def test_without_trackers_nothing_is_tracked(tmp_path):
    assert not (language_model(tmp_path) / "tracking").exists()
