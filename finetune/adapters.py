"""What a run leaves: an adapter that any user of PEFT can load, its card, its hashes; and merging it."""

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from finetune.checkpoints import HEAD, hash_of, save_head
from finetune.errors import TrainingError
from probe import LoadedModel

CARD = "README.md"
HASHES = "adapter.json"
MANIFEST = "manifest.json"
GEMMA_TERMS = "https://ai.google.dev/gemma/terms"
WEIGHTS = "adapter_model.safetensors"
# What publishers call the files that state a model's terms; a name that only begins like one is no such file.
_TERMS = re.compile(
    r"(licen[cs]es?([-_](model|code|data|weights))?|(third[-_]party[-_])?notices?|copying"
    r"|(acceptable[-_]|prohibited[-_])?use[-_]policy|terms([-_]of[-_]use)?)(\.txt|\.md)?",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"[\\`|<>\[\]#*~]")
_NON_COMMERCIAL = re.compile(r"(^|[-_ ])nc($|[-_ ])|non-?commercial", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What the card says; numbers as they were measured."""

    base: str
    licence: str  # of the base model's weights
    task: str
    data: Sequence[str]  # a line a source: name, records, hash, licence where known
    pairs: str  # how many pairs, which loss, which heads; "" without
    arms: str  # mode, seed
    metrics: Mapping[str, float]
    labels: Sequence[str] = ()
    notes: Sequence[str] = ()
    steps: str = ""  # which step is kept, why
    full: bool = False  # all weights were trained: a whole model, no adapter


@dataclass(frozen=True, kw_only=True)
class MergeCheck:
    """Merged against unmerged logits."""

    largest: float  # difference
    scale: float  # largest logit
    texts: int
    quantised: float | None = None  # largest difference from the model in 4 bit, where it was trained so

    @property
    def equal(self) -> bool:
        """Whether they differ by no more than float32's rounding through the layers."""
        return self.largest <= 1e-4 * max(self.scale, 1.0)


def save_adapter(
    model: Any, folder: Path, *, base: str, revision: str | None, tokenizer: Any, facts: CardFacts
) -> None:
    """Write the PEFT folder: weights as safetensors, configuration, tokenizer, head, card, and the hash of each."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = model.peft_config[model.active_adapter]
    settings.base_model_name_or_path, settings.revision = base, revision
    # No vocabulary is resized here; PEFT would ask the hub whether one was, and warn where it gets no answer.
    model.save_pretrained(str(folder), safe_serialization=True, save_embedding_layers=False)
    save_head(model, folder)
    tokenizer.save_pretrained(str(folder))
    (folder / CARD).write_text(card_of(facts), encoding="utf-8")
    names = [name for name in (WEIGHTS, "adapter_config.json", HEAD, CARD) if (folder / name).is_file()]
    hashes = {name: hash_of(folder / name) for name in names}
    told = {"hashes": hashes, "labels": list(facts.labels), "task": facts.task}
    (folder / HASHES).write_text(json.dumps(told, indent=1, ensure_ascii=False), encoding="utf-8")


def check_adapter(folder: Path) -> Mapping[str, Any]:
    """What `adapter.json` says, every file's hash checked; TrainingError names the first that differs."""
    return check_hashes(folder, HASHES)


def check_hashes(folder: Path, name: str) -> Mapping[str, Any]:
    """What a list of hashes in the folder says, every file checked; TrainingError names the first that differs."""
    try:
        told = json.loads((folder / name).read_text(encoding="utf-8"))
        hashes = dict(told["hashes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"{folder}: {name} is missing or damaged; is it a run of `finetune train`?") from error
    for file, wanted in hashes.items():
        path = folder / file
        if not path.is_file() or hash_of(path) != wanted:
            raise TrainingError(f"{folder}: {file} is not the one that the run wrote")
    found: Mapping[str, Any] = told
    return found


def adapter_on(base: Any, folder: Path, *, device: torch.device) -> Any:
    """A PeftModel around the base with the folder's adapter, frozen; TrainingError where a tensor is lost or new."""
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors.torch import load_file

    if not (folder / WEIGHTS).is_file():  # PEFT would take a pickled file instead
        raise TrainingError(f"{folder}: {WEIGHTS} is missing")
    try:
        model = PeftModel.from_pretrained(base, str(folder), torch_device=str(device))
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TrainingError(f"{folder}: the adapter does not fit its base: {reason}") from error
    saved = load_file(folder / WEIGHTS)
    loaded = get_peft_model_state_dict(model, save_embedding_layers=False)
    if wrong := sorted(set(saved) ^ set(loaded)):
        raise TrainingError(f"{folder}: {len(wrong)} tensors of the adapter do not fit its base, the first {wrong[0]}")
    for name, tensor in saved.items():
        if not torch.isfinite(tensor).all():
            raise TrainingError(f"{folder}: {name} holds what is no number")
        if not torch.equal(tensor, loaded[name].cpu()):
            raise TrainingError(f"{folder}: {name} is another after loading")
    return model


def card_of(facts: CardFacts) -> str:
    """The model card in Markdown, with the metadata that the hub reads; whatever it is told stands in it as words."""
    head = card_head(facts.base, facts.licence, full=facts.full)
    title = "A model trained, with all its weights, from" if facts.full else "An adapter for"
    body = [f"# {title} {in_words(facts.base)}", ""]
    body += [f"Task: {in_words(facts.task)}. Made by `python -m finetune train`.", ""]
    body += ["## Data", "", *(f"- {in_words(line)}" for line in facts.data), ""]
    if facts.pairs:
        body += ["## Attention supervision", "", in_words(facts.pairs), ""]
    body += ["## Arm", "", in_words(facts.arms), ""]
    if facts.labels:
        body += ["## Labels", "", ", ".join(map(in_words, facts.labels)), ""]
    if facts.steps:
        body += ["## Steps", "", in_words(facts.steps), ""]
    body += ["## Metrics", "", "| metric | value |", "|---|---|"]
    body += [f"| {in_words(name)} | {value:.6g} |" for name, value in sorted(facts.metrics.items())]
    licence = in_words(facts.licence)
    what = "model" if facts.full else "adapter"
    body += ["", "## Licence", "", f"The base model's terms travel with this {what}: {licence}.", ""]
    if facts.notes:
        body += ["## Notes", "", *(f"- {in_words(note)}" for note in facts.notes), ""]
    return "\n".join([*head, *body])


def in_words(text: str) -> str:
    """A text from outside as one line of Markdown that says it and does nothing: no tag, link, table or heading."""
    seen = "".join(" " if unicodedata.category(one)[0] in "CZ" else one for one in text)
    return _MARKUP.sub(r"\\\g<0>", " ".join(seen.split()))


def states_terms(name: str) -> bool:
    """Whether a file of this name states the terms of a model."""
    return _TERMS.fullmatch(name) is not None


def terms_of_base(model: str, settings: Any) -> list[Path]:
    """Files that state the terms of a base that lies in a folder; `settings` is its configuration."""
    known = [model, str(getattr(settings, "_name_or_path", "") or "")]
    found: dict[str, Path] = {}
    for folder in (Path(name) for name in known if name and Path(name).is_dir()):
        for path in sorted(folder.iterdir()):
            if path.is_file() and states_terms(path.name):  # links too: the hub's cache is made of them
                found.setdefault(path.name, path)
    return list(found.values())


def card_head(base: str, licence: str, *, full: bool = False) -> list[str]:
    """The metadata that the hub reads: base, licence, and a tag where the terms allow no commercial use."""
    name = licence_id(licence)
    tags = ["cijing"] if full else ["lora", "cijing"]
    tags += ["non-commercial"] if non_commercial(licence) else []
    kind = ["library_name: transformers", "base_model_relation: finetune"] if full else ["library_name: peft"]
    head = ["---", f"base_model: {json.dumps(base)}", *kind, f"tags: [{', '.join(tags)}]", f"license: {name}"]
    if name == "gemma":
        head.append(f"license_link: {GEMMA_TERMS}")
    elif name == "other":
        head.append(f"license_name: {json.dumps(licence)}")
    return [*head, "---", ""]


def licence_id(licence: str) -> str:
    """The hub's word for a licence: its own as it is, a name in words where it is one we know, else other."""
    told = licence.strip().lower()
    if not told or "not stated" in told:
        return "unknown"
    if re.fullmatch(r"[a-z]+[a-z0-9.-]*[0-9][a-z0-9.-]*|mit|gemma|openrail|other|unknown", told):
        return told
    known = {"gemma": "gemma", "mit": "mit", "apache": "apache-2.0"}
    return next((name for word, name in known.items() if re.search(rf"\b{word}\b", told)), "other")


def non_commercial(licence: str) -> bool:
    """Whether terms allow no commercial use, by their name or in words."""
    return _NON_COMMERCIAL.search(licence) is not None


def licence_of(loaded: LoadedModel) -> str:
    """The licence of the base's weights as the model tells it, or that it tells none."""
    return str(loaded.origin.get("licence") or loaded.origin.get("license") or "not stated by the model; look it up")


def compare_merged(model: Any, merged: Any, batches: Sequence[Mapping[str, torch.Tensor]]) -> MergeCheck:
    """Run both on the same texts and compare what they give; models in eval mode."""
    largest = scale = 0.0
    texts = 0
    with torch.inference_mode():
        for batch in batches:
            one, other = (_outputs(each(**batch)) for each in (model, merged))
            # A number that is none would be lost in max(): it counts as different by everything.
            largest = max(largest, float((one - other).abs().nan_to_num(nan=math.inf).max()))
            scale = max(scale, float(one.abs().nan_to_num(nan=0.0, posinf=0.0).max()))
            texts += len(batch["input_ids"])
    return MergeCheck(largest=largest, scale=scale, texts=texts)


def _outputs(given: Any) -> torch.Tensor:
    found: torch.Tensor = given.logits if hasattr(given, "logits") else given.last_hidden_state
    return found
