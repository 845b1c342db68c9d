"""The method of the benchmarks on costs that are known, and the benchmark of the row tap in small."""

import json

import pytest
import torch

from benchmarks import row_capture
from benchmarks.measure import compare, compare_once, compare_time, memory_increase, prime_up_to, square_tensors
from benchmarks.row_capture import RANDOM, Setting, Subject, plain_pass, subject_of, tapped_pass
from benchmarks.table import Line, exit_code

MEGABYTE = 1 << 20


def multiplying(times):
    square = torch.ones(200, 200)

    def work():
        for _ in range(times):
            square @ square

    return work


def test_twice_the_cost_is_measured_as_about_two():
    both = compare_time(multiplying(40), multiplying(80), pairs=6)
    assert 1.6 < both.ratio < 2.5
    assert both.low > 1.3 and both.low <= both.ratio <= both.high


def test_equal_work_gives_an_interval_around_one():
    both = compare_time(multiplying(80), multiplying(80), pairs=6)
    assert both.low < 1.05 and both.high > 0.95


def test_the_sides_take_turns_as_a_b_b_a_after_one_warm_up_of_each():
    turns = []
    both = compare_time(lambda: (turns.append("a"), spin()), lambda: (turns.append("b"), spin()), pairs=4)
    assert "".join(turns) == "ab" + "abba" * 2
    assert both.pairs == 4


def test_three_pairs_must_do_where_a_run_is_long():
    assert compare_time(spin, spin, pairs=10, long_run=0.0).pairs == 3
    assert compare_time(spin, spin, pairs=2, long_run=0.0).pairs == 2


def spin():
    return sum(range(20_000))


def test_time_is_measured_with_one_thread_and_the_number_of_threads_restored():
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        compare_time(lambda: (seen.append(torch.get_num_threads()), spin()), spin, pairs=2)
        assert set(seen) == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_ratio_is_the_geometric_mean_of_the_pairs_and_its_interval_lies_within_them():
    steady = compare([1.0, 2.0, 4.0], [2.0, 4.0, 8.0], seed=0)  # a machine that slows down moves nothing
    assert (steady.ratio, steady.low, steady.high) == pytest.approx((2.0, 2.0, 2.0))
    both = compare([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 4.0, 4.0], seed=0)
    assert both.ratio == pytest.approx(2.0)
    assert 1.0 <= both.low < 1.5 and 2.7 < both.high <= 4.0
    assert (both.a, both.b, both.pairs) == (1.0, 2.5, 4)


def allocating(megabytes, *, first=0, barrier=None):
    """Work that passes `first` megabytes through memory, then holds `megabytes` of what it gives back."""

    def work():
        if first:
            torch.ones(first * MEGABYTE // 4)
        return torch.ones(megabytes * MEGABYTE // 4), barrier

    return work


def passing_then_holding(first, held):
    torch.ones(100 * MEGABYTE // 4)  # what loading needs for a while is no part of the increase
    small = [torch.ones(MEGABYTE // 128) for _ in range(3200)]  # 100 MB of the heap, free for use again
    barrier = torch.ones(10)
    del small
    return allocating(held, first=first, barrier=barrier)


@pytest.mark.parametrize(("first", "held", "peak"), [(0, 40, 40), (60, 20, 60)])
def test_memory_is_the_peak_of_the_work_over_what_stood_before(first, held, peak):
    increase = memory_increase(passing_then_holding, first, held) / MEGABYTE
    assert peak - 1 < increase < peak + 4


def test_a_planted_square_tensor_is_caught_in_whatever_shape():
    length = prime_up_to(64)
    assert length == 61
    query, key = torch.ones(2, 3, length, 8), torch.ones(2, 3, length, 8)
    assert square_tensors(lambda: query @ key.transpose(2, 3), length).total() > 0
    assert square_tensors(lambda: torch.ones(length * length), length).total() == 1
    assert square_tensors(lambda: torch.ones(3, length, 1, length, dtype=torch.bool), length).total() == 1


def test_rows_and_views_are_no_square_tensors():
    length = prime_up_to(64)
    query, key, mask = torch.ones(2, 3, length, 8), torch.ones(2, 3, length, 8), torch.ones(length, length)
    assert square_tensors(lambda: query[:, :, :4] @ key.transpose(2, 3), length).total() == 0
    assert square_tensors(lambda: mask[None, None].expand(2, 1, length, length), length).total() == 0


def test_the_tap_makes_no_square_tensor_where_the_plain_pass_makes_none_and_a_planted_one_shows():
    length = prime_up_to(40)
    subject = subject_of(Setting(model=RANDOM, texts=2, tokens=40), tokens=length)
    assert square_tensors(lambda: plain_pass(subject), length).total() == 0
    assert square_tensors(lambda: tapped_pass(subject), length).total() == 0
    everything = Subject(model=subject.model, batch=subject.batch, queries=[list(range(length))] * 2)
    assert square_tensors(lambda: tapped_pass(everything), length).total() >= 3  # one a layer at least


def test_the_small_preset_keeps_its_bounds_and_writes_its_table(tmp_path, capsys):
    file = tmp_path / "rows.json"
    assert row_capture.main(["--preset", "ci", "--pairs", "2", "--json", str(file)]) == 0
    lines = json.loads(file.read_text("utf-8"))
    assert [line["quantity"].split(" (")[0] for line in lines] == [
        "CPU time",
        "attaching, a pass",
        "memory increase",
        "memory less the rows",
        "T x T tensors made",
    ]
    assert all(line["setting"] in capsys.readouterr().out for line in lines[:1])
    time, _, memory, beyond, squares = lines
    assert time["other"] > 0 and time["low"] <= time["ratio"] <= time["high"]
    rows = 3 * 4 * 8 * 4 * 128 * 4 / 1e6  # layers, texts, heads, words, keys, bytes
    assert memory["rows"] - beyond["rows"] == pytest.approx(rows)
    assert squares["other"] == squares["rows"] == 0


def test_the_long_presets_method_in_small_one_run_a_side_and_eager_on_the_other(tmp_path):
    file = tmp_path / "long.json"
    assert row_capture.main(["--preset", "ci-long", "--pairs", "2", "--json", str(file)]) == 0
    lines = {(line["setting"], line["quantity"].split(" (")[0]): line for line in json.loads(file.read_text("utf-8"))}
    once, eager = "random BERT 1 x 128", "random BERT 1 x 512, eager"
    assert set(lines) == {
        (once, "CPU time"), (once, "memory increase"), (once, "memory less the rows"),
        (eager, "CPU time"), (eager, "attaching, a pass"), (eager, "memory increase"), (eager, "memory less the rows"),
    }  # fmt: skip
    assert lines[once, "CPU time"]["ratio"] == lines[once, "CPU time"]["low"] == lines[once, "CPU time"]["high"]
    assert lines[eager, "CPU time"]["verdict"] == "" and lines[eager, "memory increase"]["verdict"] == "kept"
    maps = 3 * 8 * 512 * 512 * 4 / 1e6  # layers, heads, queries, keys, bytes: eager's output holds them all
    assert lines[eager, "memory increase"]["other"] > maps


def test_the_attention_only_preset_in_small_is_faster_and_smaller_than_eager(tmp_path):
    file = tmp_path / "attention.json"
    assert row_capture.main(["--preset", "ci-attention-only", "--pairs", "2", "--json", str(file)]) == 0
    time, _, memory, _, squares = json.loads(file.read_text("utf-8"))
    assert time["setting"] == "attention only 1 x 1,024, eager"
    assert time["verdict"] == memory["verdict"] == squares["verdict"] == "kept"
    assert time["ratio"] < 1 and memory["other"] > 4 * 8 * 1024 * 1024 * 4 / 1e6  # every layer's map is held
    model, tokenizer = row_capture.model_of(row_capture.ATTENTION_ONLY)
    assert tokenizer is None and len(model.layers) == 4 and model.config.num_attention_heads == 8


def test_the_attention_only_preset_holds_four_times_eagers_speed_at_8192_tokens():
    eager, plain = row_capture.PRESETS["attention-only"]
    assert (eager.tokens, eager.against, eager.time_bound) == (8192, "eager", 0.25)
    assert (plain.tokens, plain.against) == (8192, "plain")


def test_time_and_memory_of_one_run_are_those_of_a_known_work():
    time, memory = compare_once(passing_then_holding, (10, 20), (10, 60))
    assert 58 < memory.b / MEGABYTE < 66 and 2 < memory.ratio < 4
    assert time.a > 0 and time.low == time.ratio == time.high


def test_the_long_presets_hold_the_lengths_and_bounds_that_are_claimed():
    lengths = {name: [setting.tokens for setting in row_capture.PRESETS[name]] for name in ("long", "longest", "eager")}
    assert lengths == {"long": [512, 2048, 8192], "longest": [32_768], "eager": [1024, 2048, 4096]}
    for setting in (*row_capture.PRESETS["long"], *row_capture.PRESETS["longest"]):
        assert setting.time_bound == setting.memory_bound == 1.05 and setting.against == "plain"
    assert row_capture.PRESETS["eager"][-1].memory_bound == 0.25


def test_a_missed_bound_leaves_with_one_and_a_quantity_without_a_bound_with_nothing():
    line = {"setting": "s", "quantity": "q", "unit": "s", "other": 1.0, "rows": 1.1}
    kept, missed = Line(**line, held=1.05, bound=1.05), Line(**line, held=1.06, bound=1.05)
    assert (kept.verdict, missed.verdict, Line(**line).verdict) == ("kept", "MISSED", "")
    assert exit_code([kept, Line(**line)]) == 0
    assert exit_code([kept, missed]) == 1
    least = [Line(**line, held=held, bound=0.9, at_least=True).verdict for held in (0.89, 0.9, 1.1)]
    assert least == ["MISSED", "kept", "kept"]


@pytest.mark.parametrize("arguments", [["--pairs", "1"], ["--preset", "huge"]])
def test_impossible_arguments_are_refused(arguments):
    with pytest.raises(SystemExit) as refused:
        row_capture.main(arguments)
    assert refused.value.code == 2
