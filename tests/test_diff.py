"""What changed between two runs: facts by kind, results joined on their keys, and a clear no where nothing did."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from probe.changes import KEYS, changes_between, fact_rows, load_run, result_rows, summary_of, write_changes
from probe.errors import OutputError
from probe.observing import StudySettings
from probe.runs import open_run
from probe.study import run_report
from tests.planted import planted_cases, planted_model
from tests.tiny import tiny_bert

ROW = {
    "model": "m", "stack": "encoder", "layer": 0, "head": 0, "query": "target", "key": "cue", "weighting": "none",
    "measure": "attention mass", "contrast": "mean", "unit": "cue word", "n": 12, "estimate": 0.5, "low": 0.4,
    "high": 0.6, "control": np.nan,
}  # fmt: skip


def written(path, rows, *, formats=("csv", "parquet"), **facts):
    with open_run(path) as folder:
        folder.write_table("results", pd.DataFrame([{**ROW, **row} for row in rows]), formats=formats)
        for fact, value in facts.items():
            folder.record(fact, value)
    return path


def changed(a, b):
    return changes_between(load_run(a), load_run(b))


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    path = tmp_path_factory.mktemp("real") / "run"
    with open_run(path) as folder:
        run_report(planted_model(), planted_cases(), settings=StudySettings(reference_cases=0), folder=folder)
    return path


def test_a_run_and_its_copy_have_nothing_changed(real, tmp_path):
    shutil.copytree(real, tmp_path / "copy")
    found = changed(real, tmp_path / "copy")
    assert found.nothing and found.joined > 100
    assert summary_of(found)[0].startswith("nothing changed") and not result_rows(found, most=20)


def test_the_csv_of_a_run_says_the_same_as_its_parquet(real, tmp_path):
    copy = shutil.copytree(real, tmp_path / "copy")
    (copy / "tables/results.parquet").unlink()
    assert changed(real, copy).nothing


def test_a_real_run_with_another_setting_tells_which(real, tmp_path):
    with open_run(tmp_path / "other") as folder:
        settings = StudySettings(reference_cases=0, seed=1)
        run_report(planted_model(), planted_cases(), settings=settings, folder=folder)
    found = changed(real, tmp_path / "other")
    assert [(fact.what, fact.name, fact.a, fact.b) for fact in found.facts] == [
        ("settings", "seed", "0", "1"), ("settings", "seeds", "[0]", "[1]"),
    ]  # fmt: skip
    assert found.outside == 0, "another bootstrap seed moves bounds a little and estimates not at all"


def test_the_largest_changes_outside_both_intervals_come_first(tmp_path):
    a = written(tmp_path / "a", [{"head": head} for head in range(5)])
    numbers = [(0.5, 0.4, 0.6), (0.7, 0.45, 0.8), (0.9, 0.8, 1.0), (0.15, 0.05, 0.2), (0.55, 0.5, 0.6)]
    b = written(
        tmp_path / "b", [{"head": n, "estimate": e, "low": lo, "high": hi} for n, (e, lo, hi) in enumerate(numbers)]
    )
    found = changed(a, b)
    # head 0 is equal, 1 lies outside A's interval only, 4 outside none
    assert (len(found.rows), found.outside, found.joined) == (4, 2, 5)
    assert found.rows["head"].tolist() == [2, 3, 1, 4]
    shown = result_rows(found, most=1)
    assert len(shown) == 1 and shown[0][1] == "encoder layer 0, head 2" and shown[0][-1] == "+0.4"
    assert "4 of 5 changed, 2 of them outside both intervals" in summary_of(found)[1]


def test_a_change_of_rank_does_not_hide_a_change_of_share(tmp_path):
    rank = {"measure": "cue rank", "low": 9.9, "high": 10.1}
    a = written(tmp_path / "a", [{"head": 0}, {"head": 1, **rank, "estimate": 10.0}])
    b = written(
        tmp_path / "b",
        [{"head": 0, "estimate": 0.9, "low": 0.8, "high": 1.0}, {"head": 1, **rank, "estimate": 11.0, "low": 10.9}],
    )
    assert changed(a, b).rows["head"].tolist() == [0, 1], "0.4 of a share of 0.9 is more than 1 of a rank of 11"


def test_numbers_without_an_interval_are_never_outside_and_nan_equals_nan(tmp_path):
    nothing = {"estimate": np.nan, "low": np.nan, "high": np.nan}
    bare = {"low": np.nan, "high": np.nan}
    a = written(tmp_path / "a", [{"head": 0, **nothing}, {"head": 1, **bare}, {"head": 2}])
    b = written(tmp_path / "b", [{"head": 0, **nothing}, {"head": 1, **bare, "estimate": 0.9}, {"head": 2, **nothing}])
    found = changed(a, b)
    assert found.rows["head"].tolist() == [1, 2] and found.outside == 0


def test_rows_that_one_run_alone_has_are_counted(tmp_path):
    a = written(tmp_path / "a", [{"head": 0}, {"head": 1}])
    b = written(tmp_path / "b", [{"head": 1}, {"head": 2}, {"head": 3}])
    found = changed(a, b)
    assert (found.joined, found.only_a, found.only_b) == (1, 1, 2) and not found.nothing
    assert summary_of(found)[-1] == "results that only one run has: 1 in A, 2 in B"


def test_runs_of_one_model_each_are_joined_and_runs_of_several_keep_their_models_apart(tmp_path):
    a, b = written(tmp_path / "a", [{"model": "one"}]), written(tmp_path / "b", [{"model": "two", "estimate": 0.9}])
    assert changed(a, b).joined == 1 and "model" not in changed(a, b).rows
    several = written(tmp_path / "c", [{"model": "one"}, {"model": "two", "estimate": 0.7}])
    found = changed(a, several)
    assert (found.joined, found.only_b) == (1, 1)


def test_facts_are_told_by_kind_and_times_are_none_of_them(tmp_path):
    a = written(
        tmp_path / "a", [{}], model={"name": "m", "fingerprint": "1", "origin": "x"}, data={"sha256": "d"},
        config={"model": "m", "seed": 0}, check={"path": "tap"},
    )  # fmt: skip
    b = written(
        tmp_path / "b", [{}], model={"name": "m", "fingerprint": "2"}, data={"sha256": "e"},
        config={"model": "m2", "seed": 0}, check={"path": "eager"},
    )  # fmt: skip
    manifest = json.loads((b / "manifest.json").read_text())
    manifest["packages"]["torch"] = "1.0"
    (b / "manifest.json").write_text(json.dumps(manifest))
    rows = fact_rows(changed(a, b))
    assert [row[:2] for row in rows] == [
        ("model", "fingerprint"), ("model", "origin"), ("cases", "sha256"), ("packages", "torch"),
        ("self-check", "path"),
    ]  # fmt: skip
    assert rows[1][2:] == ("x", "–")
    assert summary_of(changed(a, b))[0] == "different: model, cases, packages, self-check"


def test_every_changed_row_can_be_written(tmp_path):
    a = written(tmp_path / "a", [{"head": head} for head in range(3)])
    b = written(tmp_path / "b", [{"head": 0}, {"head": 1, "estimate": 0.55}, {"head": 2, "estimate": 0.9, "low": 0.8}])
    write_changes(changed(a, b), tmp_path / "changes.csv")
    frame = pd.read_csv(tmp_path / "changes.csv")
    assert len(frame) == 2 and {"estimate A", "estimate B", "change", "outside", *KEYS} - {"model"} <= set(frame)
    with pytest.raises(OutputError, match="cannot write"):
        write_changes(changed(a, b), tmp_path / "no/such/folder.csv")


def broken(tmp_path, what):
    path = tmp_path / "run"
    if what == "no folder":
        return path
    if what == "a file":
        path.write_text("x")
        return path
    written(path, [{}, {}] if what == "two rows" else [{}])
    manifest, parquet = path / "manifest.json", path / "tables/results.parquet"
    damage = {
        "no manifest": manifest.unlink,
        "a list": lambda: manifest.write_text("[]"),
        "no JSON": lambda: manifest.write_text("{"),
        "another maker": lambda: manifest.write_text('{"made_by": "x"}'),
        "no results": lambda: shutil.rmtree(path / "tables"),
        "damaged": lambda: parquet.write_bytes(b"PAR1 no"),
        "other table": lambda: pd.DataFrame({"a": [1]}).to_parquet(parquet),
        "two rows": lambda: None,
    }
    damage[what]()
    return path


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("no folder", "no run folder"),
        ("a file", "no run folder"),
        ("no manifest", "no run folder"),
        ("a list", "no run folder"),
        ("no JSON", "no run folder"),
        ("another maker", "made by 'x'"),
        ("no results", "no tables/results"),
        ("damaged", "damaged"),
        ("other table", "no column 'model'"),
        ("two rows", "two rows about the same thing"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(what, says, tmp_path):
    path = broken(tmp_path, what)
    with pytest.raises(OutputError, match=says) as caught:
        load_run(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


# --- the commands -----------------------------------------------------------------------------------------------


def command(*arguments):
    from probe.__main__ import run

    return run([str(argument) for argument in arguments])


def test_diff_prints_whole_lines_where_it_is_piped(tmp_path, capsys):
    a = written(tmp_path / "a", [{"head": head} for head in range(3)], model={"name": "m"})
    b = written(tmp_path / "b", [{"head": n, "estimate": 0.9, "low": 0.8, "high": 1.0} for n in range(3)])
    assert command("diff", a, b, "--csv", tmp_path / "c.csv", "--most", "2") == 0
    out = capsys.readouterr().out
    assert "3 of 3 changed, 3 of them outside both intervals" in out and "\x1b" not in out and "…" not in out
    assert out.count("attention mass, target → cue, mean") == 2 and (tmp_path / "c.csv").is_file()
    assert command("diff", a, a) == 0 and capsys.readouterr().out.startswith("nothing changed")


def test_diff_of_a_folder_that_is_no_run_is_one_line_and_exit_code_2(tmp_path, capsys):
    a = written(tmp_path / "a", [{}])
    assert command("diff", a, tmp_path / "none") == 2
    heard = capsys.readouterr()
    assert heard.err.count("\n") == 1 and "none is no run folder" in heard.err and heard.out == ""


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tiny_bert(folder)
    return folder / "bert"


def test_compare_writes_a_run_that_diff_can_read(bert, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("- marked: 我{喜欢}[苹果]\n- marked: 他{讨厌}[菠菜]\n", encoding="utf-8")
    assert command("compare", bert, bert, "mine.yaml", "--language", "zh") == 0
    assert capsys.readouterr().out.strip() == "runs/mine-compare/report.html"
    assert "恰为 0" in (tmp_path / "runs/mine-compare/report.html").read_text()
    assert command("compare", bert, bert, "mine.yaml") == 2, "not empty"
    capsys.readouterr()
    assert command("diff", "runs/mine-compare", "runs/mine-compare") == 0
    assert capsys.readouterr().out.startswith("nothing changed")


def test_compare_with_bad_input_is_one_line_and_leaves_nothing(bert, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (["compare", bert], ["compare", bert, bert, "no-such.yaml"], ["compare", bert, "no/such/model"]):
        assert command(*arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
