"""What four words' attention rows in every layer cost beside the plain SDPA forward pass: time, memory, T × T tensors.

    python -m benchmarks.row_capture [--preset NAME] [--pairs 10] [--json FILE]

Both sides run the model without its head on the same batch of Chinese sentences (the shipped case sets), without a
cache. Side A is the plain pass, or with the preset eager the pass that keeps eager attention's whole maps; side B is
the plain pass within `tap(...)`, request and attaching included. Leaves with exit code 1 where a bound is missed.

long takes gemma3-270m to 8,192 tokens, longest to 32,768: that one is run once a side, each in a process of its own
that gives time and memory at once, since a pass takes half an hour of one core. eager compares memory on gemma3-270m;
attention-only compares time too, on four layers that do little else than attend, at a length where eager's maps hurt.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle, islice
from typing import Any, Literal

import torch

from benchmarks.measure import (
    Comparison,
    Work,
    compare_memory,
    compare_once,
    compare_time,
    cpu_seconds,
    prime_up_to,
    square_tensors,
)
from benchmarks.table import Line, line_of, print_table
from probe.cases import load_cases, shipped_sets
from probe.models import load_model
from probe.rowrequest import RowRequest
from probe.rowtap import attached, tap

Other = Literal["plain", "eager"]
Side = Other | Literal["rows"]

BOUND = 1.05
WORDS = 4
RANDOM = "random BERT"
ATTENTION_ONLY = "attention only"
GEMMA = "builtin:gemma3-270m"
_SHORT = 64  # tokens


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model and one shape of batch, with the ratios that must not be passed."""

    model: str
    texts: int
    tokens: int
    time_bound: float = BOUND
    memory_bound: float = BOUND
    repeats: int = 1  # forward passes in one timed run
    memory_pairs: int = 2  # enough: from process to process the increase differs by less than a percent
    against: Other = "plain"
    most_pairs: int | None = None  # where a pass is long
    once: bool = False  # one run of each side gives both time and memory
    squares: bool = True  # count T x T tensors; what a length shows, all show

    def __str__(self) -> str:
        size = f"{self.model.removeprefix('builtin:')} {self.texts} x {self.tokens:,}"
        return size if self.against == "plain" else f"{size}, {self.against}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A loaded model, one batch for it, and the words asked for in each text."""

    model: Any
    batch: dict[str, Any]
    queries: list[list[int]]


# In CI two pairs and a model of milliseconds can only show a gross slip, so the bounds there are wide.
PRESETS = {
    "ci": (Setting(model=RANDOM, texts=4, tokens=128, time_bound=1.5, memory_bound=1.5, memory_pairs=1),),
    "full": (
        Setting(model="builtin:e5-small", texts=32, tokens=32, repeats=3),
        Setting(model="builtin:e5-small", texts=8, tokens=512),
        Setting(model=GEMMA, texts=1, tokens=2048),
    ),
    "ci-long": (
        Setting(model=RANDOM, texts=1, tokens=128, time_bound=math.nan, memory_bound=1.5, once=True, squares=False),
        Setting(
            model=RANDOM, texts=1, tokens=512, time_bound=math.nan, memory_bound=0.6, memory_pairs=1, against="eager",
            most_pairs=2, squares=False,
        ),
    ),
    "long": (
        Setting(model=GEMMA, texts=1, tokens=512, repeats=3),
        Setting(model=GEMMA, texts=1, tokens=2048),
        Setting(model=GEMMA, texts=1, tokens=8192, most_pairs=3, memory_pairs=1, squares=False),
    ),
    # On four layers of nothing else, attention's share of the time is whole, and so is what the maps cost.
    "attention-only": (
        Setting(
            model=ATTENTION_ONLY, texts=1, tokens=8192, time_bound=0.25, memory_bound=math.nan, memory_pairs=1,
            against="eager", most_pairs=3, squares=False,
        ),
        Setting(
            model=ATTENTION_ONLY, texts=1, tokens=8192, time_bound=math.nan, memory_bound=math.nan, memory_pairs=1,
            most_pairs=3, squares=False,
        ),
    ),
    "ci-attention-only": (
        Setting(
            model=ATTENTION_ONLY, texts=1, tokens=1024, time_bound=0.9, memory_bound=0.5, memory_pairs=1,
            against="eager", most_pairs=2,
        ),
    ),
    "longest": (Setting(model=GEMMA, texts=1, tokens=32_768, once=True, squares=False),),
    # How time compares is only told: on a CPU eager attention is not much slower. Memory is what it costs.
    "eager": tuple(
        Setting(
            model=GEMMA, texts=1, tokens=tokens, time_bound=math.nan, memory_bound=bound, memory_pairs=1,
            against="eager", most_pairs=3, squares=False,
        )
        for tokens, bound in ((1024, math.nan), (2048, math.nan), (4096, 0.25))
    ),
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure a preset and print its table; gives the exit code."""
    about = "What attention rows cost."
    return print_table(arguments, name="row_capture", about=about, presets=PRESETS, lines_of=measured)


def measured(setting: Setting, pairs: int) -> Iterator[Line]:
    """The lines of one setting, each as soon as it is known."""
    torch.set_num_threads(1)
    subject = subject_of(setting)
    what = (setting.model, subject.batch["input_ids"].tolist(), subject.queries)
    if setting.once:
        time, memory = compare_once(ready_to_run, (*what, setting.against), (*what, "rows"))
        yield line_of(setting, "CPU time", "s", time, held=time.low, bound=setting.time_bound)
    else:
        other, rows = work_of(subject, setting.against), work_of(subject, "rows")
        time = compare_time(other, rows, pairs=min(pairs, setting.most_pairs or pairs), repeats=setting.repeats)
        yield line_of(setting, "CPU time", "s", time, held=time.low, bound=setting.time_bound)
        yield _attaching(setting, subject)
        memory = compare_memory(ready_to_run, (*what, setting.against), (*what, "rows"), pairs=setting.memory_pairs)
    yield line_of(setting, "memory increase", "MB", memory, held=memory.ratio, bound=setting.memory_bound)
    yield _beyond_the_rows(setting, memory, size=rows_size(setting))
    if setting.squares:
        yield _squares(setting)


def subject_of(setting: Setting, *, tokens: int | None = None) -> Subject:
    """The setting's model and batch, every text exactly `tokens` long, its four words spread evenly."""
    length = tokens or setting.tokens
    model, tokenizer = model_of(setting.model)
    stream, (first, last) = our_sentences(tokenizer) if tokenizer else (cycle(range(5, 1000)), ([2], [3]))
    inside = length - len(first) - len(last)
    ids = [[*first, *islice(stream, inside), *last] for _ in range(setting.texts)]
    words = [length * place // (WORDS + 1) for place in range(1, WORDS + 1)]
    return Subject(model=model, batch=batch_of(ids), queries=[words] * setting.texts)


def batch_of(ids: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The keywords of a forward pass over texts of one length."""
    tokens = torch.tensor(ids)  # [text, token]
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "use_cache": False}


def plain_pass(subject: Subject) -> object:
    """Side A."""
    return subject.model(**subject.batch)


def eager_pass(subject: Subject) -> object:
    """Side A with every layer's whole maps, which the output keeps."""
    subject.model.set_attn_implementation("eager")
    try:
        return subject.model(**subject.batch, output_attentions=True)
    finally:
        subject.model.set_attn_implementation("sdpa")


def tapped_pass(subject: Subject) -> tuple[object, RowRequest]:
    """Side B; the rows are held as a caller holds them."""
    with tap(subject.model, RowRequest(subject.queries)) as request:
        return subject.model(**subject.batch), request


def work_of(subject: Subject, side: Side) -> Work:
    """A side's pass without gradients."""
    passes: dict[Side, Callable[[Subject], object]] = {"plain": plain_pass, "eager": eager_pass, "rows": tapped_pass}
    return torch.inference_mode()(partial(passes[side], subject))


def ready_to_run(name: str, ids: list[list[int]], queries: list[list[int]], side: Side) -> Work:
    """A side's work with all of the model in memory and the libraries warm: what runs in a fresh process.

    Token ids and not texts, for what reading and cutting texts leaves on the heap would blur the measurement.
    """
    model, _ = model_of(name)
    for tensor in chain(model.parameters(), model.buffers()):
        tensor.sum()  # a mapped file's weights are in memory only once they have been read
    work_of(Subject(model=model, batch=batch_of([ids[0][:4]]), queries=[[0]]), side)()
    return work_of(Subject(model=model, batch=batch_of(ids), queries=queries), side)


def rows_size(setting: Setting) -> int:
    """Bytes of the rows themselves, which the caller asked for; counted on a short text, since they grow with it."""
    with torch.inference_mode():
        _, request = tapped_pass(subject_of(setting, tokens=_SHORT))
    return sum(rows.nbytes for rows in request.rows.values()) * setting.tokens // _SHORT


def _beyond_the_rows(setting: Setting, memory: Comparison, *, size: int) -> Line:
    """The increase without the rows themselves: what the way of taking them costs, and no way can avoid less."""
    rest = memory.b - size
    ratio = rest / memory.a
    return Line(
        setting=str(setting),
        quantity=f"memory less the rows ({size / 1e6:.1f} MB)",
        unit="MB",
        other=memory.a / 1e6,
        rows=rest / 1e6,
        ratio=ratio,
        held=ratio,
        bound=setting.memory_bound,
    )


def _attaching(setting: Setting, subject: Subject, *, times: int = 50) -> Line:
    """What attaching and detaching add to a pass, in ms; it is part of the CPU time above, and matters for one word."""

    def attach() -> None:
        with attached(subject.model):
            pass

    spent = cpu_seconds(attach, repeats=times) / times
    return Line(setting=str(setting), quantity="attaching, a pass", unit="ms", other=0.0, rows=spent * 1e3)


def _squares(setting: Setting) -> Line:
    """Tensors with T × T elements on both sides, and how many the tap added; the model's own mask may be one."""
    length = prime_up_to(setting.tokens)
    subject = subject_of(setting, tokens=length)
    plain = square_tensors(partial(plain_pass, subject), length)
    rows = square_tensors(partial(tapped_pass, subject), length)
    return Line(
        setting=str(setting),
        quantity=f"T x T tensors made (T = {length:,})",
        unit="",
        other=plain.total(),
        rows=rows.total(),
        held=(rows - plain).total(),
        bound=0,
    )


def model_of(name: str) -> tuple[Any, Any]:
    """The model without its head, and its tokenizer; a random model has none and needs no weights."""
    if name in _RANDOM_MODELS:
        torch.manual_seed(0)
        return _RANDOM_MODELS[name]().eval(), None
    loaded = load_model(name, device="cpu", dtype="float32")
    loaded.backbone.set_attn_implementation("sdpa")
    return loaded.backbone, loaded.tokenizer


def _random_bert() -> Any:
    """Small enough for CI."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8, "intermediate_size": 1024}
    return BertModel(BertConfig(vocab_size=1000, **sizes), add_pooling_layer=False)


def _attention_only() -> Any:
    """Four causal layers of eight heads; Llama cannot do without an MLP, so it has one of a single unit."""
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1}
    return LlamaModel(LlamaConfig(vocab_size=1000, max_position_embeddings=8192, **sizes))


_RANDOM_MODELS: dict[str, Callable[[], Any]] = {RANDOM: _random_bert, ATTENTION_ONLY: _attention_only}


def our_sentences(tokenizer: Any) -> tuple[Iterator[int], tuple[list[int], list[int]]]:
    """The ids of the shipped sentences over and over, and the special tokens before and after a text."""
    texts = [case.text for name in shipped_sets() for case in load_cases(name).cases]
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    ends = list(tokenizer("")["input_ids"])
    return cycle(chain.from_iterable(ids)), (ends[:1], ends[1:])


if __name__ == "__main__":
    sys.exit(main())
