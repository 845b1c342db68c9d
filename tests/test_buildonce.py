"""A folder is built once, whole or not at all, whatever happens meanwhile."""

import json
import multiprocessing
import os
import resource
import time
from pathlib import Path

import pytest

from probe.buildonce import Recipe, build_once, cache_folder, intact
from probe.errors import ModelError


def recipe(write, *, identity=None, bytes_needed=10):
    return Recipe(
        name="builtin:toy",
        identity=identity or {"source": "abc"},
        bytes_needed=bytes_needed,
        write=write,
    )


def counting(path: Path):
    """A writer that leaves one line in `path` for every time it runs."""

    def write(folder, say):
        with path.open("a") as log:
            log.write("built\n")
        (folder / "weights").write_bytes(b"0123456789" * 1000)
        (folder / "config").write_text("{}")
        time.sleep(0.3)  # long enough for two processes to meet

    return write


def times(path: Path) -> int:
    return path.read_text().count("built") if path.exists() else 0


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_dir() and path.name != "toy"]


def test_a_second_call_reads_what_the_first_one_built(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "models" / "toy"
    first = build_once(recipe(counting(log)), folder)
    second = build_once(recipe(counting(log)), folder)
    assert (first.result, first.folder) == (second.result, second.folder)
    assert times(log) == 1 and left_over(folder.parent) == []


@pytest.mark.parametrize("damage", ["truncated", "changed", "deleted", "no manifest", "broken manifest", "edited hash"])
def test_a_damaged_folder_is_noticed_and_built_again(tmp_path, damage):
    log, folder = tmp_path / "log", tmp_path / "models" / "toy"
    result = build_once(recipe(counting(log)), folder).result
    weights, manifest = folder / "weights", folder / "manifest.json"
    if damage == "truncated":
        os.truncate(weights, 100)
    elif damage == "changed":
        weights.write_bytes(b"9123456789" * 1000)
    elif damage == "deleted":
        weights.unlink()
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "broken manifest":
        manifest.write_text(manifest.read_text()[:-20])
    else:
        content = json.loads(manifest.read_text())
        content["files"]["weights"]["sha256"] = "0" * 64
        manifest.write_text(json.dumps(content))
    assert intact(folder) is None
    assert build_once(recipe(counting(log)), folder).result == result
    assert times(log) == 2 and left_over(folder.parent) == []


def test_a_copied_folder_is_hashed_once_and_not_built_again(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "models" / "toy"
    build_once(recipe(counting(log)), folder)
    os.utime(folder / "weights", (1, 1))
    assert intact(folder) is None
    build_once(recipe(counting(log)), folder)
    assert intact(folder) is not None and times(log) == 1


def test_another_source_means_another_build(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "models" / "toy"
    build_once(recipe(counting(log)), folder)
    build_once(recipe(counting(log), identity={"source": "new"}), folder)
    assert times(log) == 2


def test_two_processes_at_once_build_once_and_both_get_the_folder(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "models" / "toy"
    context = multiprocessing.get_context("fork")
    answers = context.Queue()

    def work():
        answers.put(build_once(recipe(counting(log)), folder).result)

    processes = [context.Process(target=work) for _ in range(4)]
    for process in processes:
        process.start()
    results = {answers.get(timeout=20) for _ in processes}
    for process in processes:
        process.join()
    assert len(results) == 1 and times(log) == 1 and left_over(folder.parent) == []


def test_a_killed_builder_leaves_nothing_that_stays(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "models" / "toy"
    context = multiprocessing.get_context("fork")

    def die(draft, say):
        (draft / "weights").write_bytes(b"half")
        os._exit(1)

    process = context.Process(target=build_once, args=(recipe(die), folder))
    process.start()
    process.join()
    assert not folder.exists() and len(left_over(folder.parent)) == 1
    build_once(recipe(counting(log)), folder)
    assert left_over(folder.parent) == []


def test_a_failed_build_leaves_nothing_and_passes_the_error_on(tmp_path):
    def fail(draft, say):
        (draft / "weights").write_bytes(b"half")
        raise ModelError("the source is damaged")

    with pytest.raises(ModelError, match="the source is damaged"):
        build_once(recipe(fail), tmp_path / "models" / "toy")
    assert left_over(tmp_path / "models") == [] and not (tmp_path / "models" / "toy").exists()


def test_a_disk_that_fills_up_gives_one_line_and_leaves_nothing(tmp_path):
    folder = tmp_path / "models" / "toy"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write(draft, say):
        (draft / "weights").write_bytes(b"0" * 200_000)

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(ModelError, match=r"builtin:toy cannot be built in .*models: File too large") as caught:
            build_once(recipe(write), folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value)
    assert left_over(folder.parent) == [] and not folder.exists()


def test_too_little_room_is_said_before_anything_is_written(tmp_path):
    with pytest.raises(ModelError, match=r"needs 1,000,000,000 MB in .* set XDG_CACHE_HOME"):
        build_once(recipe(counting(tmp_path / "log"), bytes_needed=10**15), tmp_path / "models" / "toy")
    assert times(tmp_path / "log") == 0


def test_a_cache_that_is_a_file_gives_one_line(tmp_path):
    (tmp_path / "models").write_text("not a folder")
    with pytest.raises(ModelError, match="cannot be built in"):
        build_once(recipe(counting(tmp_path / "log")), tmp_path / "models" / "toy")


def test_the_cache_follows_xdg_and_else_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "cijing"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "cijing"
