"""What a caller gives: what is taken as it is meant, and what is refused in one line."""

from pathlib import Path

import numpy as np
import pytest
import torch

from probe.errors import CijingError, ModelError, OutputError
from probe.given import (
    callback,
    is_a,
    number_set,
    one_of,
    path_of,
    shown,
    size_in_bytes,
    truth,
    whole_number,
    whole_numbers,
)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_a_whole_number_of_any_library_is_a_plain_int(value):
    found = whole_number(value, "seed", least=0, most=3)
    assert found == 3 and type(found) is int


@pytest.mark.parametrize("value", [True, np.True_, torch.tensor(True), 3.0, np.float32(3), "3", None, [3], -1, 4])
def test_what_is_no_whole_number_within_its_bounds_is_refused(value):
    with pytest.raises(ModelError, match=r"^seed .*: allowed is a whole number from 0 to 3$") as raised:
        whole_number(value, "seed", least=0, most=3, error=ModelError)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "value", [[2, 0], (2, 0), np.array([2, 0]), torch.tensor([2, 0]), iter([2, 0]), range(2, -1, -2), {2: "", 0: ""}]
)
def test_whole_numbers_come_in_their_order_from_anything_that_holds_them(value):
    if isinstance(value, dict):
        value = value.keys()
    assert whole_numbers(value, "ids") == (2, 0)


@pytest.mark.parametrize("value", ["20", b"20", 5, None, {1: 2}, np.int64(5), 2.5])
def test_what_holds_no_whole_numbers_is_refused_as_a_whole(value):
    with pytest.raises(CijingError, match=r"^ids .*: allowed is a list of whole numbers from 0$"):
        whole_numbers(value, "ids", least=0)


@pytest.mark.parametrize(
    ("value", "named"), [([0, True], "True"), ([1.0], "1.0"), (["1"], "'1'"), ([-1], "-1"), (np.ones((1, 1)), "1.0")]
)
def test_the_member_that_is_no_whole_number_is_named(value, named):
    with pytest.raises(CijingError, match=rf"^ids has \[?{named}\]?: allowed are whole numbers from 0$"):
        whole_numbers(value, "ids", least=0)


def test_a_set_of_none_is_refused():
    assert number_set(range(2), "layers") == frozenset({0, 1})
    with pytest.raises(CijingError, match=r"^layers is empty: .* or None for all$"):
        number_set([], "layers")


@pytest.mark.parametrize(("value", "size"), [(7, 7), ("4GB", 4 * 10**9), ("1.5 MB", 1_500_000), ("12", 12)])
def test_a_size_is_a_number_of_bytes_or_a_text_with_a_unit(value, size):
    assert size_in_bytes(value, "memory_budget") == size


@pytest.mark.parametrize("value", [0, -1, True, float("nan"), "4 gibs", "", "0", None])
def test_what_is_no_size_is_refused(value):
    with pytest.raises(CijingError, match=r"^memory_budget .*like 4GB or 500MB$"):
        size_in_bytes(value, "memory_budget")


def test_a_path_is_text_or_a_path_and_says_something():
    assert path_of("a/b", "path") == path_of(Path("a/b"), "path") == Path("a/b")
    for value in ("", " ", "a\0b", b"a", 3, None, ["a"]):
        with pytest.raises(OutputError, match=r"^path .*: allowed is the name of a file or folder"):
            path_of(value, "path")


def test_truth_words_kinds_and_functions_are_checked():
    assert truth(np.False_, "states") is False and one_of("all", "rows", ("all",)) == "all"
    assert callback(print, "progress") is print and callback(None, "progress") is None
    for check, message in (
        (lambda: truth("no", "states"), "states 'no': allowed are True and False"),
        (lambda: one_of("some", "rows", ("all", "last")), "rows 'some' is unknown; allowed are all, last"),
        (lambda: one_of(["all"], "rows", ("all",)), r"rows \['all'\] is unknown; allowed are all"),
        (lambda: callback(5, "progress"), "progress 5: allowed is a function, or None"),
        (lambda: is_a("x", Path, "path", wanted="a Path"), "path is 'x'; allowed is a Path"),
    ):
        with pytest.raises(CijingError, match=f"^{message}$"):
            check()


@pytest.mark.parametrize(
    "value", ["x\ny" * 99, torch.zeros(99, 99), np.zeros((9, 9)), torch.nn.Linear(2, 2), list(range(999)), None]
)
def test_every_value_is_shown_in_one_short_line(value):
    assert "\n" not in shown(value) and 0 < len(shown(value)) <= 60
