"""Sentences a second through the public capture, beside the plain forward pass on the very same batches.

    python -m benchmarks.throughput [--preset ci|full] [--pairs 10] [--json FILE]

2,000 texts of 8 to 200 tokens, cut from the sentences of the shipped case sets, are divided among the pairs. Side A
tokenises them and runs the model without its head, SDPA, in capture's own batches; side B reads `capture_cases`, the
target word's rows in every layer, one by one and throws each away. Seconds are the CPU's, with one thread. Then all
texts stream through a fresh process: memory must be flat from the first quarter on. Leaves with exit code 1 where a
bound is missed.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, cycle
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Comparison, Stream, Work, compare_time, peaks_along
from benchmarks.table import Line, print_table
from probe import (
    CaptureOptions,
    Case,
    LoadedModel,
    batch_for,
    capture_cases,
    load_cases,
    load_model,
    model_from_parts,
    shipped_sets,
)
from probe.capture import WINDOW, batches

RANDOM = "random BERT"
OPTIONS = CaptureOptions(states=False)  # rows and value norms, as the plain pass keeps no states either
SHORTEST, LONGEST = 8, 200  # tokens
_CHARACTERS_A_TOKEN = 6  # more than any sentence of the case sets has


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model and a number of texts, with the least ratio of throughput and the most that memory may grow."""

    model: str
    texts: int
    throughput_bound: float = 0.9
    # What a batch needs returns to the last few percent, for texts are spread and batches full. A stream that kept its
    # captures would add far more: e5-small's rows of one word are 100 kB a text, its peak stands at some 50 MB.
    memory_bound: float = 1.05

    def __str__(self) -> str:
        return f"{self.model.removeprefix('builtin:')} {self.texts:,} x {SHORTEST} to {LONGEST}"


# In CI two pairs and a model of milliseconds can only show a gross slip, so the bounds there are wide.
PRESETS = {
    "ci": (Setting(model=RANDOM, texts=240, throughput_bound=0.4, memory_bound=1.3),),
    "full": (Setting(model="builtin:e5-small", texts=2000),),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure a preset and print its table; gives the exit code."""
    about = "What a capture's throughput is beside the plain forward pass."
    return print_table(arguments, name="throughput", about=about, presets=PRESETS, lines_of=measured)


def measured(setting: Setting, pairs: int) -> Iterator[Line]:
    """The lines of one setting, each as soon as it is known."""
    torch.set_num_threads(1)
    loaded = model_of(setting.model)
    cases = cases_for(loaded, setting.texts)
    size = len(cases) // pairs
    parts = [cases[start : start + size] for start in range(0, size * pairs, size)]
    plain, rows = (in_turn(partial(side, loaded), parts) for side in (run_plain, run_capture))
    yield throughput_line(setting, compare_time(plain, rows, pairs=pairs), sentences=size)
    early, late = peaks_along(capture_stream, setting.model, setting.texts, marks=(setting.texts // 4, setting.texts))
    yield Line(
        setting=str(setting),
        quantity=f"memory after {setting.texts // 4:,}, after all",
        unit="MB",
        other=early / 1e6,
        rows=late / 1e6,
        ratio=late / early,
        held=late / early,
        bound=setting.memory_bound,
    )


def throughput_line(setting: Setting, seconds: Comparison, *, sentences: int) -> Line:
    """Seconds for so many sentences as sentences a second; the bound is held against the interval's upper limit."""
    return Line(
        setting=str(setting),
        quantity="sentences a CPU second",
        unit="/s",
        other=sentences / seconds.a,
        rows=sentences / seconds.b,
        ratio=1 / seconds.ratio,
        low=1 / seconds.high,
        high=1 / seconds.low,
        held=1 / seconds.low,
        bound=setting.throughput_bound,
        at_least=True,
    )


def in_turn(side: Callable[[Sequence[Case]], object], parts: Sequence[Sequence[Case]]) -> Work:
    """A work that takes the next part at each call: both sides of a pair have the same one."""
    rest = cycle(parts)
    return lambda: side(next(rest))


def run_plain(loaded: LoadedModel, cases: Sequence[Case]) -> None:
    """Side A."""
    with torch.inference_mode():
        for batch in plain_batches(loaded, [case.text for case in cases]):
            loaded.backbone(**batch)


def plain_batches(loaded: LoadedModel, texts: Sequence[str]) -> Iterator[dict[str, torch.Tensor]]:
    """The texts in the batches that capture makes of them."""
    for start in range(0, len(texts), WINDOW):
        ids = loaded.tokenizer(list(texts[start : start + WINDOW]))["input_ids"]
        for places in batches([len(one) for one in ids], OPTIONS.batch_tokens):
            yield batch_for(loaded, [ids[place] for place in places])


def run_capture(loaded: LoadedModel, cases: Sequence[Case]) -> None:
    """Side B: what finding the model's route costs is in it."""
    for _ in capture_cases(loaded, cases, options=OPTIONS):
        pass


def capture_stream(name: str, texts: int) -> Stream:
    """The captures of all texts, with all of the model in memory and the libraries warm: for a fresh process."""
    loaded = model_of(name)
    for weight in loaded.backbone.parameters():
        weight.sum()  # a mapped file's weights are in memory only once they have been read
    cases = cases_for(loaded, texts)
    shortest = min(cases, key=lambda case: len(case.text))
    run_capture(loaded, [shortest])
    return lambda: capture_cases(loaded, cases, options=OPTIONS)


def model_of(name: str) -> LoadedModel:
    """A model and its tokenizer; the small random one of CI needs no weights."""
    if name == RANDOM:
        return _random_bert()
    loaded = load_model(name, device="cpu", dtype="float32")
    loaded.backbone.set_attn_implementation("sdpa")
    return loaded


def cases_for(loaded: LoadedModel, count: int) -> list[Case]:
    """Cases of our own sentences with 8 to 200 tokens, every length as often, in a random order that stays the same.

    A case's text is followed by those of the next cases and cut; a cut may part a word, so that its token count is one
    or two off. A case whose target does not fit gives its turn to the next one.
    """
    sources = _shipped_cases()
    corpus = 2 * "".join(case.text for case in sources)
    starts = accumulate((len(case.text) for case in sources), initial=0)
    turns = cycle(zip(sources, list(starts)[:-1], strict=True))
    lengths = np.random.default_rng(0).permutation(np.linspace(SHORTEST, LONGEST, count).round().astype(int))
    return [_next_case(loaded, corpus, turns, tokens=int(length), name=str(n)) for n, length in enumerate(lengths)]


def _next_case(loaded: LoadedModel, corpus: str, turns: Iterator[tuple[Case, int]], *, tokens: int, name: str) -> Case:
    for source, start in turns:
        text = corpus[start : start + _CHARACTERS_A_TOKEN * tokens]
        cut = loaded.tokenizer(text, truncation=True, max_length=tokens, return_offsets_mapping=True)
        end = max(end for _, end in cut["offset_mapping"])
        if source.target.end <= end:
            return Case(id=name, text=text[:end], target=source.target)
    raise ValueError(f"no case has its target within {tokens} tokens of {loaded.name}")


def _shipped_cases() -> list[Case]:
    return [case for name in shipped_sets() for case in load_cases(name).cases]


def _random_bert() -> LoadedModel:
    """Three layers and a token for each character of the case sets."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    tokenizer = _character_tokenizer({*"".join(case.text for case in _shipped_cases())})
    sizes = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8, "intermediate_size": 1024}
    model = BertModel(BertConfig(vocab_size=len(tokenizer), **sizes), add_pooling_layer=False)
    return model_from_parts(model, tokenizer, name=RANDOM)


def _character_tokenizer(characters: set[str]) -> Any:
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from tokenizers.processors import BertProcessing
    from transformers import PreTrainedTokenizerFast

    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    ids = {piece: place for place, piece in enumerate([*named.values(), *sorted(characters)])}
    cut = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    cut.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    cut.post_processor = BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    return PreTrainedTokenizerFast(tokenizer_object=cut, **named)


if __name__ == "__main__":
    sys.exit(main())
