"""A model's own `generate`: what it may be told, and its call through the tap, seeded and leaving nothing behind."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor

from probe.anatomy import base_of
from probe.capture import Progress, check_loaded
from probe.errors import ModelError
from probe.given import callback, one_of, shown, truth, whole_number, whole_numbers
from probe.models import LoadedModel
from probe.rowtap import tap
from probe.stitching import Stitching
from probe.transcripts import Transcript

Cache = Literal["dynamic", "static"]

# What `generate` may be told. Beams, assistants and prompt lookup are not among it: their calls are no single row of
# tokens, and some of what they compute is thrown away.
OPTIONS = frozenset({
    "bad_words_ids", "do_sample", "eos_token_id", "min_new_tokens", "min_p", "no_repeat_ngram_size",
    "prefill_chunk_size", "repetition_penalty", "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
})  # fmt: skip
_DECIMAL = ("min_p", "repetition_penalty", "temperature", "top_p", "typical_p")  # of these `generate` takes only floats
# What `generate` leaves on a model for its next static cache.
_LEFT_BEHIND = ("_previous_max_cache_length", "_cache")


def check_generation(loaded: LoadedModel, options: Mapping[str, Any], *, cache: str, on_token: object) -> None:
    """ModelError for a model that cannot answer, and for what it cannot be told."""
    check_loaded(loaded)
    callback(on_token, "on_token")
    model = base_of(loaded.model)
    if loaded.kind != "encoder" and not (hasattr(model, "can_generate") and model.can_generate()):
        raise ModelError(f'{loaded.name} is loaded without its language-model head: load_model(..., head="lm")')
    one_of(cache, "cache", ("dynamic", "static"), error=ModelError)
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise ModelError(
            f"generation option {unknown[0]!r} is not allowed here; allowed are {', '.join(sorted(OPTIONS))}"
        )


def told_options(loaded: LoadedModel, options: Mapping[str, Any], max_new_tokens: int) -> dict[str, Any]:
    """The options as `generate` takes them; ModelError for those that it would follow without a word, or misread."""
    told = {name: value for name, value in options.items() if value is not None}
    if "do_sample" in told:
        told["do_sample"] = truth(told["do_sample"], "do_sample", error=ModelError)
    if "min_new_tokens" in told:
        least = whole_number(told["min_new_tokens"], "min_new_tokens", least=0, most=max_new_tokens, error=ModelError)
        told["min_new_tokens"] = least
    for name, least in (("no_repeat_ngram_size", 0), ("prefill_chunk_size", 1), ("top_k", 0)):
        if name in told:
            told[name] = whole_number(told[name], name, least=least, error=ModelError)
    for name in (name for name in _DECIMAL if isinstance(told.get(name), Real) and not isinstance(told[name], bool)):
        told[name] = float(told[name])
    for name in ("min_p", "top_p", "typical_p"):
        if isinstance(told.get(name), float) and not 0 <= told[name] <= 1:
            raise ModelError(f"{name} {told[name]}: allowed is a share from 0 to 1")
    last = int(loaded.backbone.get_input_embeddings().weight.shape[0]) - 1
    for name in ("eos_token_id", "suppress_tokens"):
        if name in told:
            several = isinstance(told[name], Iterable) and getattr(told[name], "ndim", 1) > 0
            given = whole_numbers(told[name], name, error=ModelError) if several else (told[name],)
            told[name] = [whole_number(one, name, least=0, most=last, error=ModelError) for one in given]
    for word in told.get("bad_words_ids", ()):
        wrong = [one for one in whole_numbers(word, "bad_words_ids", least=0, error=ModelError) if one > last]
        if wrong:
            raise ModelError(f"bad_words_ids has {wrong[0]}: {loaded.name} has ids 0 to {last}")
    return told


def generate_ids(
    loaded: LoadedModel,
    transcript: Transcript,
    stitching: Stitching,
    *,
    seed: int,
    max_new_tokens: int,
    cache: Cache,
    options: Mapping[str, Any],
    on_token: Progress | None,
) -> list[int]:
    """Run `generate` through the tap; the ids of the answer."""
    model = base_of(loaded.model)
    read = transcript.tokens if transcript.source is None else transcript.source
    ids = torch.tensor([read.ids], device=loaded.device)
    fixed: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "pad_token_id": _pad(loaded),
        "cache_implementation": cache,
        "disable_compile": True,  # a compiled forward pass would not come through the tap again
        "use_cache": True,
        "num_beams": 1,
        "num_return_sequences": 1,
        "return_dict_in_generate": False,
        "streamer": None if on_token is None else _Counted(on_token, max_new_tokens),
    }
    if transcript.source is not None:
        fixed["decoder_input_ids"] = torch.tensor([transcript.tokens.ids], device=loaded.device)
    with _seeded(loaded.device, seed), torch.inference_mode(), _leaving_nothing(model), tap(model, stitching):
        told = {"do_sample": False, **fixed, **options}
        try:
            sequence = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **told)
        except (TypeError, ValueError) as error:
            if stitching.read or not options:  # it has begun to compute: not about what it was told
                raise
            raise ModelError(_refusal(loaded, options, error)) from error
    return [int(token) for token in sequence[0, len(transcript.tokens.ids) :].tolist()]


def _refusal(loaded: LoadedModel, options: Mapping[str, Any], error: Exception) -> str:
    """What `generate` says of its options, in one line: of the one that it names, or of all."""
    said = " ".join(str(error).split())
    about = [name for name in options if name in said and name != "do_sample"]  # which is only ever the way out
    if "`penalty`" in said and "repetition_penalty" in options:  # its own name for it
        about = ["repetition_penalty"]
    given = ", ".join(f"{name} {shown(options[name])}" for name in about or options)
    return f"{given}: {loaded.name} cannot generate with it ({said})"


class _Counted:
    """A streamer as `generate` knows them: told of the prompt once, then of each new token."""

    def __init__(self, on_token: Progress, total: int) -> None:
        self.on_token = on_token
        self.total = total
        self.done = -1

    def put(self, tokens: Tensor) -> None:
        """One more token, unless it is the prompt."""
        self.done += 1
        if self.done:
            self.on_token(self.done, self.total)

    def end(self) -> None:
        """Nothing is left to be told."""


@contextmanager
def _seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Within the block numbers are drawn from `seed`, on the CPU and on the device; both are left as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)  # manual_seed would seed every accelerator there is
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        if device.type != "mps":
            yield
            return
        state = torch.mps.get_rng_state()  # fork_rng knows no MPS
        torch.mps.manual_seed(seed)
        try:
            yield
        finally:
            torch.mps.set_rng_state(state)


@contextmanager
def _leaving_nothing(model: Any) -> Iterator[None]:
    before = {name: vars(model)[name] for name in _LEFT_BEHIND if name in vars(model)}
    try:
        yield
    finally:
        for name in _LEFT_BEHIND:
            vars(model).pop(name, None)
        vars(model).update(before)


def _pad(loaded: LoadedModel) -> int:
    """A padding id, which a batch of one does not use, but without which `generate` warns."""
    found = loaded.tokenizer.pad_token_id
    return 0 if found is None else int(found)
