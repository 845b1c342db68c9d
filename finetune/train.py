"""A configuration in, a run folder out: an adapter that PEFT loads, its card, checkpoints, tables, a manifest."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from finetune.adapters import CardFacts, licence_of, save_adapter
from finetune.checkpoints import check_whole, latest_checkpoint, remove_partial
from finetune.config import RunConfig
from finetune.control import control_facts
from finetune.errors import ConfigError, TrainingError
from finetune.heads import Heads
from finetune.prepare import Prepared, Progress, batches_with_pairs, prepare_run
from finetune.tally import PairTally
from finetune.tasks import TaskLoss
from finetune.trainer import AttentionTrainer, WeightPlan

CONFIG, MANIFEST, CHECKPOINTS, TABLES = "config.yaml", "manifest.json", "checkpoints", "tables"
_MEASURED = 4  # batches by which λ auto is set
_OF_THE_MACHINE = ("_runtime", "_per_second", "total_flos")  # numbers that say nothing of the adapter


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run that came to its end."""

    folder: Path
    metrics: Mapping[str, float]
    steps: int
    notes: tuple[str, ...]


def train(
    config: RunConfig, *, resume: bool = False, device: str = "auto", progress: Progress | None = None
) -> Trained:
    """Train as the configuration says, in the folder `config.folder`.

    resume goes on from the newest whole checkpoint there. Raises TrainingError for a folder that holds another run,
    ConfigError where the configuration changed since, both naming what differs.
    """
    folder = config.folder
    start = check_folder(folder, config, resume=resume)
    prepared = prepare_run(config, device=device, progress=progress)
    if not resume:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(_as_yaml(config), encoding="utf-8")
    trainer, plan = make_trainer(config, prepared, folder=folder, start=start, progress=progress)
    if progress is not None:
        progress("training", 0, 1)
    result = trainer.train(resume_from_checkpoint=str(start) if start is not None else None)
    metrics = {name: float(value) for name, value in result.metrics.items() if isinstance(value, int | float)}
    if prepared.dev is not None:
        metrics |= {name: float(value) for name, value in trainer.evaluate().items() if isinstance(value, int | float)}
    if trainer.is_world_process_zero():
        finish(config, prepared, trainer, folder=folder, metrics=metrics, plan=plan)
    return Trained(folder=folder, metrics=metrics, steps=int(trainer.state.global_step), notes=prepared.learner.notes)


def check_folder(folder: Path, config: RunConfig, *, resume: bool) -> Path | None:
    """Refuse a folder of another run, and find the checkpoint to go on from; None where the run starts at its start.

    Nothing is written: a run whose model or texts cannot be read leaves no folder.
    """
    written = folder / CONFIG
    if not resume:
        if folder.is_dir() and any(folder.iterdir()):
            raise TrainingError(f"{folder} is not empty: give --resume to go on with that run, or another --out")
        if folder.exists() and not folder.is_dir():
            raise TrainingError(f"{folder} is a file: give another --out")
        return None
    if not written.is_file():
        raise TrainingError(f"{folder}: no run to resume ({CONFIG} is missing)")
    refuse_changes(yaml.safe_load(written.read_text(encoding="utf-8")), yaml.safe_load(_as_yaml(config)), folder)
    remove_partial(folder / CHECKPOINTS)
    latest = latest_checkpoint(folder / CHECKPOINTS)
    if latest is not None:
        check_whole(latest)
    return latest


def refuse_changes(before: Any, now: Any, folder: Path) -> None:
    """ConfigError that names each key whose value is another than when the run began."""
    old, new = (_flat(part) for part in (before, now))
    changed = [
        f"{key}: {old.get(key, 'not given')} then, {new.get(key, 'not given')} now"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]
    if changed:
        raise ConfigError(f"{folder}: the configuration changed since the run began: {'; '.join(changed)}")


def make_trainer(
    config: RunConfig, prepared: Prepared, *, folder: Path, start: Path | None, progress: Progress | None
) -> tuple[AttentionTrainer, WeightPlan | None]:
    """The trainer, λ set: as given, as measured, or as the checkpoint has it."""
    trainer = AttentionTrainer(
        model=prepared.learner.model, args=arguments_of(config, folder, has_dev=prepared.dev is not None),
        train_dataset=prepared.train, eval_dataset=prepared.dev, data_collator=prepared.collator,
        processing_class=prepared.learner.loaded.tokenizer, task_loss=TaskLoss(task=config.task),
        supervision=prepared.supervision, norms_every=config.attention.norms_every if prepared.supervision else 0,
        compute_metrics=None if config.task in ("causal-lm", "masked-lm") else accuracy_of,
        watch=_watcher(progress),
    )  # fmt: skip
    if progress is not None and prepared.supervision is not None:
        progress("weight of the attention loss", 0, 1)
    plan = weight_plan(config, prepared, trainer, start=start)
    trainer.plan = plan
    trainer.facts = {"weight": plan.weight if plan else None, "heads": _plain(prepared)}
    return trainer, plan


def weight_plan(
    config: RunConfig, prepared: Prepared, trainer: AttentionTrainer, *, start: Path | None
) -> WeightPlan | None:
    """λ over the run; `auto` makes the attention gradient a share of the task gradient on the first batches."""
    if prepared.supervision is None:
        return None
    asked = config.attention.weight
    if start is not None:
        asked = float(check_whole(start)["weight"])
    if asked == "auto":
        size = trainer.args.per_device_train_batch_size
        batches = list(
            batches_with_pairs(
                prepared.train.documents, prepared.collator, size=size, most=_MEASURED, device=trainer.args.device
            )
        )
        task, attention = trainer.gradient_norms(batches)
        if not (math.isfinite(task) and math.isfinite(attention)) or attention == 0.0 or task == 0.0:
            raise TrainingError(
                f"attention.weight auto: the gradients' norms are {task:g} (task) and {attention:g} (attention) on the "
                "first batches; give a number"
            )
        asked = config.attention.share * task / attention
    return WeightPlan(weight=float(asked), warmup=config.attention.warmup, decay=config.attention.decay)


def arguments_of(config: RunConfig, folder: Path, *, has_dev: bool) -> Any:
    """TrainingArguments: what the file says over defaults that suit a small run."""
    from transformers import TrainingArguments

    every = "epoch" if has_dev else "no"
    given = {
        "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, "learning_rate": 2e-4,
        "num_train_epochs": 3, "lr_scheduler_type": "linear", "warmup_steps": 0.1, "logging_steps": 10,
        "save_strategy": "epoch", "save_total_limit": 2, "eval_strategy": every, "load_best_model_at_end": has_dev,
        "report_to": "none", "disable_tqdm": True, "remove_unused_columns": False, "label_names": ["labels"],
        "logging_nan_inf_filter": False, "dataloader_pin_memory": False,
        **config.training,
        "output_dir": str(folder / CHECKPOINTS), "seed": config.seed, "data_seed": config.seed,
        "prediction_loss_only": config.task in ("causal-lm", "masked-lm"),
    }  # fmt: skip
    try:
        return TrainingArguments(**given)
    except (ValueError, TypeError, ImportError, RuntimeError) as error:
        raise ConfigError(f"training: {' '.join(str(error).split())}") from error


def accuracy_of(predicted: Any) -> dict[str, float]:
    """Accuracy of class logits, for choosing a checkpoint."""
    chosen = predicted.predictions.argmax(-1)
    return {"accuracy": float((chosen == predicted.label_ids).mean())}


def finish(
    config: RunConfig,
    prepared: Prepared,
    trainer: AttentionTrainer,
    *,
    folder: Path,
    metrics: Mapping[str, float],
    plan: WeightPlan | None,
) -> None:
    """Write what stays: adapter, card, tables and, last, the manifest."""
    (folder / TABLES).mkdir(exist_ok=True)
    pd.DataFrame(trainer.state.log_history).to_csv(folder / TABLES / "steps.csv", index=False)
    pairs_frame(prepared.pairs).to_csv(folder / TABLES / "pairs.csv", index=False)
    control = asdict(control_facts(prepared.swaps)) if prepared.swaps else None
    save_adapter(
        prepared.learner.model, folder, base=config.model, revision=config.revision,
        tokenizer=prepared.learner.loaded.tokenizer,
        facts=card_facts(config, prepared, metrics=metrics, plan=plan, control=control),
    )  # fmt: skip
    told = {
        "config": yaml.safe_load(_as_yaml(config)), "metrics": dict(metrics), "labels": list(prepared.corpus.labels),
        "model": dict(prepared.learner.loaded.origin), "fingerprint": prepared.learner.loaded.fingerprint,
        "records": {"train": len(prepared.train.documents), "dev": len(prepared.dev.documents) if prepared.dev else 0},
        "attention": None if plan is None else {"weight": plan.weight, "heads": _plain(prepared), "control": control},
        "notes": list(prepared.learner.notes), "steps": int(trainer.state.global_step),
    }  # fmt: skip
    partial = folder / f"{MANIFEST}.part"
    partial.write_text(json.dumps(told, indent=1, ensure_ascii=False), encoding="utf-8")
    partial.replace(folder / MANIFEST)


def pairs_frame(found: PairTally) -> pd.DataFrame:
    """A row a pair: how often it is met, and why not."""
    rows = []
    for name in found.names:
        unmet = found.unmet.get(name, {})
        rows.append({"pair": name, "met": found.met.get(name, 0), **{str(reason): n for reason, n in unmet.items()}})
    return pd.DataFrame(rows).fillna(0) if rows else pd.DataFrame(columns=["pair", "met"])


def card_facts(
    config: RunConfig,
    prepared: Prepared,
    *,
    metrics: Mapping[str, float],
    plan: WeightPlan | None,
    control: Mapping[str, Any] | None,
) -> CardFacts:
    """What the card says."""
    supervision = prepared.supervision
    pairs = ""
    if supervision is not None and plan is not None:
        heads = sum(map(len, supervision.heads.values()))
        pairs = (
            f"{prepared.pairs.met_in_all} pairs of words on tokens ({_source_of_pairs(config)}), loss "
            f"{supervision.settings.name}, weight "
            f"{plan.weight:.4g}, {heads} heads in layers {', '.join(map(str, supervision.layers))}."
        )
    arms = f"attention: {config.attention.mode if supervision else 'none'}; seed {config.seed}."
    if control is not None:
        arms += f" Random pairs: {control['pairs']}, {control['near']:.0%} of them within 20 % of the base mass."
    data = [f"{source} ({len(prepared.train.documents)} records trained on)" for source in config.data.train]
    data += _base_in_words(config.model, prepared.learner.loaded.origin)
    metrics = {name: value for name, value in metrics.items() if not name.endswith(_OF_THE_MACHINE)}
    return CardFacts(
        base=config.model, licence=licence_of(prepared.learner.loaded), task=config.task, data=data, pairs=pairs,
        arms=arms, metrics=metrics, labels=prepared.corpus.labels, notes=prepared.learner.notes,
    )  # fmt: skip


def _source_of_pairs(config: RunConfig) -> str:
    return config.pairs.file if config.pairs is not None and config.pairs.file is not None else "of the data"


def _base_in_words(name: str, origin: Mapping[str, Any]) -> list[str]:
    """What a builtin base is to somebody who has only the card."""
    if origin.get("source") != "builtin":
        return []
    return [f"the base {name} is {origin['original']} as the package {origin['package']} holds it"]


def _plain(prepared: Prepared) -> dict[str, list[int]]:
    heads: Heads = dict(prepared.supervision.heads) if prepared.supervision else {}
    return {str(layer): list(numbers) for layer, numbers in heads.items()}


def _as_yaml(config: RunConfig) -> str:
    """The whole configuration; without pairs no word of attention, or it could not be read again."""
    left_out = {"out"} if config.pairs is not None else {"out", "attention"}
    return yaml.safe_dump(config.model_dump(mode="json", exclude=left_out), allow_unicode=True, sort_keys=False)


def _flat(given: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(given, dict):
        return {path: given}
    found: dict[str, Any] = {}
    for key, value in given.items():
        found |= _flat(value, f"{path}.{key}" if path else str(key))
    return found


def _watcher(progress: Progress | None) -> Any:
    if progress is None:
        return None

    def watch(line: dict[str, float]) -> None:
        if "loss" in line:
            progress("training", int(line["step"]), int(line["steps"]))

    return watch
