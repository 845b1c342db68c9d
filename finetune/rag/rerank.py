"""Passages scored by a model that reads the query and the passage together, a cross-encoder.

A search compares a query with every chunk by words and by vectors made apart; a cross-encoder reads each pair anew,
which is slow and so only done for the chunks that a search found (Nogueira & Cho, 2019).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.errors import RetrievalError
from finetune.intervals import Floats
from probe import CijingError, load_model, tokenize

LONGEST = 512  # tokens of a pair, unless more are asked for
BATCH = 16
_HEAD = "allowed is a classifier of pairs with one label (a score) or two (the second: relevant)"


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """The special tokens around a pair's two texts, and the token types of all parts where the model has them."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    types: tuple[int, ...] | None  # of before, query, between, passage, after

    @property
    def size(self) -> int:
        """How many tokens it adds."""
        return len(self.before) + len(self.between) + len(self.after)

    def around(self, query: Sequence[int], passage: Sequence[int]) -> dict[str, list[int]]:
        """The pair as the model reads it."""
        parts = (self.before, query, self.between, passage, self.after)
        given = {"input_ids": [token for part in parts for token in part]}
        if self.types is not None:
            given["token_type_ids"] = [one for one, part in zip(self.types, parts, strict=True) for _ in part]
        return given


class Reranker:
    """A cross-encoder from a folder or a hub id: safetensors only, and no code of its own is run.

    The score of a pair is the one logit of a model with one label, and for two labels the log-odds of the second one
    (logit 1 − logit 0). RetrievalError for any other head and for one without trained weights.
    """

    def __init__(
        self, name: str | Path, *, device: str = "auto", dtype: str = "auto", longest: int = LONGEST, batch: int = BATCH
    ) -> None:
        """Load the model; a pair has at most `longest` tokens, fewer where the model reads fewer."""
        if batch < 1:
            raise RetrievalError(f"batch {batch}: allowed are whole numbers from 1")
        try:
            loaded = load_model(name, device=device, dtype=dtype, head="classes")
        except CijingError as error:
            raise RetrievalError(f"reranker: {error}") from error
        _check_head(loaded)
        self.name: str = loaded.name
        self.longest = min(longest, loaded.max_positions or longest)
        self.cut = 0  # passages that were too long so far
        self._loaded = loaded
        self._frame = _frame_of(loaded.tokenizer, loaded.name)
        self._batch = batch if _pads(loaded) else 1

    def identity(self) -> dict[str, str | int]:
        """What decides the scores, for whoever writes them down."""
        return {"name": self.name, "weights": self._loaded.fingerprint, "longest": self.longest}

    def scores(self, query: str, texts: Sequence[str]) -> Floats:
        """The score of each text, float64 [text]; one that is too long is cut at its end and counted in `cut`.

        RetrievalError where the query alone leaves no room for a text, and for a score that is no number.
        """
        pairs = self._pairs(query, texts)
        found = np.zeros(len(pairs))
        order = sorted(range(len(pairs)), key=lambda place: len(pairs[place]["input_ids"]))
        for start in range(0, len(order), self._batch):
            places = order[start : start + self._batch]
            found[places] = self._logits([pairs[place] for place in places])
        if not np.isfinite(found).all():
            raise RetrievalError(f"reranker {self.name}: a score is no number; is its dtype too small for it?")
        return found

    def _pairs(self, query: str, texts: Sequence[str]) -> list[dict[str, list[int]]]:
        asked = self._tokens(query)
        room = self.longest - self._frame.size - len(asked)
        if room < 1:
            raise RetrievalError(
                f"reranker {self.name}: a query of {len(asked)} tokens; allowed are "
                f"{max(self.longest - self._frame.size - 1, 0)}"
            )
        passages = [self._tokens(text) for text in texts]
        self.cut += sum(len(passage) > room for passage in passages)
        return [self._frame.around(asked, passage[:room]) for passage in passages]

    def _tokens(self, text: str) -> tuple[int, ...]:
        """The tokens of a text; a special token's name in it is letters, as in any document."""
        return tokenize(self._loaded.tokenizer, text, add_special_tokens=False).ids

    def _logits(self, pairs: Sequence[dict[str, list[int]]]) -> NDArray[np.float64]:
        import torch

        model = self._loaded.model
        with torch.inference_mode():
            batch = {name: value.to(self._loaded.device) for name, value in _padded(pairs, self._loaded).items()}
            logits = model(**batch).logits.double().cpu().numpy()  # [pair, label]
        found: NDArray[np.float64] = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
        return found


def _check_head(loaded: Any) -> None:
    """Refuse what has no trained head of one or two labels."""
    kind, labels = loaded.origin["architecture"], loaded.model.config.num_labels
    if not kind.endswith("ForSequenceClassification") or "adapter" in loaded.origin:
        what = "an adapter; merge it into its base" if "adapter" in loaded.origin else f"a {kind}"
        raise RetrievalError(f"reranker {loaded.name} is {what}; {_HEAD}")
    if labels not in (1, 2):
        raise RetrievalError(f"reranker {loaded.name} has {labels} labels; {_HEAD}")
    if loaded.untrained:
        raise RetrievalError(
            f"reranker {loaded.name} has no trained head ({loaded.untrained[0]} is not in its files); {_HEAD}"
        )


def _frame_of(tokenizer: Any, name: str) -> _Frame:
    """What the tokenizer puts around the two texts of a pair, found on a pair of its own."""
    if not getattr(tokenizer, "is_fast", False):
        raise RetrievalError(f"reranker {name}: {type(tokenizer).__name__} is slow; allowed is a fast tokenizer")
    given = tokenizer("苹果", "苹果", return_token_type_ids="token_type_ids" in tokenizer.model_input_names)
    ids, sides = given["input_ids"], given.sequence_ids()  # None, 0 or 1 of each token
    if 0 not in sides or 1 not in sides or sides.index(0) > sides.index(1):
        raise RetrievalError(f"reranker {name}: its tokenizer reads no pairs of texts; {_HEAD}")
    ends = [sides.index(0), len(sides) - sides[::-1].index(0), sides.index(1), len(sides) - sides[::-1].index(1)]
    types = given.get("token_type_ids")
    places = (0, ends[0], ends[1], ends[2], ends[3])  # the first token of each part, where it has one
    return _Frame(
        before=tuple(ids[: ends[0]]), between=tuple(ids[ends[1] : ends[2]]), after=tuple(ids[ends[3] :]),
        types=tuple(types[min(place, len(ids) - 1)] for place in places) if types is not None else None,
    )  # fmt: skip


def _pads(loaded: Any) -> bool:
    """Whether several pairs may stand in a batch: a model that reads its last token must know what is padding."""
    return loaded.kind == "encoder" or loaded.model.config.get_text_config().pad_token_id is not None


def _padded(pairs: Sequence[dict[str, list[int]]], loaded: Any) -> dict[str, Any]:
    """The pairs as tensors, filled up at the right and masked there."""
    import torch

    pad = loaded.model.config.get_text_config().pad_token_id or 0
    width = max(len(pair["input_ids"]) for pair in pairs)
    lengths = torch.tensor([len(pair["input_ids"]) for pair in pairs])
    filled = {
        name: torch.tensor([pair[name] + [fill] * (width - len(pair[name])) for pair in pairs])
        for name, fill in (("input_ids", pad), ("token_type_ids", 0)) if name in pairs[0]
    }  # fmt: skip
    return {**filled, "attention_mask": (torch.arange(width) < lengths[:, None]).long()}
