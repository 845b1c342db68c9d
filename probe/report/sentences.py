"""Sentences packed for the page's viewer: one byte a weight, as many sentences as a budget of bytes allows."""

import base64
import json
import unicodedata
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from probe.report.sections import SentenceMap, SentenceMaps


def quantise(weights: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Give weights in 0 to 1 as bytes, even steps of the square root: error at most 0.004, only zero becomes 0."""
    steps = np.clip(np.round(255 * np.sqrt(weights)), 0, 255)
    # A tiny weight is not none: a reader must be able to trust an exact zero.
    return np.where(weights > 0, np.maximum(steps, 1), 0).astype(np.uint8)


def dequantise(steps: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Undo `quantise`, as the viewer does."""
    return (steps.astype(np.float64) / 255) ** 2


def pack_sentences(maps: SentenceMaps, *, budget: int) -> tuple[dict[str, Any], int]:
    """Give what the viewer reads, at most `budget` bytes of it, and how many sentences were left out in all.

    Sentences keep their order; one that does not fit any more is passed over.
    """
    kept: list[dict[str, Any]] = []
    for item in maps.items:
        entry = _packed(item)
        size = len(safe_json(entry).encode()) + 1
        if size <= budget:
            kept.append(entry)
            budget -= size
    names = list(maps.head_names) or [str(head) for head in range(maps.heads)]
    payload = {"layers": list(maps.layers), "heads": maps.heads, "head_names": names, "cases": kept}
    return payload, maps.omitted + len(maps.items) - len(kept)


def safe_json(value: Any) -> Markup:
    """Give JSON that can stand in a script element: nothing in it can end the element or start a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # Lone surrogates cannot be encoded; they come from broken texts.
    return Markup(text.encode("utf-8", "replace").decode())


def direction_of(text: str) -> str:
    """Give `rtl` or `ltr` by the first character with a strong direction, as browsers do."""
    for character in text:
        kind = unicodedata.bidirectional(character)
        if kind in ("L", "R", "AL"):
            return "ltr" if kind == "L" else "rtl"
    return "ltr"


def _packed(item: SentenceMap) -> dict[str, Any]:
    words = [label for place, label in enumerate(item.labels) if place not in item.special]
    return {
        "id": item.case,
        "labels": list(item.labels),
        "target": list(item.target),
        "cues": list(item.cues),
        "special": list(item.special),
        "sink": -1 if item.sink is None else item.sink,
        "sense": item.sense,
        "note": item.note,
        "text": item.text,
        "dir": direction_of(item.text or "".join(words)),
        "weights": base64.b64encode(quantise(item.weights).tobytes()).decode("ascii"),  # [layer, head, token]
    }
