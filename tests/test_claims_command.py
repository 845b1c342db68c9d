"""`python -m probe claims`: what is refused before anything is measured, and the command that a page names."""

import html
import re
import shlex
from pathlib import Path

import pytest
from claims_bench import bench, tiny

from probe.__main__ import run
from probe.claims.registry import run_claims
from probe.claims_story import say
from probe.commands.article import _kept_table
from probe.errors import CijingError, TapError
from tests import tiny as zoo

FOLDERS = {"bert": zoo.tiny_bert, "llama": zoo.tiny_llama, "t5": zoo.tiny_t5}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Tiny models by family, in a folder whose name must be quoted; `headless` is a Llama saved without its head."""
    folder = tmp_path_factory.mktemp("my models")
    for build in FOLDERS.values():
        build(folder)
    (folder / "bare").mkdir()
    zoo.tiny_llama(folder / "bare", head=False)
    return {**{name: str(folder / name) for name in FOLDERS}, "headless": str(folder / "bare" / "llama")}


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("CIJING_DATA", raising=False)
    return tmp_path


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that says why, behind notes and progress."""
    capsys.readouterr()
    assert run(["claims", *arguments]) == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("option", "name", "says"),
    [
        ("model", "llama", "is of kind decoder; allowed is kind encoder"),
        ("model", "t5", "is of kind encoder-decoder; allowed is kind encoder"),
        ("decoder", "bert", "is of kind encoder; allowed is kind decoder with a trained language-model head"),
        ("decoder", "t5", "is of kind encoder-decoder; allowed is kind decoder with a trained language-model head"),
        ("decoder", "headless", "its files hold no trained head; allowed is kind decoder with a trained"),
    ],
)
def test_a_model_in_the_wrong_role_is_refused_as_soon_as_it_is_loaded(option, name, says, models, away, capsys):
    given = {"model": models["bert"], "decoder": models["llama"], option: models[name]}
    words = [word for key, value in given.items() for word in (f"--{key}", value)]
    line = refused(["--only", "tokens", "--quick", *words], capsys)
    assert line.startswith(f"--{option} {models[name]} ") and says in line
    assert list(away.iterdir()) == []


def test_models_in_their_roles_are_taken(models, away, capsys):
    words = ["--model", models["bert"], "--decoder", models["llama"]]
    assert run(["claims", "--only", "sizes", "--quick", *words]) == 0


@pytest.mark.parametrize(
    ("out", "markdown", "says"),
    [
        ("runs/claims", "runs/claims/claims.md", "--markdown runs/claims/claims.md lies in the run folder runs/claims"),
        ("here", "there/../here/sub/x.md", "lies in the run folder here"),
        ("same.md", "same.md", "--markdown same.md lies in the run folder same.md, or is it"),
        ("x.md/run", "x.md", "name a file outside of --out"),
        ("run", "taken.md", "taken.md: is a folder, not a file; cannot write the table of claims there"),
        ("file", "x.md", "output folder file is a file; name a folder"),
        ("full", "x.md", "output folder full is not empty"),
    ],
)
def test_places_that_cannot_be_written_are_refused_before_models_are_looked_for(out, markdown, says, away, capsys):
    (away / "taken.md").mkdir()
    (away / "file").write_text("x")
    (away / "full").mkdir()
    (away / "full" / "x").write_text("x")
    (away / "there").mkdir()
    line = refused(["--only", "entropy", "--model", "no/such", "--out", out, "--markdown", markdown], capsys)
    assert says in line


@pytest.mark.parametrize("option", ["--model", "--decoder"])
def test_both_models_are_found_first_whatever_is_asked(option, models, away, capsys):
    other = ["--decoder", models["llama"]] if option == "--model" else ["--model", models["bert"]]
    for only in ("intent", "entropy"):
        line = refused(["--only", only, option, "no/such", *other], capsys)
        assert line.startswith("no/such") and "claim" not in line
    assert list(away.iterdir()) == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_page_and_markdown_name_the_whole_command_quoted(language, models, away, capsys):
    words = ["--only", "entropy", "--only", "heads", "--model", models["bert"], "--decoder", models["llama"]]
    words += ["--quick", "--seed", "3", *(["--language", "zh"] if language == "zh" else []), "--dtype", "float32"]
    words += ["--markdown", "my claims.md"]
    assert run(["claims", *words]) == 0
    text = (away / "my claims.md").read_text("utf-8")
    (whole, *_) = re.findall("`(python -m probe claims [^`]*)`", text)
    assert shlex.split(whole) == ["python", "-m", "probe", "claims", *words]
    page = html.unescape((away / "runs" / "claims" / "report.html").read_text("utf-8"))
    assert whole in page
    one = shlex.join(["python", "-m", "probe", "claims", "--only", "entropy", *words[4:-2]])
    assert f"| `{one}` |" in text and one in page


def test_a_command_of_defaults_says_no_more_than_it_must(models, away, capsys):
    words = ["--model", models["bert"], "--decoder", models["llama"]]
    assert run(["claims", "--only", "heads", "--seed", "0", "--language", "en", "--dtype", "auto", *words]) == 0
    text = (away / "runs" / "claims" / "claims.md").read_text("utf-8")
    assert (
        f"This file is written by `{shlex.join(['python', '-m', 'probe', 'claims', '--only', 'heads', *words])}`."
        in text
    )


def test_a_data_folder_that_is_not_there_is_said_in_one_line(models, away, capsys, monkeypatch):
    monkeypatch.setenv("CIJING_DATA", "no-such-folder")
    words = ["--model", models["bert"], "--decoder", models["llama"]]
    assert run(["claims", "--only", "heads", *words]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if "CIJING_DATA" in line]
    assert notes == ["note: CIJING_DATA names no-such-folder, which is no folder: words are not counted in corpora"]


def test_a_text_that_is_too_long_is_refused_without_an_option_that_claims_lacks():
    short = tiny("BertConfig", "BertModel", max_position_embeddings=12)
    for key in ("verbs", "idle", "contexts", "rungs", "feeling"):
        with pytest.raises(CijingError, match="but tiny bert has 12 positions: choose a model with more") as caught:
            list(run_claims(bench(load_encoder=lambda: short), [key]))
        assert "cut" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "role", "kind", "option"),
    [
        ("verbs", "encoder", "MPNet", "--model"),
        ("feeling", "encoder", "MPNet", "--model"),
        ("far", "decoder", "Bloom", "--decoder"),
    ],
)
def test_a_model_whose_edges_cannot_be_cut_is_named_before_anything_is_measured(key, role, kind, option):
    sizes = {"n_layer": 2, "n_head": 4} if kind == "Bloom" else {}
    untapped = tiny(f"{kind}Config", f"{kind}Model", **sizes)
    findings = run_claims(bench(**{f"load_{role}": lambda: untapped}), ["entropy", key])
    wanted = (
        f"^tiny {kind.lower()}: {key} cannot be measured.* attention interface.*: give another {option}, or .*--only"
    )
    with pytest.raises(TapError, match=wanted):
        next(findings)


def test_a_run_of_all_claims_renews_the_table_that_the_folder_keeps_and_nothing_else(away):
    title, file = say("title", "en"), away / "docs" / "claims.md"
    assert _kept_table(title) is None
    file.parent.mkdir()
    for content, kept in ((f"# {title}\n\nold\n", True), ("# My own notes\n", False), ("", False)):
        file.write_text(content, encoding="utf-8")
        assert (_kept_table(title) == Path("docs/claims.md")) == kept
    file.write_bytes(b"\xff\xfe\x00")
    assert _kept_table(title) is None
    file.write_text(f"# {say('title', 'zh')}\n", encoding="utf-8")
    assert _kept_table(title) is None and _kept_table(say("title", "zh")) is not None


@pytest.mark.parametrize("arguments", [["--only", "sizes"], ["--only", "sizes", "--quick"]])
def test_a_run_of_some_claims_leaves_the_table_as_it_is(arguments, models, away):
    file = away / "docs" / "claims.md"
    file.parent.mkdir()
    file.write_text(f"# {say('title', 'en')}\n\nold\n", encoding="utf-8")
    assert run(["claims", *arguments, "--model", models["bert"], "--decoder", models["llama"]]) == 0
    assert file.read_text("utf-8").endswith("old\n")
