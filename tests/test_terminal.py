"""The terminal: aligned wide characters, colours only where they are wanted, a user's text shown as text."""

import io
import re
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from probe import terminal
from probe.terminal import check_table, open_console, print_groups, print_heat_map, show_progress, text_table, visible

LABELS = ["<s>", "我", "喜欢", "苹果", "</s>"]
WEIGHTS = np.array([[0.5, 0.1, 0.3, 0.06, 0.04], [0.9, 0.001, np.nan, 0.0989, 0.0]])


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("COLUMNS", "80")


def heat_map(stream: io.StringIO, **changes: Any) -> str:
    settings = {"labels": LABELS, "weights": WEIGHTS, "rows": ["layer 0", "layer 11"], **changes}
    labels, weights = settings.pop("labels"), settings.pop("weights")
    print_heat_map(open_console(stream), labels, weights, **settings)
    return stream.getvalue()


def without_colour(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_piped_heat_map_is_plain_numbers_under_their_words() -> None:
    assert heat_map(io.StringIO()).splitlines() == [
        "         <s> 我  喜欢 苹果 </s>",
        "layer 0   50  10   30    6    4",
        "layer 11  90   ·    –   10    ·",
    ]


def test_a_terminal_shows_the_same_with_colours() -> None:
    coloured = heat_map(Screen())
    assert without_colour(coloured) == heat_map(io.StringIO())
    assert "48;2;8;48;107m" in coloured  # the largest weight, in the darkest blue


def test_no_color_is_obeyed_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "48;2" not in heat_map(Screen()) and "38;2" not in heat_map(Screen())


def test_a_sink_does_not_set_the_scale() -> None:
    darkest = re.escape("\x1b[38;2;255;255;255;48;2;8;48;107m")
    assert re.findall(darkest + r" *(\d+)", heat_map(Screen(), special=[0, 4])) == ["50", "30", "90"]
    assert re.findall(darkest + r" *(\d+)", heat_map(Screen())) == ["90"]


def test_target_and_cues_are_marked_in_the_header() -> None:
    header = heat_map(Screen(), target=[3], cues=[2]).splitlines()[0]
    assert "\x1b[1m喜欢\x1b[0m" in header and "\x1b[1;4m苹果\x1b[0m" in header


def test_columns_line_up_where_characters_are_two_cells_wide() -> None:
    words = ["苹果公司", "a", "，", "ｆｕｌｌ", "é", "蘋果"]
    lines = heat_map(io.StringIO(), labels=words, weights=np.full((2, 6), 0.16)).splitlines()
    ends = [[cell_len(line[: found.end()]) for found in re.finditer("16", line)] for line in lines[1:]]
    assert ends[0] == ends[1] and len(ends[0]) == 6
    starts = [cell_len(lines[0][: lines[0].index(word)]) for word in words]
    widths = [max(3, cell_len(word)) for word in words]
    assert [start + width for start, width in zip(starts, widths, strict=True)] == ends[0]


def test_a_long_text_is_broken_into_blocks_that_repeat_the_row_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    words = [f"字{number}" for number in range(20)]
    shown = heat_map(Screen(), labels=words, weights=np.full((2, 20), 0.05))
    lines = without_colour(shown).splitlines()
    assert all(cell_len(line) <= 30 for line in lines)
    assert sum(line.startswith("layer 11") for line in lines) == len(lines) // 3 > 1
    assert [word for line in lines[::3] for word in line.split()] == words


def test_piped_output_is_one_line_a_row_however_long() -> None:
    words = [f"字{number}" for number in range(3000)]
    lines = heat_map(io.StringIO(), labels=words, weights=np.full((2, 3000), 0.05)).splitlines()
    assert len(lines) == 3 and lines[0].split() == words
    stream = io.StringIO()
    open_console(stream).print(text_table(["name", "why"], [["first", "why " * 50], ["second " * 30, "short"]]))
    assert len(stream.getvalue().splitlines()) == 3


GROUPS = [
    (("order", "refuted", "words " * 30), [("order", "refuted", "1.0", "deviation", "the order is lost " * 4)]),
    (("heads", "waits", "短的"), [("heads", "waits", "–", "–", "later")]),
]
HEADS = ("claim", "verdict", "number", "quantity", "statement")


def test_groups_have_a_line_a_row_off_a_terminal_and_no_blanks_at_its_end() -> None:
    stream = io.StringIO()
    print_groups(open_console(stream), HEADS, GROUPS)
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["claim", "order", "order", "heads", "heads"]
    assert not any(line.endswith(" ") for line in lines)
    seconds = ("verdict", "refuted", "refuted", "waits", "waits")
    assert len({line.index(word) for line, word in zip(lines, seconds, strict=True)}) == 1


def test_groups_are_folded_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = Screen()
    print_groups(open_console(stream), HEADS, GROUPS)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()
    assert max(map(len, lines)) <= 60 and sum(line.startswith("order") for line in lines) == 2
    assert "".join(lines).count("words") == 30


def test_a_word_of_white_space_has_a_sign_over_its_column() -> None:
    lines = heat_map(io.StringIO(), labels=["苹", "  ", "\n", "\u3000\n", "果"], weights=np.ones((1, 5)), rows=["0"])
    assert lines.splitlines()[0].split() == ["苹", "␣␣", "␊", "␣␊", "果"]


def test_a_word_longer_than_a_column_is_cut_visibly() -> None:
    lines = heat_map(io.StringIO(), labels=["苹" * 40], weights=np.ones((1, 1)), rows=["0"]).splitlines()
    assert lines[0].strip() == "苹" * 7 + "…"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("苹果 apple", "苹果 apple"),
        ("[bold]x[/bold] :apple:", "[bold]x[/bold] :apple:"),
        ("\x1b[31mred\x07", "<U+001B>[31mred<U+0007>"),
        ("a\u202eb\u2066c\u200f", "a<U+202E>b<U+2066>c<U+200F>"),
        ("\ufeff苹\u200d果", "<U+FEFF>苹<U+200D>果"),
        ("a\nb\tc\r", "a␊b␉c␍"),
        ("\x9b31m\x7f\ud800", "<U+009B>31m<U+007F><U+D800>"),
        ("\u0301e", "◌\u0301e"),
        ("", ""),
    ],
)
def test_what_would_move_or_hide_text_is_spelled_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_markup_in_a_users_text_stays_literal_everywhere() -> None:
    evil = "[red]苹果[/] :smile: \x1b[2J"
    shown = "[red]苹果[/] :smile: <U+001B>[2J"
    screen = Screen()
    console = open_console(screen)
    print_heat_map(console, ["[b]苹[/b]"], np.ones((1, 1)), rows=["[i]0"])
    console.print(check_table([(evil, "pass", None, None, "ok")]))
    console.print(text_table(["name"], [[evil]]))
    assert "[b]苹[/b]" in screen.getvalue() and "[i]0" in screen.getvalue()
    assert screen.getvalue().count(shown) == 2


def test_the_check_table_says_pass_fail_and_why() -> None:
    items = [
        ("rows", "pass", 1.234e-7, 1e-6, "as the eager formula"),
        ("heads", "fail", 3.0, 4.0, "one is missing"),
    ]
    stream = io.StringIO()
    open_console(stream).print(check_table([*items, ("groups", "skip", None, None, "no groups")]))
    lines = [line.split() for line in stream.getvalue().splitlines()]
    assert lines[1] == ["rows", "pass", "1.23e-07", "1e-06", "as", "the", "eager", "formula"]
    assert lines[2][:4] == ["heads", "fail", "3", "4"] and lines[3][:2] == ["groups", "skip"]
    assert "\x1b" not in stream.getvalue()


def test_progress_off_a_terminal_is_silent_for_two_seconds_then_says_where_a_stage_starts_and_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with show_progress(stream) as show:
        show("capture", 1, 9)
        assert stream.getvalue() == ""
        now[0] = 2.5
        for done in range(2, 10):
            show("capture", done, 9)
        show("cut\x1bedges", 0, 4)
    assert stream.getvalue() == "capture: 2 of 9\ncapture: 9 of 9\ncut<U+001B>edges: 0 of 4\n"


def test_a_stage_first_heard_of_at_its_end_is_one_line_and_its_end_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with show_progress(stream) as show:
        now[0] = 2.5
        for done in (32, 33, 33):
            show("capture", done, 33)
        show("cuts", 4, 4)
    assert stream.getvalue() == "capture: 32 of 33\ncapture: 33 of 33\ncuts: 4 of 4\n"


def test_progress_on_a_terminal_leaves_no_line_behind() -> None:
    screen = Screen()
    with show_progress(screen) as show:
        show("[b]capture", 3, 9)
    assert "[b]capture" in screen.getvalue() and "3/9" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[2K")  # the line is erased


def test_patient_progress_says_nothing_on_a_terminal_either_before_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    screen = Screen()
    with show_progress(screen, patient=True) as show:
        show("layers", 1, 9)
        assert "layers" not in screen.getvalue()
        now[0] = 2.5
        show("layers", 2, 9)
    assert "layers" in screen.getvalue() and "2/9" in screen.getvalue()
