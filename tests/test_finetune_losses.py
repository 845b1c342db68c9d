"""Attention losses against numbers worked by hand, and what each of them must not do."""

import math

import pytest
import torch

from finetune.errors import ConfigError
from finetune.losses import LossSettings, Supervised, losses_by_head, pair_losses, reduce_heads


def spans(keys, *, pairs=None, negatives=None, weight=None, items=None):
    """One entry a query token; pairs names the pair of each entry."""
    keys = torch.tensor(keys, dtype=torch.bool)
    pairs = torch.tensor(pairs if pairs is not None else range(len(keys)))
    return Supervised(
        item=torch.tensor(items or [0] * len(keys)), slot=torch.arange(len(keys)), pair=pairs, keys=keys,
        negatives=torch.zeros_like(keys) if negatives is None else torch.tensor(negatives, dtype=torch.bool),
        weight=torch.tensor(weight or [1.0] * (int(pairs.max()) + 1)),
    )  # fmt: skip


def rows(*values):
    """[batch 1, head 1, query, key]."""
    return torch.tensor(values, dtype=torch.float32)[None, None]


ROW = [0.5, 0.3, 0.15, 0.05]


@pytest.mark.parametrize(
    ("name", "numbers", "wanted"),
    [
        ("mass", {"threshold": 1.0}, -math.log(0.2)),
        ("mass", {"threshold": 0.3}, math.log(0.3 / 0.2)),
        ("mass", {"threshold": 0.1}, 0.0),
        ("repel", {}, -math.log(0.8)),
        ("sse", {}, 0.5**2 + 0.3**2 + (0.15 - 0.5) ** 2 + (0.05 - 0.5) ** 2),
        ("mse", {}, (0.5**2 + 0.3**2 + (0.15 - 0.5) ** 2 + (0.05 - 0.5) ** 2) / 4),
        ("kl", {"smoothing": 0.0}, 0.5 * math.log(0.5 / 0.15) + 0.5 * math.log(0.5 / 0.05)),
        (
            "kl",
            {"smoothing": 0.1},
            0.45 * math.log(0.45 / 0.15) + 0.45 * math.log(0.45 / 0.05)
            + 0.05 * math.log(0.05 / 0.5) + 0.05 * math.log(0.05 / 0.3),
        ),
    ],
)  # fmt: skip
def test_a_loss_is_what_its_formula_gives_by_hand(name, numbers, wanted):
    found = losses_by_head(rows(ROW), spans([[0, 0, 1, 1]]), LossSettings(name=name, **numbers))
    assert found.shape == (1, 1)
    assert found.item() == pytest.approx(wanted, rel=1e-6, abs=1e-7)


def test_the_margin_loss_compares_two_spans_and_leaves_pairs_without_negatives_alone():
    both = spans([[0, 0, 1, 1], [0, 0, 1, 1]], negatives=[[1, 0, 0, 0], [0, 0, 0, 0]])
    found = losses_by_head(rows(ROW, ROW), both, LossSettings(name="margin", margin=1.0))
    assert found[0].item() == pytest.approx(1.0 + math.log(0.5) - math.log(0.2), rel=1e-6)
    assert found[1].item() == 0.0


def test_the_anchor_loss_is_zero_on_equal_rows_and_needs_the_base_rows():
    one, settings = spans([[0, 0, 1, 1]]), LossSettings(name="anchor")
    assert losses_by_head(rows(ROW), one, settings, base=rows(ROW)).item() == pytest.approx(0.0, abs=1e-7)
    other = [0.25, 0.25, 0.25, 0.25]
    wanted = sum(0.25 * math.log(0.25 / p) for p in ROW)
    assert losses_by_head(rows(ROW), one, settings, base=rows(other)).item() == pytest.approx(wanted, rel=1e-6)
    with pytest.raises(ConfigError, match="without its adapter"):
        losses_by_head(rows(ROW), one, settings)


def test_a_span_of_two_query_tokens_counts_once_as_their_mean():
    two = spans([[0, 0, 1, 1], [0, 0, 1, 1]], pairs=[0, 0])
    mass = two.mass(rows(ROW, [0.1, 0.1, 0.4, 0.4]))
    assert mass.shape == (1, 1)
    assert mass.item() == pytest.approx((0.2 + 0.8) / 2)


def test_heads_reduce_to_their_mean_or_to_the_best_one():
    losses = torch.tensor([[1.0, 3.0]])
    assert reduce_heads(losses, LossSettings(heads="each")).item() == 2.0
    best = reduce_heads(losses, LossSettings(heads="any", sharpness=100.0)).item()
    assert best == pytest.approx(1.0, abs=0.01)
    equal = torch.tensor([[0.7, 0.7, 0.7]])
    assert reduce_heads(equal, LossSettings(heads="any")).item() == pytest.approx(0.7, rel=1e-5)


def test_the_mean_of_heads_is_taken_of_their_rows_and_not_of_their_losses():
    grid = torch.tensor([[[[0.9, 0.1]], [[0.1, 0.9]]]])  # [1, head 2, query 1, key 2]
    one = spans([[0, 1]])
    mean = pair_losses(grid, one, LossSettings(threshold=1.0, heads="mean"))
    each = pair_losses(grid, one, LossSettings(threshold=1.0, heads="each"))
    assert mean.item() == pytest.approx(-math.log(0.5))
    assert each.item() == pytest.approx(-(math.log(0.1) + math.log(0.9)) / 2)


@pytest.mark.parametrize("name", ["mass", "kl", "sse", "mse", "margin", "repel"])
def test_a_step_against_the_gradient_moves_the_mass_the_right_way(name):
    torch.manual_seed(0)
    scores = torch.randn(1, 2, 1, 6, requires_grad=True)
    one = spans([[0, 0, 1, 1, 0, 0]], negatives=[[1, 0, 0, 0, 0, 0]])
    loss = pair_losses(scores.softmax(-1), one, LossSettings(name=name, threshold=1.0, margin=5.0)).sum()
    (slope,) = torch.autograd.grad(loss, scores)
    before, after = (one.mass(s.softmax(-1)).mean() for s in (scores, scores - 0.1 * slope))
    assert (after < before) if name == "repel" else (after > before)


@pytest.mark.parametrize("name", ["mass", "kl", "sse", "mse", "margin", "repel"])
def test_a_key_that_no_head_can_see_gives_finite_numbers_and_gradients_and_does_not_count(name):
    scores = torch.zeros(1, 2, 1, 4, requires_grad=True)
    hidden = scores.masked_fill(torch.tensor([False, False, True, True]), torch.finfo(torch.float32).min)
    one = spans([[0, 0, 1, 1]], negatives=[[1, 0, 0, 0]])
    row = hidden.softmax(-1)
    loss = pair_losses(row, one, LossSettings(name=name)).sum()
    (slope,) = torch.autograd.grad(loss, scores)
    assert torch.isfinite(loss) and torch.isfinite(slope).all()
    assert not one.reachable(row).any()


def test_gradient_norms_differ_between_losses_as_the_literature_says_so_one_weight_does_not_fit_all():
    scores = torch.zeros(1, 1, 1, 128, requires_grad=True)
    one = spans([[0] * 127 + [1]])
    norms = {}
    for name in ("mass", "sse", "mse"):
        loss = pair_losses(scores.softmax(-1), one, LossSettings(name=name, threshold=1.0)).sum()
        norms[name] = torch.autograd.grad(loss, scores)[0].norm().item()
    assert norms["mass"] > 50 * norms["sse"] > 50 * 50 * norms["mse"]


@pytest.mark.parametrize(
    "wrong", [{"name": "hinge"}, {"heads": "best"}, {"threshold": 0.0}, {"threshold": 1.2}, {"smoothing": -0.1}]
)
def test_numbers_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ConfigError, match="allowed"):
        LossSettings(**wrong)
