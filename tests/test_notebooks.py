"""The notebooks import and call: no stored outputs, nothing defined, public names only. `make notebooks` runs them."""

import ast
import json
import re
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import finetune
import probe

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PUBLIC = {package.__name__: frozenset(getattr(package, "__all__", ())) for package in (probe, finetune)}

Notebook = Mapping[str, Any]


def notebook(*cells: Mapping[str, Any]) -> Notebook:
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": kernel, "cells": list(cells)}


def code(source: str, **more: Any) -> dict[str, Any]:
    cell = {"cell_type": "code", "id": "c", "metadata": {}, "source": source, "outputs": [], "execution_count": None}
    return {**cell, **more}


def text(source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": "t", "metadata": {}, "source": source}


def source_of(cell: Mapping[str, Any]) -> str:
    return "".join(cell["source"])


def cells(book: Notebook, kind: str) -> Iterator[Mapping[str, Any]]:
    return (cell for cell in book["cells"] if cell["cell_type"] == kind)


def stored_results(book: Notebook) -> Iterator[str]:
    """Cells that hold what an earlier run left behind: outputs, counts, times."""
    for cell in cells(book, "code"):
        if cell["outputs"] or cell["execution_count"] is not None or cell["metadata"]:
            yield f"{cell['id']}: {len(cell['outputs'])} outputs, count {cell['execution_count']}"


def definitions(book: Notebook) -> Iterator[str]:
    """Functions and classes of the notebook's own."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    for cell in cells(book, "code"):
        for node in ast.walk(ast.parse(source_of(cell))):
            if isinstance(node, kinds):
                yield f"{cell['id']}:{node.lineno}: {type(node).__name__}"


def private_imports(book: Notebook) -> Iterator[str]:
    """Imports from our packages that are no public name."""
    for cell in cells(book, "code"):
        for node in ast.walk(ast.parse(source_of(cell))):
            if isinstance(node, ast.Import):
                yield from (f"{cell['id']}: import {a.name}" for a in node.names if a.name.split(".")[0] in PUBLIC)
            elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in PUBLIC:
                public = PUBLIC.get(str(node.module), frozenset())
                yield from (f"{cell['id']}: {node.module} {a.name}" for a in node.names if a.name not in public)


def one_language(book: Notebook) -> Iterator[str]:
    """Texts in Chinese or in English only; code and quoted sentences count for neither."""
    for cell in cells(book, "markdown"):
        prose = re.sub(r"```.*?```|`[^`]*`|(?<!\*)\*[^*\n]+\*(?!\*)", " ", source_of(cell), flags=re.DOTALL)
        chinese, english = len(re.findall(r"[一-鿿]", prose)), len(re.findall(r"[A-Za-z]{2,}", prose))
        if chinese < 3 or english < 2:
            yield f"{cell['id']}: {chinese} Chinese characters, {english} English words"


RULES = (stored_results, definitions, private_imports, one_language)


def test_there_are_notebooks_each_with_the_plain_python_kernel_and_cells_of_different_names() -> None:
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        book = json.loads(path.read_text("utf-8"))
        names = [cell["id"] for cell in book["cells"]]
        assert book["metadata"]["kernelspec"]["name"] == "python3" and len(set(names)) == len(names)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_keeps_the_rule(path: Path, rule: Any) -> None:
    assert list(rule(json.loads(path.read_text("utf-8")))) == []


@pytest.mark.parametrize(
    ("rule", "cell"),
    [
        (stored_results, code("1", outputs=[{"output_type": "stream"}])),
        (stored_results, code("1", execution_count=3)),
        (stored_results, code("1", metadata={"execution": {"iopub.execute_input": "then"}})),
        (definitions, code("def mean(x):\n    return x")),
        (definitions, code("if True:\n    class Row:\n        pass")),
        (definitions, code("mean = lambda x: x")),
        (private_imports, code("from probe.capture import prepare")),
        (private_imports, code("from probe import load_model, capture")),
        (private_imports, code("import probe.rowtap as tap")),
        (one_language, text("只有中文，没有别的 `load_model` *我喜欢苹果*")),
        (one_language, text("English only, of *我喜欢苹果* and `苹果`")),
    ],
)
def test_the_rule_sees_a_planted_violation(rule: Any, cell: Mapping[str, Any]) -> None:
    assert len(list(rule(notebook(cell)))) == 1


def test_the_runner_refuses_stored_outputs_before_it_starts_a_kernel(tmp_path: Path) -> None:
    run = runpy.run_path(str(ROOT / "notebooks" / "run.py"))["run"]
    path = tmp_path / "old.ipynb"
    path.write_text(json.dumps(notebook(code("1", execution_count=3))), encoding="utf-8")
    assert run(path) == "outputs are stored in c; clear them"


def test_the_runner_reports_a_cell_that_fails_and_gives_the_notebook_preset_ci(tmp_path: Path) -> None:
    run = runpy.run_path(str(ROOT / "notebooks" / "run.py"))["run"]
    path = tmp_path / "new.ipynb"
    source = "import os, probe\nraise ValueError(os.environ['PRESET'], probe.__name__)"
    path.write_text(json.dumps(notebook(code(source))), encoding="utf-8")
    before = path.read_bytes()
    assert "ValueError: ('ci', 'probe')" in run(path) and path.read_bytes() == before


def test_the_runner_stops_a_notebook_that_takes_too_long(tmp_path: Path) -> None:
    run = runpy.run_path(str(ROOT / "notebooks" / "run.py"))["run"]
    path = tmp_path / "slow.ipynb"
    path.write_text(json.dumps(notebook(code("import time\ntime.sleep(30)"))), encoding="utf-8")
    assert run(path, limit=3) == "takes more than 3 s"
