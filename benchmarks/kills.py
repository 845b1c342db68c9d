"""What is lost of a run that is killed at random, again and again, against one that was left alone.

    python -m benchmarks.kills [--preset ci|full] [--seed 0]

A tiny model is trained in a process of its own, which SIGKILL ends at random moments: while it starts, between
checkpoints, while one is being written, and at last while the adapter is. Each time it goes on with resume. Shown is
each kill with what it left; at the end the weights must be those of the run left alone (1e-6), with each step once in
its table. Processes are forked from one that has its libraries loaded, so that a kill is a matter of seconds. Leaves
with exit code 1 where anything is lost.
"""

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from safetensors.torch import load_file

from finetune.adapters import MANIFEST
from finetune.begun import CHECKPOINTS, CONFIG
from finetune.checkpoints import MARK, latest_checkpoint
from finetune.config import RunConfig, config_of
from finetune.finish import TABLES
from finetune.runfolder import open_run_folder
from finetune.train import train

PRESETS = {"ci": (3, 16), "full": (20, 240)}  # kills, steps
Aim = Literal["starting", "training", "saving", "finishing"]
TOLERANCE = 1e-6
_AHEAD = 8  # new checkpoints that a process may write at most before it is killed
_LATER: dict[str, float] = {"starting": 0.0, "training": 0.2, "saving": 0.03, "finishing": 0.03}  # seconds at most
_FINISHING = 0.2  # the share of the kills, the last, that wait until the adapter is being written
WORDS = ("苹果", "芯片", "晶圆", "良率", "光刻", "功耗", "缓存", "封装")


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill as often as the preset says; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description="Is anything lost by kills?")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="full")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        written_base(root / "base")
        written_corpus(root)
        kills, steps = PRESETS[options.preset]
        whole, killed = (run_of(root, root / name, steps=steps) for name in ("whole", "killed"))
        started = time.monotonic()
        left_alone(whole, resume=False)
        span = time.monotonic() - started
        draw = random.Random(options.seed)
        for number in range(kills):
            aim = aim_of(number, kills)
            left = kill_once(killed, aim, within=2 * span / kills, draw=draw)
            print(f"kill {number + 1:>2}, {aim:<10} left {left}", flush=True)
        left_alone(killed, resume=(killed.folder / CONFIG).is_file())
        problems = lost(whole.folder, killed.folder)
    for problem in problems or ["nothing is lost"]:
        print(problem)
    return 1 if problems else 0


def aim_of(number: int, kills: int) -> Aim:
    """When a kill strikes; those in finish come last, for behind them there is little left to be killed."""
    if number >= round((1.0 - _FINISHING) * kills):
        return "finishing"
    order: tuple[Aim, ...] = ("starting", "training", "saving", "training", "saving")
    return order[number % len(order)]


def run_of(root: Path, out: Path, *, steps: int) -> RunConfig:
    """A run with dropout, a checkpoint every second step, on dev every fourth."""
    return config_of(
        {
            "model": str(root / "base"), "task": "causal-lm", "out": str(out), "seed": 5,
            "data": {"train": str(root / "train.txt")}, "lora": {"dropout": 0.1},
            "pairs": {"file": str(root / "pairs.yaml"), "direction": "either"},
            "attention": {"weight": 0.5, "norms_every": 0},
            "training": {
                "max_steps": steps, "per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 2,
                "eval_strategy": "steps", "eval_steps": 4, "logging_steps": 2, "use_cpu": True,
                "load_best_model_at_end": False,
            },
        }
    )  # fmt: skip


def written_base(folder: Path) -> None:
    """A tiny causal model, and a tokenizer that knows single characters."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    known = sorted(set("".join(WORDS)) | set("0123456789第份记录里写在前面后来又谈到，。"))
    words = {word: place for place, word in enumerate(["<pad>", "<unk>", "<s>", "</s>", *known])}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=inner, **special).save_pretrained(folder)
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=2, eos_token_id=3,
        )
    ).save_pretrained(folder)  # fmt: skip


def written_corpus(root: Path) -> None:
    """Texts that name two words each, and the pairs."""
    draw = random.Random(0)
    lines = [
        f"第{number}份记录里{one}写在前面，后来又谈到{other}。"
        for number in range(48)
        for one, other in [draw.sample(WORDS, 2)]
    ]
    (root / "train.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pairs = [f"- {{query: {one}, key: {other}}}" for one in WORDS[:4] for other in WORDS[4:]]
    (root / "pairs.yaml").write_text("pairs:\n" + "\n".join(pairs) + "\n", encoding="utf-8")


def started(config: RunConfig, *, resume: bool) -> Any:
    """A process that trains."""
    process = multiprocessing.get_context("fork").Process(target=_train, args=(config, resume))
    process.start()
    return process


def _train(config: RunConfig, resume: bool) -> None:
    train(config, resume=resume, device="cpu")


def left_alone(config: RunConfig, *, resume: bool) -> None:
    """Train to the end; RuntimeError where the run fails."""
    process = started(config, resume=resume)
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"the run left with {process.exitcode}")


def kill_once(config: RunConfig, aim: Aim, *, within: float, draw: random.Random) -> str:
    """Start or go on, kill, and say what is left; RuntimeError where the run fails by itself."""
    folder = config.folder
    before = {path.name for path in folder.glob(f"{CHECKPOINTS}/checkpoint-*")}
    seen: set[str] = set()
    process = started(config, resume=(folder / CONFIG).is_file())
    deadline = time.monotonic() + draw.uniform(0.0, within)
    wanted = draw.randint(1, _AHEAD)  # checkpoints, before one is cut short or the run killed behind it
    table = folder / TABLES / "steps.csv"
    written = table.stat().st_mtime_ns if table.exists() else 0
    while process.is_alive():
        new = {path.name for path in folder.glob(f"{CHECKPOINTS}/checkpoint-*")} - before
        seen |= new
        reached = aim in ("saving", "training") and len(seen) >= wanted
        finishing = aim == "finishing" and table.exists() and table.stat().st_mtime_ns != written
        if reached or finishing or (aim == "starting" and time.monotonic() >= deadline):
            time.sleep(draw.uniform(0.0, _LATER[aim]))
            break
        time.sleep(0.001)
    process.kill()
    process.join()
    if process.exitcode not in (0, -9):
        raise RuntimeError(f"the run left with {process.exitcode} by itself")
    return _left(folder) + (" (it had come to its end)" if process.exitcode == 0 else "")


def _left(folder: Path) -> str:
    if not (folder / CONFIG).is_file():
        return "no run yet"
    latest = latest_checkpoint(folder / CHECKPOINTS)
    partial = [path.name for path in folder.glob(f"{CHECKPOINTS}/checkpoint-*") if not (path / MARK).is_file()]
    manifest = ", a manifest" if (folder / MANIFEST).is_file() else ""
    cut = f", {', '.join(partial)} cut short" if partial else ""
    return f"{latest.name if latest else 'no checkpoint'}{cut}{manifest}"


def lost(whole: Path, killed: Path) -> list[str]:
    """What the killed run has not as the one left alone has it."""
    problems = []
    one, other = (load_file(folder / "adapter_model.safetensors") for folder in (whole, killed))
    gap = max(float((one[name] - other[name]).abs().max()) for name in one) if one.keys() == other.keys() else 1.0
    print(f"largest difference of a weight: {gap:.2g}")
    if gap > TOLERANCE:
        problems.append(f"weights differ by {gap:.2g}")
    open_run_folder(killed, device="cpu")
    tables = [pd.read_csv(folder / TABLES / "steps.csv") for folder in (whole, killed)]
    for column in ("loss", "eval_loss", "train_loss"):
        first, second = (table.dropna(subset=[column])[["step", column]].to_numpy() for table in tables)
        if first.shape != second.shape or abs(first - second).max() > 1e-5:
            problems.append(f"steps.csv: {column} stands in {len(first)} lines of one and {len(second)} of the other")
    return problems


if __name__ == "__main__":
    sys.exit(main())
