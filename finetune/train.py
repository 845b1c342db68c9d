"""A configuration in, a run folder out: an adapter that PEFT loads, or a model; its card, checkpoints, a manifest."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from finetune.adapters import MANIFEST
from finetune.arguments import arguments_of
from finetune.begun import (
    CHECKPOINTS,
    CONFIG,
    Start,
    as_yaml,
    check_folder,
    flat,
    heads_then,
    held,
    refuse_other_base,
    write_inputs,
)
from finetune.callbacks import Patience, StepsTold
from finetune.checkpoints import MARK
from finetune.choosing import dev_expected
from finetune.config import RunConfig
from finetune.errors import ConfigError, TrainingError
from finetune.finish import finish, heads_told
from finetune.parcel import refuse_local_base
from finetune.prepare import Prepared, Progress, batches_with_pairs, prepare_run
from finetune.processes import in_turn, speaks
from finetune.push import check_settings, hub_settings, lines_of, push_finished
from finetune.tasks import TaskLoss
from finetune.trackers import ConfigurationTold, let_go, logs_in, trackers_of
from finetune.trainer import AttentionTrainer, WeightPlan
from finetune.whole import check_written
from finetune.writing import disk_told, write_whole

_MEASURED = 4  # batches by which λ auto is set


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
    with _alone(config, resume=resume):
        return _trained(config, resume=resume, device=device, progress=progress)


def _trained(config: RunConfig, *, resume: bool, device: str, progress: Progress | None) -> Trained:
    folder = config.folder
    start = _checked(config, resume=resume)
    over = finished(folder, start)
    if over is not None:
        return over
    prepared = prepare_run(config, device=device, progress=progress)
    arguments_of(config, folder, has_dev=prepared.dev is not None)  # refused before anything is written
    prepared = _as_begun(prepared, start, config)
    if not resume and speaks():
        _begin(config)
    with logs_in(folder, trackers_of(config.training)):  # their callbacks read the environment when they are made
        trainer, plan = make_trainer(config, prepared, folder=folder, start=start, progress=progress)
        result = trainer.train(resume_from_checkpoint=str(start.folder) if start is not None else None)
        let_go(trainer)
        metrics = _numbers_in(result.metrics)
        if prepared.dev is not None:
            metrics |= _numbers_in(trainer.evaluate())
    notes = (*prepared.notes, *attention_in_words(prepared, plan))
    if trainer.is_world_process_zero():
        with disk_told(folder, then="mend that, then go on with --resume"):
            finish(config, prepared, trainer, folder=folder, metrics=metrics, plan=plan)
        hub = hub_settings(config.training)
        notes = notes if hub is None else (*notes, *lines_of(push_finished(folder, hub, progress=progress)))
    return Trained(folder=folder, metrics=metrics, steps=int(trainer.state.global_step), notes=notes)


def finished(folder: Path, start: Start | None) -> Trained | None:
    """The run as it ended, where nothing is left to do: its last checkpoint is the one that its manifest tells of."""
    if start is None or not (folder / MANIFEST).is_file():
        return None
    told = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if start.folder.name != f"checkpoint-{told['steps']}":
        return None
    try:
        check_written(folder, told["config"].get("method", "lora"))
    except TrainingError:
        return None  # written anew from the checkpoint
    notes = (*told["notes"], f"{folder} had come to its end at step {told['steps']}: nothing was done")
    return Trained(folder=folder, metrics=told["metrics"], steps=told["steps"], notes=notes)


def _alone(config: RunConfig, *, resume: bool) -> AbstractContextManager[None]:
    """The run's folder for one run, of which the first process holds it; what is no folder is refused by the checks."""
    folder = config.folder
    absent = not folder.is_dir() and (resume or folder.exists())
    return nullcontext() if absent or not speaks() else held(folder, "trained")


def _checked(config: RunConfig, *, resume: bool) -> Start | None:
    """The checkpoint to go on from; what can be refused without texts or weights is refused here."""
    hub = hub_settings(config.training)
    if hub is not None:
        check_settings(hub)
        refuse_local_base(config.model, source="folder" if Path(config.model).exists() else "hub", where="push_to_hub")
    trackers_of(config.training)
    arguments = arguments_of(config, config.folder, has_dev=dev_expected(config.data))
    with in_turn(arguments):
        return check_folder(config.folder, config, resume=resume)


def _as_begun(prepared: Prepared, start: Start | None, config: RunConfig) -> Prepared:
    """The same with the heads that the checkpoint was trained on; TrainingError for another base."""
    refuse_other_base(start, prepared.learner.loaded.fingerprint, config.model)
    heads = heads_then(start)
    if heads is None or prepared.supervision is None:
        return prepared
    return replace(prepared, supervision=replace(prepared.supervision, heads=heads))


def _begin(config: RunConfig) -> None:
    with disk_told(config.folder):
        config.folder.mkdir(parents=True, exist_ok=True)
    write_inputs(config, config.folder)
    write_whole(config.folder / CONFIG, as_yaml(config))  # last: with it the run has begun


def attention_in_words(prepared: Prepared, plan: WeightPlan | None) -> tuple[str, ...]:
    """What the loss on attention came down to: its weight, and on how many heads it acts."""
    if plan is None or prepared.supervision is None:
        return ()
    supervision = prepared.supervision
    heads = sum(map(len, supervision.heads.values()))
    where = f"{heads} heads in layers {', '.join(map(str, supervision.layers))}"
    return (f"loss on attention {supervision.settings.name}, weight {plan.weight:.3g}, {where}",)


def _numbers_in(given: Mapping[str, Any]) -> dict[str, float]:
    """Those of Trainer's metrics that are numbers."""
    return {name: float(value) for name, value in given.items() if isinstance(value, int | float)}


def make_trainer(
    config: RunConfig, prepared: Prepared, *, folder: Path, start: Start | None, progress: Progress | None
) -> tuple[AttentionTrainer, WeightPlan | None]:
    """The trainer, λ set: as given, as measured, or as the checkpoint has it."""
    with _refused_in_one_line(folder, begun=start is not None):
        trainer = _trainer_of(config, prepared, folder=folder)
        _try_to_build(trainer)
    if progress is not None:
        trainer.add_callback(StepsTold(progress))
    if config.early_stopping is not None:
        trainer.add_callback(Patience(config.early_stopping.patience, config.early_stopping.threshold))
    if progress is not None and prepared.supervision is not None:
        progress("weight of the attention loss", 0, 1)
    plan = weight_plan(config, prepared, trainer, start=start)
    trainer.plan = plan
    if trackers_of(config.training):
        told = ConfigurationTold(flat(yaml.safe_load(as_yaml(config))), trainer.callback_handler.callbacks)
        trainer.add_callback(told)
    trainer.facts = {
        "quantize": config.lora.quantize, "weight": plan.weight if plan else None, "heads": heads_told(prepared),
        "fingerprint": prepared.learner.loaded.fingerprint,
    }  # fmt: skip
    trainer.loss_before = float(start.facts.get("loss_sum", 0.0)) if start is not None else 0.0
    return trainer, plan


def _trainer_of(config: RunConfig, prepared: Prepared, *, folder: Path) -> AttentionTrainer:
    return AttentionTrainer(
        model=prepared.learner.model, args=arguments_of(config, folder, has_dev=prepared.dev is not None),
        train_dataset=prepared.train, eval_dataset=prepared.dev, data_collator=prepared.collator,
        processing_class=prepared.learner.loaded.tokenizer, task_loss=_task_loss(config),
        supervision=prepared.supervision, norms_every=config.attention.norms_every if prepared.supervision else 0,
        compute_metrics=None if config.task in ("causal-lm", "masked-lm") else accuracy_of,
    )  # fmt: skip


def _try_to_build(trainer: AttentionTrainer) -> None:
    """Build what Trainer builds later, so that values that only its parts refuse are met before the run begins.

    The optimizer is kept, for Trainer takes the one that is there; the schedule is tried on another.
    """
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:  # theirs is made with the wrapped model
        return
    trainer.create_optimizer()
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=float(trainer.args.learning_rate))
    trainer.create_scheduler(num_training_steps=max(trainer.args.max_steps, 1), optimizer=other)
    trainer.lr_scheduler = None
    trainer.get_train_dataloader()


@contextmanager
def _refused_in_one_line(folder: Path, *, begun: bool) -> Iterator[None]:
    """ConfigError for what transformers, torch or accelerate refuse of `training`; memory that is full is no such.

    A run that was to start here has not begun then: the mended file may start in the same folder.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (ValueError, TypeError, ImportError, RuntimeError, AttributeError, KeyError, AssertionError) as error:
        if not begun and speaks():
            (folder / CONFIG).unlink(missing_ok=True)
            if (folder / CHECKPOINTS).is_dir():
                (folder / CHECKPOINTS).rmdir()
        raise ConfigError(f"training: {' '.join(str(error).split())}") from error


def _task_loss(config: RunConfig) -> TaskLoss:
    return TaskLoss(task=config.task, label_smoothing=float(config.training.get("label_smoothing_factor", 0.0)))


def weight_plan(
    config: RunConfig, prepared: Prepared, trainer: AttentionTrainer, *, start: Start | None
) -> WeightPlan | None:
    """λ over the run; `auto` makes the attention gradient a share of the task gradient on the first batches."""
    if prepared.supervision is None:
        return None
    asked = config.attention.weight
    if start is not None:
        if start.facts.get("weight") is None:
            raise TrainingError(
                f"{start.folder}: {MARK} tells no weight of the attention loss; remove this folder to go on from the "
                "checkpoint before it"
            )
        asked = float(start.facts["weight"])
    if asked == "auto":
        size = trainer.args.per_device_train_batch_size
        batches = list(
            batches_with_pairs(prepared.true, prepared.collator, size=size, most=_MEASURED, device=trainer.args.device)
        )
        task, attention = trainer.gradient_norms(batches)
        if not (math.isfinite(task) and math.isfinite(attention)) or attention == 0.0 or task == 0.0:
            raise TrainingError(
                f"attention.weight auto: the gradients' norms are {task:g} (task) and {attention:g} (attention) on the "
                "first batches; give a number"
            )
        asked = config.attention.share * task / attention
    return WeightPlan(weight=float(asked), warmup=config.attention.warmup, decay=config.attention.decay)


def accuracy_of(predicted: Any) -> dict[str, float]:
    """Accuracy of class logits, for choosing a checkpoint."""
    chosen = predicted.predictions.argmax(-1)
    return {"accuracy": float((chosen == predicted.label_ids).mean())}
