"""Rows stitched from generation, against eager's own attentions of `generate` and against one pass over the whole."""

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from probe import generation, stitching
from probe.captures import CaptureOptions
from probe.edits import EdgeEdit
from probe.errors import BudgetError, CijingError, ModelError, SpanError, TapError
from probe.generation import generate_rows, replay_rows
from probe.models import model_from_parts
from probe.rowrequest import RowRequest
from probe.rowtap import tap
from probe.transcripts import opened, transcript_of
from tests.tiny import FAMILIES, byte_fallback_tokenizer

PROMPT = "我喜欢苹果但讨厌梨子"
DECODERS = ("llama", "gpt2", "qwen3", "gemma3")
WRITERS = (*DECODERS, "t5", "bart")
NEW = 12


@pytest.fixture(scope="module")
def loaded_of():
    made = {}

    def load(family):
        if family not in made:
            made[family] = model_from_parts(*FAMILIES[family](), name=family)
        return made[family]

    return load


def bloom():
    import transformers

    tokenizer = byte_fallback_tokenizer()
    config = transformers.BloomConfig(vocab_size=len(tokenizer), hidden_size=32, n_layer=2, n_head=4)
    torch.manual_seed(0)
    return model_from_parts(transformers.BloomForCausalLM(config).eval(), tokenizer, name="bloom")


def by_eager_generation(loaded, prompt_ids, cache):
    """Ids and maps [layer, head, row, key] from transformers' own attentions of every step, stitched in plain loops."""
    model = loaded.model
    model.set_attn_implementation("eager")
    try:
        output = model.generate(
            torch.tensor([prompt_ids]),
            max_new_tokens=NEW,
            do_sample=False,
            cache_implementation=cache,
            return_dict_in_generate=True,
            output_attentions=True,
            pad_token_id=0,
        )
    finally:
        model.set_attn_implementation("sdpa")
    ids = output.sequences[0].tolist()
    layers = len(output.attentions[0])
    stitched = np.zeros((layers, loaded.model.config.num_attention_heads, len(ids) - 1, len(ids)), dtype=np.float32)
    for layer in range(layers):
        row = 0
        for step in output.attentions:
            for own in step[layer][0].transpose(0, 1):  # [head, key] of each query of the step
                keys = own.shape[-1]
                # A key that a window dropped is missing at the left; a place not filled yet stands at the right.
                calls_last = row if len(step[layer][0][0]) == 1 else len(prompt_ids) - 1
                first = max(calls_last + 1 - keys, 0)
                width = min(keys, calls_last + 1)
                stitched[layer, :, row, first : first + width] = own[:, :width].numpy()
                row += 1
        assert row == len(ids) - 1
    return ids[len(prompt_ids) :], stitched


def by_one_eager_pass(loaded, ids):
    before = loaded.model.config._attn_implementation
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        output = loaded.model(torch.tensor([ids]), output_attentions=True)
    loaded.model.set_attn_implementation(before)
    return np.stack([maps[0].numpy() for maps in output.attentions])  # [layer, head, query, key]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", DECODERS)
def test_stitched_rows_equal_eagers_own_attentions_of_every_step(loaded_of, family, cache):
    loaded = loaded_of(family)
    found = generate_rows(loaded, PROMPT, max_new_tokens=NEW, cache=cache)
    answer, expected = by_eager_generation(loaded, found.tokens.ids[: found.prompt_length], cache)
    assert list(found.ids) == answer and len(answer) == NEW
    assert found.rows.shape == expected.shape
    assert found.queries == tuple(range(found.prompt_length + NEW - 1))
    assert np.abs(found.rows - expected).max() <= 1e-5


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", WRITERS)
def test_stitched_rows_equal_one_forward_pass_over_prompt_and_answer(loaded_of, family, cache):
    loaded = loaded_of(family)
    stitched = generate_rows(loaded, PROMPT, max_new_tokens=NEW, cache=cache)
    replayed = replay_rows(loaded, PROMPT, stitched.ids)
    assert stitched.rows.shape == replayed.rows.shape and stitched.layers == replayed.layers
    assert np.abs(stitched.rows - replayed.rows).max() <= 1e-5
    assert stitched.tokens.ids == replayed.tokens.ids and stitched.tokens.labels == replayed.tokens.labels
    assert (stitched.answer_by, replayed.answer_by) == ("generated", "ids")
    assert np.allclose(stitched.rows.sum(-1), 1.0, atol=1e-5)
    if family in DECODERS:
        expected = by_one_eager_pass(loaded, stitched.tokens.ids)
        assert np.abs(stitched.rows - expected[:, :, :-1]).max() <= 1e-5
        assert stitched.cross_rows is None and stitched.source is None
    else:
        assert np.abs(stitched.cross_rows - replayed.cross_rows).max() <= 1e-5
        assert stitched.cross_rows.shape[-2:] == (len(stitched.queries), len(stitched.source.ids))
        assert np.allclose(stitched.cross_rows.sum(-1), 1.0, atol=1e-5)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_an_encoder_decoders_rows_equal_eagers_own(loaded_of, family):
    loaded = loaded_of(family)
    found = generate_rows(loaded, PROMPT, max_new_tokens=5)
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        output = loaded.model(
            input_ids=torch.tensor([found.source.ids]),
            decoder_input_ids=torch.tensor([found.tokens.ids]),
            output_attentions=True,
        )
    loaded.model.set_attn_implementation("sdpa")
    for layer, rows in zip(found.layers, found.rows, strict=True):
        assert layer.stack == "decoder"
        assert np.abs(rows - output.decoder_attentions[layer.index][0, :, :-1].numpy()).max() <= 1e-5
    for layer, rows in zip(found.cross_layers, found.cross_rows, strict=True):
        assert np.abs(rows - output.cross_attentions[layer.index][0, :, :-1].numpy()).max() <= 1e-5


SMALL = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 32, "initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1,
}  # fmt: skip
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
OTHERS = {
    "every layer windowed": ("Mistral", {"head_dim": 8, "sliding_window": 4}),
    "capped scores and windows": ("Gemma2", {"head_dim": 8, "attn_logit_softcapping": 2.0, "sliding_window": 4}),
    "sinks and windows": ("GptOss", {"head_dim": 8, "sliding_window": 4, **EXPERTS}),
    "chunks": ("Llama4", {"head_dim": 8, "attention_chunk_size": 4, "intermediate_size_mlp": 32, **EXPERTS}),
}


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("kind", OTHERS)
def test_what_caches_drop_and_add_in_other_families_does_not_move_a_row(kind, cache):
    import transformers

    family, settings = OTHERS[kind]
    tokenizer = byte_fallback_tokenizer()
    config_class = getattr(transformers, f"{family}TextConfig" if family == "Llama4" else f"{family}Config")
    torch.manual_seed(0)
    config = config_class(vocab_size=len(tokenizer), **SMALL, **settings)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    loaded = model_from_parts(model, tokenizer, name=family)
    found = generate_rows(loaded, PROMPT, max_new_tokens=NEW, min_new_tokens=NEW, cache=cache)
    assert len(found.ids) == NEW and len(found.layers) == 4
    assert np.abs(found.rows - replay_rows(loaded, PROMPT, found.ids).rows).max() <= 1e-5
    expected = by_one_eager_pass(loaded, found.tokens.ids)
    assert np.abs(found.rows - expected[:, :, :-1]).max() <= 1e-5


def test_a_windows_rows_stand_under_the_true_positions_once_keys_are_dropped(loaded_of):
    found = generate_rows(loaded_of("gemma3"), PROMPT, max_new_tokens=NEW)
    for layer, rows in zip(found.layers, found.rows, strict=True):
        last = rows[:, -1, :]  # of the last token that was read
        position = found.queries[-1]
        before = last[:, : position - 3]
        assert (before == 0).all() if layer.index in {0, 2} else (before > 0).all()
        assert (last[:, position - 3 : position + 1] > 0).all()


@pytest.mark.parametrize("family", DECODERS)
def test_the_row_before_a_token_is_the_one_that_predicted_it(loaded_of, family):
    """Cut the edge in that row and only that token's logits move; in the row after it, they stay."""
    loaded = loaded_of(family)
    found = generate_rows(loaded, PROMPT, max_new_tokens=4)
    token = found.prompt_length + 1
    row = found.predicting_row(token)
    assert np.array_equal(row, found.rows[:, :, found.queries.index(token - 1)])
    assert (row[:, :, token:] == 0).all() and (row[-1, :, token - 1] > 0).all()
    ids = torch.tensor([found.tokens.ids])
    with torch.no_grad():
        plain = loaded.model(ids).logits[0]
        assert int(plain[token - 1].argmax()) == found.tokens.ids[token]
        for place in (token - 1, token):
            edit = EdgeEdit(query=(place,), key=(token - 2,))
            with tap(loaded.model, RowRequest([[place]], edits=[edit])):
                moved = loaded.model(ids).logits[0]
            assert torch.equal(moved[token - 1], plain[token - 1]) == (place == token)


def test_the_last_generated_token_has_no_row_until_it_is_replayed(loaded_of):
    loaded = loaded_of("llama")
    found = generate_rows(loaded, PROMPT, max_new_tokens=3)
    last = len(found.tokens.ids) - 1
    assert last not in found.queries and (found.rows[..., last] == 0).all()
    with pytest.raises(TapError, match=f"row at {last}, which is not kept"):
        found.predicting_row(last + 1)
    with pytest.raises(TapError, match="row at -1"):
        found.predicting_row(0)
    replayed = replay_rows(loaded, PROMPT, found.ids, last_row=True)
    assert replayed.queries[-1] == last
    assert np.allclose(replayed.rows[:, :, -1].sum(-1), 1.0, atol=1e-5)
    assert np.abs(replayed.rows[:, :, :-1] - found.rows).max() <= 1e-5


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_filters_of_rows_layers_and_heads_choose_from_the_whole(loaded_of, cache):
    loaded = loaded_of("llama")
    everything = generate_rows(loaded, PROMPT, max_new_tokens=5, cache=cache)
    some = generate_rows(loaded, PROMPT, max_new_tokens=5, cache=cache, layers=[2, 1], heads=[3, 0], prompt_rows=[1, 4])
    first = some.prompt_length - 1
    assert some.queries == (1, 4, *range(first, first + 5))
    assert [layer.index for layer in some.layers] == [1, 2] and some.heads == (0, 3)
    assert np.abs(some.rows - everything.rows[1:][:, [0, 3]][:, :, list(some.queries)]).max() <= 1e-6
    last = generate_rows(loaded, PROMPT, max_new_tokens=5, cache=cache, prompt_rows="last")
    assert last.queries == tuple(range(first, first + 5))
    assert np.abs(last.rows - everything.rows[:, :, first:]).max() <= 1e-6
    assert np.abs(replay_rows(loaded, PROMPT, last.ids, prompt_rows="last").rows - last.rows).max() <= 1e-5


def test_a_prompt_read_in_chunks_gives_the_same_rows(loaded_of):
    for family in ("llama", "gemma3"):
        loaded = loaded_of(family)
        whole = generate_rows(loaded, PROMPT, max_new_tokens=4)
        for rows in ("all", "last"):
            chunked = generate_rows(loaded, PROMPT, max_new_tokens=4, prefill_chunk_size=3, prompt_rows=rows)
            assert chunked.ids == whole.ids
            assert np.abs(chunked.rows - whole.rows[:, :, list(chunked.queries)]).max() <= 1e-5


def test_an_answer_that_ends_early_leaves_no_empty_rows(loaded_of):
    loaded = loaded_of("llama")
    free = generate_rows(loaded, PROMPT, max_new_tokens=6)
    end = free.ids[2]
    for cache in ("dynamic", "static"):
        found = generate_rows(loaded, PROMPT, max_new_tokens=6, eos_token_id=end, cache=cache)
        assert found.ids == free.ids[:3]
        total = found.prompt_length + 3
        assert found.rows.shape[2:] == (total - 1, total) and found.queries == tuple(range(total - 1))
        assert np.abs(found.rows - free.rows[:, :, : total - 1, :total]).max() <= 1e-5


def test_the_models_own_habits_do_not_get_into_the_way(loaded_of):
    model, tokenizer = FAMILIES["llama"]()
    loaded = model_from_parts(model, tokenizer, name="llama")
    plain = generate_rows(loaded, PROMPT, max_new_tokens=4)
    model.generation_config = GenerationConfig(do_sample=True, num_beams=3, num_return_sequences=2, use_cache=False)
    assert generate_rows(loaded, PROMPT, max_new_tokens=4).ids == plain.ids
    model.generation_config = GenerationConfig(guidance_scale=2.0)
    with pytest.raises(TapError, match="tokens"):  # a second pass a step, without the prompt
        generate_rows(loaded, PROMPT, max_new_tokens=4)


def test_sampling_obeys_its_seed_and_leaves_the_callers_randomness_alone(loaded_of):
    loaded = loaded_of("llama")
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    one, two, other = (
        generate_rows(loaded, PROMPT, max_new_tokens=8, do_sample=True, temperature=2.0, seed=seed)
        for seed in (1, 1, 2)
    )
    assert one.ids == two.ids != other.ids
    assert torch.equal(torch.rand(3), expected)
    assert np.abs(replay_rows(loaded, PROMPT, other.ids).rows - other.rows).max() <= 1e-5


def test_generation_leaves_the_model_as_it_was(loaded_of):
    model, tokenizer = FAMILIES["llama"]()
    loaded = model_from_parts(model, tokenizer, name="llama")
    with torch.no_grad():
        before = model(torch.tensor([[5, 6, 7]])).logits
    generate_rows(loaded, PROMPT, max_new_tokens=3, cache="static")
    assert not hasattr(model, "_previous_max_cache_length")
    model.generate(torch.tensor([[5, 6]]), max_new_tokens=50, cache_implementation="static", pad_token_id=0)
    kept = getattr(model, "_previous_max_cache_length", None)
    wider = generate_rows(loaded, PROMPT, max_new_tokens=3, cache="static")  # in a cache of more places than needed
    assert getattr(model, "_previous_max_cache_length", None) == kept
    assert np.abs(wider.rows - replay_rows(loaded, PROMPT, wider.ids).rows).max() <= 1e-5
    assert model.config._attn_implementation == "sdpa"
    with torch.no_grad():
        assert torch.equal(model(torch.tensor([[5, 6, 7]])).logits, before)


def test_an_adapters_rows_are_its_own(loaded_of):
    from peft import LoraConfig, get_peft_model

    model, tokenizer = FAMILIES["llama"]()
    torch.manual_seed(3)
    tuned = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "k_proj"], init_lora_weights=False))
    loaded = model_from_parts(tuned, tokenizer, name="tuned")
    found = generate_rows(loaded, PROMPT, max_new_tokens=6)
    assert np.abs(found.rows - replay_rows(loaded, PROMPT, found.ids).rows).max() <= 1e-5
    plain = generate_rows(loaded_of("llama"), PROMPT, max_new_tokens=6)
    assert found.layers == plain.layers
    assert np.abs(found.rows[:, :, 5] - plain.rows[:, :, 5]).max() > 1e-3


# ---- progress --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", WRITERS)
def test_generation_says_how_many_tokens_are_written_and_writes_the_same(loaded_of, family, cache):
    loaded, said = loaded_of(family), []
    plain = generate_rows(loaded, PROMPT, max_new_tokens=5, cache=cache)
    found = generate_rows(loaded, PROMPT, max_new_tokens=5, cache=cache, on_token=lambda *how_far: said.append(how_far))
    assert said == [(done, 5) for done in range(1, len(found.ids) + 1)]
    assert found.ids == plain.ids and np.array_equal(found.rows, plain.rows)


@pytest.mark.parametrize(("family", "layers"), [("llama", 3), ("gemma3", 4), ("t5", 6), ("bloom", 2)])
def test_a_replay_says_how_many_layers_are_done_on_both_paths(loaded_of, family, layers):
    loaded, said = bloom() if family == "bloom" else loaded_of(family), []
    found = replay_rows(loaded, PROMPT, [5, 6, 7], on_layer=lambda *how_far: said.append(how_far))
    assert said == [(done, layers) for done in range(1, layers + 1)]
    assert np.array_equal(found.rows, replay_rows(loaded, PROMPT, [5, 6, 7]).rows)


def test_ctrl_c_while_it_writes_leaves_the_model_as_before(loaded_of):
    loaded = loaded_of("llama")
    plain = generate_rows(loaded, PROMPT, max_new_tokens=4, cache="static")

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_rows(loaded, PROMPT, max_new_tokens=4, cache="static", on_token=stop)
    assert loaded.model.config._attn_implementation == "sdpa"
    assert np.array_equal(generate_rows(loaded, PROMPT, max_new_tokens=4, cache="static").rows, plain.rows)


# ---- prompts and transcripts ----------------------------------------------------------------------------------


def test_text_ids_and_messages_are_prompts(loaded_of):
    loaded = loaded_of("llama")
    as_text = generate_rows(loaded, PROMPT, max_new_tokens=3)
    as_ids = generate_rows(loaded, list(as_text.tokens.ids[: as_text.prompt_length]), max_new_tokens=3)
    assert as_ids.tokens.labels == as_text.tokens.labels and as_ids.text == as_text.text
    assert np.array_equal(as_ids.rows, as_text.rows)
    model, tokenizer = FAMILIES["llama"]()
    tokenizer.chat_template = (
        "{% for m in messages %}<s>{{ m.content }}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
    )
    chat = model_from_parts(model, tokenizer, name="chat")
    found = generate_rows(chat, [{"role": "user", "content": "我喜欢苹果"}], max_new_tokens=2)
    assert found.tokens.labels[: found.prompt_length] == ("<s>", "我", "喜欢", "苹果", "A", ":")
    assert found.tokens.text == "<s>我喜欢苹果A:" + found.text
    for boundary in ("separate", "joint"):
        log = replay_rows(chat, [{"role": "user", "content": "我喜欢苹果"}], "苹果公司", boundary=boundary)
        assert log.tokens.labels == ("<s>", "我", "喜欢", "苹果", "A", ":", "苹果", "公司")
        assert (log.prompt_length, log.text) == (6, "苹果公司")


@pytest.mark.parametrize("family", DECODERS)
def test_labels_of_an_answer_are_slices_of_the_text_that_its_tokens_spell(loaded_of, family):
    loaded = loaded_of(family)
    for answer in ("苹果公司发布了新品", "I like apple pie", "手机 apple"):
        found = transcript_of(loaded, "我喜欢", answer)
        text = found.tokens.text
        assert found.answer_text == answer and text == "我喜欢" + answer
        assert found.answer_ids == tuple(loaded.tokenizer(answer, add_special_tokens=False)["input_ids"])
        covered = set()
        for label, (start, end), special in zip(
            found.tokens.labels, found.tokens.offsets.tolist(), found.tokens.special.tolist(), strict=True
        ):
            assert special or label == text[start:end]
            covered |= set(range(start, end))
        assert covered == set(range(len(text)))


def test_three_tokens_of_one_character_carry_it_and_half_a_character_is_shown_as_such(loaded_of):
    loaded = loaded_of("gpt2")
    ids = loaded.tokenizer("菠菜")["input_ids"]
    assert len(ids) == 6
    whole = transcript_of(loaded, "我", ids)
    assert whole.tokens.labels[3:] == ("菠",) * 3 + ("菜",) * 3
    cut = transcript_of(loaded, "我", ids[:4])
    assert cut.tokens.labels[3:] == ("菠",) * 3 + ("\ufffd",)


def test_special_tokens_of_an_answer_are_named_and_carry_no_text(loaded_of):
    loaded = loaded_of("llama")
    end = loaded.tokenizer.eos_token_id
    ids = [*loaded.tokenizer("苹果", add_special_tokens=False)["input_ids"], end, *loaded.tokenizer("手机").input_ids]
    found = transcript_of(loaded, "我喜欢", ids)
    assert found.tokens.labels == ("<s>", "我", "喜欢", "苹果", "</s>", "<s>", "手机")
    assert found.tokens.text == "我喜欢苹果手机" and found.answer_text == "苹果手机"
    assert found.tokens.offsets[4].tolist() == [5, 5] and found.tokens.special.tolist()[4:6] == [True, True]


def test_a_space_after_a_special_token_is_no_start_of_a_text(loaded_of):
    loaded = loaded_of("t5")
    before, after = (loaded.tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("苹果", "x apple"))
    found = transcript_of(loaded, "我", [*before, loaded.tokenizer.eos_token_id, *after[2:]])
    assert found.tokens.labels[-1].strip() == "apple" and found.answer_text == "苹果 apple"


def test_the_boundary_says_how_an_answers_text_became_tokens(loaded_of):
    loaded = loaded_of("llama")
    apart, together = (replay_rows(loaded, "我喜欢苹", "但讨厌", boundary=how) for how in ("separate", "joint"))
    assert (apart.answer_by, together.answer_by) == ("separate", "joint")
    assert apart.tokens.ids == together.tokens.ids and apart.prompt_length == together.prompt_length
    assert np.array_equal(apart.rows, together.rows)
    split = replay_rows(loaded, "我喜欢苹", "果公司")
    assert split.tokens.labels == ("<s>", "我", "喜欢", "苹", "果", "公司")
    with pytest.raises(SpanError, match="'苹果' carries the prompt's end and the answer's start"):
        replay_rows(loaded, "我喜欢苹", "果公司", boundary="joint")


def test_a_text_prompt_of_a_decoder_ends_before_the_end_token():
    from tests.tiny import _brackets

    model, _ = FAMILIES["llama"]()
    tokenizer = byte_fallback_tokenizer()
    tokenizer.backend_tokenizer.post_processor = _brackets(tokenizer.backend_tokenizer, "<s>", "</s>")
    loaded = model_from_parts(model, tokenizer, name="ends")
    assert tokenizer("苹果")["input_ids"][-1] == tokenizer.eos_token_id
    assert opened(loaded, "苹果").tokens.labels == ("<s>", "苹果")
    assert opened(model_from_parts(*FAMILIES["t5"](), name="t5"), "苹果").source.labels[-1] == "</s>"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda one: replay_rows(one, PROMPT, [5, 100_000]), SpanError, "token 1 is 100000, but llama has ids 0 to"),
        (lambda one: replay_rows(one, PROMPT, [5, -1]), SpanError, "token 1 is -1"),
        (lambda one: replay_rows(one, PROMPT, []), SpanError, "at least one"),
        (lambda one: replay_rows(one, [], [5]), SpanError, "prompt is"),
        (lambda one: replay_rows(one, PROMPT, ""), SpanError, "answer is empty"),
        (lambda one: replay_rows(one, PROMPT, "苹", boundary="both"), SpanError, "allowed are separate, joint"),
        (lambda one: replay_rows(one, [5, 6], "苹", boundary="joint"), SpanError, "prompt of text or messages"),
        (lambda one: generate_rows(one, PROMPT, max_new_tokens=0), ModelError, "max_new_tokens 0"),
        (lambda one: generate_rows(one, PROMPT, max_new_tokens=400), ModelError, "256 positions"),
        (lambda one: generate_rows(one, PROMPT, max_new_tokens=2, num_beams=3), ModelError, "'num_beams' is not"),
        (lambda one: generate_rows(one, PROMPT, max_new_tokens=2, cache="paged"), ModelError, "dynamic, static"),
        (lambda one: generate_rows(one, PROMPT, max_new_tokens=2, prompt_rows=[99]), TapError, "prompt has tokens 0"),
        (lambda one: generate_rows(one, PROMPT, max_new_tokens=2, prompt_rows="none"), TapError, "all, last"),
        (lambda one: generate_rows(one, PROMPT, max_new_tokens=2, layers=[9]), ModelError, "layers 0-2"),
        (lambda one: generate_rows(one, PROMPT, max_new_tokens=2, heads=[9]), ModelError, "heads 0-3"),
        (lambda one: generate_rows(one, PROMPT, max_new_tokens=2, memory_budget=99), BudgetError, "fewer layers"),
        (lambda one: replay_rows(one, PROMPT, [5], memory_budget=99), BudgetError, "prompt_rows"),
        (lambda one: generate_rows(one, PROMPT, max_new_tokens=2, memory_budget=-1), BudgetError, "bytes from 1"),
        (lambda one: generate_rows(one, PROMPT, max_new_tokens=2, layers=[]), ModelError, "layers is empty"),
        (lambda one: replay_rows(one, PROMPT, [5], heads=[]), ModelError, "heads is empty"),
        (lambda one: generate_rows(one, PROMPT, max_new_tokens=2.0), ModelError, "max_new_tokens 2.0"),
        (lambda one: generate_rows(one, PROMPT, max_new_tokens=2, seed=-1), ModelError, "seed -1: .* from 0 to"),
        (lambda one: generate_rows(one, PROMPT, max_new_tokens=2, seed=2**63), ModelError, f"to {2**63 - 1}"),
        (lambda one: generate_rows(one, PROMPT, max_new_tokens=2, prompt_rows=5), TapError, "5 is unknown; .* all, l"),
        (lambda one: generate_rows(one, PROMPT, max_new_tokens=2, prompt_rows=["a"]), TapError, "has 'a'"),
        (lambda one: generate_rows(one, PROMPT, max_new_tokens=2, on_token=5), CijingError, "on_token 5"),
        (lambda one: replay_rows(one, PROMPT, [5], on_layer="x"), CijingError, "on_layer 'x'"),
        (lambda one: replay_rows(one, PROMPT, [5], last_row="no"), TapError, "last_row 'no': allowed are True"),
        (lambda one: replay_rows(one, PROMPT, "苹", boundary=None), SpanError, "None is unknown"),
        (lambda one: replay_rows(one, PROMPT, [5], boundary="joint"), SpanError, "needs an answer of text"),
        (lambda one: replay_rows(one, PROMPT, [5.0]), SpanError, r"answer has 5\.0"),
        (lambda one: generate_rows(one.model, PROMPT, max_new_tokens=2), ModelError, "loaded is a LlamaForCausalLM"),
        (lambda one: replay_rows(one.model, PROMPT, [5]), ModelError, "allowed is a LoadedModel"),
    ],
)
def test_impossible_requests_are_refused_in_one_line(loaded_of, call, error, message):
    with pytest.raises(error, match=message) as refused:
        call(loaded_of("llama"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("given", [b"x", 5, None, {5, 6}, {"role": "user"}, torch.tensor([[5, 6]])])
def test_what_is_neither_text_nor_messages_nor_ids_is_refused_in_one_line(loaded_of, given):
    for call, allowed in (
        (lambda: generate_rows(loaded_of("llama"), given, max_new_tokens=2), "a text, chat messages, or a list of"),
        (lambda: replay_rows(loaded_of("llama"), PROMPT, given), "a text or a list of token ids$"),
    ):
        with pytest.raises(SpanError, match=f"^the (prompt|answer) is .*; allowed is {allowed}"):
            call()


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor, iter])
def test_ids_may_stand_in_a_list_an_array_or_a_tensor(loaded_of, kind):
    found = replay_rows(loaded_of("llama"), kind([7, 8, 9]), kind([5, 6]))
    assert found.tokens.ids == (7, 8, 9, 5, 6) and all(type(token) is int for token in found.tokens.ids)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"do_sample": True, "temperature": 0.0}, "temperature 0.0: llama cannot generate"),
        ({"repetition_penalty": 0.0, "do_sample": True}, "repetition_penalty 0.0: llama cannot generate"),
        ({"bad_words_ids": "x"}, "bad_words_ids 'x'"),
        ({"bad_words_ids": [[5], [100_000]]}, "bad_words_ids has 100000: llama has ids 0 to"),
        ({"min_new_tokens": 3}, "min_new_tokens 3: .* from 0 to 2"),
        ({"eos_token_id": 100_000}, "eos_token_id 100000: .* from 0 to"),
        ({"eos_token_id": [5, -1]}, "eos_token_id -1"),
        ({"do_sample": "no"}, "do_sample 'no': allowed are True and False"),
        ({"do_sample": True, "top_p": 2}, "top_p 2.0: allowed is a share"),
        ({"top_k": 1.5}, "top_k 1.5"),
    ],
)
def test_an_option_that_cannot_be_followed_is_named_in_one_line(loaded_of, options, named):
    with pytest.raises(ModelError, match=f"^{named}") as refused:
        generate_rows(loaded_of("llama"), PROMPT, max_new_tokens=2, **options)
    assert "\n" not in str(refused.value)


def test_an_error_of_the_callers_own_function_stays_what_it_is(loaded_of):
    def fails(done, total):
        raise ValueError("temperature")

    with pytest.raises(ValueError, match=r"^temperature$"):
        generate_rows(loaded_of("llama"), PROMPT, max_new_tokens=2, temperature=0.5, do_sample=True, on_token=fails)


def test_layers_heads_and_options_are_taken_in_any_natural_form(loaded_of):
    loaded = loaded_of("llama")
    some = generate_rows(
        loaded, PROMPT, max_new_tokens=np.int64(2), layers=np.array([2, 0]), heads=range(1, 3), prompt_rows=(1,),
        memory_budget="1GB", eos_token_id=torch.tensor(1), temperature=2, do_sample=True,
    )  # fmt: skip
    assert [layer.index for layer in some.layers] == [0, 2] and some.heads == (1, 2) and 1 in some.queries
    again = replay_rows(loaded, PROMPT, some.ids, layers=iter([0, 2]), heads={1, 2}, prompt_rows=np.array([1]))
    assert np.abs(again.rows - some.rows).max() <= 1e-5


def test_the_row_of_what_is_no_position_is_refused(loaded_of):
    found = replay_rows(loaded_of("llama"), PROMPT, [5])
    for position in ("a", 2.0, True, None):
        with pytest.raises(TapError, match=r"^position .*: allowed is a whole number$"):
            found.predicting_row(position)
    assert np.array_equal(found.predicting_row(np.int64(2)), found.predicting_row(2))


def test_ids_that_the_tokenizer_does_not_have_are_refused():
    model, tokenizer = FAMILIES["llama"]()
    model.resize_token_embeddings(len(tokenizer) + 8)  # as models round their tables up
    loaded = model_from_parts(model, tokenizer, name="padded")
    with pytest.raises(
        SpanError, match=f"token 1 is {len(tokenizer) + 3}, which the tokenizer of padded cannot decode"
    ):
        replay_rows(loaded, PROMPT, [5, len(tokenizer) + 3])


def test_a_headless_model_and_an_encoder_are_refused():
    headless = model_from_parts(*FAMILIES["llama"](head=False), name="bare")
    with pytest.raises(ModelError, match=r'load_model\(..., head="lm"\)'):
        generate_rows(headless, PROMPT, max_new_tokens=2)
    assert replay_rows(headless, PROMPT, [5, 6]).rows.shape[-1] == 11  # a replay needs no head
    encoder = model_from_parts(*FAMILIES["bert"](head=True), name="bert")
    for call in (lambda: generate_rows(encoder, PROMPT, max_new_tokens=2), lambda: replay_rows(encoder, PROMPT, [5])):
        with pytest.raises(ModelError, match="is an encoder"):
            call()


def test_a_family_outside_the_interface_is_refused_in_generation_and_replayed_eagerly():
    loaded = bloom()
    with pytest.raises(TapError, match="rows cannot be had while it generates"):
        generate_rows(loaded, PROMPT, max_new_tokens=2)
    found = replay_rows(loaded, PROMPT, [5, 6, 7], last_row=True)
    assert found.path == "eager"
    assert np.abs(found.rows - by_one_eager_pass(loaded, found.tokens.ids)).max() <= 1e-5


def test_an_unknown_window_and_a_filled_place_without_a_token_are_refused(loaded_of):
    loaded = loaded_of("gemma3")
    windows = loaded.backbone.config.sliding_window
    loaded.backbone.config.sliding_window = None
    try:
        known = generation._windows(loaded)
    finally:
        loaded.backbone.config.sliding_window = windows
    assert known == frozenset() and generation._windows(loaded) == frozenset({4})
    plan = generation._plan(
        loaded,
        generation.route_of(loaded),
        opened(loaded, PROMPT),
        total=12,
        read=11,
        filters=CaptureOptions(),
        prompt_rows="all",
    )
    layer = plan.own[0]
    blind = stitching.Stitching(plan, windows=known)
    blind.positions_in(layer, torch.zeros(1, 4, 9, 8))
    blind.positions_in(layer, torch.zeros(1, 4, 1, 8))
    with pytest.raises(TapError, match="sees 4 of 10 tokens, which is none of the model's windows"):
        blind.keep(layer, torch.full((1, 4, 1, 4), 0.25))
    filled = stitching.Stitching(plan, windows=frozenset({4}))
    filled.positions_in(layer, torch.zeros(1, 4, 9, 8))
    with pytest.raises(TapError, match="hold no token yet"):
        filled.keep(layer, torch.full((1, 4, 9, 12), 1 / 12))


def test_rows_that_see_later_tokens_are_refused():
    rows = np.zeros((1, 1, 2, 3), dtype=np.float32)
    stitching.refuse_future("model", rows, (0, 1))
    rows[0, 0, 1, 2] = 0.1
    with pytest.raises(TapError, match="row of token 1 sees later tokens"):
        stitching.refuse_future("model", rows, (0, 1))
