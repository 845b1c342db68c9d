"""What a run began with, so that it goes on with the same: its files by their hash, its base, its heads."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from finetune.checkpoints import check_whole, latest_checkpoint, remove_partial
from finetune.config import RunConfig
from finetune.domains import DOMAINS, PARTS, domain_file
from finetune.errors import TrainingError
from finetune.heads import Heads
from finetune.pairs import dictionaries_of
from finetune.writing import PART, disk_told, write_whole

INPUTS = "inputs.json"


@dataclass(frozen=True, kw_only=True)
class Start:
    """The checkpoint that a run goes on from, and what it says of the run; its files were hashed once, here."""

    folder: Path
    facts: Mapping[str, Any]


def newest_start(checkpoints: Path) -> Start | None:
    """The newest whole checkpoint, checked; None where there is none. Those cut short are removed."""
    with disk_told(checkpoints):
        remove_partial(checkpoints)
    latest = latest_checkpoint(checkpoints)
    return None if latest is None else Start(folder=latest, facts=check_whole(latest))


def nothing_begun(folder: Path) -> bool:
    """Whether a folder holds no more than a run leaves that was killed before its configuration was written."""
    return all(path.name == INPUTS or path.name.endswith(PART) for path in folder.iterdir())


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
    shipped = {f"{domain}/{part}": domain_file(domain, f"{part}.jsonl") for domain in DOMAINS for part in PARTS}
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
