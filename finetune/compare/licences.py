"""Which terms the data and the base of a comparison came under, and whether they allow no commercial use."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from finetune.adapters import non_commercial
from finetune.domains import DOMAINS, shipped_texts
from probe import shipped_sets

SOURCES = "SOURCES.md"  # in CIJING_DATA: a row a folder, with its licence
OURS = "of this package"
_CODE = re.compile(r"`[^`]*`")

Role = Literal["base", "data"]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What one source says of its use."""

    role: Role
    name: str  # of a file the folder and name below CIJING_DATA, or the last part of its path
    licence: str  # "": not stated where we look

    @property
    def non_commercial(self) -> bool:
        """Whether the terms allow no commercial use."""
        return non_commercial(self.licence)


def terms_of(
    sources: Iterable[str], manifests: Iterable[Mapping[str, Any]] = (), *, shared: Path | None = None
) -> tuple[Terms, ...]:
    """The terms of every source by name, and of the base and the training data that manifests of runs tell of.

    shared: the folder that SOURCES.md describes; without it that of CIJING_DATA.
    """
    told = list(manifests)
    beside = os.environ.get("CIJING_DATA")
    place = shared or (Path(beside) if beside else None)
    folders = licences_in(place) if place is not None else {}
    names = [*sources, *(name for manifest in told for name in _trained_on(manifest))]
    found = [*_bases(told), *(_terms(name, place, folders) for name in dict.fromkeys(names))]
    return tuple(dict.fromkeys(found))


def licences_in(folder: Path) -> dict[str, str]:
    """The licence of each folder that SOURCES.md in `folder` names; empty where there is no such file."""
    try:
        text = (folder / SOURCES).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines() if "|" in line]
    heads = [[cell.lower() for cell in row] for row in rows]
    at = next((row.index("licence") for row in heads if "licence" in row and row[0] == "folder"), None)
    if at is None:
        return {}
    return {
        name.strip("`/ "): _CODE.sub("", row[at]).strip()
        for row in rows
        if len(row) > at and row[0].lower() != "folder" and not set(row[0]) <= set("-: ")
        for name in row[0].split(",")
    }


def _terms(source: str, place: Path | None, folders: Mapping[str, str]) -> Terms:
    if source in DOMAINS or source in shipped_texts() or source in shipped_sets():
        return Terms(role="data", name=source, licence=OURS)
    path = Path(source)
    if place is not None and path.exists():
        whole, root = path.resolve(), place.resolve()
        if whole.is_relative_to(root) and (parts := whole.relative_to(root).parts):
            return Terms(role="data", name="/".join(parts), licence=folders.get(parts[0], ""))
    # A set keeps its terms under a folder of its own name, wherever that lies.
    known = next((part for part in path.parts if part in folders), None)
    return Terms(role="data", name=path.name or source, licence=folders[known] if known is not None else "")


def _bases(manifests: Iterable[Mapping[str, Any]]) -> Iterator[Terms]:
    for manifest in manifests:
        origin = manifest.get("model") or {}
        name = str((manifest.get("config") or {}).get("model") or origin.get("original") or "")
        if name:
            licence = str(origin.get("licence") or origin.get("license") or "")
            yield Terms(role="base", name=Path(name).name if Path(name).exists() else name, licence=licence)


def _trained_on(manifest: Mapping[str, Any]) -> Iterator[str]:
    data = (manifest.get("config") or {}).get("data") or {}
    for part in ("train", "dev", "test"):
        given = data.get(part) or ()
        yield from [given] if isinstance(given, str) else map(str, given)
