"""The public names of finetune: one home each, loaded when first used and not before."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import finetune
from tests.test_public_names import in_a_fresh_process

SOURCE = (Path(__file__).resolve().parents[1] / "finetune" / "__init__.py").read_text("utf-8")


def promised_to_mypy():
    """Public name -> module and name there, as the imports under TYPE_CHECKING have it."""
    (block,) = [
        node for node in ast.parse(SOURCE).body if isinstance(node, ast.If) and "not" not in ast.unparse(node.test)
    ]
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_every_public_name_is_the_object_that_mypy_was_promised():
    promised = promised_to_mypy()
    assert sorted(promised) == sorted(finetune.__all__) and len(set(finetune.__all__)) == len(finetune.__all__)
    for name, (module, name_there) in promised.items():
        assert getattr(finetune, name) is getattr(import_module(module), name_there), name


def test_no_public_name_is_a_module_of_the_package_which_would_hide_it_once_imported():
    modules = {path.stem for path in Path(finetune.__file__).parent.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert "train" in modules and modules.isdisjoint(finetune.__all__)


def test_importing_the_package_imports_nothing_but_itself():
    heavy = "{'torch', 'transformers', 'numpy', 'pandas', 'peft', 'pydantic', 'yaml', 'probe'}"
    code = f"import sys, finetune\nprint([n for n in sys.modules if n.startswith('finetune.') or n in {heavy}])"
    assert in_a_fresh_process(code) == "[]"


def test_a_name_that_is_not_public_is_refused_in_one_line():
    with pytest.raises(AttributeError, match=r"^module 'finetune' has no public name 'trian_run'; finetune\.__all__"):
        finetune.trian_run  # noqa: B018
