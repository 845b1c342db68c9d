"""Run folders: all or nothing, never somebody else's files, the same bytes for the same tables."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from probe.errors import CasesError, OutputError
from probe.runs import folder_name, open_run, package_versions


def observations(rows: int = 6, *, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "case": [f"苹果-{number % 3}" for number in range(rows)],
            "layer": np.arange(rows) % 12,
            "measure": "attention mass",
            "value": draw.random(rows),
        }
    )


def names_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def test_a_run_stands_under_its_name_with_everything_that_was_written(tmp_path: Path) -> None:
    with open_run(tmp_path / "runs" / "one") as folder:
        folder.write_config({"cases": "relations", "标题": "苹果"})
        folder.write_bytes("figures/map.png", b"\x89PNG")
        folder.write_text("report.html", "<p>苹果</p>\n")
        folder.write_table("results", observations())
        assert not (tmp_path / "runs" / "one").exists()
    expected = ["config.yaml", "figures/map.png", "manifest.json", "report.html"]
    assert names_in(tmp_path / "runs" / "one") == [*expected, "tables/results.csv", "tables/results.parquet"]
    assert os.listdir(tmp_path / "runs") == ["one"]
    assert yaml.safe_load((tmp_path / "runs/one/config.yaml").read_text("utf-8"))["标题"] == "苹果"


def test_the_manifest_names_what_decided_the_run_and_answers_for_every_file(tmp_path: Path) -> None:
    with open_run(tmp_path / "one") as folder:
        folder.record("model", {"name": "builtin:e5-small", "hash": "ab"})
        folder.record("seeds", {"control words": 7})
        with folder.stage("capture"):
            time.sleep(0.02)
        with folder.stage("capture"):
            time.sleep(0.02)
        folder.write_text("report.html", "x")
    manifest = json.loads((tmp_path / "one/manifest.json").read_text("utf-8"))
    assert manifest["model"]["hash"] == "ab" and manifest["seeds"] == {"control words": 7}
    assert 0.04 <= manifest["seconds"]["capture"] <= manifest["seconds"]["total"]
    assert manifest["started"] <= manifest["ended"] and manifest["started"].endswith("+00:00")
    assert manifest["packages"]["numpy"] == np.__version__
    # sha256 of the one byte "x"
    assert manifest["files"] == {"report.html": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}


def test_the_same_tables_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with open_run(tmp_path / name) as folder:
            folder.write_table("results", observations())
            with folder.stream_table("observations") as append:
                append(observations(seed=1))
                append(observations(seed=2))
    for file in ("results.csv", "results.parquet", "observations.parquet"):
        assert (tmp_path / "one/tables" / file).read_bytes() == (tmp_path / "two/tables" / file).read_bytes()


def test_tables_hold_float32_whole_numbers_and_dictionaries_of_words(tmp_path: Path) -> None:
    with open_run(tmp_path / "one") as folder:
        folder.write_table("results", observations())
    schema = pq.read_schema(tmp_path / "one/tables/results.parquet")
    kinds = {name: str(schema.field(name).type) for name in ("layer", "value")}
    assert kinds == {"layer": "int32", "value": "float"}
    assert str(schema.field("case").type).startswith("dictionary<values=string")
    read = pd.read_csv(tmp_path / "one/tables/results.csv")
    assert np.array_equal(read["value"].to_numpy(np.float32), observations()["value"].to_numpy(np.float32))
    assert list(read["case"]) == list(observations()["case"])


def test_a_column_of_nothing_and_a_missing_number_survive_both_formats(tmp_path: Path) -> None:
    frame = pd.DataFrame({"control": [None, None], "p": [0.5, float("nan")]})
    with open_run(tmp_path / "one") as folder:
        folder.write_table("results", frame)
    for read in (pd.read_csv, lambda path: pd.read_parquet(path.with_suffix(".parquet"))):
        again = read(tmp_path / "one/tables/results.csv")
        assert again["control"].isna().all() and again["p"].isna().tolist() == [False, True]


def test_a_streamed_table_equals_its_pieces_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probe.runs.GROUP_ROWS", 50)
    pieces = [observations(rows, seed=rows) for rows in (7, 60, 1, 49, 2)]
    with open_run(tmp_path / "one") as folder, folder.stream_table("observations") as append:
        for piece in pieces:
            append(piece)
    file = tmp_path / "one/tables/observations.parquet"
    assert pq.ParquetFile(file).num_row_groups == 4  # 67 rows as 50 + 17, 50, and the last 2
    read, whole = pd.read_parquet(file), pd.concat(pieces)
    assert list(read["case"]) == list(whole["case"]) and list(read["layer"]) == list(whole["layer"])
    assert np.array_equal(read["value"], whole["value"].astype(np.float32))


def test_a_streamed_table_of_no_rows_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match=r"observations\.parquet: the table has no rows"),
        open_run(tmp_path / "one") as folder,
        folder.stream_table("observations"),
    ):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [CasesError("bad"), KeyboardInterrupt(), SystemExit(143), ValueError("bug")])
def test_an_error_leaves_nothing_behind_and_the_earlier_run_untouched(tmp_path: Path, error: BaseException) -> None:
    write_run(tmp_path / "kept", "first")
    for target in (tmp_path / "kept", tmp_path / "deep" / "er" / "new"):
        with pytest.raises(type(error)), open_run(target, force=True) as folder:
            folder.write_text("report.html", "second")
            raise error
    assert os.listdir(tmp_path) == ["kept"]
    assert (tmp_path / "kept/report.html").read_text() == "first"


def test_an_earlier_run_is_replaced_only_with_force(tmp_path: Path) -> None:
    write_run(tmp_path / "one", "first")
    with pytest.raises(OutputError, match="not empty; --force replaces"):
        write_run(tmp_path / "one", "second")
    assert (tmp_path / "one/report.html").read_text() == "first"
    write_run(tmp_path / "one", "second", force=True)
    assert (tmp_path / "one/report.html").read_text() == "second"
    assert os.listdir(tmp_path) == ["one"]


def test_an_empty_folder_needs_no_force(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    write_run(tmp_path / "one", "first")
    assert names_in(tmp_path / "one") == ["manifest.json", "report.html"]


def test_a_linked_folder_is_written_where_the_link_leads(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far")
    write_run(tmp_path / "link", "first")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "far/report.html").exists()


@pytest.mark.parametrize(
    "manifest", [None, "", "[]", "not json", '{"made_by": "other", "files": {}}', '{"made_by": "cijing"}', "\xff"]
)
def test_force_never_replaces_a_folder_that_no_run_wrote(tmp_path: Path, manifest: str | None) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letters.txt").write_text("dear")
    if manifest is not None:
        (tmp_path / "home/manifest.json").write_bytes(manifest.encode("latin-1"))
    with pytest.raises(OutputError, match="which no run wrote; it is not replaced"):
        write_run(tmp_path / "home", "x", force=True)
    assert (tmp_path / "home/letters.txt").read_text() == "dear"


def test_force_refuses_a_run_that_holds_a_users_own_notes_and_names_them(tmp_path: Path) -> None:
    write_run(tmp_path / "one", "first")
    (tmp_path / "one/notes").mkdir()
    (tmp_path / "one/notes/mine.txt").write_text("thoughts")
    with pytest.raises(OutputError, match=r"holds notes/mine\.txt, which no run wrote"):
        write_run(tmp_path / "one", "second", force=True)


def test_the_folder_one_works_in_is_never_a_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    for target in (".", "..", "/"):
        with pytest.raises(OutputError, match="holds the folder you are working in"):
            write_run(Path(target), "x", force=True)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="is a file; name a folder"):
        write_run(tmp_path / "file", "x", force=True)
    with pytest.raises(OutputError, match=r"cannot write .*file/below: Not a directory"):
        write_run(tmp_path / "file" / "below", "x")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a user who may not write")
def test_a_folder_without_write_permission_is_refused_in_one_line() -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        os.seteuid(65534)
        try:
            with pytest.raises(OutputError, match=r"^cannot write .*one: Permission denied$"):
                write_run(Path(place) / "one", "x")
        finally:
            os.seteuid(0)


def test_a_file_cannot_be_written_outside_the_run(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="outside the run folder"), open_run(tmp_path / "one") as folder:
        folder.write_text("figures/../../escaped.txt", "x")
    assert os.listdir(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 256 KiB, of which 64 KiB are in use by an earlier run."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True)
    if mount.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mount.stderr.decode().strip()}")
    try:
        write_run(disk / "kept", "x" * 65_536)
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("way", ["bytes", "csv", "parquet", "stream", "files"])
def test_a_disk_that_fills_up_ends_the_run_in_one_line_with_nothing_half_written(small_disk: Path, way: str) -> None:
    with pytest.raises(OutputError) as caught, open_run(small_disk / "new") as folder:
        if way == "bytes":
            folder.write_bytes("figures/map.png", b"x" * 1_000_000)
        elif way == "stream":
            with folder.stream_table("observations") as append:
                for seed in range(3):
                    append(observations(300_000, seed=seed))
        elif way == "files":
            for number in range(1000):
                folder.write_bytes(f"figures/{number}.png", b"x" * 1000)
        else:
            folder.write_table("results", observations(300_000), formats=(way,))
    assert str(caught.value).startswith(f"cannot write {small_disk}/new/")
    assert str(caught.value).endswith(": No space left on device") and "\n" not in str(caught.value)
    assert os.listdir(small_disk) == ["kept"]
    assert (small_disk / "kept/report.html").stat().st_size == 65_536


def test_a_limit_on_the_size_of_files_ends_the_run_in_one_line(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OutputError, match=r"map\.png: File too large$"), open_run(tmp_path / "new") as folder:
            folder.write_bytes("figures/map.png", b"x" * 1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []


def test_an_error_of_the_callers_own_is_not_taken_for_one_of_the_disk(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError),
        open_run(tmp_path / "new") as folder,
        folder.stream_table("observations"),
    ):
        (tmp_path / "no such model").read_text()


def test_the_versions_in_a_manifest_are_the_installed_ones_and_read_without_torch() -> None:
    code = "import sys; from probe.runs import package_versions as v; print(v()['torch'], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [package_versions()["torch"], "False"]


def write_run(path: Path, text: str, *, force: bool = False) -> None:
    with open_run(path, force=force) as folder:
        folder.write_text("report.html", text)


def test_of_two_runs_into_one_folder_the_later_one_is_refused_and_the_first_stays(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="not empty"), open_run(tmp_path / "run") as later:
        with open_run(tmp_path / "run") as sooner:
            sooner.write_text("report.html", "sooner")
        later.write_text("report.html", "later")
    assert (tmp_path / "run/report.html").read_text() == "sooner"
    assert os.listdir(tmp_path) == ["run"]


def test_a_streamed_frame_without_rows_does_not_disturb_the_others(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as folder, folder.stream_table("observations") as append:
        append(observations())
        append(pd.DataFrame({name: [] for name in observations().columns}))
    assert len(pd.read_parquet(tmp_path / "run/tables/observations.parquet")) == 6


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("relations", "relations"),
        ("苹果-1.2", "苹果-1.2"),
        ("../../evil", "evil"),
        ("/etc", "etc"),
        ("a b/c", "a-b-c"),
        ("..", "run"),
        ("", "run"),
        ("苹" * 500, "苹" * 33),
    ],
)
def test_the_name_of_a_set_names_one_folder_and_nothing_outside(name: str, folder: str) -> None:
    assert folder_name(name) == folder
