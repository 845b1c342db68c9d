"""What of a finished run may leave this machine: adapter, head, tokenizer, card, hashes, manifest, terms; no paths."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

from finetune.adapters import (
    CARD,
    GEMMA_TERMS,
    HASHES,
    MANIFEST,
    WEIGHTS,
    card_head,
    check_adapter,
    in_words,
    licence_id,
    states_terms,
)
from finetune.checkpoints import HEAD
from finetune.corpusfiles import SUFFIXES
from finetune.domains import DOMAINS, shipped_texts
from finetune.errors import TrainingError

ADAPTER_CONFIG, NOTICE = "adapter_config.json", "NOTICE"
TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "chat_template.jinja", "*.model", "*.tiktoken",
)  # fmt: skip
_READ = (WEIGHTS, HEAD, CARD, HASHES, MANIFEST, ADAPTER_CONFIG)
# Of `training`: secrets, and settings of the machine.
_LEFT_OUT = ("hub_token", "deepspeed", "fsdp_config", "accelerator_config", "logging_dir", "output_dir")
_SECRET = re.compile(r"token|password|secret|api_key", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, eq=False)
class Parcel:
    """The files of an upload, and what their sender should know."""

    files: Mapping[str, bytes | Path]
    notes: tuple[str, ...]


def parcel_of(folder: Path, *, base: str | None = None) -> Parcel:
    """Choose and clean what is uploaded of a run; the folder itself stays as it is.

    A local path becomes its last part, in the manifest and in the card. `base` names the base model where the run was
    trained on a local folder. TrainingError for a run that is not finished, a file that is not the one the run
    wrote, a base that only this machine has, and where a path would leave nevertheless.
    """
    refuse_links(folder)
    manifest = read_manifest(folder)
    told = check_adapter(folder)
    if WEIGHTS not in told["hashes"]:
        raise TrainingError(f"{folder}: there is no hash of {WEIGHTS}, so it cannot be checked")
    names = local_names(manifest["config"])
    origin: Mapping[str, Any] = manifest.get("model") or {}
    known = base or _base_of(folder, manifest["config"], origin)
    names[str(manifest["config"]["model"])] = known
    licence = str(origin.get("licence") or origin.get("license") or "")
    head = card_head(base or str(origin.get("original") or known), licence)
    texts: dict[str, bytes] = {
        ADAPTER_CONFIG: _adapter_config(folder, base=known), CARD: _card(folder, head, names),
        MANIFEST: _as_json(_public_manifest(manifest, names)),
    }  # fmt: skip
    files: dict[str, bytes | Path] = {**{path.name: path for path in _kept_as_they_are(folder)}, **texts}
    notes = []
    if licence_id(licence) == "gemma":
        notes.append(f"Gemma's terms ({GEMMA_TERMS}) go with the adapter: who passes it on adds a copy of them")
        if not any(name.upper().startswith(NOTICE) for name in files):
            told_so = f"Gemma is provided under and subject to the Gemma Terms of Use found at {GEMMA_TERMS}"
            files[NOTICE] = f"{told_so}\n".encode()
    elif licence_id(licence) == "unknown":
        notes.append("the base model states no licence: look it up, and say it in the card")
    hashes = {name: _hash(files[name]) for name in (WEIGHTS, ADAPTER_CONFIG, HEAD, CARD) if name in files}
    files[HASHES] = _as_json({**told, "hashes": hashes})
    refuse_paths(files, folder)
    return Parcel(files=dict(sorted(files.items())), notes=tuple(notes))


def read_manifest(folder: Path) -> Mapping[str, Any]:
    """The manifest of a run that came to its end; TrainingError where there is none."""
    try:
        told = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if isinstance(told["config"]["model"], str):
            found: Mapping[str, Any] = told
            return found
    except FileNotFoundError as error:
        raise TrainingError(
            f"{folder}: {MANIFEST} is missing, so this is no run, or one that did not come to its end: "
            "go on with `finetune train --resume`"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"{folder}: {MANIFEST} is damaged") from error
    raise TrainingError(f"{folder}: {MANIFEST} is not one of `finetune train`")


def _base_of(folder: Path, config: Mapping[str, Any], origin: Mapping[str, Any]) -> str:
    model = str(config["model"])
    refuse_local_base(model, source=str(origin.get("source")), where=str(folder))
    return model


def refuse_local_base(model: str, *, source: str, where: str) -> None:
    """TrainingError where nobody else could open the base."""
    if source in ("folder", "gguf"):
        raise TrainingError(
            f"{where}: the base {public_name(model)} is a local folder, which nobody else has: allowed is a run on a "
            "hub id or a builtin model, or `finetune push RUN ID --base HUB_ID` with the same model on the hub"
        )


def refuse_links(folder: Path) -> None:
    """TrainingError where a file that would be read is a link: it may lead to any file of this machine."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_symlink() and (path.name in _READ or _goes_along(path)):
            raise TrainingError(f"{folder}: {in_words(path.name)} is a link: not uploaded; allowed is the file itself")


def _goes_along(path: Path) -> bool:
    return any(path.match(name) for name in TOKENIZER) or states_terms(path.name)


def _kept_as_they_are(folder: Path) -> Iterator[Path]:
    yield folder / WEIGHTS
    if (folder / HEAD).is_file():
        yield folder / HEAD
    for path in sorted(folder.iterdir()):
        if path.is_file() and _goes_along(path):
            yield path


# ---- without the machine's paths -----------------------------------------------------------------------------


def local_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Paths that a configuration names, each with what may be said of it: its last part."""
    data, pairs = config.get("data") or {}, config.get("pairs") or {}
    found = [pairs.get("file"), *(source for part in ("train", "dev", "test") for source in data.get(part) or ())]
    return {name: public_name(name) for name in found if isinstance(name, str) and public_name(name) != name}


def public_name(text: str) -> str:
    """A path's last part; a shipped domain, a hub id and anything else as it is."""
    if text in DOMAINS or text in shipped_texts():
        return text
    windows = PureWindowsPath(text)
    path = Path(text)
    is_path = (
        path.is_absolute() or windows.is_absolute() or text.startswith((".", "~")) or text.count("/") > 1
        or "\\" in text or path.suffix.lower() in SUFFIXES or path.exists()
    )  # fmt: skip
    return (windows.name or "file") if is_path else text


def _public_manifest(manifest: Mapping[str, Any], names: Mapping[str, str]) -> Any:
    config = dict(manifest["config"])
    training = {
        name: public_name(value) if isinstance(value, str) and "/" in value else value
        for name, value in (config.get("training") or {}).items()
        if name not in _LEFT_OUT and not (_SECRET.search(name) and isinstance(value, str))
    }
    # A list, since files of several folders may have the same last part.
    inputs = [{"file": public_name(name), "sha256": value} for name, value in (manifest.get("inputs") or {}).items()]
    return _renamed({**manifest, "config": {**config, "training": training}, "inputs": inputs}, names)


def _renamed(given: Any, names: Mapping[str, str]) -> Any:
    if isinstance(given, str):
        for name in sorted(names, key=len, reverse=True):
            given = given.replace(name, names[name])
        return given
    if isinstance(given, dict):
        return {key: _renamed(value, names) for key, value in given.items()}
    return [_renamed(value, names) for value in given] if isinstance(given, list) else given


def _card(folder: Path, head: list[str], names: Mapping[str, str]) -> bytes:
    body = (folder / CARD).read_text(encoding="utf-8").split("\n---\n", 1)[-1].lstrip("\n")
    text: str = _renamed(body, {in_words(name): in_words(told) for name, told in names.items()})
    return ("\n".join(head) + "\n" + text).encode()


def _adapter_config(folder: Path, *, base: str) -> bytes:
    told = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    return _as_json({**told, "base_model_name_or_path": base})


def refuse_paths(files: Mapping[str, bytes | Path], folder: Path) -> None:
    """TrainingError where a text of ours, or the tokenizer's settings, still hold a directory of this machine."""
    here = {str(path) for path in (Path.home(), Path.cwd(), folder.resolve().parent) if len(path.parts) > 1}
    looked_at = (CARD, MANIFEST, HASHES, ADAPTER_CONFIG, "tokenizer_config.json")
    for name in (name for name in looked_at if name in files):
        content = files[name]
        text = (content if isinstance(content, bytes) else content.read_bytes()).decode("utf-8", "replace")
        if found := sorted(path for path in here if path in text):
            raise TrainingError(f"{folder}: {name} would tell a path of this machine ({found[0]}): not uploaded")


def _as_json(told: Any) -> bytes:
    return json.dumps(told, indent=1, ensure_ascii=False).encode()


def _hash(content: bytes | Path) -> str:
    return hashlib.sha256(content if isinstance(content, bytes) else content.read_bytes()).hexdigest()
