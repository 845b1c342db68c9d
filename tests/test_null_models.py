"""The tests of the test in small, and that each of their bounds can be broken."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import null_models
from benchmarks.null_models import (
    SURE_OF_EXCHANGES,
    SURE_OF_SEEDS,
    Line,
    allowed,
    apple_pairs,
    exchanged,
    exit_code,
    family,
    mark_cues,
    masses,
    planted_bert,
    random_bert,
    tables_of,
)
from probe.contrasts import contrasts_of, differences
from probe.findings import Observed
from probe.labels import Layer
from probe.measures.focus import FOCUS
from probe.polysemy import DIRECTIONS, head_contrasts

SMALL = ["--seeds", "3", "--exchanges", "20", "--flips", "500", "--layers", "2", "--heads", "4"]


@pytest.fixture(scope="module")
def material():
    return apple_pairs()


@pytest.mark.real
def test_the_small_preset_keeps_its_bounds_and_the_test_without_max_t_breaks_them(tmp_path, capsys):
    file = tmp_path / "null.json"
    assert null_models.main([*SMALL, "--json", str(file)]) == 0
    written = json.loads(file.read_text("utf-8"))
    assert written["design"] == {"seeds": 3, "exchanges": 20, "flips": 500, "layers": 2, "heads": 4}
    verdicts = [line.pop("verdict") for line in written["lines"]]
    lines = [Line(**line) for line in written["lines"]]
    assert verdicts == [line.verdict for line in lines] == ["kept", "kept", "kept", "", ""]
    assert all(line.test in capsys.readouterr().out for line in lines[:1])
    weights, labels, planted, *_ = lines
    assert planted.found == planted.required == 3
    for line in (weights, labels):
        without = replace(line, found=line.uncorrected)
        assert without.verdict == "BROKEN" and exit_code([planted, without]) == 1


def test_the_bounds_are_those_of_the_design():
    assert allowed(20, sure=SURE_OF_SEEDS) == 3
    assert allowed(200, sure=SURE_OF_EXCHANGES) == 18


def test_too_many_rejections_a_plant_missed_once_and_a_test_without_power_leave_with_one():
    kept = Line(test="t", tries=20, found=3, uncorrected=20, allowed=3)
    assert exit_code([kept, Line(test="t", tries=20, found=9)]) == 0
    assert exit_code([kept, replace(kept, found=4)]) == 1
    assert exit_code([kept, replace(kept, uncorrected=3)]) == 1
    planted = Line(test="t", tries=20, found=20, required=20)
    assert exit_code([planted]) == 0 and exit_code([replace(planted, found=19)]) == 1


@pytest.mark.real
def test_the_family_is_the_one_that_the_report_claims_over(material):
    model = random_bert(material.tokenizer, layers=1, heads=2, seed=0)
    values = masses(model, material.items)
    focus = np.full((len(values), len(FOCUS), *values.shape[2:]), np.nan, dtype=np.float32)
    for place, measure in enumerate(DIRECTIONS):
        focus[:, FOCUS.index(measure)] = values[:, place]
    observed = Observed(
        model="m", items=material.items, layers=(Layer("encoder", 0, "layer.0"),), heads=(0, 1), focus=focus,
        cuts=None, cut_cases=(), target_rows={}, seed=7,
    )  # fmt: skip
    reported = head_contrasts(observed)
    ours = family(values, material.pairs, seed=7, flips=20_000)
    assert [(DIRECTIONS.index(one.measure), one.contrast) for one in reported] == tables_of(material.pairs)
    assert len(reported) == 14 and all(one.tested for one in reported)
    for one, p_max in zip(reported, ours.p_max, strict=True):
        np.testing.assert_array_equal(one.p_max, p_max)


@pytest.mark.real
def test_exchanging_labels_turns_the_sign_of_about_half_of_the_differences_and_nothing_else(material):
    values = np.random.default_rng(0).normal(size=len(material.items))
    pairs = exchanged(material.pairs, seed=1)
    signs = []
    for contrast in contrasts_of(material.pairs):
        before, units = differences(values, material.pairs, contrast)
        after, same = differences(values, pairs, contrast)
        assert units == same
        np.testing.assert_allclose(np.abs(after), np.abs(before))
        signs += list(np.sign(after * before))
    assert 0.4 < np.mean(np.array(signs) < 0) < 0.6
    assert exchanged(material.pairs, seed=2) != pairs


@pytest.mark.real
def test_every_head_but_the_planted_one_has_differences_of_exactly_zero(material):
    contrast = contrasts_of(material.pairs)[0]
    model = planted_bert(material, contrast, layers=3, heads=2)
    mark_cues(model, material, contrast, effect=1.0, seed=0)
    values = masses(model, material.items)
    for place, name in tables_of(material.pairs):
        gaps, _ = differences(values[:, place], material.pairs, name)
        alive = np.argwhere(np.abs(gaps).max(0) > 0).tolist()
        assert alive == ([[2, 1]] if (place, name) == (0, contrast) else [])


@pytest.mark.parametrize("arguments", [["--seeds", "1"], ["--flips", "ten"], ["--json", "/nowhere/at/all.json"]])
def test_impossible_arguments_are_refused_before_anything_runs(arguments):
    with pytest.raises(SystemExit) as refused:
        null_models.main(arguments)
    assert refused.value.code == 2
