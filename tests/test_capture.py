"""Captures: a batch gives what single texts give, in order; what is too large is refused before the forward pass."""

import dataclasses

import numpy as np
import pytest
import torch

from probe.capture import CaptureOptions, batches, capture, prepare, readable_size
from probe.captures import load_capture, save_capture
from probe.cases import CaseSet, case_of
from probe.errors import BudgetError, CijingError, ModelError, OutputError, SpanError
from probe.models import model_from_parts
from probe.routes import batch_for, eager_maps, route_of
from tests.tiny import FAMILIES

TEXTS = {
    "like": ("我喜欢苹果但讨厌梨子", "苹果", ["喜欢"]),
    "phone": ("苹果手机", "苹果", ["手机"]),
    "firm": ("苹果公司发布了新品", "苹果", ["公司", "新品"]),
    "newton": ("牛顿被苹果砸中", "苹果", ["砸中"]),
}


def cases():
    return [case_of(text, target=target, cues=cues, id=name) for name, (text, target, cues) in TEXTS.items()]


def loaded(family, **changes):
    model, tokenizer = FAMILIES[family](head=False, **changes)
    return model_from_parts(model, tokenizer, name=f"tiny {family}")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_gives_what_single_texts_give(family):
    model = loaded(family)
    together = list(capture(model, cases()))
    alone = [next(iter(capture(model, [case]))) for case in cases()]
    assert [one.case.id for one in together] == list(TEXTS)
    for batched, single in zip(together, alone, strict=True):
        assert batched.layers == single.layers and batched.queries == single.queries
        assert np.abs(batched.rows - single.rows).max() <= 1e-5
        assert np.abs(batched.value_norms - single.value_norms).max() <= 1e-4 * single.value_norms.max()
        for stack, states in single.states.items():
            scale = np.linalg.norm(states, axis=-1)
            assert (np.linalg.norm(batched.states[stack] - states, axis=-1) / scale).max() <= 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_those_of_eager_attention_at_the_targets_and_cues(family):
    model = loaded(family)
    for one in capture(model, cases()):
        maps, _ = eager_maps(model, batch_for(model, [one.tokens.ids]))
        assert set(one.layers) == set(maps)
        for place, layer in enumerate(one.layers):
            expected = maps[layer][0][:, list(one.queries)].numpy()
            assert np.abs(one.rows[place] - expected).max() <= 1e-5
        words = {one.tokens.labels[query] for query in one.target}
        assert "".join(dict.fromkeys(words)) and all(label in one.case.text for label in words)


def test_token_types_are_padded_as_their_texts_are_and_change_nothing_that_one_alone_would_give():
    model = loaded("bert")
    ids, types = [[2, 5, 6, 7, 3], [2, 6, 3]], [[0, 0, 1, 1, 1], [0, 1, 1]]
    batch = batch_for(model, ids, token_types=types)
    assert batch["token_type_ids"].tolist() == [[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    together, _ = eager_maps(model, batch)
    alone, _ = eager_maps(model, batch_for(model, ids[1:], token_types=types[1:]))
    untyped, _ = eager_maps(model, batch_for(model, ids[1:]))
    for layer, maps in alone.items():
        assert torch.allclose(together[layer][1, :, :3, :3], maps[0], atol=1e-5)
        assert not torch.allclose(untyped[layer][0], maps[0], atol=1e-3)
    assert "token_type_ids" not in batch_for(model, ids)


def test_whole_maps_hold_a_row_for_every_token():
    model = loaded("llama")
    one = next(iter(capture(model, cases()[:1], options=CaptureOptions(whole_maps=True))))
    maps, _ = eager_maps(model, batch_for(model, [one.tokens.ids]))
    assert one.rows.shape[2] == one.rows.shape[3] == len(one.tokens.ids)
    assert np.abs(one.rows - torch.stack([maps[layer][0] for layer in one.layers]).numpy()).max() <= 1e-5


def test_states_hold_the_embedding_first_and_the_models_own_states_after_it():
    model = loaded("bert")
    one = next(iter(capture(model, cases()[:1])))
    with torch.no_grad():
        output = model.backbone(**batch_for(model, [one.tokens.ids]), output_hidden_states=True)
    expected = torch.stack(output.hidden_states)[:, 0].numpy()
    assert one.states["encoder"].shape[0] == len(one.layers) + 1
    assert np.abs(one.states["encoder"] - expected).max() <= 1e-5


def test_filters_keep_only_the_asked_layers_and_heads_and_refuse_what_is_not_there():
    model = loaded("bert")
    everything = next(iter(capture(model, cases()[:1])))
    some = next(
        iter(capture(model, cases()[:1], options=CaptureOptions(layers=frozenset({2}), heads=frozenset({0, 3}))))
    )
    assert [layer.index for layer in some.layers] == [2] and some.heads == (0, 3)
    assert np.array_equal(some.rows[0], everything.rows[2][[0, 3]])
    assert np.array_equal(some.value_norms[0], everything.value_norms[2][[0, 3]])
    with pytest.raises(ModelError, match=r"^layers 99.*0-2"):
        list(capture(model, cases(), options=CaptureOptions(layers=frozenset({99}))))
    with pytest.raises(ModelError, match=r"^heads 7.*0-3"):
        list(capture(model, cases(), options=CaptureOptions(heads=frozenset({7}))))


def test_a_batch_that_needs_more_than_the_budget_is_refused_before_the_forward_pass():
    model = loaded("bert")
    ran = []
    hook = model.backbone.register_forward_pre_hook(lambda module, args: ran.append(module))
    route = route_of(model)
    ran.clear()
    with pytest.raises(BudgetError, match=r"needs .* may be used: .*larger memory budget"):
        list(capture(model, cases(), route=route, options=CaptureOptions(memory_budget=1000)))
    assert not ran
    list(capture(model, cases(), route=route, options=CaptureOptions(memory_budget=10**9)))
    assert ran
    hook.remove()


@pytest.mark.parametrize(("target", "rows"), [("果", "1 row"), ("苹果", "2 rows")])
def test_a_budget_message_counts_rows_in_the_singular_for_one(target, rows):
    model, case = loaded("bert"), case_of("我喜欢苹果", target=target, id="c")
    with pytest.raises(BudgetError, match=rf"tokens, {rows}\) needs"):
        list(capture(model, [case], route=route_of(model), options=CaptureOptions(memory_budget=1000)))


def test_a_text_longer_than_the_models_positions_is_refused_or_cut_around_the_target():
    model = loaded("bert")  # 64 positions
    long = "我喜欢" * 40 + "牛顿被苹果砸中" + "我们热爱和平" * 30
    case = case_of(long, target="苹果", cues=["砸中"], id="long")
    with pytest.raises(SpanError, match=r"case 'long': 309 tokens, .* 64 positions: cut_to_fit \(--cut-to-fit\)"):
        prepare(model, [case])
    (cut,) = prepare(model, [case], cut=True)
    assert cut.was_cut and 60 <= len(cut.tokens.ids) <= 64
    assert cut.case.target.cut(cut.case.text) == "苹果"
    assert [cue.cut(cut.case.text) for cue in cut.case.cues] == ["砸中"]
    before, after = cut.target[0], len(cut.tokens.ids) - cut.target[-1]
    assert abs(before - after) <= 2


def test_a_target_that_the_tokenizer_does_not_know_is_refused_by_name():
    model = loaded("bert")
    with pytest.raises(SpanError, match=r"case 'x'.*'馕' is unknown"):
        prepare(model, [case_of("我喜欢馕", target="馕", id="x")])


def test_all_cases_that_cannot_be_read_are_named_at_once():
    model = loaded("bert")
    bad = [case_of("我喜欢馕", target="馕", id=f"bad-{number}") for number in range(3)]
    with pytest.raises(SpanError, match=r"3 cases cannot be read") as refused:
        prepare(model, [*cases(), *bad])
    assert all(f"bad-{number}" in str(refused.value) for number in range(3))


def test_a_capture_survives_the_way_to_disk_and_back(tmp_path):
    for family in ("bert", "bart"):
        one = next(iter(capture(loaded(family), cases()[2:3])))
        save_capture(one, tmp_path / "one.safetensors")
        again = load_capture(tmp_path / "one.safetensors")
        for name in (entry.name for entry in dataclasses.fields(one)):
            mine, theirs = getattr(one, name), getattr(again, name)
            if isinstance(mine, np.ndarray):
                assert np.array_equal(mine, theirs), name
            elif name == "states":
                assert mine.keys() == theirs.keys() and all(np.array_equal(mine[key], theirs[key]) for key in mine)
            elif name == "tokens":
                assert mine.ids == theirs.ids and mine.labels == theirs.labels
                assert np.array_equal(mine.offsets, theirs.offsets) and np.array_equal(mine.special, theirs.special)
            else:
                assert mine == theirs, name


def test_the_cache_answers_for_the_same_content_only_and_survives_damage(tmp_path):
    model = loaded("bert")
    options = CaptureOptions(cache=tmp_path)
    route = route_of(model)
    runs = []
    hook = model.backbone.register_forward_pre_hook(lambda module, args: runs.append(1))
    first = list(capture(model, cases(), options=options, route=route))
    assert runs and len(list(tmp_path.rglob("*.safetensors"))) == len(TEXTS)
    runs.clear()
    second = list(capture(model, cases(), options=options, route=route))
    assert not runs and all(np.array_equal(a.rows, b.rows) for a, b in zip(first, second, strict=True))
    next(iter(tmp_path.rglob("*.safetensors"))).write_bytes(b"damaged")
    third = list(capture(model, cases(), options=options, route=route))
    assert runs and all(np.abs(a.rows - b.rows).max() <= 1e-5 for a, b in zip(first, third, strict=True))
    runs.clear()
    other = dataclasses.replace(model, fingerprint="other")
    list(capture(other, cases(), options=options, route=route))
    assert runs, "another model must not be answered from the cache"
    hook.remove()
    with pytest.raises(OutputError, match="damaged"):
        (tmp_path / "x").write_bytes(b"no capture")
        load_capture(tmp_path / "x")


def test_batches_hold_every_text_once_within_the_token_bound():
    lengths = [5, 90, 7, 7, 33, 2, 60, 60, 61, 1]
    groups = list(batches(lengths, 128))
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    assert all(max(lengths[i] for i in group) * len(group) <= 128 for group in groups)
    assert list(batches([500], 128)) == [[0]], "one text longer than the bound still runs, alone"


def test_a_family_that_bypasses_the_interface_takes_the_eager_path_visibly():
    import transformers

    from tests.tiny import byte_level_tokenizer

    tokenizer = byte_level_tokenizer(start=None, end="<|endoftext|>", pad="<|pad|>")
    config = transformers.BloomConfig(vocab_size=len(tokenizer), hidden_size=32, n_layer=2, n_head=4)
    torch.manual_seed(0)
    model = model_from_parts(transformers.BloomModel(config).eval(), tokenizer, name="tiny bloom")
    route = route_of(model)
    assert route.path == "eager" and "BloomModel" in route.reason and len(route.layers) == 2
    together = list(capture(model, cases(), route=route))
    for one in together:
        alone = next(iter(capture(model, [one.case])))
        assert one.path == "eager" and one.value_norms is None
        assert np.abs(one.rows - alone.rows).max() <= 1e-5
        assert np.allclose(one.rows.sum(-1), 1, atol=1e-5)


def test_a_layer_shared_by_all_depths_is_counted_by_its_calls():
    import transformers

    from tests.tiny import wordpiece_tokenizer

    tokenizer = wordpiece_tokenizer()
    config = transformers.AlbertConfig(
        vocab_size=len(tokenizer), embedding_size=16, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=32, initializer_range=0.3,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        albert = transformers.AlbertModel(config).eval()
    model = model_from_parts(albert, tokenizer, name="tiny albert")
    one = next(iter(capture(model, cases()[:1])))
    assert one.path == "tap" and [layer.index for layer in one.layers] == [0, 1, 2]
    model.backbone.set_attn_implementation("eager")
    with torch.no_grad():
        output = model.backbone(**batch_for(model, [one.tokens.ids]), output_attentions=True)
    for place in range(3):
        expected = output.attentions[place][0][:, list(one.queries)].numpy()
        assert np.abs(one.rows[place] - expected).max() <= 1e-6


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("encoder.layer.1.attention.self.query.weight", r"encoder\.layer\.1\.attention\.self, head 2: its attention"),
        ("encoder.layer.0.attention.self.value.weight", r"encoder\.layer\.0\.attention\.self, head 2: its value"),
        ("encoder.layer.2.output.dense.weight", "the encoder's state 3"),
    ],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_naming_layer_and_head(path, says, value):
    model = loaded("bert")
    with torch.no_grad():
        model.backbone.get_parameter(path)[16:24] = value  # head 2 of 4 in 32 dimensions
    with pytest.raises(ModelError, match=says + ".* on case '[a-z]*': not finite"):
        list(capture(model, cases()))


def test_weights_too_large_for_half_precision_are_refused_with_the_way_out():
    model, tokenizer = FAMILIES["llama"](head=False)
    with torch.no_grad():
        model.layers[1].self_attn.q_proj.weight.mul_(1e6)
    half = model_from_parts(model.to(torch.float16), tokenizer, name="half")
    with pytest.raises(ModelError, match=r"too large for float16: try dtype float32"):
        list(capture(half, cases()))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layers": []}, "layers is empty: .* None for all"),
        ({"heads": set()}, "heads is empty"),
        ({"layers": [-1]}, "layers has -1"),
        ({"heads": 3}, "heads 3: allowed is a list"),
        ({"batch_tokens": 0}, "batch_tokens 0: .* from 1"),
        ({"memory_budget": float("nan")}, "memory_budget nan: .* like 4GB"),
        ({"memory_budget": -1}, "memory_budget -1"),
        ({"memory_budget": "much"}, "memory_budget 'much'"),
        ({"states": "no"}, "states 'no': allowed are True and False"),
        ({"cache": ""}, "cache '': allowed is the name"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_when_they_are_made(given, message):
    with pytest.raises(CijingError, match=f"^{message}") as refused:
        CaptureOptions(**given)
    assert "\n" not in str(refused.value)


def test_options_take_any_collection_a_size_in_words_and_a_folder_as_text(tmp_path):
    options = CaptureOptions(
        layers=range(2), heads=np.array([3, 0]), memory_budget="1.5 GB", cache=str(tmp_path), batch_tokens=np.int64(64)
    )
    same = CaptureOptions(
        layers=frozenset({0, 1}), heads=frozenset({0, 3}), memory_budget=1_500_000_000, cache=tmp_path, batch_tokens=64
    )
    assert options == same and hash(options) == hash(same)
    (one,) = capture(loaded("bert"), cases()[:1], options=options)
    assert one.heads == (0, 3) and len(list(tmp_path.rglob("*.safetensors"))) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cases": "苹果"}, "cases is '苹果'; allowed is a list of cases"),
        ({"cases": case_of("苹果", target="苹果")}, r"cases is a Case; allowed is a list of it: \[case\]"),
        ({"cases": CaseSet(name="x", cases=tuple(cases()))}, r"cases is a CaseSet; allowed is load_cases\(...\)"),
        ({"cases": None}, "cases is None"),
        ({"cases": ["苹果"]}, "one of the cases is '苹果'; allowed is a Case"),
        ({"loaded": torch.nn.Linear(2, 2)}, "loaded is a Linear; allowed is a LoadedModel"),
        ({"loaded": None}, "loaded is None"),
        ({"options": {"layers": [0]}}, "options is {.*}; allowed is CaptureOptions"),
        ({"route": "tap"}, "route is 'tap'"),
        ({"progress": 5}, "progress 5: allowed is a function, or None"),
        ({"on_layer": "x"}, "on_layer 'x'"),
    ],
)
def test_what_is_no_model_case_or_option_is_refused_by_the_call_itself(given, message):
    with pytest.raises(CijingError, match=f"^{message}") as refused:
        capture(**{"loaded": loaded("bert"), "cases": cases(), **given})
    assert "\n" not in str(refused.value)
    if "cases" in given:
        with pytest.raises(CijingError, match=f"^{message}"):
            prepare(loaded("bert"), given["cases"])


def test_a_size_below_zero_is_readable_too():
    assert readable_size(-2_000) == "-2.0 kB" and readable_size(2_000_000) == "2.0 MB"
