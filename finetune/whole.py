"""What a run leaves that trained all weights: an ordinary model folder, in safetensors, with the hash of each file."""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from finetune.adapters import CARD, MANIFEST, CardFacts, card_of, check_adapter, check_hashes, terms_of_base
from finetune.bases import is_adapted
from finetune.checkpoints import hash_of, save_head
from finetune.errors import TrainingError

WHOLE = "weights.json"
SHARD = "5GB"
# What transformers reads of a folder; whichever of these is there must be one that the run wrote.
_READ = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", "*.py")


def save_taught(model: Any, folder: Path, *, state: Mapping[str, Any] | None = None) -> None:
    """Write what is trained of a model, as safetensors: an adapter or all weights, and a reading head beside them."""
    if is_adapted(model):
        # No vocabulary is resized here; PEFT would ask the hub whether one was, and warn where it gets no answer.
        model.save_pretrained(str(folder), state_dict=state, safe_serialization=True, save_embedding_layers=False)
    else:
        own = {name: value for name, value in (state or model.state_dict()).items() if not _of_head(name)}
        with _quiet():
            model.save_pretrained(str(folder), state_dict=own, max_shard_size=SHARD)
    save_head(model, folder)


def load_weights(model: Any, folder: Path) -> None:
    """Give the model the weights of a folder that `save_taught` wrote, in place.

    The folder's model is read beside it, so for a moment there are 4 bytes a weight more. TrainingError for a weight
    that the folder lacks, has too many, in another shape, or that is no number.
    """
    own = {name: value for name, value in model.state_dict().items() if not _of_head(name)}
    theirs, unknown = _weights_of(type(model), folder)
    unfit = {name for name, value in own.items() if name not in theirs or theirs[name].shape != value.shape}
    if wrong := sorted(unfit | unknown):
        raise TrainingError(f"{folder}: {len(wrong)} weights do not fit the model, the first {wrong[0]}")
    for name in own:
        if not torch.isfinite(theirs[name]).all():
            raise TrainingError(f"{folder}: {name} holds what is no number")
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if name in own:
            weight.data = theirs[name].to(device=weight.device, dtype=weight.dtype)


def save_model(model: Any, folder: Path, *, base: str, tokenizer: Any, facts: CardFacts) -> None:
    """Write the model folder: weights, configuration, tokenizer, head, terms, card, and the hash of each."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in terms_of_base(base, model.config):
        shutil.copyfile(file, folder / file.name)
    save_taught(model, folder)
    tokenizer.save_pretrained(str(folder))
    (folder / CARD).write_text(card_of(facts), encoding="utf-8")
    hashes = {path.name: hash_of(path) for path in (*_read_files(folder), folder / CARD)}
    told = {"hashes": hashes, "labels": list(facts.labels), "task": facts.task}
    (folder / WHOLE).write_text(json.dumps(told, indent=1, ensure_ascii=False), encoding="utf-8")


def check_written(folder: Path, method: str) -> Mapping[str, Any]:
    """What the run's list of hashes says, every file checked; TrainingError names the first that is not as written."""
    if method == "lora":
        return check_adapter(folder)
    told = check_hashes(folder, WHOLE)
    if added := [path.name for path in _read_files(folder) if path.name not in told["hashes"]]:
        raise TrainingError(f"{folder}: there is no hash of {added[0]}, so it cannot be checked")
    return told


def refuse_full(folder: Path, what: str) -> None:
    """TrainingError where the run in the folder trained all weights: there is no adapter for `what`."""
    try:
        method = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["config"].get("method")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # whoever reads the folder next says what is wrong with it
    if method == "full":
        raise TrainingError(
            f"{folder}: a run of method full has no adapter to {what}: the folder itself is the model, which "
            "load_model and transformers open by its path"
        )


def _of_head(name: str) -> bool:
    """Whether a weight is of the reading head, which has a file of its own."""
    return name.startswith("reading_head.")


def _weights_of(kind: Any, folder: Path) -> tuple[dict[str, torch.Tensor], set[str]]:
    """The folder's weights by the names of its model, on the CPU, and names in its files that are none of them."""
    try:
        with torch.random.fork_rng(devices=[]), _quiet():  # what the files lack would be drawn
            model, told = kind.from_pretrained(
                str(folder), dtype=torch.float32, use_safetensors=True, local_files_only=True, output_loading_info=True
            )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TrainingError(f"{folder}: its weights cannot be read: {reason}") from error
    lacking = set(told["missing_keys"])
    found = {name: value for name, value in model.state_dict().items() if name not in lacking}
    return found, set(told["unexpected_keys"])


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars and the table that transformers writes for a reader: what is wrong is said in one line."""
    from transformers.utils import logging as told

    speaker = logging.getLogger("transformers")
    level, bars = speaker.level, told.is_progress_bar_enabled()
    speaker.setLevel(logging.ERROR)
    told.disable_progress_bar()
    try:
        yield
    finally:
        speaker.setLevel(level)
        if bars:
            told.enable_progress_bar()


def _read_files(folder: Path) -> list[Path]:
    return sorted({path for name in _READ for path in folder.glob(name)})
