"""How two ways of doing one thing are compared: CPU time in pairs, memory in fresh processes, tensors by their shape.

Wall clock on a shared machine cannot carry a bound of a few percent. So time is the process's CPU time with one
torch thread, the sides take turns as A B B A, and a bound is held against the lower limit of a bootstrap over pairs.
"""

import contextlib
import ctypes
import gc
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Work = Callable[[], object]
Stream = Callable[[], Iterable[object]]
W = TypeVar("W")
R = TypeVar("R")
Made = Counter[tuple[str, tuple[int, ...]]]  # operation and shape

PAIRS = 10
FEW_PAIRS = 3
LONG_RUN = 60.0  # CPU seconds
_M_MMAP_THRESHOLD = -3  # glibc's malloc.h


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One quantity on both sides: medians, and B over A with the 95 % interval of a bootstrap over pairs."""

    a: float
    b: float
    ratio: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one run took."""

    increase: int  # bytes over what stood before
    seconds: float  # of the CPU


def compare_time(
    a: Work, b: Work, *, pairs: int = PAIRS, repeats: int = 1, seed: int = 0, long_run: float = LONG_RUN
) -> Comparison:
    """CPU seconds of a against b, in turns A B B A after one warm-up of each; a run calls its side `repeats` times.

    Where a run takes over `long_run` seconds three pairs must do.
    """
    with one_thread():
        warm = [cpu_seconds(side, repeats=repeats) for side in (a, b)]
        pairs = min(pairs, FEW_PAIRS) if max(warm) > long_run else pairs
        seconds = np.zeros((pairs, 2))  # [pair, side]
        for pair in range(pairs):
            for side in (0, 1) if pair % 2 == 0 else (1, 0):
                seconds[pair, side] = cpu_seconds((a, b)[side], repeats=repeats)
    return compare(seconds[:, 0], seconds[:, 1], seed=seed)


def compare_memory(
    prepare: Callable[..., Work], a: Sequence[Any], b: Sequence[Any], *, pairs: int = 1, seed: int = 0
) -> Comparison:
    """Bytes that prepare(*a)() and prepare(*b)() need over what stood after prepare, each run in a fresh process."""
    grown = np.array(
        [[memory_increase(prepare, *side) for side in (a, b)] for _ in range(pairs)], dtype=np.float64
    )  # [pair, side]
    return compare(grown[:, 0], grown[:, 1], seed=seed)


def compare_once(prepare: Callable[..., Work], a: Sequence[Any], b: Sequence[Any]) -> tuple[Comparison, Comparison]:
    """CPU seconds and bytes of prepare(*a)() against prepare(*b)() from one run of each, both in fresh processes.

    For runs too long to be repeated: time and memory of the same run, and no interval.
    """
    one, two = cost_once(prepare, *a), cost_once(prepare, *b)
    return compare([one.seconds], [two.seconds], seed=0), compare([one.increase], [two.increase], seed=0)


def compare(a: ArrayLike, b: ArrayLike, *, seed: int, resamples: int = 10_000) -> Comparison:
    """Geometric mean of the pairs' ratios b / a, which a drift of the machine's speed between pairs does not move."""
    one, two = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    logs = np.log(two / one)
    draws = np.random.default_rng(seed).integers(len(logs), size=(resamples, len(logs)))
    low, high = np.exp(np.quantile(logs[draws].mean(1), [0.025, 0.975]))
    return Comparison(
        a=float(np.median(one)),
        b=float(np.median(two)),
        ratio=float(np.exp(logs.mean())),
        low=float(low),
        high=float(high),
        pairs=len(logs),
    )


def cpu_seconds(work: Work, *, repeats: int = 1) -> float:
    """CPU seconds, user and system, that this process spends on `repeats` calls; earlier garbage is cleared first."""
    gc.collect()
    start = time.process_time()
    for _ in range(repeats):
        work()
    return time.process_time() - start


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Within the block torch computes with one thread: what more threads spend in waiting is not the work's cost."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def memory_increase(prepare: Callable[..., Work], *arguments: Any) -> int:
    """Bytes by which resident memory peaks, in a fresh process, during prepare(*arguments)() over what stood before.

    prepare and its arguments are pickled, so prepare is a function of a module. Its result is held while measuring:
    what the work gives back counts as well.
    """
    return cost_once(prepare, *arguments).increase


def cost_once(prepare: Callable[..., Work], *arguments: Any) -> Cost:
    """Memory, as `memory_increase` measures it, and CPU time of one run in a fresh process."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(_cost_here, prepare, arguments).result()


def cost_and_result(prepare: Callable[..., Work], *arguments: Any) -> tuple[Cost, Any]:
    """Cost of one run in this process, which is to be a fresh one, and what the run gave."""
    return _measured_clean(_cost_of, _prepared(prepare, arguments))


def peaks_along(prepare: Callable[..., Stream], *arguments: Any, marks: Sequence[int]) -> list[int]:
    """Bytes by which memory has peaked once so many items of a stream have been read, and each thrown away.

    One number a mark, over what stood before the stream began, in a fresh process as in `memory_increase`.
    """
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(_peaks_here, prepare, arguments, marks).result()


def _cost_here(prepare: Callable[..., Work], arguments: Sequence[Any]) -> Cost:
    return cost_and_result(prepare, *arguments)[0]


def _peaks_here(prepare: Callable[..., Stream], arguments: Sequence[Any], marks: Sequence[int]) -> list[int]:
    return _measured_clean(partial(_peaks_of, marks=marks), _prepared(prepare, arguments))


def _prepared(prepare: Callable[..., W], arguments: Sequence[Any]) -> W:
    _free_large_blocks_at_once()
    torch.set_num_threads(1)
    work = prepare(*arguments)
    gc.collect()
    return work


def _measured_clean(measure: Callable[[W], R], work: W) -> R:
    # A thread of its own has a heap of its own: what loading left free in this one would hide as much of the need.
    with ThreadPoolExecutor(max_workers=1) as clean:
        return clean.submit(measure, work).result()


def _cost_of(work: Work) -> tuple[Cost, Any]:
    torch.set_num_threads(1)
    before = _stood_before()
    start = time.process_time()
    kept = work()
    return Cost(increase=_peak() - before, seconds=time.process_time() - start), kept


def _peaks_of(stream: Stream, *, marks: Sequence[int]) -> list[int]:
    torch.set_num_threads(1)
    before, found = _stood_before(), {}
    for count, _ in enumerate(stream(), 1):
        if count in marks:
            found[count] = _peak() - before
    return [found[mark] for mark in marks]


def _stood_before() -> int:
    """Resident bytes from which an increase is counted; the kernel's peak is set back to them where it can be."""
    return _resident_now() if _forget_peak() else _peak()


def _free_large_blocks_at_once() -> None:
    """Otherwise the peak is what the allocator keeps for later, which varies by half from run to run."""
    with contextlib.suppress(OSError, AttributeError):  # glibc only
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 16)


def _forget_peak() -> bool:
    """Set the kernel's peak of this process back to now; False where that cannot be done (not Linux, a sandbox)."""
    try:
        Path("/proc/self/clear_refs").write_text("5", "ascii")
    except OSError:
        return False
    return _from_status("VmHWM") <= 1.01 * _from_status("VmRSS")


def _resident_now() -> int:
    return _from_status("VmRSS")


def _peak() -> int:
    if Path("/proc/self/status").exists():
        return _from_status("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _from_status(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def square_tensors(work: Work, length: int) -> Made:
    """The tensors with T × T elements (and any further axes, folded or not) that the work makes; views do not count.

    length is T, a prime that no other size is a multiple of: then T² divides a tensor's number of elements exactly
    where it has a query and a key axis, in whatever shape it is held.
    """
    watch = _Watch(length)
    with torch.no_grad(), watch:  # not inference_mode: it would hide what composite operations make inside
        work()
    return watch.made


def prime_up_to(length: int) -> int:
    """The largest prime that is at most `length`."""
    return next(n for n in range(length, 1, -1) if all(n % d for d in range(2, int(n**0.5) + 1)))


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.square = length * length
        self.made: Made = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {_storage(tensor) for tensor in _tensors([*args, *(kwargs or {}).values()])}
        for tensor in _tensors([out]):
            if tensor.numel() and tensor.numel() % self.square == 0 and _storage(tensor) not in given:
                self.made[str(func), tuple(tensor.shape)] += 1
        return out


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
