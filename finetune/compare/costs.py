"""What a job cost: wall and CPU time, the most memory, sampled while it runs and written as it grows."""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import torch
from safetensors import safe_open

from finetune.checkpoints import HEAD
from finetune.runfolder import FinishedRun
from probe import CijingError

_EVERY = 0.1  # seconds between two looks at the memory
_TOLD_EVERY = 5.0  # seconds after which a killed job's time is on the disk
_MEGABYTE = 1e6


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What was spent in one or more sessions."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_mb: float = 0.0  # the process's largest resident memory
    device_memory_mb: float = 0.0  # the most that tensors took on a GPU; 0 without one
    sessions: int = 0  # calls that it took; those killed as far as they were written

    def and_then(self, more: "Spent") -> "Spent":
        """Both, one after the other."""
        return Spent(
            wall_seconds=self.wall_seconds + more.wall_seconds, cpu_seconds=self.cpu_seconds + more.cpu_seconds,
            memory_mb=max(self.memory_mb, more.memory_mb),
            device_memory_mb=max(self.device_memory_mb, more.device_memory_mb), sessions=self.sessions + more.sessions,
        )  # fmt: skip


def spent_of(told: Mapping[str, Any] | None) -> Spent:
    """What a file of ours tells of it; nothing where it tells nothing."""
    return Spent(**told) if told else Spent()


@contextmanager
def metered(tell: Callable[[Spent], None]) -> Iterator[None]:
    """Tell what the block has spent so far, every few seconds and at its end, whether it fails or not."""
    begun, cpu, process = time.monotonic(), _cpu_seconds(), psutil.Process()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    most, over = [process.memory_info().rss], threading.Event()

    def spent() -> Spent:
        most[0] = max(most[0], process.memory_info().rss)
        device = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        return Spent(
            wall_seconds=time.monotonic() - begun, cpu_seconds=_cpu_seconds() - cpu, memory_mb=most[0] / _MEGABYTE,
            device_memory_mb=device / _MEGABYTE, sessions=1,
        )  # fmt: skip

    def watch() -> None:
        told = begun
        while not over.wait(_EVERY):
            now = spent()
            if time.monotonic() - told > _TOLD_EVERY:
                with suppress(CijingError):  # a full disk: told again at the end, where it is no secret
                    tell(now)
                told = time.monotonic()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        tell(spent())


def trained_parameters(run: FinishedRun) -> int:
    """How many numbers a run trained: those of the weights that it left, and of a reading head its map alone."""
    head = getattr(run.model, "reading_head", None)
    count = sum(weight.numel() for weight in head.parameters()) if head is not None else 0
    for name in run.hashes:
        if name.endswith(".safetensors") and name != HEAD:
            with safe_open(run.folder / name, framework="pt") as opened:
                # safe_open is no mapping
                count += sum(math.prod(opened.get_slice(key).get_shape()) for key in opened.keys())  # noqa: SIM118
    return count


def cost_of(*, training: Spent, measuring: Spent, trainable: int, prompt_tokens: float) -> dict[str, Any]:
    """A job's cost as cost.json holds it; the training of an arm that uses another's run is that run's."""
    both = training.and_then(measuring)
    return {
        "seconds": both.wall_seconds, "cpu_seconds": both.cpu_seconds, "memory_mb": both.memory_mb,
        "device_memory_mb": both.device_memory_mb, "trainable": trainable, "prompt_tokens": prompt_tokens,
        "training": asdict(training), "measuring": asdict(measuring),
    }  # fmt: skip


def _cpu_seconds() -> float:
    """Of this process and of the children that it has waited for."""
    return sum(os.times()[:4])
