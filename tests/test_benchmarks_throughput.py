"""The benchmark of capture's throughput in small, and memory watched along a stream of known needs."""

import json

import numpy as np
import pytest
import torch

from benchmarks import throughput
from benchmarks.measure import compare, peaks_along
from benchmarks.throughput import OPTIONS, RANDOM, Setting, cases_for, in_turn, model_of, plain_batches, throughput_line
from probe import capture_cases

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def loaded():
    return model_of(RANDOM)


@pytest.fixture(scope="module")
def cases(loaded):
    return cases_for(loaded, 100)


def test_texts_are_spread_over_8_to_200_tokens_and_hold_their_target(loaded, cases):
    lengths = [len(ids) for ids in loaded.tokenizer([case.text for case in cases])["input_ids"]]
    assert sorted(lengths) == np.linspace(8, 200, 100).round().astype(int).tolist()
    assert lengths != sorted(lengths)
    assert {case.target.cut(case.text) for case in cases} >= {"苹果"}
    assert len({case.text for case in cases}) > 90 and len({case.id for case in cases}) == 100


def test_the_plain_side_runs_the_very_batches_of_capture(loaded, cases):
    seen = []
    hook = loaded.backbone.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
    )
    try:
        throughput.run_plain(loaded, cases)
        plain, seen[:] = list(seen), []
        list(capture_cases(loaded, cases, options=OPTIONS))
    finally:
        hook.remove()
    probing = len(seen) - len(plain)  # short runs by which capture finds its route
    assert 0 < probing < 6
    assert all(torch.equal(one, other) for one, other in zip(plain, seen[probing:], strict=True))
    assert len(plain) == len(list(plain_batches(loaded, [case.text for case in cases])))


def test_every_part_is_taken_in_turn():
    taken = []
    work = in_turn(taken.append, ["a", "b", "c"])
    for _ in range(4):
        work()
    assert taken == ["a", "b", "c", "a"]


def test_throughput_is_the_inverse_of_the_seconds_and_its_bound_is_held_against_the_upper_limit():
    line = throughput_line(Setting(model=RANDOM, texts=20), compare([10.0, 10.0], [10.0, 12.5], seed=0), sentences=100)
    assert (line.other, line.low, line.high) == pytest.approx((10.0, 0.8, 1.0))
    assert line.low < line.ratio < line.high and line.verdict == "kept"
    slow = throughput_line(Setting(model=RANDOM, texts=20), compare([10.0, 10.0], [12.0, 12.5], seed=0), sentences=100)
    assert slow.high == pytest.approx(10 / 12) and slow.verdict == "MISSED"


def steady_then_growing(kept):
    def stream():
        held = []
        for item in range(20):
            block = torch.ones(8 * MEGABYTE // 4)
            if item >= 10 and kept:
                held.append(block)
            yield item

    return stream


@pytest.mark.parametrize(("kept", "growth"), [(False, 0), (True, 64)])
def test_memory_along_a_stream_is_flat_unless_something_is_kept(kept, growth):
    early, late = peaks_along(steady_then_growing, kept, marks=(8, 20))
    assert 15 < early / MEGABYTE < 24  # a new block is made while the last one is held
    assert abs((late - early) / MEGABYTE - growth) < 10


def test_the_small_preset_keeps_its_bounds_and_writes_its_table(tmp_path):
    file = tmp_path / "throughput.json"
    assert throughput.main(["--preset", "ci", "--pairs", "2", "--json", str(file)]) == 0
    speed, memory = json.loads(file.read_text("utf-8"))
    assert speed["setting"] == memory["setting"] == "random BERT 240 x 8 to 200"
    assert speed["low"] <= speed["ratio"] <= speed["high"] == speed["held"] and speed["at_least"]
    assert memory["quantity"] == "memory after 60, after all" and memory["other"] > 1


def test_the_full_preset_holds_the_number_of_texts_and_the_bounds_that_are_claimed():
    (setting,) = throughput.PRESETS["full"]
    assert (setting.texts, setting.throughput_bound, setting.memory_bound) == (2000, 0.9, 1.05)
