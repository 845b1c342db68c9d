"""The public names of probe: one list, one home each, loaded when first used and not before."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import probe

ROOT = Path(__file__).resolve().parents[1]
SOURCE = (ROOT / "probe" / "__init__.py").read_text("utf-8")


def in_a_fresh_process(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def promised_to_mypy() -> dict[str, tuple[str, str]]:
    """Public name -> module and name there, as the imports under TYPE_CHECKING have it."""
    blocks = [node for node in ast.parse(SOURCE).body if isinstance(node, ast.If)]
    (block,) = [block for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING"]
    return {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("name", probe.__all__)
def test_the_name_is_the_object_that_mypy_was_promised(name: str) -> None:
    module, name_there = promised_to_mypy()[name]
    assert getattr(probe, name) is getattr(import_module(module), name_there)


def test_the_list_and_the_promise_hold_the_same_names_once() -> None:
    assert sorted(promised_to_mypy()) == sorted(probe.__all__) and len(set(probe.__all__)) == len(probe.__all__)


def test_no_public_name_is_a_module_of_the_package_which_would_hide_it_once_imported() -> None:
    modules = {path.stem for path in (ROOT / "probe").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert "capture" in modules and modules.isdisjoint(probe.__all__)


def test_a_name_stays_the_function_whatever_was_imported_before() -> None:
    code = (
        "import probe.capture\nfrom probe import capture_cases\nprint(capture_cases.__name__, probe.capture.__name__)"
    )
    assert in_a_fresh_process(code) == "capture probe.capture"


def test_importing_the_package_imports_nothing_but_itself() -> None:
    heavy = "{'torch', 'transformers', 'numpy', 'pandas', 'matplotlib', 'pydantic', 'yaml'}"
    code = f"import sys, probe\nprint([n for n in sys.modules if n.startswith('probe.') or n in {heavy}])"
    assert in_a_fresh_process(code) == "[]"


def test_a_light_name_brings_in_its_module_and_no_torch() -> None:
    code = "import sys\nfrom probe import case_of\nprint('probe.cases' in sys.modules, 'torch' in sys.modules)"
    assert in_a_fresh_process(code) == "True False"


def test_completion_lists_every_name_before_it_is_loaded() -> None:
    code = "import probe\nprint(set(probe.__all__) <= set(dir(probe)), 'load_model' in vars(probe))"
    assert in_a_fresh_process(code) == "True False"


def test_a_name_that_is_not_public_is_refused_in_one_line() -> None:
    with pytest.raises(AttributeError, match=r"^module 'probe' has no public name 'lod_model'; probe\.__all__ lists"):
        probe.lod_model  # noqa: B018
