"""Two processes leave one run and one voice; the shipped configurations are read by accelerate and marked untested."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from finetune.arguments import arguments_of
from finetune.config import config_of
from tests.finished import PAIRS, lines, texts
from tests.tiny import tiny_llama

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "finetune" / "configs" / "distributed"
NAMES = ("deepspeed_zero2.yaml", "deepspeed_zero3.yaml", "fsdp.yaml")


def test_two_processes_write_one_run_and_only_one_speaks(tmp_path):
    tiny_llama(tmp_path)
    (tmp_path / "pairs.yaml").write_text(PAIRS, encoding="utf-8")
    given = {
        "model": str(tmp_path / "llama"), "task": "causal-lm",
        "data": {"train": lines(tmp_path / "train.jsonl", texts("train", 16)), "max_length": 48, "dev_share": 0.2},
        "pairs": {"file": str(tmp_path / "pairs.yaml"), "direction": "either"},
        "attention": {"weight": "auto", "heads": "all", "norms_every": 1, "threshold": 1.0},
        "training": {"max_steps": 2, "per_device_train_batch_size": 2, "use_cpu": True, "logging_steps": 1},
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(given, allow_unicode=True), encoding="utf-8")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "finetune",
        "train", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count(str(tmp_path / "run")) == 1 and done.stdout.count("train_loss") == 1
    assert json.loads((tmp_path / "run" / "manifest.json").read_text("utf-8"))["steps"] == 2
    assert not list((tmp_path / "run").rglob("*.part"))


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_configuration_is_read_by_accelerate_and_marked_untested(name):
    from accelerate.commands.config.config_args import load_config_from_file

    assert (FOLDER / name).read_text("utf-8").startswith("# UNTESTED")
    read = load_config_from_file(str(FOLDER / name))
    assert read.num_processes == 2 and not read.use_cpu
    if name == "fsdp.yaml":
        assert read.distributed_type == "FSDP"
        assert read.fsdp_config["fsdp_use_orig_params"] and not read.fsdp_config["fsdp_activation_checkpointing"]
    else:
        assert read.distributed_type == "DEEPSPEED" and read.deepspeed_config["zero_stage"] == int(name[-6])


def test_accelerate_knows_every_key_of_the_fsdp_configuration(monkeypatch):
    """As its launcher does: each key becomes a variable, which the plugin reads and validates."""
    from accelerate.utils import FullyShardedDataParallelPlugin

    for key, value in yaml.safe_load((FOLDER / "fsdp.yaml").read_text("utf-8"))["fsdp_config"].items():
        monkeypatch.setenv(key.upper(), str(value).lower() if isinstance(value, bool) else str(value))
    monkeypatch.setenv("FSDP_SYNC_MODULE_STATES", "false")  # needs a GPU to be there when it is read
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.use_orig_params and plugin.fsdp_version == 1
    assert plugin.sharding_strategy.name == "FULL_SHARD" and plugin.state_dict_type.name == "FULL_STATE_DICT"


def test_they_are_in_the_package_and_in_the_docs():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]
    assert "configs/distributed/*.yaml" in data["finetune"]
    assert sorted(path.name for path in FOLDER.iterdir()) == list(NAMES)
    told = (ROOT / "docs" / "teaching.md").read_text("utf-8")
    assert "configs/distributed/fsdp.yaml" in told and "untested" in told


def test_no_of_yaml_is_no_strategy(tmp_path):
    given = yaml.safe_load("{eval_strategy: no, save_strategy: no, logging_strategy: no}")
    config = config_of({"model": "m", "task": "causal-lm", "data": {"train": "x.jsonl"}, "training": given})
    arguments = arguments_of(config, tmp_path, has_dev=True)
    assert [getattr(arguments, name).value for name in given] == ["no"] * 3
    assert not arguments.load_best_model_at_end
