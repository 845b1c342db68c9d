"""The picture in the README, held against the imports; every rule is shown to fail on a planted violation."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# In probe/ a module imports only what stands above it here. A package (measures, report, walking) is one entry.
ORDER = (
    *("errors", "given", "alignment", "spans", "casefiles", "cases"),
    *(
        "buildonce",
        "advice",
        "e5file",
        "e5tokenizer",
        "embedded",
        "hub",
        "adapters",
        "sources",
        "anatomy",
        "models",
        "outlines",
    ),
    *("rows", "edits", "projection", "wrappers", "labels", "rowrequest", "switching", "rowtap", "routes"),
    *("fitting", "captures", "capture", "prompts", "export", "evidence", "selfcheck"),
    *("measures", "stats", "flips", "contrasts", "experiments", "findings", "strongest"),
    *("worked", "wordsenses", "cutsenses", "polysemy", "claims", "claims_messages", "walk_messages", "messages"),
    *("colours", "fonts", "canvas", "curves", "figures", "report", "runs"),
    *("readings_story", "polysemy_story"),
    *("story", "causes_story", "summary_story", "attention_story", "models_story", "pages"),
    *("claims_story", "claims_study"),
    *("observing", "study"),
    "walking",
    *("comparison", "comparison_pieces", "comparison_senses", "comparison_states"),
    *("comparison_words", "comparison_senses_story", "comparison_story", "comparison_study", "changes"),
    *("chat", "transcripts", "stitching", "answering", "generation", "shares"),
    *("glance", "terminal", "options", "launch", "commands", "__main__"),
)
# The same in finetune/.
TEACHING_ORDER = (
    *("errors", "yamlfiles", "writing", "losses", "dictionary", "pairs", "reach", "domains"),
    *("dataconfig", "choosing", "keys", "trainingfields", "corpusfiles", "reading", "records"),
    *("cutting", "frames", "spelling", "chats", "encode", "batches", "streams"),
    *("bases", "supervise", "heads", "control", "tasks", "checkpoints", "adapters", "whole", "callbacks", "trainer"),
    *("config", "begun", "quantize", "learner", "tally", "prepare"),
    *("parcel", "push", "trackers", "processes", "arguments", "finish", "train"),
    *("words", "association", "neglect", "mine"),
    *("footprint", "inspection", "cautions", "preflight_lines", "preflight"),
    *("grid", "trials", "sweep"),
    *("questions", "scoring", "runfolder", "material", "intervals", "edgemeasures", "evaluation", "evaluate", "merge"),
    *("rag", "compare", "commands", "__main__"),
)
# Within finetune/rag/.
RAG_ORDER = (
    *("documents", "decoding", "markup", "pdfpages", "worddocuments", "apart", "rows", "folders", "readers"),
    *("sentences", "chunks", "duplicates", "hits"),
    *("searchwords", "lexical"),
    *("dense", "stores", "generations", "manifest", "tables", "collection", "embeddings", "opened", "index"),
    *("fusion", "rerank", "retrieve", "irmeasures", "beir"),
    *("threshold", "markers", "forms", "inject"),
    *("causes", "answers", "ask", "references", "readings", "puzzles", "evaluation", "thresholds", "study"),
    *("messages", "story"),
)
# Within finetune/compare/.
COMPARE_ORDER = (
    *("items", "arms", "settings", "deciding", "plan", "prompts", "asking", "states", "measuring", "materials"),
    *("costs", "readout", "jobs"),
    *("attention", "contrasts", "pairing", "resampling", "power", "statistics", "verdicts"),
    *(
        "messages",
        "page_messages",
        "licences",
        "gathered",
        "tables",
        "pictures",
        "markdown",
        "story",
        "reporting",
        "run",
    ),
)
WITHIN = {"rag": RAG_ORDER, "compare": COMPARE_ORDER}  # packages of finetune/ with an order of their own
ORDERS = {"probe": ORDER, "finetune": TEACHING_ORDER}
HOMES = {
    "AttentionInterface": ("probe/rowtap.py",),
    "AttentionMaskInterface": ("probe/rowtap.py",),
    "seaborn": ("probe/figures.py",),
    "matplotlib": ("probe/fonts.py", "probe/canvas.py", "probe/curves.py", "probe/figures.py"),
    "jinja2": ("probe/report/",),
    "rich": ("probe/terminal.py",),
    "charset_normalizer": ("finetune/rag/decoding.py",),
    "pypdf": ("finetune/rag/pdfpages.py",),
    "lxml": ("finetune/rag/markup.py",),
    "docx": ("finetune/rag/worddocuments.py",),
    "bm25s": ("finetune/rag/lexical.py",),
    "lancedb": ("finetune/rag/stores.py",),
    "qdrant_client": ("finetune/rag/stores.py",),
    "typer": (
        *("probe/__main__.py", "probe/options.py", "probe/launch.py", "probe/commands/"),
        *("finetune/__main__.py", "finetune/commands/"),
    ),
}
# Imported by themselves, these bring in no torch; the command line shows its help without any heavy library.
WITHOUT_TORCH = ("errors", "given", "spans", "cases", "messages", "runs", "terminal", "launch", "__main__")
HEAVY = ("torch", "transformers", "pandas", "numpy", "matplotlib", "seaborn", "pyarrow", "scipy", "yaml", "pydantic")

Tree = Mapping[str, str]  # path below the root -> source


def whole_tree() -> Tree:
    paths = [*ROOT.glob("probe/**/*.py"), *ROOT.glob("finetune/**/*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in sorted(paths)}


def module_of(path: str) -> str:
    """probe/measures/focus.py -> measures, finetune/pairs.py -> pairs."""
    return path.split("/")[1].removesuffix(".py")


def imports(source: str) -> Iterator[tuple[int, str, str]]:
    """Line, module and name of every import, those inside functions as well."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, module, alias.name) for alias in node.names)


def below(tree: Tree, package: str) -> Iterator[tuple[str, str]]:
    return ((path, source) for path, source in tree.items() if path.startswith(f"{package}/"))


def wrong_order(tree: Tree) -> Iterator[str]:
    """Imports of a module that does not stand above, and modules that stand nowhere."""
    for package, order in ORDERS.items():
        for path, source in below(tree, package):
            here = module_of(path)
            if here == "__init__":
                continue
            if here not in order:
                yield f"{path}: module {here} stands in no list"
                continue
            for line, module, name in imports(source):
                there = name if module == package else module.removeprefix(f"{package}.").split(".")[0]
                if module.split(".")[0] != package or there == here:
                    continue
                if there not in order or order.index(there) > order.index(here):
                    yield f"{path}:{line}: {here} imports {there}, which does not stand above it"


def wrong_order_within(tree: Tree) -> Iterator[str]:
    """The same within finetune/rag/ and finetune/compare/."""
    for package, order in WITHIN.items():
        for path, source in below(tree, f"finetune/{package}"):
            here = path.split("/")[2].removesuffix(".py")
            if here == "__init__":
                continue
            if here not in order:
                yield f"{path}: module {here} stands in no list"
                continue
            whole = f"finetune.{package}"
            for line, module, name in imports(source):
                there = name if module == whole else module.removeprefix(f"{whole}.").split(".")[0]
                if module.split(".")[:2] == whole.split(".") and there not in order[: order.index(here) + 1]:
                    yield f"{path}:{line}: {here} imports {there}, which does not stand above it"


def relative_imports(tree: Tree) -> Iterator[str]:
    """Imports that name no package, which the other rules could not see."""
    for path, source in tree.items():
        for line, module, _ in imports(source):
            if module.startswith("."):
                yield f"{path}:{line}: import from {module}, name the package"


def crossing(tree: Tree) -> Iterator[str]:
    """probe importing finetune, and finetune importing more than probe's public names."""
    public = public_names(tree)
    for path, source in below(tree, "probe"):
        for line, module, _ in imports(source):
            if module.split(".")[0] == "finetune":
                yield f"{path}:{line}: probe imports finetune"
    for path, source in below(tree, "finetune"):
        for line, module, name in imports(source):
            if module.split(".")[0] == "probe" and (module != "probe" or name not in public):
                yield f"{path}:{line}: finetune imports {module} {name}, no public name"


def public_names(tree: Tree) -> frozenset[str]:
    for node in ast.parse(tree.get("probe/__init__.py", "")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def away_from_home(tree: Tree) -> Iterator[str]:
    """Libraries used outside the file that is their only home."""
    for path, source in tree.items():
        for line, module, name in imports(source):
            for part in {module.split(".")[0], name} & set(HOMES):
                if not path.startswith(HOMES[part]):
                    yield f"{path}:{line}: {part} lives in {HOMES[part][0]}"


def prints(tree: Tree) -> Iterator[str]:
    """print() outside the command lines and how they end."""
    for path, source in tree.items():
        for node in ast.walk(ast.parse(source)):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            if called and not path.endswith(("/__main__.py", "/launch.py")) and "/commands/" not in path:
                yield f"{path}:{node.lineno}: print"


def code_loaders(tree: Tree) -> Iterator[str]:
    """Ways to run code that stands in a file."""
    calls = {"eval", "exec", "compile", "__import__", "torch.load", "yaml.load", "yaml.unsafe_load", "numpy.load"}
    calls |= {"np.load", "pandas.read_pickle", "pd.read_pickle", "yaml.full_load"}
    for path, source in tree.items():
        for line, module, name in imports(source):
            if {module.split(".")[0], name} & {
                "pickle",
                "cPickle",
                "dill",
                "cloudpickle",
                "joblib",
                "marshal",
                "shelve",
            }:
                yield f"{path}:{line}: import of {module}"
            elif f"{module}.{name}" in calls:
                yield f"{path}:{line}: {module}.{name}"
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in calls:
                yield f"{path}:{node.lineno}: {ast.unparse(node.func)}"


def vague_names(tree: Tree) -> Iterator[str]:
    """Modules that are named after nothing."""
    for path in tree:
        if {"utils", "util", "common", "helpers", "misc"} & set(path.removesuffix(".py").split("/")):
            yield f"{path}: named after nothing"


RULES: tuple[Callable[[Tree], Iterator[str]], ...] = (
    wrong_order,
    wrong_order_within,
    relative_imports,
    crossing,
    away_from_home,
    prints,
    code_loaders,
    vague_names,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_code_keeps_the_rule(rule: Callable[[Tree], Iterator[str]]) -> None:
    assert list(rule(whole_tree())) == []


PLANTED = [
    (wrong_order, "probe/spans.py", "from probe.cases import Case"),
    (wrong_order, "probe/spans.py", "def f():\n    import probe.models"),
    (wrong_order, "probe/errors.py", "from probe import spans"),
    (wrong_order, "probe/measures/focus.py", "from probe.report.page import Section"),
    (wrong_order, "probe/novelty.py", ""),
    (wrong_order, "finetune/novelty.py", ""),
    (wrong_order, "finetune/pairs.py", "from finetune.trainer import AttentionTrainer"),
    (wrong_order, "probe/cases.py", "from probe.novelty import x"),
    (wrong_order_within, "finetune/rag/rows.py", "from finetune.rag.chunks import Chunk"),
    (wrong_order_within, "finetune/rag/rows.py", "from finetune.rag import chunks"),
    (wrong_order_within, "finetune/rag/novelty.py", ""),
    (away_from_home, "finetune/rag/readers.py", "import pypdf"),
    (away_from_home, "finetune/rag/index.py", "import lancedb"),
    (away_from_home, "finetune/rag/opened.py", "from qdrant_client import QdrantClient"),
    (relative_imports, "probe/spans.py", "from .models import x"),
    (relative_imports, "probe/report/page.py", "from .. import figures"),
    (crossing, "probe/study.py", "import finetune.train"),
    (crossing, "probe/study.py", "def f():\n    from finetune import train"),
    (crossing, "finetune/encode.py", "from probe.cases import load_cases"),
    (crossing, "finetune/encode.py", "from probe import capture_prepared"),
    (crossing, "finetune/encode.py", "import probe"),
    (away_from_home, "probe/capture.py", "from transformers import AttentionInterface"),
    (away_from_home, "probe/report/page.py", "import matplotlib.pyplot as plt"),
    (away_from_home, "probe/figures.py", "from jinja2 import Template"),
    (away_from_home, "finetune/evaluate.py", "import seaborn as sns"),
    (prints, "probe/study.py", "def f():\n    print('done')"),
    (code_loaders, "probe/captures.py", "import pickle"),
    (code_loaders, "probe/captures.py", "from pickle import loads"),
    (code_loaders, "probe/captures.py", "import torch\nx = torch.load('f')"),
    (code_loaders, "probe/captures.py", "from torch import load"),
    (code_loaders, "probe/casefiles.py", "import yaml\nx = yaml.load(f, yaml.Loader)"),
    (code_loaders, "probe/casefiles.py", "x = eval('1')"),
    (vague_names, "probe/utils.py", ""),
    (vague_names, "finetune/commands/common.py", ""),
]


@pytest.mark.parametrize(("rule", "path", "source"), PLANTED)
def test_the_rule_sees_a_planted_violation(rule: Callable[[Tree], Iterator[str]], path: str, source: str) -> None:
    public = {"probe/__init__.py": "__all__ = ['capture', 'load_cases']"}
    assert len(list(rule({**public, path: source}))) == 1


ALLOWED = {
    "probe/__init__.py": "__all__ = ['capture', 'load_cases']",
    "probe/cases.py": "from probe.spans import Span\nfrom probe.errors import CasesError",
    "probe/report/page.py": "import jinja2\nfrom probe.report.sections import Section",
    "probe/__main__.py": "import typer\nprint('x')\nfrom probe.study import run_report",
    "probe/rowtap.py": "from transformers import AttentionInterface",
    "finetune/encode.py": "from probe import load_cases\nimport yaml\nx = yaml.safe_load('')",
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rule_lets_through_what_is_allowed(rule: Callable[[Tree], Iterator[str]]) -> None:
    assert list(rule(ALLOWED)) == []


def test_every_module_of_the_list_exists() -> None:
    there = {module_of(path) for path in whole_tree() if path.startswith("probe/")} - {"__init__"}
    assert set(ORDER) == there and len(set(ORDER)) == len(ORDER)


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_the_module_is_imported_without_torch(module: str) -> None:
    assert loaded_by(f"import probe.{module}").isdisjoint({"torch", "transformers"})


def test_the_command_line_is_imported_without_any_heavy_library() -> None:
    assert loaded_by("import probe.__main__, finetune.__main__").isdisjoint(HEAVY)


def test_the_check_for_heavy_libraries_can_fail() -> None:
    assert {"numpy", "yaml"} <= loaded_by("import yaml, probe.spans")


def test_the_pinned_transformers_and_the_tested_floor_lie_in_the_promised_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (promise,) = [line for line in project["dependencies"] if line.startswith("transformers")]
    pins = dict(
        line.split(";")[0].strip().split("==")
        for line in (ROOT / "requirements.txt").read_text("utf-8").splitlines()
        if "==" in line and not line.startswith("#")
    )
    floor, ceiling = promise.removeprefix("transformers>=").split(",<")
    assert numbers(floor) < numbers(pins["transformers"]) < numbers(ceiling)
    assert numbers(pins["transformers"])[:2] == (5, 24) and pins["torch"] == "2.13.0"


def test_requirements_pins_every_line_exactly_and_names_no_index() -> None:
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    pins = [line.split(";")[0].strip() for line in lines if not line.startswith("#")]
    assert all(len(line.split("==")) == 2 and "/" not in line and "*" not in line for line in pins)
    assert [line for line in lines if line.startswith("-")] == []


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_the_readme_lists_every_module_in_the_order_of_the_code():
    rows = [line for line in (ROOT / "README.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    first_cells = [line.split("|")[1] for line in rows]
    named = [
        name.strip("`/") for cell in first_cells for name in cell.replace(" ", "").split(",") if "builtin" not in name
    ]
    assert [name for name in named if name not in ("data", "configs")] == [*ORDER, *TEACHING_ORDER]
