"""Every claim runs on two tiny random models, and its page, Markdown and table say what was found in both languages."""

import html
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from claims_bench import bench

from probe.claims.records import (
    STATEMENTS,
    Finding,
    Grid,
    Number,
    Part,
    Range,
    Rule,
    exact,
    less_than,
    mean_number,
    more_than,
    spread,
)
from probe.claims.registry import EXPERIMENTS, UNTESTABLE, WAITING, run_claims
from probe.claims_messages import CLAIM_KEYS, CLAIM_STRINGS
from probe.claims_story import (
    LINE_COLUMNS,
    claim_lines,
    claims_frame,
    code,
    command_of,
    counted,
    line_columns,
    literal,
    markdown,
    number_text,
    rule_text,
    sections_of,
)
from probe.claims_study import study_claims
from probe.messages import MESSAGES
from probe.report import render_report
from probe.runs import open_run
from tests.browsing import opened

MODELS = {"encoder": "tiny bert", "decoder": "tiny llama"}
# Their watched cases are properties of the measure or of the intervention, so they hold on random weights as well.
EXACT = ("tokens", "fingerprints", "order", "example", "entropy", "sizes", "positions", "products", "idle", "feeling")


@pytest.fixture(scope="module")
def findings() -> dict[str, Finding]:
    return {finding.key: finding for finding in run_claims(bench(), list(CLAIM_KEYS))}


def test_every_claim_is_run_waits_or_is_not_testable_and_none_twice():
    assert sorted([*EXPERIMENTS, *WAITING, *UNTESTABLE]) == sorted(CLAIM_KEYS)
    assert all(f"claims.{key}.why" in MESSAGES for key in (*WAITING, *UNTESTABLE))
    assert all(f"claims.{key}.how" in MESSAGES for key in EXPERIMENTS)


@pytest.mark.parametrize("key", EXPERIMENTS)
def test_the_experiment_gives_numbers_and_two_watched_cases(findings, key):
    finding = findings[key]
    assert finding.deciding
    for part in finding.parts:
        assert part.number.n >= 1 and part.number.estimate == part.number.estimate, part.key
        assert part.planted != part.nothing


@pytest.mark.parametrize("key", EXACT)
def test_the_measure_is_trusted_on_random_weights_too(findings, key):
    assert [part.key for part in findings[key].parts if not part.trusted] == []


def test_claims_that_take_training_wait_and_are_not_counted_as_open(findings):
    assert {findings[key].verdict for key in WAITING} == {"waits"}
    told = [findings[key] for key in (*WAITING, "entropy")]
    assert "open 0, waits 7, " in counted(told, "en") and "未定 0 条，待做 7 条" in counted(told, "zh")
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
    assert {"estimate", "planted_estimate", "nothing_estimate"} <= set(frame.columns)


def test_no_string_of_the_claims_is_left_unused(findings):
    told = [findings[key] for key in CLAIM_KEYS]
    used = {f"{finding.key}.{part.key}" for finding in told for part in finding.parts}
    named = {key for key in CLAIM_STRINGS if "." in key and not key.endswith((".how", ".why", ".short", ".is"))}
    assert named - used <= {"chips.count"}  # stands where corpora are at hand
    assert {key.removesuffix(".is") for key in CLAIM_STRINGS if key.endswith(".is")} == named


def test_numbers_and_rules_are_said_in_their_units():
    number = Number(estimate=0.5, low=0.25, high=0.75, n=9)
    assert number_text(number, "share", "en") == "50.0 % (25.0 % to 75.0 %), n = 9"
    assert number_text(number, "points", "zh") == "+50.0（+25.0 至 +75.0），n = 9"
    assert number_text(exact(3), "tokens", "en") == "3"
    assert number_text(exact(-0.0001, n=4), "cosine", "en") == "0.00, n = 4"
    assert number_text(exact(0.0145), "share", "en") == "1.45 %"
    assert number_text(spread([0.0724, 0.376, 0.1]), "deviation", "en") == "0.0724 to 0.376 (range of 3)"
    assert number_text(spread([1.0, 1.0]), "share", "zh") == "2 次均为 100.0 %"
    rule = less_than(0.3, refuted_above=0.7)
    assert rule_text(rule, "cosine", "en") == "< 0.30: confirmed\n> 0.70: refuted\nelse open"
    assert rule_text(more_than(0.0), "points", "zh") == "> +0.0：证实\n< +0.0：反驳\n否则未定"
    half = Rule(confirmed=Range(above=2.5, below=3.5), refuted=Range(above=3.5), between="refuted")
    assert rule_text(half, "tokens", "en") == "2.5 to 3.5: confirmed\nelse refuted"


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
    text, table = (tmp_path / "docs" / "claims.md").read_text("utf-8"), tmp_path / "run" / "tables" / "claims.csv"
    assert "quick trial run" in text and "none (trial run) 2" in text and "waits 1" in text
    rows = table.read_text("utf-8").splitlines()
    assert [line.split(",")[1] for line in rows[1:]] == ["none (trial run)"] * 4 + ["waits"]
    assert not re.search("refuted,|confirmed,", "\n".join(rows))
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert not re.search(r"→ (confirmed|refuted)|Verdict: (confirmed|refuted)|<bdi>(confirmed|refuted)</bdi>", page)


def test_a_watched_case_that_goes_wrong_is_said_on_the_page():
    part = Part(
        key="peaked", rule=more_than(0.0), unit="share", number=exact(1.0), planted=exact(-1.0), nothing=exact(0.0)
    )
    text = markdown([Finding(key="entropy", parts=(part,))], "en", command="c", models=MODELS, seed=0)
    assert "measure not to be trusted" in text and "measure not to be trusted 1." in text


def chance(shift: float, *, units: int = 40) -> Number:
    values = np.random.default_rng(0).normal(size=units)
    return mean_number(values - values.mean() + shift, [str(i) for i in range(units)], seed=0)


def statement(key: str, number: Number, **changes: object) -> Part:
    settings = {"rule": more_than(0.0), "unit": "share", "planted": exact(1.0), "nothing": exact(0.0), **changes}
    return Part(key=key, number=number, **settings)


def test_each_number_is_told_with_what_it_is_and_with_its_statements_verdict():
    against = statement("lstm_contextual", chance(0.9), unit="cosine", bears="against")
    (row,) = sections_of([Finding(key="rungs", parts=(against,))], "en", models=MODELS)[0].tables[0].rows
    assert row[1] == "refuted"
    assert row[3].startswith("the LSTM's vector of a word changes with its context — 1 minus the cosine with itself")
    assert row[3].endswith("n = 40 → confirmed (against the claim)")
    lines = claim_lines(Finding(key="rungs", parts=(against,)), "zh")
    assert lines.claim == ("rungs", "反驳", CLAIM_STRINGS["rungs"][1])
    (cells,) = lines.statements
    assert cells[:3] == ("rungs", "反驳", "证实（反对原说法）") and "余弦" in cells[4] and cells[5].startswith("LSTM")
    assert len(cells) == len(LINE_COLUMNS) == len(line_columns("zh")) and "陈述的结论" in line_columns("zh")


def test_a_claim_that_waits_says_why_on_its_line(findings):
    (line,) = claim_lines(findings["heads"], "en").statements
    assert line[:2] == ("heads", "waits") and line[-1].startswith("needs training")


def test_the_parts_table_is_six_columns_with_model_and_bearing_in_the_statement():
    beside = statement("transformer_contextual", exact(1.0), bears="beside", model="builtin:e5-small")
    finding = Finding(key="rungs", parts=(statement("lstm_contextual", exact(1.0)), beside))
    (table,) = sections_of([finding], "en", models=MODELS)[1].tables
    assert table.columns == ("statement", "rule", "number with interval", "planted", "nothing to find", "verdict")
    assert table.rows[1][0].endswith("\nbuiltin:e5-small\nbeside the claim, does not count")
    assert table.rows[0][0].count("\n") == 0 and table.whole


def test_verdicts_that_would_not_stand_among_so_many_are_marked_and_counted(findings):
    parts = tuple(statement("peaked", one) for one in (chance(1.0), chance(0.35), chance(3.0, units=10)))
    first, own = sections_of([Finding(key="entropy", parts=parts)], "en", models=MODELS)
    assert [row[-1] for row in own.tables[0].rows] == ["confirmed", "confirmed †", "confirmed ‡"]
    assert any(text.startswith("3 statements here are judged by an interval") for text in first.text)
    assert list(claims_frame([Finding(key="entropy", parts=parts)])["corrected"]) == ["stands", "falls", "too few"]
    everything = [part for finding in findings.values() for part in finding.parts]
    assert sum(part.number.by_chance for part in everything) < STATEMENTS


def test_the_page_says_what_the_article_is_and_defines_its_words():
    for language, words in {
        "en": (
            "Chinese for beginners",
            "our words",
            "Planted",
            "Nothing to find",
            "Qualified",
            "Open",
            "Waits",
            "beside",
        ),
        "zh": ("初学者", "自己的话", "埋入效应", "没有效应", "部分成立", "未定", "待做", "旁证"),
    }.items():
        text = " ".join(sections_of([Finding(key="heads", why="waits")], language, models=MODELS)[0].text)
        assert [word for word in words if word not in text] == []


def test_names_are_shown_in_markdown_as_they_are():
    name = "a<img src=x>|`b`\n# c"
    part = statement("cluster", exact(1.0), model=name)
    grid = Grid(caption="nearest", columns=("model", "nearest"), rows=((name, "<|im_end|> `"),), model=name)
    names = {"encoder": name, "decoder": "d"}
    settings = ["--model", name]
    finding = Finding(key="neighbours", parts=(part,), grids=(grid,))
    whole = shlex.join(["python", "-m", "probe", "claims", *settings])
    text = markdown([finding], "en", command=whole, settings=settings, models=names, seed=0)
    assert "<img" not in text and not re.search("^# c", text, re.MULTILINE)
    assert "a&lt;img src=x>|\\`b\\` # c · d" in text and "&lt;\\|im_end\\|> \\`" in text
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.replace("\\|", "").count("|") for line in block.splitlines()}) == 1
    spans = [html.unescape(found) for found in re.findall("<code>(.*?)</code>", text)]
    assert spans == [whole, command_of("neighbours", settings)]
    assert shlex.split(spans[1])[-1] == name
    assert (literal("plain: e5-small, < 0.3"), code("a b")) == ("plain: e5-small, &lt; 0.3", "`a b`")


def test_progress_ends_with_all_claims_done():
    said: list[tuple[str, int, int]] = []
    list(run_claims(bench(progress=lambda *what: said.append(what)), ["entropy", "heads"]))
    assert said[-1][1:] == (2, 2) and said[0][1:] == (0, 2)


@pytest.mark.browser
@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_table_is_cut_and_every_claim_is_reachable(findings, browser, tmp_path, language):
    told = [findings[key] for key in CLAIM_KEYS]
    path = tmp_path / "page.html"
    names = {"encoder": "builtin:e5-small", "decoder": "builtin:gemma3-270m"}
    path.write_text(render_report(sections_of(told, language, models=names), title="x", language=language), "utf-8")
    hidden = "e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight + 1"
    cut = f"[...document.querySelectorAll('.scroll')].filter(e => {hidden}).length"
    with opened(browser, path, width=1200, reduced_motion="reduce") as tab:
        assert tab.evaluate("document.querySelectorAll('.scroll').length") > len(EXPERIMENTS)
        assert tab.evaluate(cut) == 0
        links = tab.evaluate("[...document.querySelectorAll('nav a')].map(e => e.getAttribute('href'))")
        assert links == ["#claims", *(f"#claim-{key}" for key in CLAIM_KEYS)]
        for link in links:
            tab.locator(f'nav a[href="{link}"]').click()
            assert tab.evaluate("location.hash") == link and tab.locator(f"section{link}").is_visible()
    with opened(browser, path, width=400) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400
        assert tab.evaluate("getComputedStyle(document.querySelector('#claims td')).display") == "block"
