"""An index's folder: finished generations beside each other, and a file that names the one that answers.

    FOLDER/generations/0007-89ab…/   all of one generation; the name ends in its manifest's hash
    FOLDER/CURRENT                   that name, renamed into place
    FOLDER/lock                      held by the one process that writes
    FOLDER/embedded/                 vectors of a build under way

A generation is written under a name that no reader takes, and none is changed afterwards: killed at any moment, the
folder still names a whole one. The last two are kept; an older one goes unless a reader holds it, which a shared lock
(flock) on its manifest tells. Where the system or the disk has no such locks, the last two are all that is kept.
"""

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

import pyarrow as pa
from filelock import FileLock, Timeout

from finetune.errors import RetrievalError

GENERATIONS, CURRENT, LOCK, EMBEDDED = "generations", "CURRENT", "lock", "embedded"
MANIFEST = "manifest.json"
KEPT = 2
_NAME = re.compile(r"(\d{4,})-([0-9a-f]{16})")
_BUILDING, _REMOVED = ".building", ".removed"
_TRIES = 5


class Held(NamedTuple):
    """A generation that stays until it is let go of, and its manifest as it was written."""

    folder: Path
    manifest: bytes
    handle: IO[bytes]

    def close(self) -> None:
        """Let go of it."""
        self.handle.close()


@contextmanager
def index_told(folder: Path) -> Iterator[None]:
    """What goes wrong with the disk within the block, in one line."""
    try:
        yield
    except (OSError, pa.ArrowException, RetrievalError) as error:
        full = _is_full(error)
        if isinstance(error, RetrievalError) and not full:
            raise
        reason = "disk full" if full else " ".join((getattr(error, "strerror", None) or str(error)).split())
        stays = "; the one before stays" if (folder / CURRENT).is_file() else ""
        raise RetrievalError(f"{folder}: the index cannot be written ({reason}){stays}") from error


def _is_full(error: BaseException | None) -> bool:
    """Whether a full disk, or quota, is behind it; LanceDB tells it in words alone, and with its own paths."""
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """Make the folder, and be the only one that writes in it; RetrievalError where another does, or it is not ours."""
    new = not folder.exists()
    with index_told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _check_ours(folder)
        lock = FileLock(folder / LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            said = "another process is writing this index; wait until it is done"
            raise RetrievalError(f"{folder}: {said}") from error
    try:
        yield
    finally:
        if new:
            _remove_if_unused(folder)
        lock.release()


def _remove_if_unused(folder: Path) -> None:
    """Take back a folder that was made for a build of which nothing is worth keeping; under its lock."""
    with suppress(OSError):  # one that is not empty stays, as it should
        (folder / GENERATIONS).rmdir()
    if os.listdir(folder) == [LOCK]:
        with suppress(OSError):
            (folder / LOCK).unlink()
            folder.rmdir()


def _check_ours(folder: Path) -> None:
    others = {name for name in os.listdir(folder) if not name.startswith(".")} - {
        GENERATIONS, CURRENT, LOCK, EMBEDDED,
    }  # fmt: skip
    if others:
        allowed = "allowed are an index's folder, an empty one or none"
        raise RetrievalError(f"{folder}: holds {min(others)!r}, which is of no index; {allowed}")
    for path in _own(folder):
        if path.is_symlink():  # what is written or removed there would be another's
            said = "is a link; allowed is an index's folder without links in it"
            raise RetrievalError(f"{folder}: {path.relative_to(folder).as_posix()} {said}")


def _own(folder: Path) -> Iterator[Path]:
    """What a writer writes, replaces or removes; links first, so that none is followed."""
    for name in (CURRENT, LOCK, GENERATIONS, EMBEDDED):
        yield folder / name
    for name in (GENERATIONS, EMBEDDED):
        if (folder / name).is_dir():
            yield from sorted((folder / name).iterdir())


def current_name(folder: Path) -> str | None:
    """The name of the generation that answers, None where none was finished; RetrievalError for a damaged file."""
    try:
        named = (folder / CURRENT).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RetrievalError(f"{folder}: {CURRENT} cannot be read ({error.strerror})") from error
    name = named.decode("ascii", "replace").strip()
    if not _NAME.fullmatch(name):
        raise RetrievalError(f"{folder}: {CURRENT} is damaged; index again with --rebuild")
    return name


def hold_current(folder: Path) -> Held:
    """Open the generation that answers, so that no rebuild removes it; RetrievalError where there is none."""
    for _ in range(_TRIES):  # one that goes between its name is read and it is held has two others behind it
        if folder.is_file():
            raise RetrievalError(f"{folder}: is a file; allowed is an index's folder")
        name = current_name(folder)
        if name is None:
            said = f"{CURRENT} is missing; index again" if _names(folder) else "holds no index; make one"
            raise RetrievalError(f"{folder}: {said} with `finetune index`")
        try:
            handle = (folder / GENERATIONS / name / MANIFEST).open("rb")
        except OSError as error:
            if current_name(folder) != name:
                continue
            said = f"{GENERATIONS}/{name}/{MANIFEST} is missing or cannot be read ({error.strerror})"
            raise RetrievalError(f"{folder}: {said}; index again with --rebuild") from error
        if _locked(handle, alone=False):
            return _held(folder, name, handle)
        handle.close()
    raise RetrievalError(f"{folder}: the index is replaced again and again; try later")


def _held(folder: Path, name: str, handle: IO[bytes]) -> Held:
    manifest = handle.read()
    if name_of(int(name.partition("-")[0]), manifest) != name:
        handle.close()
        said = f"{GENERATIONS}/{name}/{MANIFEST} is damaged"
        raise RetrievalError(f"{folder}: {said}; index again with --rebuild")
    return Held(folder / GENERATIONS / name, manifest, handle)


def _locked(handle: IO[bytes], *, alone: bool) -> bool:
    """Lock a manifest among readers, or alone; True as well where there are no such locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a network disk without locks
        return True
    return True


def name_of(number: int, manifest: bytes) -> str:
    """What a generation is called."""
    return f"{number:04d}-{hashlib.sha256(manifest).hexdigest()[:16]}"


def next_number(folder: Path) -> int:
    """The number of the generation that comes next; a name never comes back, damaged as the folder may be."""
    return max(map(number_of, _names(folder)), default=0) + 1


def _names(folder: Path) -> list[str]:
    place = folder / GENERATIONS
    names = [path.name for path in place.iterdir() if _NAME.fullmatch(path.name)] if place.is_dir() else []
    return sorted(names, key=number_of)


@contextmanager
def draft_of(folder: Path) -> Iterator[Path]:
    """An empty folder to write a generation in, gone at the end unless it was published."""
    place = folder / GENERATIONS / _BUILDING
    shutil.rmtree(place, ignore_errors=True)  # of a process that was killed: the lock is ours
    place.mkdir(parents=True)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def publish(folder: Path, draft: Path, number: int, manifest: bytes) -> str:
    """Give a written draft its manifest, its name and the readers; everything is on the disk before they see it."""
    name = name_of(number, manifest)
    (draft / MANIFEST).write_bytes(manifest)
    for path in sorted(draft.rglob("*")):
        _synced(path)
    _synced(draft)
    place = folder / GENERATIONS / name
    shutil.rmtree(place, ignore_errors=True)  # one that was killed before it was current
    draft.rename(place)
    _synced(folder / GENERATIONS)
    waiting = folder / f".{CURRENT}"
    waiting.unlink(missing_ok=True)
    with waiting.open("x", encoding="ascii") as file:  # never into one that is there, nor through a link
        file.write(f"{name}\n")
    _synced(waiting)
    waiting.replace(folder / CURRENT)
    _synced(folder)
    return name


def _synced(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def prune(folder: Path, forget: Callable[[Path], None]) -> None:
    """Remove what nobody needs: all but the last two generations and those that a reader holds.

    So goes one that was killed before it was current. Where CURRENT is gone, none is removed. `forget` is called with
    each before it goes; what cannot be removed stays for the next time.
    """
    name = current_name(folder)
    if name is None:
        return
    current = number_of(name)
    names = _names(folder)
    older = [name for name in names if number_of(name) < current]
    unfinished = [name for name in names if number_of(name) > current]
    for name in [*older[: max(len(older) - (KEPT - 1), 0)], *unfinished]:
        _remove(folder / GENERATIONS / name, forget)
    for path in (folder / GENERATIONS).glob(f".*{_REMOVED}"):
        shutil.rmtree(path, ignore_errors=True)


def number_of(name: str) -> int:
    """The number in a generation's name, 0 of none."""
    return int(name.partition("-")[0] or 0)


def _remove(place: Path, forget: Callable[[Path], None]) -> None:
    try:
        with (place / MANIFEST).open("rb") as handle:
            if not _locked(handle, alone=True):
                return
            forget(place)
            place.rename(place.with_name(f".{place.name}{_REMOVED}"))
    except FileNotFoundError:  # half removed before
        shutil.rmtree(place, ignore_errors=True)
    except (OSError, RetrievalError):
        return
