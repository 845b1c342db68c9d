"""Every claim runs on two tiny random models, and its page, Markdown and table say what was found in both languages."""

import re
from pathlib import Path

import pytest
from claims_bench import bench

from probe.claims.records import Finding, Number, Part, exact, less_than, more_than
from probe.claims.registry import EXPERIMENTS, OPEN, UNTESTABLE, run_claims
from probe.claims_messages import CLAIM_KEYS, CLAIM_STRINGS
from probe.claims_story import claims_frame, command_of, markdown, number_text, rule_text, sections_of
from probe.claims_study import study_claims
from probe.messages import MESSAGES
from probe.report import render_report
from probe.runs import open_run

MODELS = {"encoder": "tiny bert", "decoder": "tiny llama"}
# Their watched cases are properties of the measure or of the intervention, so they hold on random weights as well.
EXACT = ("tokens", "fingerprints", "order", "example", "entropy", "sizes", "positions", "products", "idle", "feeling")


@pytest.fixture(scope="module")
def findings() -> dict[str, Finding]:
    return {finding.key: finding for finding in run_claims(bench(), list(CLAIM_KEYS))}


def test_every_claim_is_run_open_or_not_testable_and_none_twice():
    assert sorted([*EXPERIMENTS, *OPEN, *UNTESTABLE]) == sorted(CLAIM_KEYS)
    assert all(f"claims.{key}.why" in MESSAGES for key in (*OPEN, *UNTESTABLE))
    assert all(f"claims.{key}.how" in MESSAGES for key in EXPERIMENTS)


@pytest.mark.parametrize("key", EXPERIMENTS)
def test_the_experiment_gives_numbers_and_two_watched_cases(findings, key):
    finding = findings[key]
    assert finding.deciding
    for part in finding.parts:
        assert part.number.n >= 1 and part.number.estimate == part.number.estimate, part.key
        assert part.planted != part.must_fail


@pytest.mark.parametrize("key", EXACT)
def test_the_measure_is_trusted_on_random_weights_too(findings, key):
    assert [part.key for part in findings[key].parts if not part.trusted] == []


def test_claims_that_wait_for_training_are_open(findings):
    assert {findings[key].verdict for key in OPEN} == {"open"}
    assert {findings[key].verdict for key in UNTESTABLE} == {"not testable here"}


def test_random_weights_show_what_holds_by_construction(findings):
    parts = {(part.key, part.model): part.statement for key in EXPERIMENTS for part in findings[key].parts}
    assert parts["lost_encoder", "tiny bert"] == "confirmed"
    assert parts["lost_decoder", "tiny llama"] == "refuted"
    assert parts["row_tells", "tiny bert"] != "confirmed"
    assert parts["first_near", "tiny bert"] == "refuted"
    assert parts["whole", "tiny bert"] == "refuted" and parts["one_head", ""] == "confirmed"


def test_random_weights_do_not_put_a_nouns_verb_first(findings):
    (crossed,) = [part for part in findings["verbs"].parts if part.key == "crossed"]
    assert crossed.statement != "confirmed"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_and_the_markdown_hold_every_claim_with_its_command(findings, language):
    told = [findings[key] for key in CLAIM_KEYS]
    page = render_report(sections_of(told, language, models=MODELS), title="x", language=language)
    text = markdown(told, language, command="c", models=MODELS, seed=0)
    rows = [line for line in text.splitlines() if "`python -m probe claims --only" in line]
    assert len(rows) == len(CLAIM_KEYS)
    for key in CLAIM_KEYS:
        assert command_of(key) in page and command_of(key) in text
    assert not re.search(r"claims\.[a-z]|\bnan\b|_[a-z]+", text.replace("max_p", ""))
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):  # every table has rows of one width
        assert len({line.replace("\\|", "").count("|") for line in block.splitlines()}) == 1


def test_the_table_has_a_row_a_statement(findings):
    frame = claims_frame([findings[key] for key in CLAIM_KEYS])
    assert set(frame["claim"]) == set(CLAIM_KEYS)
    assert len(frame) == sum(max(1, len(finding.parts)) for finding in findings.values())
    assert {"estimate", "planted_estimate", "must_fail_estimate"} <= set(frame.columns)


def test_no_string_of_the_claims_is_left_unused(findings):
    told = [findings[key] for key in CLAIM_KEYS]
    used = {f"{finding.key}.{part.key}" for finding in told for part in finding.parts}
    named = {key for key in CLAIM_STRINGS if "." in key and key.split(".")[1] not in ("how", "why", "short")}
    assert named - used <= {"chips.count"}  # stands where corpora are at hand


def test_numbers_and_rules_are_said_in_their_units():
    number = Number(estimate=0.5, low=0.25, high=0.75, n=9)
    assert number_text(number, "share", "en") == "50.0 % (25.0 % to 75.0 %), n = 9"
    assert number_text(number, "points", "zh") == "+50.0（+25.0 至 +75.0），n = 9"
    assert number_text(exact(3), "tokens", "en") == "3"
    assert number_text(exact(-0.0001, n=4), "cosine", "en") == "0.00, n = 4"
    assert number_text(exact(0.0145), "share", "en") == "1.45 %"
    rule = less_than(0.3, refuted_above=0.7)
    assert rule_text(rule, "cosine", "en") == ("< 0.30: confirmed; > 0.70: refuted; else open")
    assert rule_text(more_than(0.0), "points", "zh") == "> +0.0：证实；< +0.0：反驳；否则未定"


def test_a_run_folder_holds_page_table_and_markdown(tmp_path: Path):
    with open_run(tmp_path / "run") as folder:
        found = study_claims(
            bench(),
            ["tokens", "entropy", "heads"],
            language="en",
            names=("a", "b"),
            folder=folder,
            markdown_file=tmp_path / "docs" / "claims.md",
            command="c",
        )
    assert [finding.key for finding in found] == ["tokens", "entropy", "heads"]
    names = {path.relative_to(tmp_path / "run").as_posix() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {"report.html", "claims.md", "tables/claims.csv", "manifest.json", "config.yaml"} <= names
    assert (tmp_path / "docs" / "claims.md").read_text("utf-8") == (tmp_path / "run" / "claims.md").read_text("utf-8")
    assert "quick test run" in (tmp_path / "docs" / "claims.md").read_text("utf-8")


def test_a_watched_case_that_goes_wrong_is_said_on_the_page():
    part = Part(
        key="peaked", rule=more_than(0.0), unit="share", number=exact(1.0), planted=exact(-1.0), must_fail=exact(0.0)
    )
    text = markdown([Finding(key="entropy", parts=(part,))], "en", command="c", models=MODELS, seed=0)
    assert "measure not to be trusted" in text and "1 with a measure not to be trusted" in text
