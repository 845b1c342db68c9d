"""A glance at one word: the same weights as Hugging Face's own maps, over pieces that are slices of the text."""

import numpy as np
import pytest
import tiny
import torch

from probe.capture import prepare
from probe.captures import CaptureOptions
from probe.cases import case_of
from probe.glance import Glance, glance
from probe.models import model_from_parts

TEXT = "我喜欢苹果"


def look(family: str, *, layers: frozenset[int] | None = None, heads: frozenset[int] | None = None) -> Glance:
    model, tokenizer = tiny.FAMILIES[family]()
    loaded = model_from_parts(model, tokenizer, name=family)
    (item,) = prepare(loaded, [case_of(TEXT, target="欢", cues=("我",))])
    return glance(loaded, item, options=CaptureOptions(layers=layers, heads=heads, states=False))


def test_weights_are_hugging_faces_own_mean_over_the_targets_bytes_and_sum_over_each_pieces() -> None:
    model, tokenizer = tiny.tiny_gpt2()
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    assert ids.shape[1] == 10  # 我, 喜, 欢 are three bytes each, 苹果 is one token
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = torch.stack(model.transformer(ids, output_attentions=True).attentions)[:, 0]  # [layer, head, query, key]
    row = maps[:, :, 6:9].mean(2).numpy()  # [layer, head, key]
    expected = np.stack([row[..., :3].sum(-1), row[..., 3:6].sum(-1), row[..., 6:9].sum(-1), row[..., 9]], -1)
    seen = look("gpt2")
    assert seen.labels == ("我", "喜", "欢", "苹果") and seen.target == (2,) and seen.cues == (0,)
    assert np.allclose(seen.weights, expected.mean(1), atol=1e-6)
    each = look("gpt2", heads=frozenset({1, 3}))
    assert np.allclose(each.weights, expected[:, [1, 3]].reshape(6, 4), atol=1e-6)
    assert each.rows[:3] == ("layer 0 head 1", "layer 0 head 3", "layer 1 head 1")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_each_row_sums_to_one_and_special_tokens_are_told_apart(family: str) -> None:
    seen = look(family)
    assert seen.weights.shape == (len(seen.rows), len(seen.labels)) and np.allclose(seen.weights.sum(1), 1, atol=1e-5)
    text = [label for place, label in enumerate(seen.labels) if place not in seen.special]
    assert "".join(text) == TEXT
    assert "".join(seen.labels[place] for place in seen.target) in ("欢", "喜欢")  # one token in some vocabularies


def test_layers_of_several_stacks_are_named_by_their_stack() -> None:
    rows = look("bart", layers=frozenset({1})).rows
    assert rows[0] == "encoder layer 1" and len(set(rows)) == len(rows) > 1
    assert look("llama", layers=frozenset({1})).rows == ("layer 1",)
