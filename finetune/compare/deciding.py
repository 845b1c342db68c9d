"""What decides a run and what decides the numbers of an arm: settings, files by their hash, weights, versions."""

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from finetune.begun import as_yaml, input_hashes
from finetune.compare.arms import ARMS, Arm
from finetune.compare.settings import CompareConfig, run_of, runs_needed
from finetune.dataconfig import LABELLED
from finetune.domains import DOMAINS, domain_file
from finetune.errors import DataError
from finetune.material import GENERAL, data_with_test
from probe import shipped_sets

VERSIONS_THAT_MATTER = ("cijing", "torch", "transformers", "peft")
_MODEL_FILES = (".json", ".safetensors", ".bin", ".gguf", ".model", ".txt", ".py", ".jinja")


@dataclass(frozen=True, kw_only=True)
class Deciding:
    """What decides the jobs of a comparison; every file is hashed once. DataError for one that is not there."""

    config: CompareConfig

    @cached_property
    def runs(self) -> Mapping[tuple[str, int], Mapping[str, Any]]:
        """By arm and seed: the run's file, its inputs, weights, versions, and the run that it comes after."""
        found: dict[tuple[str, int], Mapping[str, Any]] = {}
        for arm in runs_needed(self.config):
            inputs = input_hashes(run_of(self.config, arm, seed=self.config.seeds[0]))
            for seed in self.config.seeds:
                run = run_of(self.config, arm, seed=seed, name=f"arm {arm.name}")
                after = None if arm.after is None else hash_of(found[arm.after, seed])
                told = {"run": as_yaml(run), "inputs": inputs, "after": after}
                found[arm.name, seed] = {"arm": arm.name, **told, **self._computed_with}
        return found

    def numbers(self, arm: Arm, seed: int) -> Mapping[str, Any]:
        """Of one job: the run that is measured, what all arms are measured on, and what this arm is asked with."""
        run = None if arm.run is None else hash_of(self.runs[arm.run, seed])
        return {"arm": arm.name, "seed": seed, "run": run, **self._measured_on, **self._asked_with(arm)}

    @cached_property
    def _measured_on(self) -> Mapping[str, Any]:
        """Texts, pairs, questions and cases: the same for all arms, which are compared item by item."""
        config, files = self.config, _Files()
        for source in config.questions:
            shipped = source in DOMAINS
            files.add("questions", source, domain_file(source, "questions.jsonl") if shipped else Path(source))
        if config.senses not in shipped_sets():
            files.add("senses", config.senses, Path(config.senses))
        if (general := _general(config)) is not None:
            files.add("general", general.name, general)
        told = config.model_dump(mode="json", include={"model", "revision", "task", "data", "pairs", "senses"})
        read = {"pairs": config.pairs, "data": data_with_test(config.data, None)}
        reading = run_of(config, ARMS["lora"], seed=config.seeds[0]).model_copy(update=read)
        return {**told, "inputs": input_hashes(reading), "files": files.hashes, **self._computed_with}

    def _asked_with(self, arm: Arm) -> Mapping[str, Any]:
        config, files = self.config, _Files()
        told: dict[str, Any] = {"edge_bias": config.edge_bias} if arm.edge_bias else {}
        if arm.run is None and config.task in LABELLED:
            told["head_fitted_with_seed"] = config.seeds[0]  # which decides what is dev, and not fitted to
        for source in config.glosses if arm.prompt == "gloss" else ():
            shipped = source in DOMAINS
            files.add("glosses", source, domain_file(source, "glosses.jsonl") if shipped else Path(source))
        if arm.prompt == "passages":
            told |= {
                "passages": config.passages.model_dump(mode="json"),
                "encoder": weights_of(config.passages.encoder),
            }
            for source in config.documents:
                files.add("documents", source, Path(source))
        return {**told, "asked_with": files.hashes}

    @cached_property
    def _computed_with(self) -> Mapping[str, Any]:
        return {"weights": weights_of(self.config.model), "versions": versions()}


@dataclass(kw_only=True)
class _Files:
    """Hashes of files by what they are for and how they are named."""

    hashes: dict[str, str] = field(default_factory=dict)

    def add(self, use: str, name: str, file: Path | Traversable) -> None:
        """Hash a file, or all in a folder; DataError where there is none."""
        if isinstance(file, Path) and file.is_dir():
            inner = (each for each in sorted(file.rglob("*")) if each.is_file())
            self.hashes[f"{use} {name}"] = hash_of({str(one.relative_to(file)): file_hash(one) for one in inner})
        elif file.is_file():
            self.hashes[f"{use} {name}"] = file_hash(file)
        else:
            raise DataError(f"{use}: {name} is not there; allowed is a file that can be read")


def hash_of(decides: Mapping[str, Any]) -> str:
    """The SHA-256 of what decides, whatever its order."""
    return hashlib.sha256(json.dumps(decides, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def file_hash(file: Path | Traversable) -> str:
    """The SHA-256 of a file's content."""
    opened: Any = file.open("rb")
    with opened as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def weights_of(model: str) -> dict[str, str]:
    """The hash of each file of a local model; empty for a builtin or a hub's, which name and revision decide."""
    place = Path(model)
    files = [place] if place.is_file() else list(_model_files(place)) if place.is_dir() else []
    return {each.name: file_hash(each) for each in files}


def versions() -> dict[str, str]:
    """Of what computes; a build's mark (+cpu) is left out, so that machines may share a folder."""
    found = {}
    for name in VERSIONS_THAT_MATTER:
        try:
            found[name] = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _model_files(folder: Path) -> Iterator[Path]:
    return (each for each in sorted(folder.iterdir()) if each.is_file() and each.suffix in _MODEL_FILES)


def _general(config: CompareConfig) -> Path | None:
    """The file of general texts: the named one, or that of CIJING_DATA where there is one."""
    if config.general is not None:
        return Path(config.general)
    beside = os.environ.get("CIJING_DATA")
    file = Path(beside) / GENERAL if beside else None
    return file if file is not None and file.is_file() else None
