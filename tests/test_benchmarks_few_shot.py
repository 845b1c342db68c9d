"""The few-shot benchmark: its sentences under the guards, arms that differ in their loss alone, a plant found."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from guards import distance, neighbour_gain, room_for_controls, shared_frames, twins

from benchmarks import few_shot
from benchmarks.few_shot import Preset, run
from benchmarks.few_shot_arms import (
    ARMS,
    PLAIN,
    RANDOM,
    SUPERVISED,
    Bench,
    Settings,
    learned,
    run_config,
    senses_and_mass,
    senses_of,
    started,
    trained_answers,
)
from benchmarks.few_shot_arms import encoded_cases as encoded
from benchmarks.few_shot_data import OWN, SENSES, apple_halves, drawn, held_out, unit_of, write_examples
from benchmarks.few_shot_rules import bag_of_context, collocation, nearest_centre
from benchmarks.few_shot_table import (
    Answered,
    Difference,
    append_line,
    difference_of,
    holm,
    macro,
    read_lines,
    resampled,
)
from finetune.prepare import prepare_run
from finetune.scoring import class_scores
from finetune.train import make_trainer
from probe.cases import Case, load_cases
from probe.errors import CijingError
from probe.spans import Span
from tests.tiny import CHARACTERS, tiny_bert

# --- the held-out sentences -------------------------------------------------------------------------------------


def followed_by_acid(case):
    return case.text[case.target.end :][:1] == "酸"


def test_each_sense_has_fifty_held_out_sentences_that_stand_nowhere_else():
    cases = held_out()
    assert min(Counter(case.sense for case in cases).values()) >= 50
    assert set(SENSES) == {case.sense for case in cases}
    others = load_cases("apple").cases
    assert not {case.text for case in cases} & {case.text for case in others}
    assert not [pair for pair in twins([*cases, *others]) if any(name.startswith("test-") for name in pair[:2])]


def test_the_held_out_sentences_keep_to_the_guards():
    cases = held_out()
    assert shared_frames(cases)[0] <= 0.05 and twins(cases) == []
    assert all(case.cues and room_for_controls(case) for case in cases)
    assert max(Counter(case.cues[0].cut(case.text) for case in cases).values()) == 1
    before = sum(case.cues[0].start < case.target.start for case in cases)
    assert 0.35 <= before / len(cases) <= 0.65
    assert sum(distance(case) > 0 for case in cases) >= len(cases) / 3


def test_beside_the_acid_that_always_follows_the_neighbours_of_the_target_tell_nothing():
    """Among words before 酸 and among the others; between the two, 2 of 3 is what 酸 itself gives."""
    cases = held_out()
    acids = [case for case in cases if followed_by_acid(case)]
    assert Counter(case.sense for case in acids) == {"acid": 54, "fruit": 27}
    assert neighbour_gain(acids) <= 0.15
    assert neighbour_gain([case for case in cases if not followed_by_acid(case)]) <= 0.15


def test_a_lure_is_a_word_that_stands_in_the_sentence_and_is_no_cue():
    lured = [case for case in held_out() if "lure" in case.meta]
    assert min(Counter(case.sense for case in lured).values()) >= 10
    for case in lured:
        assert case.meta["lure"] in case.text and case.meta["lure"] not in [cue.cut(case.text) for cue in case.cues]


# --- draws ------------------------------------------------------------------------------------------------------


def test_pool_and_development_part_share_no_group_and_the_pool_has_a_dozen_a_sense():
    pool, dev = apple_halves()
    assert not {unit_of(case) for case in pool} & {unit_of(case) for case in dev}
    for part in (pool, dev):
        assert min(Counter(case.sense for case in part).values()) >= 12
    assert all(case.cues for case in pool)


def test_a_draw_has_its_shots_from_different_groups_and_more_shots_hold_the_fewer():
    pool, _ = apple_halves()
    for seed in range(8):
        few, many = (drawn(pool, shots=shots, seed=seed) for shots in (4, 8))
        assert Counter(case.sense for case in many) == dict.fromkeys(SENSES, 8)
        assert len({unit_of(case) for case in many}) == 24
        assert {case.id for case in few} < {case.id for case in many}
    assert drawn(pool, shots=4, seed=0) != drawn(pool, shots=4, seed=1)


def test_a_pool_that_is_too_small_is_refused():
    pool, _ = apple_halves()
    with pytest.raises(ValueError, match="acid: the pool has no 4"):
        drawn([case for case in pool if case.sense == "acid"][:3], shots=4, seed=0)


# --- rules ------------------------------------------------------------------------------------------------------


def sentence(text, sense):
    start = text.index("苹果")
    return Case(id=text, text=text, target=Span(start, start + 2), sense=sense)


def test_the_collocation_rule_takes_what_follows_and_an_unknown_character_speaks_against_acid():
    examples = [sentence(text, sense) for text, sense in (
        ("这是苹果酸", "acid"), ("那是苹果酸", "acid"), ("买苹果吃", "fruit"), ("卖苹果汁", "fruit"),
    )]  # fmt: skip
    asked = [sentence(text, "") for text in ("由苹果酸", "由苹果吃", "由苹果店")]
    assert collocation(examples, asked) == ["acid", "fruit", "fruit"]


def test_where_the_character_after_does_not_decide_the_one_before_does():
    examples = [sentence("买苹果。", "fruit"), sentence("在苹果。", "company")]
    assert collocation(examples, [sentence("在苹果。", ""), sentence("买苹果。", "")]) == ["company", "fruit"]


def test_the_bag_reads_words_on_either_side_and_not_the_target():
    examples = [sentence("果农种了苹果", "fruit"), sentence("他在苹果上班", "company")]
    assert bag_of_context(examples, [sentence("苹果被果农卖了", ""), sentence("上班去苹果", "")]) == [
        "fruit",
        "company",
    ]


def test_the_nearest_centre_is_that_of_the_examples_of_one_sense():
    known = np.array([[1.0, 0], [2, 0], [0, 1], [0, 2]])
    assert nearest_centre(known, ["a", "a", "b", "b"], np.array([[5.0, 0], [0, 5.0]])) == ["a", "b"]


# --- intervals and words ----------------------------------------------------------------------------------------


def made_up(*chances, seed=0, seeds=8, each=30):
    """Answers of as many arms as chances: right with that chance, sentences and seeds of unlike difficulty."""
    chance = np.random.default_rng(seed)
    cases = tuple(
        Case(id=f"{sense}{number}", text=f"苹果{number}", target=Span(0, 2), sense=sense)
        for sense in "abc"
        for number in range(each)
    )
    hard = chance.normal(0, 0.1, (1, len(cases))) + chance.normal(0, 0.03, (seeds, 1))
    correct = [(chance.random((seeds, len(cases))) < np.clip(one + hard, 0, 1)) * 1.0 for one in chances]
    return Answered(arms=tuple(map(str, range(len(chances)))), correct=np.stack(correct), cases=cases)


def compared(found, **settings):
    return difference_of(found, resampled(found, **settings), one="0", other="1", shots=4, test=OWN)


def test_identical_arms_differ_by_exactly_nothing():
    found = made_up(0.7)
    twice = Answered(arms=("0", "1"), correct=np.concatenate([found.correct, found.correct]), cases=found.cases)
    one = compared(twice)
    assert (one.value, one.low, one.high, one.p) == (0.0, 0.0, 0.0, 1.0)
    assert replace(one, p_holm=1.0).verdict == "no difference between 0 and 1 is shown"


def test_a_planted_difference_is_found_with_its_sign():
    better, worse = compared(made_up(0.85, 0.65)), compared(made_up(0.65, 0.85))
    assert better.low > 0.1 and worse.high < -0.1
    assert replace(better, p_holm=12 * better.p).verdict == "0 is better than 1"
    assert replace(worse, p_holm=12 * worse.p).verdict == "0 is worse than 1"


def test_where_there_is_nothing_the_interval_seldom_says_there_is():
    """At most 12 of 100 would be seen by chance with 0.98 where 5 % are honest; without seeds' share it is more."""
    found = [compared(made_up(0.7, 0.7, seed=seed, each=12), resamples=400) for seed in range(100)]
    assert sum(one.low > 0 or one.high < 0 for one in found) <= 12


def test_an_interval_covers_what_seeds_add():
    """All sentences alike, each seed right or wrong as a whole: only drawing seeds can show that."""
    found = made_up(1.0, 0.0)
    correct = np.zeros_like(found.correct)
    correct[0, :4], correct[1, 4:] = 1.0, 1.0
    one = compared(Answered(arms=found.arms, correct=correct, cases=found.cases))
    assert one.value == 0.0 and one.low < -0.5 and one.high > 0.5


def test_no_interval_that_holds_nothing_is_called_better_whatever_its_p():
    one = Difference(
        shots=4, test=OWN, one="a", other="b", value=0.01, low=-0.01, high=0.02, p=0.001, p_holm=0.01
    )  # fmt: skip
    assert "no difference" in one.verdict
    assert "no difference" in replace(one, low=0.001, p_holm=0.06).verdict


def test_holm_multiplies_by_what_is_left_and_never_falls():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]


def test_macro_accuracy_counts_each_sense_alike():
    cases = tuple(Case(id=str(n), text="苹果", target=Span(0, 2), sense="ab"[n > 0]) for n in range(4))
    correct = np.array([[[0.0, 1, 1, 1]]])
    assert macro(Answered(arms=("x",), correct=correct, cases=cases)) == pytest.approx([0.5])


# --- the table on disk ------------------------------------------------------------------------------------------


def test_a_line_that_a_killed_run_left_half_written_is_cut_off(tmp_path):
    file = tmp_path / "t.csv"
    for seed in range(2):
        append_line(file, {"key": "k", "shots": 4, "seed": seed, "arm": PLAIN, "own": "012"})
    content = file.read_text("utf-8")
    file.write_text(content + "k,4,2,pla", "utf-8")
    assert [line["seed"] for line in read_lines(file, "k")] == ["0", "1"]
    assert file.read_text("utf-8") == content


def test_a_table_of_other_settings_is_refused_in_one_line(tmp_path):
    file = tmp_path / "t.csv"
    append_line(file, {"key": "other", "shots": 4, "seed": 0, "arm": PLAIN})
    with pytest.raises(CijingError, match=r"t\.csv holds runs of other settings.*--table"):
        read_lines(file, "k")


# --- a small model on a task in which the cue decides -----------------------------------------------------------

CUES = {"a": "喜", "b": "欢", "c": "公"}


def invented(number, *, seed):
    """Sentences of characters of chance around 苹果; one of three characters decides, nothing beside 苹果 does."""
    chance = random.Random(seed)
    fillers = [char for char in CHARACTERS if "一" <= char <= "鿿" and char not in "苹果喜欢公"]
    cases = []
    for place in range(number):
        sense = "abc"[place % 3]
        before, after = ([chance.choice(fillers) for _ in range(3)] for _ in range(2))
        side, at = chance.choice([before, after]), 1
        side[at] = CUES[sense]
        text = f"{''.join(before)}苹果{''.join(after)}"
        cue = Span.of(text, CUES[sense])
        cases.append(Case(id=f"s{seed}-{place}", text=text, target=Span(3, 5), cues=(cue,), sense=sense))
    return tuple(cases)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny_bert(folder, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    settings = Settings(steps=16, batch=12, learning_rate=1e-2)
    return Bench(
        model=str(folder / "bert"),
        pool=invented(60, seed=1),
        tests={OWN: invented(60, seed=2)},
        settings=settings,
        longest=64,
    )


@pytest.fixture(scope="module")
def start(bench, tmp_path_factory):
    examples = drawn(bench.pool, shots=4, seed=0)
    return started(bench, examples, seed=0, folder=tmp_path_factory.mktemp("start"))


def logs_of(bench, prepared):
    return class_scores(prepared.learner.model, encoded(bench.tests[OWN], prepared), collator=prepared.collator)


def test_a_model_put_back_to_its_beginning_learns_as_one_loaded_anew(bench, start, tmp_path):
    learned(start, SUPERVISED, folder=tmp_path)  # what an arm leaves must not reach the next
    for arm, mode in ((PLAIN, "none"), (RANDOM, "random"), (SUPERVISED, "pairs")):
        again = logs_of(bench, learned(start, arm, folder=tmp_path))
        file = tmp_path / "train.jsonl"
        write_examples(drawn(bench.pool, shots=4, seed=0), file)
        named = {
            "weight": start.config.attention.weight,
            "heads": [[layer, head] for layer, heads in start.heads.items() for head in heads],
        }
        config = run_config(bench, file, seed=0, mode=mode, attention=named)
        anew = prepare_run(config, device="cpu")
        trainer, _ = make_trainer(config, anew, folder=tmp_path, start=None, progress=None)
        trainer.train()
        anew.learner.model.eval()
        assert np.array_equal(again, logs_of(bench, anew)), arm


def test_arms_differ_in_their_loss_alone(bench, start, tmp_path):
    """With a weight of nothing the supervised arm is the plain one to the last bit, though its attention is read."""
    plain = logs_of(bench, learned(start, PLAIN, folder=tmp_path))
    attention = start.config.attention.model_copy(update={"weight": 1e-30})
    without = replace(start, config=start.config.model_copy(update={"attention": attention}))
    assert np.array_equal(plain, logs_of(bench, learned(without, SUPERVISED, folder=tmp_path)))
    assert not np.array_equal(plain, logs_of(bench, learned(start, SUPERVISED, folder=tmp_path)))


def test_supervision_puts_attention_on_held_out_cues_and_the_pass_that_measures_it_gives_the_same_senses(
    bench, start, tmp_path
):
    found = {}
    for arm in (PLAIN, SUPERVISED):
        prepared = learned(start, arm, folder=tmp_path)
        documents = encoded(bench.tests[OWN], prepared)
        senses, mass = senses_and_mass(documents, prepared, start.heads)
        assert senses == senses_of(documents, prepared)
        assert len(mass) == len(documents) and (mass > 0).all()
        found[arm] = mass.mean()
    assert found[SUPERVISED] > 1.05 * found[PLAIN]


def test_the_control_has_the_heads_weight_and_number_of_pairs_of_the_true_arm(start):
    documents, swaps = start.control
    assert len(swaps) == sum(len(one.pairs) for one in start.prepared.train.documents) == 12
    assert [one.id for one in documents] == [one.id for one in start.prepared.train.documents]
    assert all(swap.random is None or swap.random != swap.true for swap in swaps)


def test_what_the_cue_decides_is_found_and_a_killed_run_goes_on(bench, tmp_path, capsys, monkeypatch):
    """The sense hangs on a character that is never beside the target, so the model must beat the rule."""
    table, preset = tmp_path / "t.csv", Preset(shots=(8,), seeds=(0, 1), settings=bench.settings)
    run(bench, preset, table, seeds=(0,))
    lines = table.read_text("utf-8").splitlines()
    assert len(lines) == 1 + len(ARMS)
    table.write_text("\n".join(lines[:-3]) + "\nhalf a li", "utf-8")  # killed in the midst of it
    trained = []
    monkeypatch.setattr(
        few_shot,
        "trained_answers",
        lambda *given, arms, **more: trained.extend(arms) or trained_answers(*given, arms=arms, **more),
    )
    run(bench, preset, table, seeds=(0,))
    assert sorted(table.read_text("utf-8").splitlines()) == sorted(lines) and trained == []
    capsys.readouterr()
    run(bench, preset, table, seeds=preset.seeds)
    assert trained == [PLAIN, SUPERVISED, RANDOM]
    assert "plain is better than collocation" in capsys.readouterr().out


def test_the_smoke_preset_runs_through(bench, tmp_path, capsys):
    table = tmp_path / "t.csv"
    assert few_shot.main(["--preset", "smoke", "--model", bench.model, "--table", str(table)]) == 0
    told = capsys.readouterr().out
    assert "supervised - random" in told and "attention on cues" in told
    assert few_shot.main(["--preset", "full", "--model", bench.model, "--table", str(table)]) == 2
    assert "other settings" in capsys.readouterr().err
