"""The benchmark of a whole report: a real run within wide bounds, and that each bound can break."""

from dataclasses import replace

import pytest

from benchmarks.report_bounds import PAGE_BYTES, PICTURES, Run, broken, main

GOOD = Run(seconds=10.0, gigabytes=1.0, page=1000, pictures=5, files={"report.html": "a", "tables/results.csv": "b"})


def test_two_equal_runs_within_the_bounds_break_nothing():
    assert broken((GOOD, GOOD), seconds=90, gigabytes=1.5) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seconds": 91.0}, "91.0 s"),
        ({"gigabytes": 1.6}, "1.60 GB"),
        ({"page": PAGE_BYTES + 1}, "page of"),
        ({"pictures": PICTURES + 1}, "13 pictures"),
        ({"files": {**GOOD.files, "tables/results.csv": "c"}}, "tables/results.csv differs"),
        ({"files": {"report.html": "a"}}, "tables/results.csv differs"),
    ],
)
def test_each_bound_can_break(change, said):
    (found,) = broken((GOOD, replace(GOOD, **change)), seconds=90, gigabytes=1.5)
    assert said in found


@pytest.mark.real
def test_a_real_report_is_the_same_twice_and_a_bound_that_cannot_hold_gives_exit_code_1(tmp_path, capsys):
    cases = tmp_path / "two.csv"
    cases.write_text("marked,sense\n我{吃}了一个[苹果],fruit\n我{买}了一部[苹果],device\n", encoding="utf-8")
    # A child's peak begins at its parent's, and the parent is a worker full of tests here.
    assert main([str(cases), "--seconds", "600", "--gigabytes", "64"]) == 0
    assert "every bound holds" in capsys.readouterr().out
    assert main([str(cases), "--seconds", "0.1", "--gigabytes", "64"]) == 1
    assert "allowed 0.1" in capsys.readouterr().out
