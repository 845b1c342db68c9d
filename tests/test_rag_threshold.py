"""A threshold of what a search is worth: worked by hand, chosen on one half, held against the other."""

import numpy as np
import pytest

from finetune.errors import RetrievalError
from finetune.rag.chunks import Chunk
from finetune.rag.hits import Hit
from finetune.rag.threshold import NOTHING, Threshold, auroc, choose_threshold, says_nothing, tried, worth


def hits(*scores: float, dense: tuple[float | None, ...] = ()) -> list[Hit]:
    found = []
    for place, score in enumerate(scores):
        chunk = Chunk(id=f"c{place}", document="d", start=0, end=2, text="苹果", title="", tokens=2)
        found.append(Hit(chunk=chunk, rank=place + 1, score=score, dense=dense[place] if dense else None))
    return found


def test_a_search_is_worth_its_top_or_how_far_the_top_stands_out() -> None:
    found = hits(9.0, 6.0, 3.0)
    assert worth(found) == 9.0
    assert worth(found, measure="second") == 3.0
    assert worth(found, measure="rest") == 4.5
    assert worth(hits(9.0), measure="second") == worth(hits(9.0), measure="rest") == 9.0
    assert worth([]) == NOTHING


def test_the_best_of_a_field_counts_wherever_the_fused_ranking_has_it() -> None:
    found = hits(0.03, 0.02, 0.01, dense=(None, 0.5, 0.75))
    assert worth(found, field="dense") == 0.75
    assert worth(found, field="dense", measure="second") == 0.25
    assert worth(hits(0.03), field="dense") == NOTHING


def test_an_unknown_field_or_measure_is_refused() -> None:
    with pytest.raises(RetrievalError, match="measure 'mean' of a threshold: allowed are"):
        worth(hits(1.0), measure="mean")  # type: ignore[arg-type]
    with pytest.raises(RetrievalError, match="field 'rank'"):
        worth(hits(1.0), field="rank")  # type: ignore[arg-type]


def test_the_threshold_of_the_highest_balanced_accuracy_is_chosen() -> None:
    # Between 2 and 4: one of four answerable is refused, one of two unanswerable answered: 1 - (1/4 + 1/2) / 2.
    # Between 6 and 7: two of four refused, none answered: 1 - (2/4 + 0) / 2 = 0.75, the best.
    found = choose_threshold([1.0, 5.0, 7.0, 8.0], [2.0, 6.0])
    assert (found.score, found.false_refusals, found.false_answers) == (6.5, 0.5, 0.0)
    assert found.balanced_accuracy == 0.75


def test_kinds_count_alike_however_many_questions_they_have() -> None:
    # Accuracy over questions would refuse none of the nine and answer the one.
    found = choose_threshold([*[3.0] * 5, *[5.0] * 4], [4.0])
    assert (found.score, found.false_refusals) == (4.5, 5 / 9)


def test_of_equally_good_thresholds_the_one_that_refuses_least_is_taken() -> None:
    found = choose_threshold([1.0, 2.0], [1.0, 2.0])
    assert (found.score, found.false_refusals, found.false_answers) == (1.0, 0.0, 1.0)


def test_a_search_that_found_nothing_lies_below_every_threshold() -> None:
    found = choose_threshold([3.0, 5.0], [NOTHING, NOTHING, 5.0])
    assert (found.score, found.false_refusals, found.false_answers) == (3.0, 0.0, 1 / 3)
    assert choose_threshold([NOTHING], [NOTHING]).false_answers == 0.0


def test_the_passages_say_nothing_below_the_threshold_or_where_there_are_none() -> None:
    threshold = Threshold(score=2.0, false_refusals=0.0, false_answers=0.0, measure="second")
    assert says_nothing([], threshold)
    assert says_nothing([])
    assert not says_nothing(hits(0.1))
    assert says_nothing(hits(9.0, 7.5), threshold)
    assert not says_nothing(hits(9.0, 7.0), threshold)


def test_auroc_counts_pairs_and_ties_as_a_half() -> None:
    assert auroc([3.0, 2.0], [1.0, 2.0]) == (1 + 1 + 1 + 0.5) / 4
    assert auroc([1.0], [NOTHING]) == 1.0


def test_the_threshold_is_held_against_the_half_that_did_not_choose_it() -> None:
    random = np.random.default_rng(5)
    right, wrong = random.normal(1.0, 1, 60), random.normal(0.0, 1, 20)
    trial = tried(right.tolist(), wrong.tolist(), measure="rest", seed=3)
    table = trial.table.set_index("measure")
    assert table.questions.to_dict() == {
        "balanced accuracy": 10, "false refusals": 30, "false answers": 10, "AUROC": 20
    }  # fmt: skip
    assert (table.low <= table.estimate).all()
    assert (table.estimate <= table.high).all()
    assert trial.threshold.measure == "rest"
    assert table.estimate["AUROC"] == pytest.approx(auroc(right.tolist(), wrong.tolist()))
    # Of all questions below it, those of the choosing half are not among the false refusals.
    below = float((right < trial.threshold.score).sum())
    chosen_on = trial.threshold.false_refusals * 30
    assert table.estimate["false refusals"] * 30 == pytest.approx(below - chosen_on)
    again = tried(right.tolist(), wrong.tolist(), measure="rest", seed=3)
    assert again.table.equals(trial.table)


def test_chance_alone_does_well_where_it_chose_and_not_on_the_other_half() -> None:
    random = np.random.default_rng(0)
    there, elsewhere = [], []
    for seed in range(40):
        trial = tried(random.normal(size=20).tolist(), random.normal(size=20).tolist(), seed=seed)
        there.append(trial.threshold.balanced_accuracy)
        elsewhere.append(float(trial.table.estimate[0]))
    assert np.mean(there) > 0.58
    assert abs(np.mean(elsewhere) - 0.5) < 0.04


def test_the_lengths_of_the_questions_are_held_against_their_searches() -> None:
    random = np.random.default_rng(1)
    words = (random.integers(8, 14, 40), random.integers(4, 10, 40))
    # A score that only adds up over words.
    scores = [(own + random.normal(0, 0.1, 40)).tolist() for own in words]
    table = tried(scores[0], scores[1], lengths=(words[0].tolist(), words[1].tolist())).table.set_index("measure")
    assert table.estimate["AUROC of length"] == auroc(words[0].tolist(), words[1].tolist()) > 0.85
    assert table.estimate["AUROC"] == pytest.approx(table.estimate["AUROC of length"], abs=0.03)
    assert table.low["AUROC of length"] < table.estimate["AUROC of length"] < table.high["AUROC of length"]
    assert table.questions["AUROC of length"] == 40


def test_four_questions_give_no_interval_and_one_no_trial() -> None:
    table = tried([float(place) for place in range(8)], [float(place) for place in range(8)]).table
    assert table.low[:3].isna().all()
    assert table.low.notna()[3]
    with pytest.raises(RetrievalError, match="allowed are two of each kind"):
        tried([1.0], [1.0, 2.0])


@pytest.mark.parametrize("worths", [[], [float("nan")], [float("inf")]])
def test_no_question_or_no_number_is_refused(worths: list[float]) -> None:
    with pytest.raises(RetrievalError, match="worths of answerable questions: allowed are"):
        choose_threshold(worths, [1.0])


def test_a_threshold_that_may_refuse_few_refuses_no_more_than_that():
    answerable, unanswerable = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0], [2.5, 2.6, 4.5, 5.5, 5.6]
    free = choose_threshold(answerable, unanswerable)
    held = choose_threshold(answerable, unanswerable, most_refused=0.2)
    assert (free.false_refusals, free.false_answers) == (0.5, 0.0)
    assert (held.false_refusals, held.false_answers) == (0.2, 0.6) and 2.6 < held.score < 3
    assert choose_threshold(answerable, unanswerable, most_refused=0.0).false_refusals == 0.0
