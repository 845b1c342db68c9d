"""The textbook example, held against numbers worked by hand; the softmax and the single map against known cases."""

import numpy as np
import pytest
from scipy.optimize import check_grad

from probe.errors import CijingError
from probe.worked import (
    attention_step,
    best_single_map,
    entropy_share,
    head_steps,
    sinusoidal_rows,
    softmax,
    softmax_growth,
    worked_example,
)


def test_every_number_of_the_example_is_right_to_the_digit() -> None:
    example = worked_example()
    found = attention_step(example.query, example.keys, example.values)
    assert np.allclose(found.scores, [0.36, 0.81, 1.01], rtol=0, atol=1e-12)
    assert np.allclose(found.scaled, [0.18, 0.405, 0.505], rtol=0, atol=1e-12)
    assert found.weights.round(3).tolist() == [0.275, 0.344, 0.381]
    assert found.weights.round(5).tolist() == [0.27500, 0.34439, 0.38061]
    assert found.output.round(5).tolist() == [0.33388, 0.48276, 0.57668, 0.32056]
    assert round(100 * found.entropy, 1) == 99.2


def test_the_articles_output_comes_from_weights_rounded_to_three_digits() -> None:
    example = worked_example()
    rounded = np.array([0.275, 0.344, 0.381]) @ example.values
    assert rounded.round(4).tolist() == [0.3338, 0.4826, 0.5768, 0.3206]


def test_the_example_is_the_articles() -> None:
    example = worked_example()
    assert "".join(example.tokens) == "我喜欢苹果" and example.query.tolist() == [0.1, 0.3, 0.9, 0.4]
    assert example.keys.tolist() == [[0.9, 0.2, 0.1, 0.3], [0.4, 0.8, 0.5, 0.2], [0.2, 0.1, 0.8, 0.6]]
    assert example.values.tolist() == [[0.7, 0.2, 0.1, 0.5], [0.3, 0.8, 0.6, 0.2], [0.1, 0.4, 0.9, 0.3]]
    assert (example.embedding + example.position).round(9).tolist() == [-0.1, 0.6, 1.8, -0.3]


def test_the_true_sinusoidal_rows_are_not_the_illustration() -> None:
    rows = sinusoidal_rows(range(3), 4)
    expected = [[0, 1, 0, 1], [0.8415, 0.5403, 0.0100, 1.0000], [0.9093, -0.4161, 0.0200, 0.9998]]
    assert rows.round(4).tolist() == expected
    assert not np.allclose(rows[2], worked_example().position)


def test_four_heads_have_one_dimension_each_and_divide_by_one() -> None:
    heads = head_steps(worked_example(), 4)
    first = heads[0]  # query 0.1; keys 0.9, 0.4, 0.2; values 0.7, 0.3, 0.1
    powers = np.exp([0.09, 0.04, 0.02])
    assert np.allclose(first.scaled, [0.09, 0.04, 0.02], atol=1e-12)
    assert np.allclose(first.output, [(powers / powers.sum()) @ [0.7, 0.3, 0.1]], atol=1e-12)
    assert len(heads) == 4 and all(head.output.shape == (1,) for head in heads)
    (whole,) = head_steps(worked_example(), 1)
    assert whole.output.round(5).tolist() == [0.33388, 0.48276, 0.57668, 0.32056]


@pytest.mark.parametrize("heads", [0, 3, 8])
def test_heads_that_cannot_share_the_dimensions_are_refused(heads: int) -> None:
    with pytest.raises(CijingError, match="divisors of 4"):
        head_steps(worked_example(), heads)


@pytest.mark.parametrize("shapes", [((3,), (2, 4), (2, 4)), ((4,), (2, 4), (3, 4)), ((4,), (0, 4), (0, 4))])
def test_shapes_that_do_not_fit_are_refused(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(CijingError, match="allowed are"):
        attention_step(*(np.ones(shape) for shape in shapes))


def test_entropy_is_one_for_uniform_and_zero_for_a_single_key() -> None:
    assert np.allclose(entropy_share([[0.25] * 4, [1, 0, 0, 0]]), [1.0, 0.0])
    assert np.isclose(entropy_share([0.5, 0.5, 0, 0]), 0.5)  # one bit of two


def test_undivided_the_softmax_hardens_and_its_gradient_vanishes_divided_it_does_not() -> None:
    found = {(one.dim, one.scaled): one for one in softmax_growth((4, 64, 1024), draws=300)}
    for dim in (4, 64, 1024):
        low, high = found[dim, False].spread[1:]
        # the mean of a sample's standard deviation lies a little below the true one: 0.965 of it for eight keys
        assert low < 0.965 * np.sqrt(dim) * 1.03 and high > 0.965 * np.sqrt(dim) * 0.93
    gradients = [found[dim, False].gradient for dim in (4, 64, 1024)]
    assert gradients[0][1] > gradients[1][2] and gradients[1][1] > gradients[2][2]
    assert gradients[2][2] < 0.1 < found[1024, True].gradient[1]
    assert found[1024, False].largest[1] > 0.9 > 0.5 > found[1024, True].largest[2]
    assert found[1024, False].entropy[2] < 0.1 < 0.7 < found[1024, True].entropy[1]


def test_the_same_seed_draws_the_same_and_the_norm_is_that_of_the_true_derivative() -> None:
    assert softmax_growth((16,), draws=5, seed=3) == softmax_growth((16,), draws=5, seed=3)
    assert softmax_growth((16,), draws=5, seed=3) != softmax_growth((16,), draws=5, seed=4)
    scores, p = np.array([0.3, -1.0, 2.0]), softmax([0.3, -1.0, 2.0])
    jacobian = np.diag(p) - np.outer(p, p)
    for key in range(3):
        error = check_grad(lambda s, key=key: softmax(s)[key], lambda s, key=key: jacobian[key], scores)
        assert error < 1e-6


def random_heads(seed: int, heads: int = 3, keys: int = 4, model: int = 6) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.dirichlet(np.ones(keys), heads), random.normal(size=(heads, keys, model))


def test_heads_that_look_alike_are_one_map() -> None:
    rows, writes = random_heads(0)
    same = best_single_map(np.repeat(rows[:1], 3, axis=0), writes)
    assert same.residual < 1e-9 and np.allclose(same.best, rows[0], atol=1e-8) and same.mean_residual < 1e-9


@pytest.mark.parametrize("seed", range(8))
def test_no_row_of_a_fine_grid_is_better_and_the_conditions_of_an_optimum_hold(seed: int) -> None:
    rows, writes = random_heads(seed)
    found = best_single_map(rows, writes)
    together, per_key = np.einsum("hk,hkm->m", rows, writes), writes.sum(axis=0)
    steps = np.array([(a, b, c, 20 - a - b - c) for a in range(21) for b in range(21 - a) for c in range(21 - a - b)])
    grid = np.linalg.norm(steps / 20 @ per_key - together, axis=1) / np.linalg.norm(together)
    assert found.residual <= grid.min() + 1e-9
    slope = per_key @ (found.best @ per_key - together)  # of half the squared distance
    used = found.best > 1e-9
    assert np.allclose(slope[used], slope[used].min(), atol=1e-8) and slope.min() >= slope[used].min() - 1e-8
    assert found.best.min() >= 0 and np.isclose(found.best.sum(), 1)
    assert found.free_residual <= found.residual + 1e-12 <= found.mean_residual + 2e-12


def test_maps_of_other_shapes_and_heads_that_write_nothing_are_refused() -> None:
    with pytest.raises(CijingError, match="allowed are"):
        best_single_map(np.ones((2, 3)), np.ones((2, 4, 5)))
    with pytest.raises(CijingError, match="write nothing"):
        best_single_map(np.ones((2, 3)) / 3, np.zeros((2, 3, 5)))
