"""The random control: what must be the same as in the true pairs is the same, and what must differ differs."""

import numpy as np

from finetune.control import control_facts, random_pairs
from finetune.pairs import Reach, TokenPair

CAUSAL = Reach(causal=True, window=None, longest=None)


def distance(pair):
    return pair.keys[0] - pair.queries[0]


def uniform(tokens):
    grid = np.tril(np.ones((tokens, tokens)))
    return grid / grid.sum(1, keepdims=True)


def test_a_random_pair_has_the_lengths_distance_and_order_of_its_true_one_on_other_tokens():
    pair = TokenPair(rule=3, queries=(10, 11), keys=(4,), weight=2.0)
    found = random_pairs(
        [pair], np.full((20, 20), 0.05), special=[place in (0, 19) for place in range(20)], reach=CAUSAL,
        random=np.random.default_rng(0),
    )  # fmt: skip
    (swap,) = found
    assert swap.random is not None
    assert distance(swap.random) == distance(pair)
    assert len(swap.random.queries) == 2 and len(swap.random.keys) == 1
    assert not set(swap.random.queries + swap.random.keys) & {0, 19, 10, 11, 4}
    assert (swap.random.rule, swap.random.weight) == (3, 2.0)
    assert swap.near and swap.same_distance


def test_the_base_mass_decides_among_places():
    attention = np.full((30, 30), 0.001)
    attention[20, 5] = 0.5
    attention[25, 10] = 0.52  # the only other place 15 tokens apart with about as much
    found = random_pairs(
        [TokenPair(rule=0, queries=(20,), keys=(5,))], attention, special=[False] * 30, reach=CAUSAL,
        random=np.random.default_rng(1),
    )  # fmt: skip
    assert found[0].random is not None and found[0].random.queries == (25,) and found[0].near


def test_where_no_place_has_the_mass_the_nearest_is_taken_and_counted_as_not_near():
    attention = np.full((30, 30), 0.001)
    attention[20, 5] = 0.5
    found = random_pairs(
        [TokenPair(rule=0, queries=(20,), keys=(5,))], attention, special=[False] * 30, reach=CAUSAL,
        random=np.random.default_rng(1),
    )  # fmt: skip
    assert found[0].random is not None and not found[0].near
    assert control_facts(found).near == 0.0


def test_where_no_place_is_as_far_apart_the_nearest_distance_is_taken_in_the_same_order():
    pair = TokenPair(rule=0, queries=(9,), keys=(0,))
    (swap,) = random_pairs([pair], uniform(10), special=[False] * 10, reach=CAUSAL, random=np.random.default_rng(0))
    assert swap.random is not None and distance(swap.random) == -7 and not swap.same_distance


def test_a_text_without_room_gives_none_and_is_counted():
    pair = TokenPair(rule=0, queries=(1,), keys=(0,))
    (swap,) = random_pairs([pair], uniform(3), special=[False] * 3, reach=CAUSAL, random=np.random.default_rng(0))
    assert swap.random is None
    assert control_facts([swap]).without == 1


def test_a_seed_repeats_the_control_and_another_draws_another():
    pairs = [TokenPair(rule=0, queries=(place,), keys=(place - 3,)) for place in (30, 60, 90)]
    draws = [
        [swap.random for swap in random_pairs(
            pairs, np.full((120, 120), 0.01), special=[False] * 120, reach=CAUSAL, random=np.random.default_rng(seed)
        )]
        for seed in (5, 5, 6)
    ]  # fmt: skip
    assert draws[0] == draws[1] != draws[2]


def test_no_random_pair_touches_any_true_pair_of_the_text():
    pairs = [TokenPair(rule=0, queries=(8,), keys=(5,)), TokenPair(rule=1, queries=(14,), keys=(11,))]
    for seed in range(20):
        swaps = random_pairs(
            pairs, np.full((24, 24), 0.01), special=[False] * 24, reach=CAUSAL, random=np.random.default_rng(seed)
        )
        for swap in swaps:
            assert swap.random is not None
            assert not {*swap.random.queries, *swap.random.keys} & {5, 8, 11, 14}
