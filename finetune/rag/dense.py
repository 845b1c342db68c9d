"""Texts as vectors: a model's last states pooled into one a text, of length 1, so that a dot product is a cosine."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finetune.errors import RetrievalError
from finetune.rag.duplicates import Progress
from probe import CijingError, LoadedModel, batch_for, load_model, tokenize

Pooling = Literal["mean", "cls", "last"]
Kind = Literal["query", "passage"]
Floats = NDArray[np.float32]
_TOKENS = 8192  # of a batch, padding included
_UNBOUNDED = 8192  # tokens, where positions have no end
_E5 = re.compile(r"(?:^|[^a-z0-9])e5(?:[^a-z0-9]|$)")
_E5_PREFIXES = {"query": "query: ", "passage": "passage: "}  # Wang et al. 2022, arXiv:2212.03533


class DenseEncoder:
    """A model that gives a vector a text. `texts_cut` counts the texts so far that were longer than it reads."""

    def __init__(self, loaded: LoadedModel, *, pooling: Pooling, query_prefix: str, passage_prefix: str) -> None:
        self.loaded = loaded
        self.pooling = pooling
        self.prefixes: dict[Kind, str] = {"query": query_prefix, "passage": passage_prefix}
        own = int(getattr(loaded.tokenizer, "model_max_length", None) or _UNBOUNDED)
        self.longest = min(loaded.max_positions or _UNBOUNDED, own)
        self.dim = int(_config_of(loaded).hidden_size)
        self.texts_cut = 0

    def identity(self) -> dict[str, str | int]:
        """What its vectors depend on: where two encoders differ in it, their vectors do not go together."""
        return {
            "name": self.loaded.name, "weights": self.loaded.fingerprint_now(), "pooling": self.pooling,
            "query_prefix": self.prefixes["query"], "passage_prefix": self.prefixes["passage"], "dim": self.dim,
            "longest": self.longest,
        }  # fmt: skip

    def embed(self, texts: Sequence[str], kind: Kind, *, progress: Progress | None = None) -> Floats:
        """Give the vectors [text, dim] of length 1; a text longer than the model reads is cut at its end.

        RetrievalError for a text that gives no tokens, and where a vector is no direction.
        """
        ids = [self._ids(self.prefixes[kind] + text) for text in texts]
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        done = 0
        for places in _batches([len(one) for one in ids]):
            vectors[places] = self._pooled([ids[place] for place in places])
            done += len(places)
            if progress is not None:
                progress("embedding", done, len(texts))
        return self._normalised(vectors)

    def _ids(self, text: str) -> list[int]:
        """A text's tokens; special tokens' names in it are text, and what is cut is text and no special token."""
        try:
            found = tokenize(self.loaded.tokenizer, text)
        except CijingError as error:
            raise RetrievalError(f"{self.loaded.name}: {error}") from error
        if not found.ids:
            raise RetrievalError(f"{self.loaded.name}: an empty text gives no tokens, and so no vector")
        if len(found.ids) <= self.longest:
            return list(found.ids)
        self.texts_cut += 1
        inside = np.flatnonzero(~found.special)
        gone = set(inside[len(inside) - (len(found.ids) - self.longest) :].tolist())
        return [one for place, one in enumerate(found.ids) if place not in gone]

    @torch.inference_mode()
    def _pooled(self, ids: Sequence[Sequence[int]]) -> Floats:
        batch = batch_for(self.loaded, ids)
        mask = batch["attention_mask"]
        states = self._states(batch["input_ids"], mask).float()  # [text, token, dim]
        if self.pooling == "cls":
            pooled = states[:, 0]
        elif self.pooling == "last":
            pooled = states[torch.arange(len(ids), device=states.device), mask.sum(1) - 1]
        else:
            weight = mask[:, :, None].float()
            pooled = (states * weight).sum(1) / weight.sum(1)
        found: Floats = pooled.cpu().numpy()
        return found

    def _states(self, ids: Tensor, mask: Tensor) -> Tensor:
        backbone: Any = self.loaded.backbone
        reader = backbone.get_encoder() if self.loaded.kind == "encoder-decoder" else backbone
        more = {"use_cache": False} if self.loaded.kind == "decoder" else {}
        states: Tensor = reader(input_ids=ids, attention_mask=mask, **more).last_hidden_state
        return states

    def _normalised(self, vectors: Floats) -> Floats:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not (np.isfinite(lengths) & (lengths > 0)).all():
            place = int(np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))[0])
            raise RetrievalError(f"{self.loaded.name}: the vector of text {place + 1} is zero or no number")
        normalised: Floats = vectors / lengths
        return normalised


def dense_encoder(
    name: str | Path = "builtin:e5-small",
    *,
    pooling: Pooling | None = None,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    device: str = "auto",
) -> DenseEncoder:
    """Load an encoder; without a pooling the mean, of a decoder the last token, and without prefixes e5's for an e5.

    Its weights are read as float32 on every device, or an index would belong to one. Raises ModelError where it
    cannot be loaded, RetrievalError for an unknown pooling.
    """
    if pooling is not None and pooling not in get_args(Pooling):
        raise RetrievalError(f"pooling {pooling!r} is unknown; allowed are {', '.join(get_args(Pooling))}")
    loaded = load_model(name, device=device, dtype="float32")
    prefixes = _E5_PREFIXES if _E5.search(loaded.name.lower()) else {"query": "", "passage": ""}
    return DenseEncoder(
        loaded,
        pooling=pooling or ("last" if loaded.kind == "decoder" else "mean"),
        query_prefix=prefixes["query"] if query_prefix is None else query_prefix,
        passage_prefix=prefixes["passage"] if passage_prefix is None else passage_prefix,
    )


def _config_of(loaded: LoadedModel) -> Any:
    config = loaded.backbone.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Places of texts of like length together, the shortest first, as many as a batch may hold tokens."""
    found: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda one: lengths[one]):
        if found and (len(found[-1]) + 1) * lengths[place] <= _TOKENS:
            found[-1].append(place)
        else:
            found.append([place])
    return found
