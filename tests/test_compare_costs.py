"""What a job costs: time and memory while it runs, whether it fails or not; what a run trained."""

import time

import numpy as np
import pytest

from finetune.compare.costs import Spent, cost_of, metered, spent_of, trained_parameters
from finetune.runfolder import open_run_folder
from tests.finished import sense_reader


def test_time_and_the_most_memory_are_told_of_a_block_and_also_of_one_that_fails():
    told = []
    with pytest.raises(ZeroDivisionError), metered(told.append):
        held = np.ones(30_000_000)  # 240 MB, let go before the end
        time.sleep(0.4)
        del held
        raise ZeroDivisionError
    calm = []
    with metered(calm.append):
        time.sleep(0.1)
    assert 0.4 < told[-1].wall_seconds < 20 and told[-1].sessions == 1
    assert told[-1].memory_mb > calm[-1].memory_mb + 150
    assert calm[-1].cpu_seconds < 0.1 < calm[-1].wall_seconds  # sleeping takes time and no computing


def test_what_is_spent_is_told_while_a_job_runs_so_that_a_kill_loses_little(monkeypatch):
    monkeypatch.setattr("finetune.compare.costs._TOLD_EVERY", 0.2)
    told = []
    with metered(told.append):
        time.sleep(0.8)
        before_the_end = len(told)
    assert 2 <= before_the_end < len(told)
    assert [one.wall_seconds for one in told] == sorted(one.wall_seconds for one in told)


def test_sessions_add_up_and_the_most_memory_is_the_larger_one():
    one = Spent(wall_seconds=2.0, cpu_seconds=1.0, memory_mb=700.0, sessions=1)
    two = Spent(wall_seconds=3.0, cpu_seconds=4.0, memory_mb=500.0, device_memory_mb=9.0, sessions=1)
    both = Spent(wall_seconds=5.0, cpu_seconds=5.0, memory_mb=700.0, device_memory_mb=9.0, sessions=2)
    assert one.and_then(two) == both and spent_of(vars(both)) == both and spent_of(None) == Spent()
    cost = cost_of(training=one, measuring=two, trainable=7, prompt_tokens=1.5)
    assert {name: cost[name] for name in ("seconds", "memory_mb", "trainable", "prompt_tokens")} == {
        "seconds": 5.0, "memory_mb": 700.0, "trainable": 7, "prompt_tokens": 1.5,
    }  # fmt: skip


def test_a_runs_trained_numbers_are_those_of_adapter_and_head_without_what_the_head_only_keeps(tmp_path):
    run = open_run_folder(sense_reader(tmp_path), device="cpu")
    trained = [weight.numel() for name, weight in run.model.named_parameters() if "lora_" in name]
    head = 2 * 32 + 2  # two senses of states of 32, and a bias each; centre and scale are not trained
    assert trained_parameters(run) == sum(trained) + head and len(trained) > 10
