"""Checkpoints that are whole or not there: a mark with each file's hash, written last, checked before resuming."""

import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from finetune.errors import TrainingError

MARK = "complete.json"
HEAD = "reading_head.safetensors"


def mark_complete(folder: Path, *, facts: Mapping[str, Any]) -> None:
    """Write the mark of a checkpoint: the hash of each file, and what the run said of itself."""
    files = {name: hash_of(folder / name) for name in _files_of(folder)}
    partial = folder / f"{MARK}.part"
    partial.write_text(json.dumps({"files": files, "facts": dict(facts)}, indent=1), encoding="utf-8")
    partial.replace(folder / MARK)  # a mark half written would be no mark


def latest_checkpoint(root: Path) -> Path | None:
    """The newest whole checkpoint below `root`; those without a mark were cut short and do not count."""
    whole = [path for path in _numbered(root) if (path / MARK).is_file()]
    return whole[-1] if whole else None


def check_whole(folder: Path) -> Mapping[str, Any]:
    """The facts of a checkpoint whose files are all as they were written; TrainingError names the first that is not."""
    try:
        mark = json.loads((folder / MARK).read_text(encoding="utf-8"))
        files, facts = mark["files"], mark["facts"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"{folder}: no whole checkpoint ({MARK} is missing or damaged)") from error
    otherwise = "remove this folder to go on from the checkpoint before it"
    if problem := _problem_of(files, facts):
        raise TrainingError(f"{folder}: {MARK} is damaged ({problem}); {otherwise}")
    for name, wanted in files.items():
        path = folder / name
        if not path.is_file() or hash_of(path) != wanted:
            raise TrainingError(f"{folder}: {name} is {'changed' if path.is_file() else 'missing'}; {otherwise}")
    # Trainer would take full weights, pickled ones too, in an adapter's place.
    added = [name for name in _files_of(folder) if name not in files]
    if added:
        raise TrainingError(f"{folder}: {added[0]} is none of the checkpoint's files; {otherwise}")
    found: Mapping[str, Any] = facts
    return found


def _problem_of(files: Any, facts: Any) -> str:
    """What of a mark is not as a run writes it, in words; "" where all is."""
    for name, given in (("files", files), ("facts", facts)):
        if not isinstance(given, dict):
            return f"`{name}` is not a mapping"
    for name in ("weight", "loss_sum"):  # null is a run without supervision
        value = facts.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if name in facts and not number and not (name == "weight" and value is None):
            return f"`facts.{name}` is not a number"
    heads = facts.get("heads") or {}
    if not isinstance(heads, dict) or not all(
        str(layer).isdecimal() and isinstance(numbers, list) and all(type(one) is int for one in numbers)
        for layer, numbers in heads.items()
    ):
        return "`facts.heads` are not lists of heads by layer"
    return ""


def remove_partial(root: Path) -> tuple[str, ...]:
    """Remove checkpoints that were cut short; gives their names."""
    cut_short = [path for path in _numbered(root) if not (path / MARK).is_file()]
    for path in cut_short:
        _remove(path)
    return tuple(path.name for path in cut_short)


def keep_latest(root: Path, *, limit: int | None, best: str | None) -> None:
    """Remove the oldest checkpoints above the limit, never the best or the newest."""
    if limit is None or limit <= 0:
        return
    whole = _numbered(root)
    spared = {whole[-1].name, Path(best).name if best else ""}
    for path in whole[: max(0, len(whole) - limit)]:
        if path.name not in spared:
            _remove(path)


def save_head(model: Any, folder: Path) -> None:
    """Save the head that a task of ours put beside the adapter, where there is one."""
    head = getattr(model, "reading_head", None)
    if head is not None:
        from safetensors.torch import save_file

        save_file({name: value.detach().cpu().contiguous() for name, value in head.state_dict().items()}, folder / HEAD)


def load_head(model: Any, folder: Path) -> None:
    """Load that head; TrainingError where the model has one and the folder does not."""
    head = getattr(model, "reading_head", None)
    if head is None:
        return
    if not (folder / HEAD).is_file():
        raise TrainingError(f"{folder}: {HEAD} is missing, and the task cannot be read without it")
    from safetensors.torch import load_file

    head.load_state_dict(load_file(folder / HEAD))


def hash_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _numbered(root: Path) -> list[Path]:
    found = [
        path for path in root.glob("checkpoint-*") if path.is_dir() and path.name.removeprefix("checkpoint-").isdigit()
    ]
    return sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def _files_of(folder: Path) -> list[str]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() or path.is_symlink())
    return [path.relative_to(folder).as_posix() for path in paths if path.name != MARK]


def _remove(path: Path) -> None:
    """Remove a checkpoint, its mark first, so that one removed in part is not whole; of a link, the link alone."""
    if path.is_symlink():
        path.unlink()
        return
    (path / MARK).unlink(missing_ok=True)
    with suppress(FileNotFoundError):  # another process of the run was faster
        shutil.rmtree(path)


@contextmanager
def told_unreadable(checkpoint: str | None, what: str) -> Iterator[None]:
    """Whatever a file of tensors raises that holds none, or more than tensors, which is not run: TrainingError."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split(". ")[0].split())[:200]
        raise TrainingError(
            f"{checkpoint}: {what} cannot be read ({type(error).__name__}: {reason}); remove this folder to go on from "
            "the checkpoint before it"
        ) from error
