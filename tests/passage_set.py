"""A small set in BEIR's layout: eight passages of seven documents, six answerable questions and two others."""

import json
from pathlib import Path
from typing import Any

PASSAGES = [
    ("chip-1", "M1处理器", "M1芯片由台积电制造，工艺是五纳米。", "chip", "d1"),
    ("chip-2", "手机芯片", "A14芯片用在手机里，秋天发布。", "chip", "d2"),
    ("acid-1", "苹果酸脱氢酶", "苹果酸脱氢酶催化苹果酸氧化成草酰乙酸。", "acid", "d3"),
    ("acid-2", "丙酮酸", "丙酮酸羧化酶的辅基是生物素。", "acid", "d4"),
    ("fruit-1", "红富士", "红富士苹果在十月采收。", "fruit", "d5"),
    ("fruit-2", "苹果树", "苹果树喜光，春天开花。", "fruit", "d5"),
    ("firm-1", "<b>苹果</b>公司", "苹果公司的总部在加利福尼亚。", "firm", "d6"),
    ("firm-2", "园区", "苹果公司的园区像一个圆环。", "firm", "d7"),
]
QUESTIONS = [
    ("q1", "M1芯片由谁制造？", "台积电", "三星"),
    ("q2", "苹果酸脱氢酶催化苹果酸氧化成什么？", "草酰乙酸", "柠檬酸"),
    ("q3", "丙酮酸羧化酶的辅基是什么？", "生物素", "核黄素"),
    ("q4", "红富士苹果什么时候采收？", "十月", "三月"),
    ("q5", "苹果树什么时候开花？", "春天", "秋天"),
    ("q6", "苹果公司的总部在哪里？<script>", "加利福尼亚", "德克萨斯"),
    ("u1", "苹果公司的股价是多少？", None, None),
    ("u2", "苹果树的根有多深？", None, None),
]
QRELS = [
    ("q1", "chip-1", 1), ("q2", "acid-1", 1), ("q3", "acid-2", 1), ("q4", "fruit-1", 1), ("q5", "fruit-2", 1),
    ("q6", "firm-2", 1), ("q6", "firm-1", 2),
]  # fmt: skip
CONTRADICTIONS = [("q1", "M1芯片由三星制造，工艺是五纳米。"), ("q3", "丙酮酸羧化酶的辅基是核黄素。")]
ELSEWHERE = [("e1", "北宋的画师姓什么？"), ("e2", "马拉松要跑多远？")]


def write_set(
    folder: Path,
    *,
    passages: Any = PASSAGES,
    questions: Any = QUESTIONS,
    qrels: Any = QRELS,
    contradictions: Any = CONTRADICTIONS,
    elsewhere: Any = ELSEWHERE,
) -> Path:
    """Write a set, without the files for which None is given."""
    folder.mkdir(parents=True, exist_ok=True)
    named = [dict(zip(("_id", "title", "text", "topic", "doc"), one, strict=True)) for one in passages]
    asked = [{"_id": name, "text": text, "answer": right, "wrong": wrong} for name, text, right, wrong in questions]
    _write(folder / "corpus.jsonl", named)
    _write(folder / "queries.jsonl", [{key: value for key, value in one.items() if value} for one in asked])
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, one)) for one in qrels)]
    (folder / "qrels.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    if contradictions is not None:
        rows = [{"query": name, "_id": f"x-{name}", "text": text} for name, text in contradictions]
        _write(folder / "contradictions.jsonl", rows)
    if elsewhere is not None:
        _write(folder / "elsewhere.jsonl", [{"_id": name, "text": text} for name, text in elsewhere])
    return folder


def _write(file: Path, rows: Any) -> None:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
