"""Attention of two arms against each other: the same rows, the same items, and an exact zero is exactly zero."""

import numpy as np
import pandas as pd
import pytest

from finetune.compare.attention import (
    DIFFERENCE_COLUMNS,
    MAPS_OF_ARMS,
    MEAN_COLUMNS,
    common_items,
    differences_of,
    grid_of,
    means_of,
    steps_of,
    way_of,
)
from finetune.compare.items import UNTRAINED
from finetune.errors import DataError


def rows(arm, seed, values, *, role="pair", layer=0, head=0):
    """A row an item, named a, b, …; None leaves the item out."""
    named = zip("abcdefgh", values, strict=False)
    return [(arm, seed, item, role, layer, head, value) for item, value in named if value is not None]


def maps(*parts):
    return pd.DataFrame([row for part in parts for row in part], columns=list(MAPS_OF_ARMS))


def test_a_difference_is_over_the_items_that_both_arms_have_and_they_are_counted() -> None:
    frame = maps(rows("base", UNTRAINED, [0.1, 0.2, 0.9, None]), rows("lora", 0, [0.4, 0.3, None, 0.8]))
    (row,) = differences_of(frame, [("lora", "base")]).to_dict("records")
    assert row["difference"] == pytest.approx(((0.4 - 0.1) + (0.3 - 0.2)) / 2)
    assert (row["arm_value"], row["against_value"]) == pytest.approx((0.35, 0.15))
    assert (row["items"], row["items_left_out"], row["seeds"]) == (2, 2, 1)
    assert differences_of(frame, [("lora", "base")]).columns.tolist() == list(DIFFERENCE_COLUMNS)


def test_the_base_stands_beside_every_seed_and_trained_arms_are_paired_seed_by_seed() -> None:
    parts = [rows("base", UNTRAINED, [0.1, 0.1]), rows("lora", 0, [0.2, 0.3]), rows("lora", 1, [0.4, 0.5])]
    parts += [rows("lora-attention", 1, [0.9, 0.6]), rows("lora-attention", 2, [0.0, 0.0])]
    found = differences_of(maps(*parts), [("lora", "base"), ("lora-attention", "lora"), ("base", "lora")])
    first, second, third = found.to_dict("records")
    assert first["difference"] == pytest.approx(np.mean([0.1, 0.2, 0.3, 0.4])) and first["seeds"] == 2
    assert second["difference"] == pytest.approx(np.mean([0.5, 0.1])) and second["seeds"] == 1
    assert third["difference"] == -first["difference"]


def test_an_item_that_one_seed_lacks_is_in_no_mean_and_no_difference() -> None:
    parts = [rows("base", UNTRAINED, [0.1, 0.1]), rows("lora", 0, [0.2, 0.3]), rows("lora", 1, [0.4, None])]
    (row,) = differences_of(maps(*parts), [("lora", "base")]).to_dict("records")
    assert row["difference"] == pytest.approx((0.1 + 0.3) / 2) and (row["items"], row["items_left_out"]) == (1, 1)
    means = means_of(maps(*parts)).set_index("arm")
    assert means.loc["lora", "value"] == pytest.approx(0.3) and means.loc["lora", "items"] == 1
    assert means.loc["base", "value"] == pytest.approx(0.1) and means.loc["base", "items"] == 2
    assert means.reset_index().columns.size == len(MEAN_COLUMNS) and means.loc["base", "seeds"] == 0


def test_arms_that_give_the_same_numbers_differ_by_exactly_0_in_every_head() -> None:
    random = np.random.default_rng(0)
    index = [(item, layer, head) for item in "abcdefg" for layer in range(3) for head in range(2)]
    values = random.beta(0.1, 3, len(index))
    parts = [
        [
            (arm, seed, item, "pair", layer, head, value)
            for (item, layer, head), value in zip(index, values, strict=True)
        ]
        for arm, seed in (("base", UNTRAINED), ("lora", 0), ("lora", 1), ("lora", 2))
    ]
    found = differences_of(maps(*parts), [("lora", "base")])
    assert (found["difference"] == 0).all() and len(found) == 6
    moved = [(*row[:-1], row[-1] + 1e-12) if row[4:6] == (2, 1) else row for row in parts[3]]
    grid = grid_of(
        differences_of(maps(*parts[:3], moved), [("lora", "base")]), "difference", layers=range(3), heads=range(2)
    )
    assert grid[2, 1] > 0 and (grid.ravel()[:-1] == 0).all()


def test_what_was_not_measured_is_nan_and_not_0() -> None:
    parts = [rows("base", UNTRAINED, [0.0]), rows("base", UNTRAINED, [0.3], layer=4, head=1), rows("lora", 0, [0.0])]
    grid = grid_of(differences_of(maps(*parts), [("lora", "base")]), "difference", layers=[0, 4], heads=[0, 1])
    assert grid[0, 0] == 0 and np.isnan(grid[[0, 1, 1], [1, 0, 1]]).all()
    wider = grid_of(means_of(maps(rows("base", UNTRAINED, [0.2]))), "value", layers=[0, 1], heads=[0])
    assert wider[0, 0] == 0.2 and np.isnan(wider[1, 0])


def test_differences_agree_with_a_loop_over_rows() -> None:
    random = np.random.default_rng(3)
    parts = []
    for arm, seeds in (("base", [UNTRAINED]), ("lora", [0, 1, 2]), ("lora-random", [1, 2, 3])):
        for seed in seeds:
            for layer in range(2):
                values = [None if random.random() < 0.15 else random.random() for _ in range(8)]
                parts.append(rows(arm, seed, values, layer=layer, head=layer))
    frame = maps(*parts)
    table = {tuple(row[:6]): row[6] for row in frame.itertuples(index=False)}
    for arm, against, seeds in (("lora", "base", [0, 1, 2]), ("lora-random", "lora", [1, 2])):
        found = differences_of(frame, [(arm, against)]).set_index(["layer", "head"])
        for layer in range(2):
            kept = []
            for item in "abcdefgh":
                pairs = [
                    (
                        table.get((arm, seed, item, "pair", layer, layer)),
                        table.get((against, UNTRAINED if against == "base" else seed, item, "pair", layer, layer)),
                    )
                    for seed in seeds
                ]
                if all(value is not None for pair in pairs for value in pair):
                    kept.append(np.mean([one - other for one, other in pairs]))
            assert found.loc[(layer, layer), "difference"] == pytest.approx(np.mean(kept), abs=1e-12)
            assert found.loc[(layer, layer), "items"] == len(kept)
        assert found["items_left_out"].nunique() == 1


def test_roles_are_kept_apart_and_a_step_without_a_common_item_or_seed_is_left_out() -> None:
    parts = [rows("base", UNTRAINED, [0.1], role="pair"), rows("lora", 0, [0.3], role="pair")]
    parts += [rows("base", UNTRAINED, [None, 0.2], role="passage"), rows("lora", 0, [0.9], role="passage")]
    parts += [rows("full", 7, [0.5], role="pair")]
    found = differences_of(maps(*parts), [("lora", "base"), ("full", "lora"), ("rag", "base")])
    assert [(row["role"], row["arm"]) for row in found.to_dict("records")] == [("pair", "lora")]
    nothing = differences_of(maps(), [("lora", "base")])
    assert nothing.empty and nothing.columns.tolist() == list(DIFFERENCE_COLUMNS)
    assert means_of(maps()).columns.tolist() == list(MEAN_COLUMNS)


def test_maps_side_by_side_are_of_the_items_that_all_of_their_arms_have() -> None:
    parts = [rows("base", UNTRAINED, [0.1, 0.5, 0.7]), rows("lora", 0, [0.3, 0.1]), rows("rag", UNTRAINED, [0.9])]
    kept = common_items(maps(*parts), ["base", "lora"])
    assert set(kept["item"]) == {"a", "b"} and set(kept["arm"]) == {"base", "lora"}
    assert set(common_items(maps(*parts), ["base", "lora", "rag"])["item"]) == {"a"}


@pytest.mark.parametrize(
    ("arms", "way"),
    [
        (["base", "lora", "rag", "lora-rag"], ("base", "lora", "lora-rag")),
        (["base", "lora", "lora-attention", "lora-rag", "lora-attention-rag"],
         ("base", "lora-attention", "lora-attention-rag")),
        (["base", "lora-random", "lora", "lora-attention"], ("base", "lora-attention")),
        (["base", "rag"], ("base", "rag")),
        (["base", "gloss"], ("base",)),
        (["lora"], ()),
    ],
)  # fmt: skip
def test_the_way_leads_from_base_over_adapted_to_injected(arms, way) -> None:
    assert way_of(arms) == way


def test_the_steps_begin_with_the_way_then_the_claim_and_end_with_all_others() -> None:
    arms = ["base", "rag", "lora", "lora-attention", "lora-random", "lora-rag", "edge-bias"]
    assert steps_of(arms) == (
        ("lora", "base"), ("lora-rag", "lora"), ("lora-attention", "lora-random"), ("rag", "base"),
        ("lora-attention", "base"), ("lora-random", "base"), ("edge-bias", "base"),
    )  # fmt: skip
    assert steps_of(["lora", "rag"]) == () and steps_of(["base"]) == ()


def test_a_table_that_is_no_map_and_an_item_that_stands_twice_are_refused() -> None:
    with pytest.raises(DataError, match="lacks the columns role, value"):
        means_of(maps().drop(columns=["role", "value"]))
    with pytest.raises(DataError, match="item a stands twice in arm base, seed -1, layer 0, head 0"):
        means_of(maps(rows("base", UNTRAINED, [0.1]), rows("base", UNTRAINED, [0.1])))
