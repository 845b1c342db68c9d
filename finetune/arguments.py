"""TrainingArguments of a run: what its file says over defaults that suit a small one."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finetune.begun import CHECKPOINTS
from finetune.choosing import evaluation_plan
from finetune.config import RunConfig
from finetune.errors import ConfigError
from finetune.push import HUB_FIELDS

_SPREADING = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")  # what `accelerate launch` sets


def arguments_of(config: RunConfig, folder: Path, *, has_dev: bool) -> Any:
    """The arguments; ConfigError for what the file says and transformers refuses."""
    import torch
    from transformers import TrainingArguments

    if config.early_stopping is not None and not has_dev:
        raise ConfigError(
            "early_stopping: the texts give no dev part; allowed is data.dev, or more texts in data.train"
        )
    chosen = evaluation_plan(config.training, steps=config.save_every, has_dev=has_dev)
    given = {
        "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, "learning_rate": 2e-4,
        "num_train_epochs": 3, "lr_scheduler_type": "linear", "warmup_steps": 0.1, "logging_steps": 10,
        "save_total_limit": 2, **chosen,
        "report_to": "none", "run_name": folder.name, "disable_tqdm": True, "remove_unused_columns": False,
        "label_names": ["labels"],
        "logging_nan_inf_filter": False, "dataloader_pin_memory": False,
        **{name: value for name, value in config.training.items() if name not in HUB_FIELDS},
        "output_dir": str(folder / CHECKPOINTS), "seed": config.seed, "data_seed": config.seed,
        "prediction_loss_only": config.task in ("causal-lm", "masked-lm"),
        "greater_is_better": config.more_is_better,
    }  # fmt: skip
    if given.get("bf16") and not torch.accelerator.is_available():
        given.setdefault("use_cpu", True)  # else transformers refuses bf16, which a processor can do as well
    if config.method == "full":
        _refuse_spread(given)
    if config.data.streaming and not isinstance(given.get("accelerator_config"), str):
        # Else process 0 reads for all, cutting its batches, which are of many lengths, into equal parts.
        given["accelerator_config"] = {**(given.get("accelerator_config") or {}), "dispatch_batches": False}
    try:
        arguments = TrainingArguments(**given)
    except (ValueError, TypeError, ImportError, RuntimeError) as error:
        raise ConfigError(f"training: {' '.join(str(error).split())}") from error
    if config.data.streaming and arguments.accelerator_config.dispatch_batches is not False:
        raise ConfigError(f"{given['accelerator_config']}: data.streaming needs dispatch_batches: false")
    return arguments


def _refuse_spread(given: Mapping[str, Any]) -> None:
    """ConfigError where processes would hold parts of the weights, which are saved and put back whole here."""
    asked = [f"training.{name}" for name in ("deepspeed", "fsdp") if given.get(name)]
    asked += [name for name in _SPREADING if os.environ.get(name, "").lower() in ("1", "true")]
    if asked:
        raise ConfigError(
            f"method full with {asked[0]}: weights spread over processes are not gathered here; allowed are one "
            "process, or several that hold the whole model"
        )
