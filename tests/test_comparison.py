"""Two models on the same cases: an adapter that does nothing gives 0 everywhere, one that does is found and tested."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import peft
import pytest
import torch

from probe.capture import prepare
from probe.cases import CaseSet, case_of
from probe.comparison import (
    Comparison,
    by_depth,
    comparison_results,
    cut_gaps,
    head_gaps,
    paired_cuts,
    token_counts,
)
from probe.comparison_pieces import piece_row, pieces_of
from probe.comparison_study import run_comparison
from probe.errors import CasesError
from probe.experiments.causes import CutEffects
from probe.findings import MASS_ON_CUE, Observed
from probe.labels import Layer
from probe.measures.focus import FOCUS
from probe.models import load_model, model_from_parts
from probe.observing import StudySettings
from probe.runs import open_run
from probe.spans import tokenize
from tests.planted import planted_cases
from tests.test_study import words_of
from tests.tiny import (
    FAMILIES,
    byte_fallback_tokenizer,
    byte_level_tokenizer,
    tiny_bert,
    tiny_gpt2,
    tiny_llama,
    wordpiece_tokenizer,
)

TEXT = "我喜欢苹果但讨厌梨子"


def parts(family, name, **changes):
    model, tokenizer = FAMILIES[family](head=False, **changes)
    return model_from_parts(model, tokenizer, name=name)


def compare(a, b, path, cases=None, **settings):
    with open_run(path) as folder:
        run_comparison(a, b, cases or planted_cases(), settings=StudySettings(**settings), folder=folder)
    return path


def with_adapter(model, *, zero):
    config = peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="FEATURE_EXTRACTION")
    torch.manual_seed(5)
    adapted = peft.get_peft_model(model, config).eval()  # B is zero as PEFT makes it
    if not zero:
        with torch.no_grad():
            for name, weight in adapted.named_parameters():
                if "lora_B" in name:
                    weight.normal_(0, 0.5)
    return adapted


# --- base and adapter -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A base and two adapters of it on disk, as a user has them: one that does nothing and one that does."""
    place = tmp_path_factory.mktemp("models")
    tiny_bert(place)
    import transformers

    for name, zero in (("zero", True), ("changed", False)):
        base = transformers.AutoModel.from_pretrained(place / "bert")
        with_adapter(base, zero=zero).save_pretrained(place / name)
    return place


@pytest.fixture(scope="module")
def zero(folders, tmp_path_factory):
    a, b = load_model(folders / "bert"), load_model(folders / "zero")
    return compare(a, b, tmp_path_factory.mktemp("zero") / "run")


@pytest.fixture(scope="module")
def changed(folders, tmp_path_factory):
    a, b = load_model(folders / "bert"), load_model(folders / "changed")
    return compare(a, b, tmp_path_factory.mktemp("changed") / "run")


def test_an_adapter_that_does_nothing_differs_from_its_base_by_exactly_0_everywhere(zero):
    results = pd.read_parquet(zero / "tables/results.parquet")
    gaps = results[results["model"] == "B − A"]
    defined = gaps[gaps["n"] > 0]
    assert set(defined["measure"]) >= {"attention mass", "entropy", "cue rank", "cut effect"}
    assert (defined[["estimate", "low", "high"]] == 0).all().all()
    observations = pd.read_parquet(zero / "tables/observations.parquet")
    values = [part.drop(columns="model").reset_index(drop=True) for _, part in observations.groupby("model")]
    assert len(values) == 2 and len(values[0]) > 1000
    pd.testing.assert_frame_equal(*values, check_exact=True)
    assert "every difference is exactly 0" in words_of(zero) and "exactly the same" in words_of(zero)


def test_an_exact_zero_is_drawn_as_zero_and_not_as_a_small_number(zero, changed):
    drawn = [(path / "figures/map_cue_difference.png").read_bytes() for path in (zero, changed)]
    assert drawn[0] != drawn[1]
    results = pd.read_csv(zero / "tables/results.csv")
    zeros = results[(results["model"] == "B − A") & (results["n"] > 0)]["estimate"]
    assert {str(value).lstrip("-") for value in zeros} == {"0.0"}


def test_an_adapter_that_does_something_is_said_to(changed):
    results = pd.read_parquet(changed / "tables/results.parquet")
    gaps = results[(results["model"] == "B − A") & (results["measure"] == "attention mass")]
    assert gaps["estimate"].abs().max() > 0.01
    cut = results[(results["model"] == "B − A") & (results["measure"] == "cut effect")]
    assert sorted(cut["contrast"]) == ["B − A", "B − A", "B − A, cue − control"] and (cut["estimate"] != 0).all()
    text = words_of(changed)
    assert "every difference is exactly 0" not in text
    assert "fewer than 20 distinct cue words" in text, "twelve cues are described, not tested"
    assert gaps["p_max"].isna().all()


def test_the_run_folder_is_that_of_a_report_with_both_models_in_one_table(changed):
    observations = pd.read_parquet(changed / "tables/observations.parquet")
    assert list(observations["model"].unique()) == ["bert", "changed"]
    manifest = json.loads((changed / "manifest.json").read_text())
    assert set(manifest["model"]) == {"A", "B"} and manifest["data"]["cases"] == 12
    assert manifest["model"]["A"]["fingerprint"] != manifest["model"]["B"]["fingerprint"]
    pictures = {path.name for path in (changed / "figures").glob("*.png")}
    assert {"map_cue_a.png", "map_cue_b.png", "map_cue_difference.png", "cut_effect.png"} <= pictures
    assert len(pictures) <= 12
    text = words_of(changed)
    assert "A is bert, B is changed" in text and "nan" not in text.lower().split()


def test_the_gap_is_that_of_the_two_models_own_numbers(changed):
    observations = pd.read_parquet(changed / "tables/observations.parquet")
    mass = observations[
        (observations["measure"] == "attention mass") & (observations["query"] == "target")
        & (observations["key"] == "cue") & (observations["layer"] == 1) & (observations["head"] == 2)
    ]  # fmt: skip
    by_case = mass.pivot(index="case", columns="model", values="value")
    results = pd.read_parquet(changed / "tables/results.parquet")
    row = results[
        (results["model"] == "B − A") & (results["measure"] == "attention mass") & (results["query"] == "target")
        & (results["key"] == "cue") & (results["layer"] == 1) & (results["head"] == 2)
    ]  # fmt: skip
    assert row["estimate"].item() == pytest.approx((by_case["changed"] - by_case["bert"]).mean(), abs=1e-6)
    assert row["control"].item() == pytest.approx(by_case["bert"].mean(), abs=1e-6)


def test_the_same_comparison_gives_the_same_bytes(folders, changed, tmp_path):
    again = compare(load_model(folders / "bert"), load_model(folders / "changed"), tmp_path / "again")
    files = [path.relative_to(changed) for path in changed.rglob("*") if path.is_file()]
    assert len(files) > 8
    for name in files:
        if name.name != "manifest.json":
            assert (changed / name).read_bytes() == (again / name).read_bytes(), name


def test_two_models_of_one_name_are_told_apart(tmp_path):
    path = compare(parts("bert", "same"), parts("bert", "same", seed=1), tmp_path / "run")
    observations = pd.read_parquet(path / "tables/observations.parquet")
    assert list(observations["model"].unique()) == ["same (A)", "same (B)"]


# --- models that are not alike ----------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["en", "zh"])
def test_models_with_other_layers_and_tokens_are_compared_by_relative_depth(language, tmp_path):
    a, b = parts("bert", "bert", num_hidden_layers=5), parts("gpt2", "gpt2")
    path = compare(a, b, tmp_path / "run", language=language)
    results = pd.read_csv(path / "tables/results.csv")
    gaps = results[results["model"] == "B − A"]
    assert (gaps["layer"] == -1).all() and set(gaps["measure"]) == {"cut effect"}
    pictures = {picture.name for picture in (path / "figures").glob("*.png")}
    assert pictures == {"cut_effect.png", "mass_on_cue.png"}
    said = {"en": "head and head cannot be paired", "zh": "头与头无法配对"}
    assert said[language] in words_of(path)
    cases = pd.read_csv(path / "tables/cases.csv")
    assert (cases["target tokens A"] == 2).all() and (cases["target tokens B"] == 1).all()


def test_a_model_whose_edges_cannot_be_cut_is_compared_without_and_that_is_said(tmp_path):
    import transformers

    tokenizer = byte_level_tokenizer(start=None, end="<|endoftext|>", pad="<|pad|>")
    config = transformers.BloomConfig(vocab_size=len(tokenizer), hidden_size=32, n_layer=2, n_head=4)
    bloom = model_from_parts(transformers.BloomModel(config), tokenizer, name="bloom")
    path = compare(parts("bert", "bert"), bloom, tmp_path / "run")
    assert "Effects of cut edges are not compared (B: " in words_of(path)
    assert "cut effect" not in set(pd.read_csv(path / "tables/results.csv").query("model == 'B − A'")["measure"])


@pytest.mark.parametrize("cue", [["喜欢"], []])
def test_a_single_case_with_or_without_a_cue_makes_a_page_and_no_nonsense(cue, tmp_path):
    cases = CaseSet(name="one", cases=(case_of(TEXT, target="苹果", cues=cue, id="one"),))
    path = compare(parts("bert", "a"), parts("bert", "b", seed=1), tmp_path / "run", cases)
    text = words_of(path)
    assert "nan" not in text.lower().split()
    assert ("too few units for an interval" if cue else "no case has an edge to cut in both") in text


def test_an_edge_that_is_not_the_same_in_both_is_no_pair(tmp_path):
    cases = CaseSet(
        name="both",
        cases=(
            case_of("我喜欢苹果", target="苹果", cues=["喜欢"], id="before"),
            case_of("苹果手机", target="苹果", cues=["手机"], id="after"),
        ),
    )
    path = compare(parts("bert", "bert"), parts("llama", "llama"), tmp_path / "run", cases)
    results = pd.read_csv(path / "tables/results.csv").query("model == 'B − A' and key == 'cue'")
    assert results["n"].tolist() == [1]
    assert "In 1 cases the edge that can be cut is not the same one" in words_of(path)


def test_a_case_that_was_cut_to_another_text_in_one_of_the_two_is_not_compared(tmp_path):
    long = case_of("我" * 100 + "喜欢苹果", target="苹果", cues=["喜欢"], id="long")
    short = case_of("我喜欢苹果", target="苹果", cues=["喜欢"], id="short")
    models = parts("bert", "bert"), parts("llama", "llama")
    for name, cases in (("both", (long, short)), ("none", (long,))):
        path = compare(*models, tmp_path / name, CaseSet(name=name, cases=cases), cut_to_fit=True)
        assert pd.read_csv(path / "tables/cases.csv").set_index("case")["compared"].to_dict() == {
            case.id: case is short for case in cases
        }
        text = words_of(path)
        assert f"same {len(cases)} cases; {len(cases) - 1} of them are compared" in text
        assert "nan" not in text.lower().split()
        gaps = pd.read_csv(path / "tables/results.csv").query("model == 'B − A' and key == 'cue'")
        assert (gaps["n"] <= 1).all() and len(gaps) == (1 if name == "both" else 0)


def test_a_one_layer_model_and_an_encoder_decoder_are_compared(tmp_path):
    one = parts("bert", "one", num_hidden_layers=1)
    path = compare(one, parts("t5", "t5"), tmp_path / "run", language="zh")
    assert "nan" not in words_of(path).lower().split()
    assert {picture.name for picture in (path / "figures").glob("*.png")} == {"cut_effect.png", "mass_on_cue.png"}
    same = compare(parts("t5", "t5"), parts("t5", "t5b", seed=1), tmp_path / "same")
    assert (same / "figures/map_back_difference.png").is_file()


def test_a_failure_leaves_nothing_behind(tmp_path):
    with pytest.raises(Exception, match="99"):
        compare(parts("bert", "a"), parts("bert", "b"), tmp_path / "run", layers=frozenset({99}))
    assert list(tmp_path.iterdir()) == []


# --- the numbers by themselves ----------------------------------------------------------------------------------


def observed(values, *, name, effects=None, cues=None):
    """An Observed with mass target → cue [case, layer, head] and effects [case] set by hand."""
    _, tokenizer = tiny_bert()
    loaded = model_from_parts(tiny_bert(head=False)[0], tokenizer, name="t")
    words = cues or [chr(ord("a") + number) for number in range(len(values))]
    cases = [case_of(f"{word}苹果", target="苹果", cues=[word], id=str(n)) for n, word in enumerate(words)]
    grid = np.full((len(values), len(FOCUS), *values.shape[1:]), np.nan, dtype=np.float32)
    grid[:, FOCUS.index(MASS_ON_CUE)] = values
    cuts = None
    if effects is not None:
        table = np.stack([effects, effects / 2], axis=1).astype(np.float32)
        cuts = CutEffects(
            layers=(0,), stack="encoder", directions=("target → cue",) * len(values), cue=table,
            control=np.full_like(table, 0.1), last=np.zeros((len(values), 3, 1), dtype=np.float32),
        )  # fmt: skip
    return Observed(
        model=name, items=prepare(loaded, cases), focus=grid, cuts=cuts, target_rows={}, seed=0,
        layers=tuple(Layer("encoder", index, f"layer.{index}") for index in range(values.shape[1])),
        heads=tuple(range(values.shape[2])), cut_cases=tuple(range(len(values))) if cuts else (),
    )  # fmt: skip


def filled(carrier, values):
    """The same cases with other numbers, without preparing them again."""
    grid = carrier.focus.copy()
    grid[:, FOCUS.index(MASS_ON_CUE)] = values
    return replace(carrier, focus=grid)


def test_the_one_head_that_differs_is_claimed_and_no_other():
    rng = np.random.default_rng(0)
    a = rng.uniform(0.1, 0.4, (24, 2, 3))
    b = a + rng.normal(0, 0.01, a.shape)
    b[:, 1, 2] += 0.2
    gaps = head_gaps(Comparison(a=observed(a, name="a"), b=observed(b, name="b")))
    forward, back = gaps
    assert np.argwhere(forward.p_max < 0.05).tolist() == [[1, 2]]
    assert forward.found.mean[1, 2] == pytest.approx(0.2, abs=0.02) and forward.found.low[1, 2] > 0.15
    assert np.isnan(back.p_max).all() and (back.found.units == 0).all()


def test_fewer_than_twenty_cue_words_are_described_and_not_tested():
    a = np.random.default_rng(0).uniform(0.1, 0.4, (24, 2, 3))
    words = [chr(ord("a") + number % 19) for number in range(24)]  # 24 cases, 19 words
    forward, _ = head_gaps(Comparison(a=observed(a, name="a", cues=words), b=observed(a + 0.1, name="b", cues=words)))
    assert np.isnan(forward.p_max).all() and (forward.found.units == 19).all()
    assert forward.found.mean == pytest.approx(0.1)


def test_exchanged_models_are_rarely_told_apart():
    claims, carrier = 0, observed(np.zeros((20, 2, 3)), name="x")
    for seed in range(40):
        rng = np.random.default_rng(seed)
        a, b = (filled(carrier, values) for values in rng.uniform(0.1, 0.4, (2, 20, 2, 3)))
        claims += bool((head_gaps(Comparison(a=a, b=b))[0].p_max < 0.05).any())
    assert claims <= 6


def test_effects_are_paired_and_their_difference_has_an_interval():
    mass = np.zeros((5, 1, 1))
    effects, more = np.array([0.2, 0.4, 0.6, 0.8, 0.5]), np.array([0.1, 0.1, 0.3, 0.3, 0.2])
    pair = Comparison(a=observed(mass, name="a", effects=effects), b=observed(mass, name="b", effects=effects + more))
    cue, control, over = cut_gaps(pair)
    assert cue.gap.mean == pytest.approx(0.2) and cue.gap.low >= 0.1 - 1e-6 and cue.gap.high <= 0.3 + 1e-6
    assert (control.gap.mean, control.gap.low, control.gap.high) == (0, 0, 0)
    assert over.a.mean == pytest.approx(0.4) and over.b.mean == pytest.approx(0.6) and over.cases == 5
    assert paired_cuts(pair) == [0, 1, 2, 3, 4]
    some = cut_gaps(pair, among=np.array([True, False, False, False, False]))
    assert some[0].gap.mean == pytest.approx(0.1) and np.isnan(some[0].gap.low)


def test_depth_runs_from_0_to_1_in_models_of_other_depths():
    a, b = observed(np.ones((2, 2, 1)), name="a"), observed(np.ones((2, 5, 1)), name="b")
    frame = by_depth(Comparison(a=a, b=b), "mass")
    assert frame[frame["side"] == "A"]["depth"].tolist() == [0.0, 1.0]
    assert frame[frame["side"] == "B"]["depth"].tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    alone = by_depth(Comparison(a=observed(np.ones((2, 1, 1)), name="a"), b=b), "mass")
    assert alone[alone["side"] == "A"]["depth"].tolist() == [0.0]


def test_models_of_other_shapes_have_no_head_gaps_and_no_such_rows():
    pair = Comparison(a=observed(np.ones((2, 2, 1)), name="a"), b=observed(np.ones((2, 3, 1)), name="b"))
    assert head_gaps(pair) == () and not pair.same_heads
    assert set(comparison_results(pair, (), ())["model"]) == {"a", "b"}


def test_other_cases_are_refused():
    with pytest.raises(CasesError, match="not shown the same cases"):
        Comparison(a=observed(np.ones((2, 1, 1)), name="a"), b=observed(np.ones((3, 1, 1)), name="b"))


# --- rows aligned by text ---------------------------------------------------------------------------------------

TOKENIZERS = {
    "wordpiece": wordpiece_tokenizer,
    "bytes": lambda: byte_level_tokenizer(start=None, end="<|endoftext|>", pad="<|pad|>"),
    "fallback": byte_fallback_tokenizer,
}


@pytest.mark.parametrize("other", ["bytes", "fallback"])
@pytest.mark.parametrize("text", [TEXT, "I like apple pie, not iPhone 15.", "𠮷苹果🍎", " 苹果  手机 "])
def test_every_token_of_both_stands_in_exactly_one_piece_and_rows_still_sum_to_one(text, other):
    one, two = tokenize(TOKENIZERS["wordpiece"](), text), tokenize(TOKENIZERS[other](), text)
    pieces = pieces_of(one, two)
    for side, tokens in (("A", one), ("B", two)):
        held = [token for piece in pieces for token in piece.tokens(side)]
        assert sorted(held) == list(range(len(tokens.ids)))
        row = np.random.default_rng(0).dirichlet(np.ones(len(tokens.ids)), (2, 3)).astype(np.float32)
        assert piece_row(row, pieces, side).sum(-1) == pytest.approx(1, abs=1e-5)
    spans = [piece.span for piece in pieces if piece.span]
    assert all(left.end <= right.start for left, right in itertools.pairwise(spans))


def test_pieces_are_the_smallest_slices_that_are_whole_tokens_in_both():
    one, two = tokenize(wordpiece_tokenizer(), "我喜欢苹果"), tokenize(byte_fallback_tokenizer(), "我喜欢苹果")
    pieces = pieces_of(one, two)
    assert [piece.span.cut(one.text) if piece.span else None for piece in pieces] == [None, "我", "喜欢", "苹果"]
    assert [len(piece.a) for piece in pieces] == [2, 1, 2, 2] and [len(piece.b) for piece in pieces][1:] == [1, 1, 1]


def test_tokens_are_counted_in_both():
    cases = [case_of("我喜欢苹果", target="苹果", cues=["喜欢"], id="one")]
    items = [
        prepare(model_from_parts(*build(head=False), name="t"), cases) for build in (tiny_bert, tiny_gpt2, tiny_llama)
    ]
    empty = observed(np.zeros((1, 1, 1)), name="x")
    pair = Comparison(a=replace(empty, items=items[0]), b=replace(empty, items=items[1]))
    target, cue, text = token_counts(pair)
    assert (target.a, target.b, target.differ, target.cases) == (2, 1, 1, 1)
    assert (cue.a, cue.b) == (2, 6) and text.a == 7
    assert not pair.same_tokens.any() and pair.same_text.all()


@pytest.mark.parametrize(("target", "sink"), [("苹果", 0), ("我", None)])
def test_the_first_token_of_a_decoder_is_marked_as_the_sink_it_is(target, sink, tmp_path):
    cases = CaseSet(name="one", cases=(case_of("我喜欢苹果", target=target, id="one"),))
    path = compare(parts("gpt2", "a"), parts("gpt2", "b", seed=1), tmp_path / "run", cases)
    assert f'"sink":{-1 if sink is None else sink}' in (path / "report.html").read_text()
