"""A run's adapter merged into its base: an ordinary model folder, written only where both give the same logits."""

import copy
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from finetune.adapters import CARD, MergeCheck, compare_merged, states_terms, terms_of_base
from finetune.checkpoints import HEAD, hash_of, save_head
from finetune.errors import TrainingError
from finetune.runfolder import FinishedRun, open_run_folder
from finetune.tasks import MODEL_CLASSES
from finetune.whole import refuse_full
from finetune.writing import disk_told
from probe import LoadedModel, load_model, tokenize

MERGED = "merged.json"
# A dozen texts of several lengths and scripts: what is compared is arithmetic, which no domain changes.
TEXTS = (
    "苹果", "苹果酸脱氢酶把苹果酸变成草酰乙酸。", "M1 芯片的能效比很高，苹果在 2020 年发布了它。",
    "我喜欢苹果，他讨厌菠菜。", "牛顿坐在树下，一个苹果砸中了他。",
    "三羧酸循环的每一步都由一种酶来催化，其中三步放出二氧化碳。",
    "I like apples.",
    "The phone is new; its chip was made in a 5 nm process, and its battery lasts longer than that of the old one.",
    "问：什么是封装？\n答：把裸片装进外壳，接上引脚。", "1234567890", "“他们热爱和平。”她说。",
    "¡Qué bonito! Ça va? Grüße.",
)  # fmt: skip


def merge_run(
    path: str | Path, out: str | Path, *, device: str = "auto", trust_remote_code: bool = False
) -> MergeCheck:
    """Merge the adapter of a finished run into a copy of its base and write that to a new folder.

    Logits of a dozen texts are compared before anything is written, and again with the folder as it opens.
    TrainingError where they differ by more than rounding, where `out` holds something, and as open_run_folder.
    """
    target = Path(out)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise TrainingError(f"{target} is not empty: give another --out")
    refuse_full(Path(path), "merge")
    run = open_run_folder(path, device=device, whole=True, trust_remote_code=trust_remote_code)
    batches = batches_of(run.learner.loaded, TEXTS)
    merged = copy.deepcopy(run.model).merge_and_unload().eval()
    check = compare_merged(run.model, merged, batches)
    refuse_unequal(check, f"{run.folder}: merged and unmerged model")
    if run.config.lora.quantize != "none":
        trained = open_run_folder(path, device=device, trust_remote_code=trust_remote_code).model
        check = replace(check, quantised=compare_merged(trained, merged, batches).largest)
    with disk_told(target), _whole_or_nothing(target) as partial:
        _write(run, merged, partial, check)
        written = compare_merged(run.model, _opened(partial, run), batches)
        refuse_unequal(written, f"{run.folder}: the folder as it opens and the unmerged model")
    return check


def batches_of(loaded: LoadedModel, texts: Sequence[str]) -> list[dict[str, torch.Tensor]]:
    """Each text by itself, nothing padded, cut where the model ends."""
    found = []
    for text in texts:
        ids = torch.tensor([tokenize(loaded.tokenizer, text).ids[: loaded.max_positions]], device=loaded.device)
        found.append({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    return found


def refuse_unequal(check: MergeCheck, what: str) -> None:
    """TrainingError where two models do not give the same."""
    if not check.equal:
        raise TrainingError(
            f"{what} differ by {check.largest:.3g} where logits reach {check.scale:.3g}, over {check.texts} texts: not "
            "merged, for it would be another model; use the adapter as it is"
        )


@contextmanager
def _whole_or_nothing(target: Path) -> Iterator[Path]:
    """A folder beside the target that takes its place at the end; whatever goes wrong, nothing of it is left."""
    partial: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        yield partial
        partial.chmod(0o755)
        partial.replace(target)  # an empty folder of that name gives way
        partial = None
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)


def _write(run: FinishedRun, merged: Any, folder: Path, check: MergeCheck) -> None:
    """Weights as safetensors, tokenizer, reading head, card, terms, and last what was merged and every hash."""
    merged.save_pretrained(str(folder), safe_serialization=True)
    run.tokenizer.save_pretrained(str(folder))
    save_head(run.model, folder)
    for file in terms_of(run):
        shutil.copyfile(file, folder / file.name)
    (folder / CARD).write_text(merged_card((run.folder / CARD).read_text(encoding="utf-8"), check), encoding="utf-8")
    files = {path.name: hash_of(path) for path in sorted(folder.iterdir()) if path.is_file()}
    told = {
        "base": run.config.model, "fingerprint": run.learner.loaded.fingerprint, "adapter": dict(run.hashes),
        "task": run.config.task, "labels": list(run.labels), "reading_head": HEAD if HEAD in files else None,
        "check": asdict(check), "files": files,
    }  # fmt: skip
    (folder / MERGED).write_text(json.dumps(told, indent=1, ensure_ascii=False), encoding="utf-8")


def terms_of(run: FinishedRun) -> list[Path]:
    """Files that state terms, of the run's folder and of the base's, one of each name; of the run's no links.

    The hub's cache, where a base may lie, is made of links; a run writes none.
    """
    own = [path for path in sorted(run.folder.iterdir()) if path.is_file() and not path.is_symlink()]
    base = terms_of_base(run.config.model, run.learner.loaded.backbone.config)
    found = {path.name: path for path in (*base, *(path for path in own if states_terms(path.name)))}
    return list(found.values())


def merged_card(card: str, check: MergeCheck) -> str:
    """The run's card as that of a whole model."""
    changed = card.replace("\nlibrary_name: peft", "\nlibrary_name: transformers\nbase_model_relation: finetune", 1)
    changed = changed.replace("\n# An adapter for ", "\n# An adapter merged into ", 1).replace(
        "with this adapter:", "with this model:"
    )
    told = (
        f"The adapter is merged into the weights. On {check.texts} texts merged and unmerged logits differ by at most "
        f"{check.largest:.3g}, where logits reach {check.scale:.3g}."
    )
    if check.quantised is not None:
        told += (
            f" It was trained on a base in 4 bit and is merged into the published weights: from the model as it was "
            f"trained, logits differ by at most {check.quantised:.3g}."
        )
    return f"{changed}\n## Merged\n\n{told}\n"


def _opened(folder: Path, run: FinishedRun) -> Any:
    """The written model, opened as probe opens it; a classifier's or a masked model's head comes by its own class."""
    task, device = run.config.task, str(run.learner.loaded.device)
    code = run.config.trust_remote_code
    loaded = load_model(
        str(folder),
        device=device,
        dtype="float32",
        head="lm" if task == "causal-lm" else "none",
        trust_remote_code=code,
    )
    if task not in ("masked-lm", "classification"):
        return loaded.model
    import transformers

    kind = getattr(transformers, MODEL_CLASSES[task])
    model = kind.from_pretrained(str(folder), local_files_only=True, use_safetensors=True, trust_remote_code=code)
    return model.to(device).eval()


def facts_of(folder: Path) -> Mapping[str, Any]:
    """What merged.json says, every file's hash checked; TrainingError names the first that differs."""
    try:
        told: Mapping[str, Any] = json.loads((folder / MERGED).read_text(encoding="utf-8"))
        files = dict(told["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"{folder}: {MERGED} is missing or damaged") from error
    for name, wanted in files.items():
        if not (folder / name).is_file() or hash_of(folder / name) != wanted:
            raise TrainingError(f"{folder}: {name} is not the one that was merged")
    return told
