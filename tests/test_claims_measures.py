"""Each measure of the claims on a case in which it is known to succeed, and on one with nothing to find."""

import numpy as np
import pytest
import torch
from claims_bench import bench, decoder, encoder

from probe.capture import prepare
from probe.claims.bench import TargetStates, first_groups, target_states
from probe.claims.bilstm import bilstm_state, numbered, padded, train_bilstm
from probe.claims.distance import distance, long_cases, reaches, widening, window_of
from probe.claims.embedding import (
    by_heads,
    contexts,
    cue_states,
    nearest_is_alike,
    output_space,
    planted_states,
    told_apart,
)
from probe.claims.example import article_step, character_tokenizer, products_of, tokenizer_of
from probe.claims.families import ZOO, behaviour, first_layer, shift_share, tiny_model
from probe.claims.far import peak_depth
from probe.claims.order import order
from probe.claims.positionless import is_causal, without_positions
from probe.claims.rows import _nearest_fails, exchanged, scaled_scores, word_lists
from probe.claims.rungs import changing, told_by_word
from probe.claims.words import count_words, surprisal


def test_the_worked_example_has_the_weights_of_the_issue():
    assert article_step().weights == pytest.approx([0.27500, 0.34439, 0.38061], abs=5e-6)


def test_nearest_words_are_alike_where_kinds_lie_apart_and_not_where_they_do_not():
    rng = np.random.default_rng(0)
    kinds = ["a"] * 10 + ["b"] * 10
    noise = rng.normal(size=(20, 50))
    apart = noise + 5 * np.where(np.array(kinds) == "a", 1, -1)[:, None]
    assert nearest_is_alike(apart, kinds).mean() == 1.0
    assert nearest_is_alike(noise, kinds).mean() < 0.8


def test_equal_states_are_guessed_and_planted_ones_told_apart():
    senses = ["x"] * 6 + ["y"] * 4
    groups = [str(i) for i in range(10)]
    rows = np.ones((10, 8))
    assert told_apart(rows, senses, groups).tolist() == [1.0] * 6 + [0.0] * 4
    assert told_apart(planted_states(rows, senses, seed=0), senses, groups).mean() == 1.0


def test_heads_that_only_pass_on_their_input_are_told_from_heads_that_turn_it():
    rng = np.random.default_rng(0)
    states, rows = rng.normal(size=(5, 12)), rng.dirichlet(np.ones(5), size=3)
    assert by_heads(np.repeat(rows[:1], 3, axis=0), states) == pytest.approx(rows[0] @ states)
    assert by_heads(rows, states)[4:8] == pytest.approx(rows[1] @ states[:, 4:8])
    (part,) = output_space(bench()).parts
    assert part.planted.low > 0.5 and abs(part.nothing.estimate) < 0.4  # 32 dimensions turn by little


def test_contexts_are_watched_by_the_row_of_the_table_and_by_other_words():
    made = bench()
    raw, _ = contexts(made).parts
    assert raw.nothing.estimate == pytest.approx(1.0)
    states = cue_states(made.apple_states, "fruit")
    assert states.shape == (made.apple_states.senses.count("fruit"), 32)
    assert not np.allclose(states, made.apple_states.states[: len(states), -1])


def states_of(words, senses):
    groups = tuple(map(str, range(len(words))))
    empty = np.zeros((len(words), 1, 1))
    return [TargetStates(items=(), states=empty, senses=tuple(senses), groups=groups, words=tuple(words))]


def test_a_word_changes_with_its_context_only_where_its_states_differ():
    found = states_of(["a"] * 5 + ["b"] * 5, ["x", "y"] * 5)
    rows = np.repeat(np.eye(8)[:2], 5, axis=0)
    assert changing(rows, found) == pytest.approx(np.zeros(10), abs=1e-9)
    assert changing(np.random.default_rng(0).normal(size=(10, 50)), found).mean() > 0.8


def test_senses_are_told_within_their_own_word():
    found = states_of(["a"] * 6 + ["b"] * 6, ["x", "y"] * 6)
    # in word b the two senses have changed places: centroids of both words together would tell nothing
    states = np.array([[1.0, 0], [-1.0, 0]] * 3 + [[-1.0, 0], [1.0, 0]] * 3)
    assert told_by_word(states, found).mean() == 1.0


# --- the LSTM -----------------------------------------------------------------------------------------------------


def test_the_lstm_learns_a_language_and_reads_both_sides():
    texts, tokens = numbered([[9, 5, 7, 8], [9, 6, 7, 4]] * 20)  # the word before 7 decides the one after
    assert tokens == [9, 5, 7, 8, 6, 4] and texts[1] == [1, 5, 3, 6]
    rows = np.random.default_rng(0).normal(size=(len(tokens), 12))
    model, losses = train_bilstm(texts, rows, epochs=12, seed=0)
    assert losses[-1] < 0.6 * losses[0]
    one, other = (bilstm_state(model, text, [2]) for text in texts[:2])
    assert np.abs(one - other).max() > 0.1  # the same word, seen from both sides
    assert not np.allclose(*(bilstm_state(model, [1, 5, 3, last], [2])[64:] for last in (6, 4)))  # from the right


def test_the_lstm_reads_a_padded_text_as_it_reads_it_alone():
    rows = np.random.default_rng(0).normal(size=(6, 12))
    model, _ = train_bilstm([[1, 2, 3, 4, 5, 6]], rows, epochs=0, seed=0)
    short, long = [1, 2, 3], [6, 5, 4, 3, 2, 1]
    ahead, back = model.states(padded([short, long]))
    alone_ahead, alone_back = model.states(padded([short]))
    assert torch.allclose(ahead[0, :3], alone_ahead[0]) and torch.allclose(back[0, :3], alone_back[0])


def test_the_lstm_is_the_same_for_a_seed_and_leaves_the_given_vectors_alone():
    rows = np.random.default_rng(0).normal(size=(4, 12))
    texts = [[1, 2, 3], [2, 3, 4]] * 4
    pairs = [train_bilstm(texts, rows, epochs=2, seed=seed) for seed in (0, 0, 1)]
    assert pairs[0][1] == pairs[1][1] != pairs[2][1]
    assert torch.equal(pairs[0][0].table.weight, train_bilstm(texts, rows, epochs=0, seed=0)[0].table.weight)


# --- order and positions ------------------------------------------------------------------------------------------


def test_each_family_shows_its_positions_by_what_it_does():
    kinds = {family: behaviour(family).kind for family in ZOO}
    assert kinds == {
        "BERT": "added, learned", "RoBERTa": "added, learned", "GPT-2": "added, learned", "Marian": "added, fixed",
        "T5": "biased", "BLOOM": "biased", "Llama": "rotated", "Qwen3": "rotated", "Gemma3": "rotated",
    }  # fmt: skip


def test_rows_made_from_distances_do_not_change_when_all_moves_on():
    places = np.arange(24.0)
    relative = np.exp(-0.2 * np.abs(places[:, None] - places[None]))[None]
    absolute = np.broadcast_to(np.exp(np.sin(places)), (1, 24, 24))
    assert shift_share(relative) < 1e-12 < 0.1 < shift_share(absolute)


def test_positions_come_back_after_they_were_taken_out():
    for loaded in (encoder(), decoder()):
        before = {name: tensor.clone() for name, tensor in loaded.backbone.state_dict().items()}
        ids = torch.arange(5, 15)[None]
        with torch.inference_mode():
            plain = loaded.backbone(input_ids=ids).last_hidden_state
        with without_positions(loaded.backbone) as found, torch.inference_mode():
            assert found > 0
            assert not torch.allclose(loaded.backbone(input_ids=ids).last_hidden_state, plain, atol=1e-3)
        with torch.inference_mode():
            assert torch.equal(loaded.backbone(input_ids=ids).last_hidden_state, plain)
        assert all(torch.equal(tensor, before[name]) for name, tensor in loaded.backbone.state_dict().items())


def test_a_causal_model_is_known_by_what_it_does():
    assert [is_causal(loaded.backbone) for loaded in (encoder(), decoder())] == [False, True]


def test_a_row_that_depends_on_no_position_is_not_relative():
    assert shift_share(np.full((1, 24, 24), 1 / 24)) == 1.0
    model = tiny_model("Llama")
    assert shift_share(first_layer(model, 7)[0]) < 1e-3
    with without_positions(model):
        assert shift_share(first_layer(model, 7)[0]) == 1.0


# --- counts -------------------------------------------------------------------------------------------------------


def test_products_are_counted_by_layers_heads_and_length():
    assert products_of(encoder().backbone, 20, head_size=8) == 3 * 4 * 20**2
    assert products_of(decoder().backbone, 40, head_size=8) == 3 * 4 * 40**2


def test_a_tokenizer_of_single_characters_cuts_the_phrase_in_five():
    assert len(character_tokenizer()("我喜欢苹果", add_special_tokens=False)["input_ids"]) == 5


def test_a_tokenizer_knows_the_words_it_was_given():
    assert len(tokenizer_of("我", "喜欢", "苹果")("我喜欢苹果")["input_ids"]) == 3
    assert len(tokenizer_of("我喜欢苹果")("我喜欢苹果")["input_ids"]) == 1


def test_words_are_counted_in_texts():
    assert count_words(["苹果手机和苹果芯片", "苹果手机"]) == (2, 1)


def test_surprisal_is_that_of_the_models_own_loss():
    loaded = decoder()
    ids = loaded.tokenizer("我喜欢苹果", add_special_tokens=True)["input_ids"][:-1]
    own = loaded.tokenizer("铁路", add_special_tokens=False)["input_ids"]
    labels = torch.tensor([[*[-100] * len(ids), *own]])
    with torch.inference_mode():
        loss = loaded.model(input_ids=torch.tensor([[*ids, *own]]), labels=labels).loss
    assert surprisal(loaded, "我喜欢苹果", "铁路") == pytest.approx(float(loss) * len(own), rel=1e-5)


# --- rows ---------------------------------------------------------------------------------------------------------


def test_scores_times_zero_make_every_row_uniform_and_come_back():
    made = bench()
    for loaded in (made.encoder, made.decoder):
        items = prepare(loaded, word_lists(seed=0)[:2])
        before = made.captures(loaded, items, "")
        with scaled_scores(loaded.backbone, 0.0) as found:
            (row,) = {float(w) for w in made.captures(loaded, items, "")[0].rows[:, :, -1].round(5).ravel() if w > 0}
        assert found == 3 and 0 < row < 0.2
        assert np.array_equal(made.captures(loaded, items, "")[0].rows, before[0].rows)


def test_word_lists_hold_eleven_words_and_end_with_the_target():
    lists = word_lists(seed=0)
    assert all(case.text.count("、") == 10 and case.text.endswith("苹果") for case in lists)
    assert len({case.text for case in lists}) == len(lists)
    assert [case.text for case in lists] != [case.text for case in word_lists(seed=1)]


def test_exchanging_keeps_the_sizes_and_takes_the_mean_away():
    gap = np.random.default_rng(0).normal(1.0, 0.1, size=40)
    turned = exchanged(gap, seed=3)
    assert np.allclose(np.abs(turned), np.abs(gap)) and abs(turned.mean()) < 0.05 < gap.mean()


def test_the_nearest_verb_fails_where_the_own_verb_is_farther():
    assert _nearest_fails([((5,), (4,), (1,)), ((5,), (1,), (4,))]) == 0.5


def test_a_window_hides_what_is_far_and_full_attention_hides_nothing():
    made = bench()
    items = prepare(made.encoder, long_cases(made.encoder, tokens=80, texts=2))
    assert all(set(reaches(one)) == {1.0} for one in made.captures(made.encoder, items, ""))
    from claims_bench import tiny

    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    windowed = tiny(
        "Gemma3TextConfig", "Gemma3TextModel", sliding_window=8, layer_types=kinds, head_dim=8, num_key_value_heads=1
    )
    (one, _) = made.captures(windowed, prepare(windowed, long_cases(windowed, tokens=80, texts=2)), "")
    assert reaches(one)[1] == 1.0 and max(reaches(one)[0], reaches(one)[2]) < 0.2


def test_the_first_layers_reach_is_told_with_its_window_and_its_texts():
    from claims_bench import tiny

    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    window = {"sliding_window": 8, "layer_types": kinds, "head_dim": 8, "num_key_value_heads": 1}
    made = bench(load_decoder=lambda: tiny("Gemma3TextConfig", "Gemma3ForCausalLM", **window))
    assert (window_of(made.encoder), window_of(made.decoder)) == (None, 8)
    finding = distance(made)
    verdicts = {(part.key, part.model): part.statement for part in finding.parts}
    assert verdicts["first_near", made.encoder.name] == "refuted"
    assert verdicts["first_near", made.decoder.name] == "confirmed"
    first, _, layers = finding.grids
    assert [row[1] for row in first.rows] == [None, 8] and layers.rows[0][2] in (7, 8) and layers.rows[1][2] > 20


def test_the_planted_causal_model_keeps_double_precision():
    assert all(part.planted.high < 1e-12 for part in order(bench()).parts)


def test_widening_is_the_last_third_above_the_first():
    mean = np.array([[0.1, 0.1, 0.5, 0.5, 0.3, 0.4]])
    assert widening(mean) == pytest.approx([0.25]) and widening(mean[:, ::-1]) == pytest.approx([-0.25])


def test_the_peak_is_found_where_it_was_planted():
    gaps = np.random.default_rng(0).normal(size=(8, 10))
    for layer in (0, 6):
        planted = gaps.copy()
        planted[:, layer] += 10
        found = peak_depth(planted, seed=0)
        assert (found.low, found.estimate, found.high) == ((layer + 1) / 10,) * 3
    assert peak_depth(gaps, seed=0).high - peak_depth(gaps, seed=0).low > 0.3  # noise has no peak


def test_the_first_groups_come_with_their_neutral_cases():
    made = bench()
    kept = first_groups(made.apple, 2)
    groups = {case.group for case in kept if case.group}
    assert {case.sense for case in kept} >= {"fruit", "company", "neutral"} and len(groups) <= 2 * 6
    items = prepare(made.encoder, [case for case in kept if case.sense != "neutral"])
    found = target_states(made.captures(made.encoder, items, ""))
    assert found.states.shape == (len(items), 4, 32) and len(found.senses) == len(items)
