"""A finished run opened again: its configuration, its files as they were written, its model with adapter and head."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from finetune.adapters import MANIFEST, WEIGHTS
from finetune.bases import base_weights
from finetune.begun import CONFIG, input_hashes, refuse_changes
from finetune.config import RunConfig, config_of
from finetune.domains import DOMAINS
from finetune.errors import ConfigError, DataError, TrainingError
from finetune.heads import Heads
from finetune.learner import Learner, reopened_learner
from finetune.whole import check_written


@dataclass(frozen=True, kw_only=True, eq=False)
class FinishedRun:
    """A run that came to its end, its model in eval mode."""

    folder: Path
    config: RunConfig
    labels: tuple[str, ...]
    manifest: Mapping[str, Any]
    hashes: Mapping[str, str]  # of the files that the run wrote, checked
    learner: Learner

    @property
    def model(self) -> Any:
        """The PeftModel, or with method full the model itself; a reading task's head is its `reading_head`."""
        return self.learner.model

    @property
    def tokenizer(self) -> Any:
        """The base's tokenizer."""
        return self.learner.loaded.tokenizer

    @property
    def heads(self) -> Heads:
        """The heads that the attention loss acted on, chosen on training texts; empty where there was none."""
        told = (self.manifest.get("attention") or {}).get("heads") or {}
        return {int(layer): tuple(map(int, heads)) for layer, heads in told.items() if heads}

    @contextmanager
    def base(self) -> Iterator[Any]:
        """Within the block the model answers as its base; a head that the run trained stays.

        A run of method full keeps the base's weights beside its own for this, 4 bytes a weight.
        """
        with base_weights(self.model):
            for head in _trained_heads(self.model):
                head.enable_adapters(True)  # PEFT would put the untrained one in its place
                head.requires_grad_(False)
            yield self.model

    @property
    def trains_head(self) -> bool:
        """Whether the run trained a head that the base has not."""
        own = getattr(self.model, "reading_head", None) is not None or bool(self.learner.new)
        return own or any(_trained_heads(self.model))


def _trained_heads(model: Any) -> Iterator[Any]:
    """The modules that PEFT trained whole."""
    return (module for module in model.modules() if type(module).__name__ == "ModulesToSaveWrapper")


def open_run_folder(
    path: str | Path, *, device: str = "auto", whole: bool = False, trust_remote_code: bool = False
) -> FinishedRun:
    """Open the folder of a run that came to its end, on the base as it was trained: in 4 bit, if so, unless `whole`.

    TrainingError for a folder that is no such run, a file of its model that is not the one the run wrote, a base that
    is not the one it was trained on; ConfigError where config.yaml is not what the run was trained by, or says
    that the base brings Python code along: whoever opens a folder allows that, never the folder.
    """
    folder = Path(path)
    manifest = _manifest(folder)
    full = manifest["config"].get("method") == "full"
    told = check_written(folder, "full" if full else "lora")
    if not full and WEIGHTS not in told["hashes"]:
        raise TrainingError(f"{folder}: there is no hash of {WEIGHTS}, so it cannot be checked")
    config = _config(folder, manifest)
    if config.trust_remote_code and not trust_remote_code:
        raise ConfigError(
            f"{folder}: the run was trained with Python code that {' '.join(config.model.split())} brings along: "
            "read it, and if you trust it, allow it with --trust-remote-code (trust_remote_code=True)"
        )
    config = config.model_copy(update={"trust_remote_code": trust_remote_code})
    labels = tuple(map(str, manifest.get("labels") or ()))
    plain = config.model_copy(update={"lora": config.lora.model_copy(update={"quantize": "none"})})
    learner = reopened_learner(plain if whole else config, folder, labels=labels, device=device)
    if learner.loaded.fingerprint != manifest.get("fingerprint"):
        raise TrainingError(f"{folder}: {config.model} is not the model that the run was trained on (its hash differs)")
    return FinishedRun(
        folder=folder, config=config, labels=labels, manifest=manifest, hashes=dict(told["hashes"]), learner=learner
    )


def check_inputs(run: FinishedRun, *, test: bool) -> tuple[str, ...]:
    """Compare the run's files with those it was trained on; what a reader must know, where they cannot be compared.

    DataError that names each file trained on or chosen by, or of pairs, that changed or is gone. Another test file is
    no leak and only told, where the configured `test` is what will be read.
    """
    then = _hashes_then(run.manifest.get("inputs"))
    if not then:
        return ("the manifest holds no hashes of the run's files, so whether they changed was not checked",)
    pairs = run.config.pairs.file if run.config.pairs is not None else None
    gone = pairs in then and pairs not in DOMAINS and not Path(str(pairs)).is_file()
    now = input_hashes(run.config.model_copy(update={"pairs": None}) if gone else run.config)
    changed = {
        name: f"{name} is {'changed' if name in now else 'gone'} since the run was trained"
        for name, hashes in then.items()
        if now.get(name) not in hashes
    }
    measured = {name for source in run.config.data.test for name in (source, str(Path(source).with_suffix(".gold")))}
    if trained := [said for name, said in changed.items() if name not in measured]:
        raise DataError(f"{run.folder}: {'; '.join(trained)}; put it back: what was trained on is known by it alone")
    return tuple(said for name, said in changed.items() if name in now) if test else ()


def _hashes_then(told: Any) -> Mapping[str, set[str]]:
    """Hashes by name as a run writes them, or as a parcel lists them, where two files may have one last name."""
    found: dict[str, set[str]] = defaultdict(set)
    if isinstance(told, Mapping):
        told = [{"file": name, "sha256": value} for name, value in told.items()]
    for each in told or ():
        found[str(each["file"])].add(str(each["sha256"]))
    return found


def _manifest(folder: Path) -> Mapping[str, Any]:
    try:
        told = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        begun = (folder / CONFIG).is_file()
        what = "the run did not come to its end: go on with `finetune train --resume`" if begun else "no run"
        raise TrainingError(f"{folder}: {MANIFEST} is missing, {what}") from error
    except (OSError, ValueError) as error:
        raise TrainingError(f"{folder}: {MANIFEST} is damaged ({error})") from error
    if not isinstance(told, dict) or not isinstance(told.get("config"), dict):
        raise TrainingError(f"{folder}: {MANIFEST} is not one of `finetune train`")
    return told


def _config(folder: Path, manifest: Mapping[str, Any]) -> RunConfig:
    """The configuration that the manifest tells, the same as that of config.yaml."""
    try:
        written = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise TrainingError(f"{folder}: {CONFIG} is missing or damaged") from error
    refuse_changes(manifest["config"], written, folder)
    return config_of({**manifest["config"], "out": str(folder)}, name=str(folder / CONFIG))
