"""What a run began with, so that it goes on with the same: its files by their hash, its base, its heads."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from finetune.checkpoints import check_whole, latest_checkpoint, remove_partial
from finetune.config import RunConfig
from finetune.domains import DOMAINS, domain_file, shipped_texts
from finetune.errors import BusyError, ConfigError, TrainingError
from finetune.heads import Heads
from finetune.pairs import dictionaries_of
from finetune.writing import PART, disk_told, write_whole

CONFIG, CHECKPOINTS, INPUTS, LOCK = "config.yaml", "checkpoints", "inputs.json", ".lock"


@dataclass(frozen=True, kw_only=True)
class Start:
    """The checkpoint that a run goes on from, and what it says of the run; its files were hashed once, here."""

    folder: Path
    facts: Mapping[str, Any]


def check_folder(folder: Path, config: RunConfig, *, resume: bool) -> Start | None:
    """Refuse a folder of another run, or texts that changed; find the checkpoint to go on from, None for the start.

    Nothing is written: a run whose model or texts cannot be read leaves no folder.
    """
    written = folder / CONFIG
    if not resume:
        if folder.is_dir() and not nothing_begun(folder):
            raise TrainingError(f"{folder} is not empty: give --resume to go on with that run, or another --out")
        if folder.exists() and not folder.is_dir():
            raise TrainingError(f"{folder} is a file: give another --out")
        return None
    if not written.is_file():
        raise TrainingError(f"{folder}: no run to resume ({CONFIG} is missing); start it without --resume")
    try:
        before = yaml.safe_load(written.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise TrainingError(f"{written}: cannot be read ({' '.join(str(error).split())})") from error
    refuse_changes(before, yaml.safe_load(as_yaml(config)), folder)
    refuse_other_inputs(config, folder)
    return newest_start(folder / CHECKPOINTS)


def refuse_changes(before: Any, now: Any, folder: Path) -> None:
    """ConfigError that names each key whose value is another than when the run began."""
    old, new = (flat(part) for part in (before, now))
    changed = [
        f"{key}: {old.get(key, 'not given')} then, {new.get(key, 'not given')} now"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]
    if changed:
        raise ConfigError(f"{folder}: the configuration changed since the run began: {'; '.join(changed)}")


def as_yaml(config: RunConfig) -> str:
    """The whole configuration as a file holds it."""
    return yaml.safe_dump(plain_of(config), allow_unicode=True, sort_keys=False)


def plain_of(config: RunConfig) -> dict[str, Any]:
    """The configuration as a file holds it, so that it can be read again: no folder, no token.

    Without pairs no word of attention; of the two methods lora is not named, as in files from before there were two,
    and full has no keys of an adapter.
    """
    left_out = {"out", "lora" if config.method == "full" else "method"}
    told: dict[str, Any] = config.model_dump(
        mode="json", exclude=left_out if config.pairs is not None else {*left_out, "attention"}
    )
    told["training"].pop("hub_token", None)
    return told


def flat(given: Any, path: str = "") -> dict[str, Any]:
    """A nested mapping with dotted keys."""
    if not isinstance(given, dict):
        return {path: given}
    found: dict[str, Any] = {}
    for key, value in given.items():
        found |= flat(value, f"{path}.{key}" if path else str(key))
    return found


def newest_start(checkpoints: Path) -> Start | None:
    """The newest whole checkpoint, checked; None where there is none. Those cut short are removed."""
    with disk_told(checkpoints):
        remove_partial(checkpoints)
    latest = latest_checkpoint(checkpoints)
    return None if latest is None else Start(folder=latest, facts=check_whole(latest))


def nothing_begun(folder: Path) -> bool:
    """Whether a folder holds no more than a run leaves that was killed before its configuration was written."""
    return all(path.name in (INPUTS, LOCK) or path.name.endswith(PART) for path in folder.iterdir())


@contextmanager
def held(folder: Path, what: str) -> Iterator[None]:
    """The folder is this process's within the block; BusyError where another is at work there.

    The system lets go of a lock whose process was killed. A folder that is made for the lock, and stays empty, goes
    with it. `what` is what another process would be doing there.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    lock = FileLock(folder / LOCK)
    with disk_told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise BusyError(
                f"{folder} is being {what} by another process: wait for it, or give another --out"
            ) from error
    try:
        yield
    finally:
        with suppress(OSError):  # while it is held, so that none is taken away that another process holds
            (folder / LOCK).unlink()
        lock.release()
        with suppress(OSError):  # not empty
            for path in made:
                path.rmdir()


def write_inputs(config: RunConfig, folder: Path) -> None:
    """Write the hash of each file that the run reads."""
    write_whole(folder / INPUTS, json.dumps({"files": input_hashes(config)}, indent=1, ensure_ascii=False))


def input_hashes(config: RunConfig) -> dict[str, str]:
    """The hash of each file that a run reads, by the name that the configuration gives it; none for the hub's."""
    found = {}
    for name, file in _files(config):
        if file.is_file():
            opened: Any = file.open("rb")
            with opened as content:
                found[name] = hashlib.file_digest(content, "sha256").hexdigest()
    return found


def refuse_other_inputs(config: RunConfig, folder: Path) -> None:
    """TrainingError that names each file that is not what it was when the run began."""
    try:
        before = dict(json.loads((folder / INPUTS).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"{folder}: {INPUTS} is missing or damaged, so its texts cannot be checked") from error
    now = input_hashes(config)
    changed = [f"{name} is {'changed' if name in now else 'gone'}" for name in before if now.get(name) != before[name]]
    changed += [f"{name} is new" for name in now if name not in before]
    if changed:
        raise TrainingError(
            f"{folder}: {'; '.join(changed)} since the run began; put it back, or start anew with another --out"
        )


def refuse_other_base(start: Start | None, fingerprint: str, model: str) -> None:
    """TrainingError where the base's weights are not those that the checkpoint's adapter was trained on."""
    if start is not None and start.facts.get("fingerprint") != fingerprint:
        raise TrainingError(f"{start.folder}: {model} is not the model that the run began with (its hash differs)")


def heads_then(start: Start | None) -> Heads | None:
    """The heads that the checkpoint was trained on: chosen anew on another machine, a tie may fall otherwise."""
    told = None if start is None else start.facts.get("heads")
    return {int(layer): tuple(map(int, heads)) for layer, heads in told.items()} if told else None


def _files(config: RunConfig) -> Iterator[tuple[str, Path | Traversable]]:
    shipped = shipped_texts()
    for source in (*config.data.train, *config.data.dev, *config.data.test):
        yield source, shipped.get(source, Path(source))
        if source.endswith(".data"):  # MCL-WiC: its answers stand beside it
            answers = Path(source).with_suffix(".gold")
            yield str(answers), answers
    pairs = config.pairs.file if config.pairs is not None else None
    if pairs in DOMAINS:
        yield pairs, domain_file(pairs, "pairs.yaml")
    elif pairs is not None:
        yield pairs, Path(pairs)
        for name in dictionaries_of(Path(pairs)):
            yield name, Path(pairs).parent / name
