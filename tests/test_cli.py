"""The command line as a user meets it: exit codes, one line an error, nothing heavy before it is needed."""

import html
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

from probe import options
from probe.__main__ import app, run
from probe.models import DTYPES
from probe.runs import open_run

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ("report", "compare", "diff", "attend", "walk", "prompt", "check", "claims", "models")
MARKED = "- marked: 我{喜欢}[苹果]\n- marked: 他{讨厌}[菠菜]\n- marked: 牛顿被[苹果]{砸中}\n"


def program(
    *arguments: str, module: str = "probe", cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, away from the hub."""
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=settings,
        cwd=cwd or ROOT,
    )


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny.tiny_bert(folder)
    return folder / "bert"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny.tiny_llama(folder)
    return folder / "llama"


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(MARKED, encoding="utf-8")
    return path


# --- help and usage ---------------------------------------------------------------------------------------------


def test_help_names_every_command_and_every_command_has_help() -> None:
    done = program("--help")
    assert done.returncode == 0 and done.stderr == ""
    assert all(re.search(rf"^  {name} ", done.stdout, re.MULTILINE) for name in COMMANDS)
    assert {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    } == set(COMMANDS)


def test_the_help_tells_what_each_command_does_in_a_whole_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    summaries = re.findall(r"^  [a-z]+ +([A-Z].*)$", capsys.readouterr().out, re.MULTILINE)
    assert len(summaries) == len(COMMANDS)
    assert all(re.fullmatch(r"[^.]+[^.]\.", summary) for summary in summaries), summaries


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_exits_well_and_explains_each_option(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: python -m probe {command}")
    for line in re.findall(r"^  (-.*)$", shown, re.MULTILINE):
        assert re.search(r"\S {2,}\S|^\S+( \S+)*$", line), line


def test_help_takes_less_than_half_a_second_of_processor_time() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(3):
        program("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    assert spent / 3 < 0.5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "No such command 'nonsense'."),
        (["report", "--nonsense"], "No such option: --nonsense"),
        (["attend", "我喜欢苹果"], "Missing option '--target' / '-t'."),
        (["attend", "--target", "苹果"], "Invalid value for TEXT: give either a text or --chat FILE"),
        (["attend", "我", "-t", "我", "--chat", "x"], "Invalid value for TEXT: give either a text or --chat FILE"),
        (["attend", "我", "-t", "我", "--layers", "5-2"], "'5-2': allowed are numbers and ranges from 0, like 0-5,11"),
        (["attend", "我", "-t", "我", "--layers", "0-9999999999"], "allowed are numbers and ranges from 0"),
        (["attend", "我", "-t", "我", "--heads", "-1"], "'-1': allowed are numbers and ranges from 0"),
        (["attend", "我", "-t", "我", "--memory-budget", "much"], "'much': allowed is a size like 4GB or 500MB"),
        (["attend", "我", "-t", "我", "--occurrence", "0"], "--occurrence"),
        (["report", "--language", "fr"], "'en'"),
        (["report", "--batch-tokens", "0"], "--batch-tokens"),
        (["report", "--seed", "99999999999"], "--seed"),
        (["report", "--sentences", "9" * 30], "--sentences"),
        (["report", "--layer-cut-cases", "-1"], "--layer-cut-cases"),
        (["report", "--cache", ""], "'': allowed is the name of a folder"),
        (["report", "--out", ""], "'': allowed is the name of a folder"),
        (["walk", "--out", "page.pdf"], "'page.pdf': allowed is a file ending in .html"),
        (["walk", "--layer", "-1"], "--layer"),
        (["walk", "--layer", "1", "--layer", "2"], "--layer is given twice; give one"),
        (["walk", "--language", "fr"], "--language"),
        (["attend", "我", "-t", "我", "--png", "a.svg"], "'a.svg': allowed is a file ending in .png"),
        (["attend", "我喜欢苹果", "-t", "苹果", "-t", "喜欢"], "--target is given twice; give one"),
        (["report", "--seed", "1", "--language", "zh", "--seed", "2"], "--seed is given twice; give one"),
        (["check"], "Missing argument"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    heard = capsys.readouterr()
    assert says in heard.err and heard.err.count("\n") == 1 and heard.out == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["report", "no-such-set"], "no-such-set"),
        (["report", "no-such.yaml"], "no-such.yaml"),
        (["attend", "我喜欢苹果", "--target", "梨"], "'梨'"),
        (["walk", "--target", "梨"], "'梨'"),
        (["walk", "他在银行存钱"], "no target is given for '他在银行存钱': name the word to follow with --target WORD"),
        (["attend", "我喜欢苹果", "--target", "苹果", "--occurrence", "2"], "2"),
        (["attend", "", "--target", "苹果"], "苹果"),
        (["attend", "我喜欢苹果", "--target", ""], "target"),
        (["attend", "我喜欢苹果", "--target", "苹果", "--cue", "讨厌"], "讨厌"),
        (
            ["attend", "苹果", "-t", "苹果", "--device", "toaster"],
            "'toaster' is unknown; allowed are auto, cpu, cuda, cuda:N",
        ),
        (["report", "--device", "cuda:x"], "device 'cuda:x' is unknown; allowed are auto, cpu, cuda, cuda:N, mps"),
        (["report", "--dtype", "int8"], "dtype 'int8' is unknown; allowed are auto, float32, bfloat16, float16"),
        (["check", "builtin:x", "--dtype", ""], "dtype '' is unknown; allowed are auto, float32, bfloat16, float16"),
        (["attend", "--chat", "no-such.json", "--target", "苹果"], "no-such.json: cannot be read (No such file"),
    ],
)
def test_bad_input_is_refused_before_a_model_is_loaded(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "probe.models", None)  # an import of it would fail
    assert run(arguments) == 2
    heard = capsys.readouterr()
    assert says in heard.err and heard.err.count("\n") == 1 and heard.out == ""
    assert os.listdir(tmp_path) == []


def test_the_command_line_allows_the_number_formats_that_a_model_can_be_loaded_in() -> None:
    assert options.DTYPES == DTYPES


def test_an_output_folder_in_use_is_refused_before_a_model_is_loaded(
    tmp_path: Path, cases: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "probe.models", None)
    (tmp_path / "letters.txt").write_text("dear")
    assert run(["report", str(cases), "--out", str(tmp_path), "--force"]) == 2
    assert "which no run wrote" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["letters.txt", "mine.yaml"]


def test_a_control_character_in_an_argument_reaches_the_terminal_spelled_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["no\x1b[2Jsuch"]) == 2
    assert "\x1b" not in capsys.readouterr().err


# --- walk -------------------------------------------------------------------------------------------------------


def test_walk_alone_prints_the_example_to_the_digit_without_a_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "probe.models", None)
    assert run(["walk"]) == 0
    heard = capsys.readouterr()
    for row in ("0.36  0.81  1.01", "0.180  0.405  0.505", "0.27500  0.34439  0.38061", "0.3338   0.4826   0.5768"):
        assert re.sub(" +", " ", row) in re.sub(" +", " ", heard.out), row
    assert "99.2 %" in heard.out and heard.err == ""


def test_walk_follows_a_word_through_a_layer_and_head_and_writes_the_page(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "new" / "walk.html"
    assert run(["walk", "苹果手机", "-m", str(bert), "--layer", "2", "--head", "3", "--out", str(page)]) == 0
    heard = capsys.readouterr().out.splitlines()
    assert heard[-1] == str(page) and "layer 2 (counted from 0), head 3" in heard[-2] and "21 of 21 steps" in heard[-2]
    assert "<math" in page.read_text("utf-8") and "0.38061" in page.read_text("utf-8")
    assert sorted(os.listdir(page.parent)) == ["walk.html"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--layer", "99"], "has no attention layer 99; it has 0 to 2"),
        (["--head", "4"], "has no head 4; it has 0 to 3"),
        (["我" * 100 + "苹果"], "104 tokens, but bert has 64 positions"),
    ],
)
def test_walk_refuses_what_the_model_has_not_and_leaves_no_page(
    arguments: list[str], says: str, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["walk", *arguments, "-m", str(bert), "--out", str(tmp_path / "walk.html")]) == 2
    heard = capsys.readouterr()
    assert says in heard.err and heard.err.count("\n") == 1 and heard.out == "" and os.listdir(tmp_path) == []


def test_walk_shows_in_the_terminal_why_scores_are_divided_and_what_one_map_would_leave(
    bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from probe import softmax_growth

    (hard,) = [one for one in softmax_growth((1024,)) if not one.scaled]
    assert run(["walk"]) == 0
    alone = capsys.readouterr().out
    assert run(["walk", "苹果手机", "-m", str(bert)]) == 0
    real = capsys.readouterr().out
    for heard in (alone, real):
        (row,) = [line for line in heard.splitlines() if re.match(r" +1024 +no ", line)]
        assert f"{hard.gradient[0]:.3f}" in row and hard.gradient[0] < 0.05
    assert "best row" in real and "best row" not in alone


def test_the_command_on_a_page_makes_the_same_page_again(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, text = tmp_path / "a page.html", "他说苹果，" * 40 + "苹果也好"
    arguments = [text, "-t", "苹果", "--occurrence", "30", "-m", str(bert), "--cut-to-fit", "--language", "zh"]
    assert run(["walk", *arguments, "--out", str(page)]) == 0
    first = page.read_text("utf-8")
    (command,) = set(re.findall(r"python -m probe walk [^<]*(?=</bdi>)", first))
    words = shlex.split(html.unescape(command))
    assert words[:3] == ["python", "-m", "probe"]
    page.unlink()
    assert run(words[3:]) == 0
    assert page.read_text("utf-8") == first
    capsys.readouterr()


def test_of_a_long_text_the_tokens_with_most_weight_stand_under_their_names(
    bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["walk", "我" * 30 + "苹果", "-t", "苹果", "-m", str(bert)]) == 0
    heard = capsys.readouterr().out
    assert "16 of the 34 are shown" in heard
    (title,) = [place for place, line in enumerate(heard.splitlines()) if re.match(r"\d+ Weights: softmax", line)]
    names, ours = [line.split() for line in heard.splitlines()[title + 2 : title + 4]]
    assert len(names) == 16 and "果" in "".join(names)
    assert len([cell for cell in ours if re.fullmatch(r"[01]\.\d{4}", cell)]) == 16


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([""], "no target is given for ''"),
        (["我喜欢苹果", "-t", ""], "target is empty"),
        (["我喜欢苹果", "--model", ""], "no such model: ''"),
    ],
)
def test_an_empty_value_of_walk_is_a_mistake_and_no_default(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["walk", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_walk_refuses_a_folder_as_its_page_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "probe.models", None)
    (tmp_path / "page.html").mkdir()
    assert run(["walk", "--out", str(tmp_path / "page.html")]) == 2
    assert "is a folder, not a file" in capsys.readouterr().err


def test_a_text_with_escapes_is_spelled_out_in_the_last_line_too(
    bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["walk", "红\x1b[31m的\x07苹果", "-m", str(bert)]) == 0
    heard = capsys.readouterr().out
    assert "\x1b" not in heard and "\x07" not in heard and "<U+001B>" in heard


def test_walk_names_model_layer_and_head_first(bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["walk", "苹果手机", "-m", str(bert), "--head", "1"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"{bert.name} · layer 1 · head 1 (counted from 0: layers 0 to 2, heads 0 to 3)"


def test_walk_without_text_and_model_shows_the_textbook_and_then_the_default_model(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probe.commands.words.DEFAULT_MODEL", str(bert))
    assert run(["walk", "--out", str(tmp_path / "walk.html")]) == 0
    heard = capsys.readouterr().out
    place = f"{bert.name} · layer 1 · head 0 (counted from 0: layers 0 to 2, heads 0 to 3)"
    assert heard.startswith(f"First the textbook example, then {place}\n")
    assert heard.index("0.38061") < heard.index(f"\n{place}\n{bert.name} is the default model; --model takes another.")
    assert run(["walk", "-m", str(bert)]) == 0
    assert "0.38061" not in capsys.readouterr().out


def test_walk_speaks_chinese(bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["walk", "--language", "zh", "-m", str(bert)]) == 0
    assert "与模型自己的数最大相差" in capsys.readouterr().out


# --- attend -----------------------------------------------------------------------------------------------------


def test_attend_shows_rows_of_percent_that_sum_to_a_hundred(bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["attend", "我喜欢苹果", "--target", "苹果", "--cue", "喜欢", "--model", str(bert)]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["[CLS]", "我", "喜", "欢", "苹", "果", "[SEP]"]
    assert [row.split()[:2] for row in rows] == [["layer", "0"], ["layer", "1"], ["layer", "2"]]
    for row in rows:
        assert abs(sum(int(number) for number in row.replace("·", "0").split()[2:]) - 100) <= 4  # seven roundings


def test_attend_shows_the_asked_layers_and_each_asked_head(bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["attend", "苹果手机", "-t", "苹果", "-m", str(bert), "--layers", "0,2", "--heads", "1-2"]) == 0
    names = [" ".join(line.split()[:4]) for line in capsys.readouterr().out.splitlines()[1:]]
    assert names == ["layer 0 head 1", "layer 0 head 2", "layer 2 head 1", "layer 2 head 2"]


def test_attend_writes_a_picture_without_a_display(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    assert run(["attend", "我喜欢苹果", "-t", "苹果", "-m", str(bert), "--png", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_attend_piped_has_no_colour_and_says_nothing_but_the_map(bert: Path) -> None:
    done = program("attend", "我[bold]喜欢苹果", "-t", "苹果", "-m", str(bert))
    assert done.returncode == 0 and done.stderr == ""
    assert "\x1b" not in done.stdout and done.stdout.count("layer") == 3


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--layers", "99"], "layers 99: this model has attention layers 0-2"),
        (["--heads", "4"], "heads 4: this model has heads 0-3"),
        (["--memory-budget", "1KB"], "a larger memory budget"),
        (["--device", "cuda:999"], "device 'cuda:999': "),
        (["--png", "no-such-folder/a.png"], "no-such-folder/a.png"),
        (["--revision", "main"], "has no revisions"),
    ],
)
def test_what_this_model_or_machine_lacks_is_one_line_and_exit_code_2(
    bert: Path, option: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["attend", "我喜欢苹果", "-t", "苹果", "-m", str(bert), *option]) == 2
    heard = capsys.readouterr()
    assert says in heard.err and heard.err.count("\n") == 1 and heard.out == ""


def test_a_text_longer_than_the_model_is_refused_with_the_way_out(
    bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["attend", "我" * 100 + "苹果", "-t", "苹果", "-m", str(bert)]
    assert run(arguments) == 2
    heard = capsys.readouterr().err
    assert "104 tokens" in heard and "64 positions" in heard and "--cut-to-fit" in heard
    assert run([*arguments, "--cut-to-fit"]) == 0


@pytest.mark.parametrize("source", ["no/such-model", "./no-such-folder", "builtin:nothing"])
def test_a_model_that_cannot_be_had_is_one_line(source: str) -> None:
    done = program("attend", "我喜欢苹果", "-t", "苹果", "-m", source)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and re.split("[/:]", source)[-1] in done.stderr


@pytest.mark.parametrize("source", ["", "x" * 3000, "~no-such-user/model", "a\0b"])
def test_a_name_that_no_model_can_have_is_one_line(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", source]) == 2
    heard = capsys.readouterr().err
    assert heard.count("\n") == 1 and "internal" not in heard


def test_an_error_about_the_one_text_does_not_give_it_a_name(bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = ["我" * 100 + "苹果", "-t", "苹果"]
    for arguments in (["我喜欢苹果", "-t", "梨"], [*long], ["我喜欢苹果", "-t", "苹果", "--memory-budget", "1KB"]):
        assert run(["attend", *arguments, "-m", str(bert)]) == 2
        assert not capsys.readouterr().err.startswith("case ")


def test_a_cue_may_be_given_again_and_marks_both_words(bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["attend", "我喜欢苹果", "-t", "苹果", "-c", "我", "-c", "喜欢", "-m", str(bert)]) == 0
    assert capsys.readouterr().err == ""


# --- chat -------------------------------------------------------------------------------------------------------


@pytest.fixture
def chatty(tmp_path: Path) -> Path:
    """A Llama whose template writes its own start token, asks for a user's turn first, and marks turns."""
    model, tokenizer = tiny.tiny_llama()
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}{% if loop.first and m.role != 'user' %}"
        "{{ raise_exception('begin with\n the user') }}{% endif %}{{ m.role + ': ' + m.content }}{% endfor %}"
    )
    model.save_pretrained(tmp_path / "chatty")
    tokenizer.save_pretrained(tmp_path / "chatty")
    return tmp_path / "chatty"


def write_messages(folder: Path, content: object) -> str:
    (folder / "messages.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return str(folder / "messages.json")


def test_chat_messages_pass_through_the_models_template_with_one_start_token(
    chatty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_messages(tmp_path, [{"role": "user", "content": "我喜欢苹果"}])
    assert run(["attend", "--chat", file, "-t", "苹果", "-m", str(chatty), "--layers", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = " ".join(line for line in lines if not line.startswith("layer")).split()
    assert words.count("<s>") == 1 and words[0] == "<s>"
    assert "".join(words[1:]).endswith("我喜欢苹果") and "user" in "".join(words)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", ":1: not JSON"),
        ("[]", "holds no list of messages"),
        ('{"role": "user"}', "holds no list of messages"),
        ('[{"role": "user", "content": "a"}, {"role": 1}]', "message 2 is not a role with a content"),
        ("[" * 100_000, "nested too deeply"),
        (b'["\xff"]', "byte 2 is not UTF-8"),
    ],
)
def test_a_bad_file_of_messages_is_one_line(
    content: str | bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert run(["attend", "--chat", str(tmp_path / "m.json"), "-t", "苹果"]) == 2
    heard = capsys.readouterr().err
    assert says in heard and heard.count("\n") == 1


def test_a_template_that_refuses_and_a_model_without_one_are_one_line(
    chatty: Path, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_messages(tmp_path, [{"role": "system", "content": "苹果"}])
    assert run(["attend", "--chat", file, "-t", "苹果", "-m", str(chatty)]) == 2
    assert "refuses these messages: begin with the user\n" in capsys.readouterr().err
    assert run(["attend", "--chat", file, "-t", "苹果", "-m", str(bert)]) == 2
    heard = capsys.readouterr().err
    assert "has no chat template (neither builtin has one); give a chat model with --model, or the text itself" in heard


# --- check and models -------------------------------------------------------------------------------------------


def test_check_says_pass_and_why_and_gives_the_same_as_json(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(llama)]) == 0
    table = capsys.readouterr().out
    assert run(["check", str(llama), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is True and found["path"] == "tap"
    assert all(item["name"] in table and item["why"] for item in found["items"])
    assert {item["status"] for item in found["items"]} <= {"pass", "skip"}


def test_models_lists_the_builtin_models_with_their_licences(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models"]) == 0
    shown = capsys.readouterr().out
    assert "builtin:e5-small" in shown and "builtin:gemma3-270m" in shown and "MIT" in shown


# --- report -----------------------------------------------------------------------------------------------------


def test_report_writes_a_run_folder_and_says_where_the_page_is(
    bert: Path, cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["report", str(cases), "--model", str(bert), "--out", str(tmp_path / "run")]
    assert run(arguments) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'run' / 'report.html'}\n"
    names = {path.relative_to(tmp_path / "run").as_posix() for path in (tmp_path / "run").rglob("*")}
    assert {"manifest.json", "config.yaml", "report.html", "tables/observations.parquet"} <= names
    assert {"tables/results.csv", "tables/results.parquet"} <= names
    assert any(name.startswith("figures/") and name.endswith(".png") for name in names)
    assert str(tmp_path) not in (tmp_path / "run/report.html").read_text("utf-8")
    assert run(arguments) == 2 and "not empty" in capsys.readouterr().err
    assert run([*arguments, "--force", "--language", "zh"]) == 0


def test_a_report_says_once_that_marks_in_a_text_are_read_as_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("- {text: '我[苹果]', target: 苹果}\n" * 2, encoding="utf-8")
    assert run(["report", str(path), "--model", "no/such-model", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.splitlines()[0] == (
        "note: line 1: text holds [ ] or { } as characters; to mark words use `marked:`"
    )


def test_two_reports_of_the_same_are_the_same_bytes_but_for_the_manifest(
    bert: Path, cases: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        done = program("report", str(cases), "--model", str(bert), "--out", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    different = {
        str(file) for file in files if (tmp_path / "one" / file).read_bytes() != (tmp_path / "two" / file).read_bytes()
    }
    assert len(files) > 5 and different == {"manifest.json"}


def test_a_report_stands_under_runs_by_the_name_of_its_cases(
    bert: Path, cases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["report", str(cases), "--model", str(bert), "--no-cut"]) == 0
    assert (tmp_path / "runs" / "mine" / "report.html").exists()


def test_a_set_that_names_itself_as_a_path_stays_under_runs(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    Path("mine.yaml").write_text("set: ../../outside\ncases:\n" + MARKED, encoding="utf-8")
    assert run(["report", "mine.yaml", "--model", str(bert), "--no-cut"]) == 0
    assert os.listdir(tmp_path) == ["inside"] and Path("runs/outside/report.html").exists()


def test_layer_cuts_are_made_for_as_many_cases_as_asked_for(bert: Path, cases: Path, tmp_path: Path) -> None:
    import pandas as pd

    for most in (0, 2):
        out = tmp_path / str(most)
        assert run(["report", str(cases), "-m", str(bert), "--out", str(out), "--layer-cut-cases", str(most)]) == 0
        seen = pd.read_parquet(out / "tables/observations.parquet")
        seen = seen[(seen["measure"] == "cut effect") & (seen["layer"] >= 0)]
        assert seen["case"].nunique() == most


def test_a_report_of_two_models_is_one_run_folder_that_diff_reads(
    bert: Path, llama: Path, cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pandas as pd

    for out, models in (("one", (bert, llama)), ("two", (bert, llama))):
        chosen = ["-m", str(models[0]), "-m", str(models[1]), "--reference-cases", "0"]
        assert run(["report", str(cases), *chosen, "--out", str(tmp_path / out)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == str(tmp_path / "one" / "report.html")
    for table in ("cases", "results"):
        assert set(pd.read_csv(tmp_path / "one" / "tables" / f"{table}.csv")["model"]) == {"bert", "llama"}
    assert run(["diff", str(tmp_path / "one"), str(tmp_path / "two")]) == 0
    assert capsys.readouterr().out.startswith("nothing changed")


def test_a_revision_with_two_models_is_refused_in_one_line(
    bert: Path, llama: Path, cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = ["report", str(cases), "-m", str(bert), "-m", str(llama), "--revision", "main", "--out", str(out)]
    assert run(arguments) == 2 and not out.exists()
    assert capsys.readouterr().err == "--revision belongs to one model; give one --model with it\n"


def test_a_wrong_second_model_is_refused_before_the_first_is_loaded(
    bert: Path, cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(bert, broken)
    (broken / "tokenizer.json").write_text("{}")  # loading it is an error that the second must come before
    out, second = tmp_path / "run", str(tmp_path / "nowhere" / "llama")
    assert run(["report", str(cases), "-m", str(broken), "--out", str(out)]) == 2
    assert "broken" in capsys.readouterr().err
    begun = time.monotonic()
    assert run(["report", str(cases), "-m", str(broken), "-m", second, "--out", str(out)]) == 2
    heard = capsys.readouterr().err
    assert "nowhere" in heard and "broken" not in heard and heard.count("\n") == 1 and not out.exists()
    assert time.monotonic() - begun < 5


def test_cases_without_cues_get_their_words_read(bert: Path, tmp_path: Path) -> None:
    import pandas as pd

    path = tmp_path / "plain.yaml"
    path.write_text("- marked: 我喜欢[苹果]\n- marked: 他讨厌[菠菜]\n- marked: 牛顿被[苹果]砸中\n", encoding="utf-8")
    assert run(["report", str(path), "-m", str(bert), "--out", str(tmp_path / "run")]) == 0
    words = pd.read_csv(tmp_path / "run/tables/readings.csv")
    own = words[~words["special"]]
    assert "".join(own.loc[own["case"] == own["case"].iloc[0], "word"]) == "我喜欢" and (own["effect"] > 0).all()
    page = (tmp_path / "run/report.html").read_text("utf-8")
    assert 'id="readings"' in page and "tables/readings.csv" in page
    assert run(["report", str(path), "-m", str(bert), "--out", str(tmp_path / "none"), "--reading-cases", "0"]) == 0
    assert not (tmp_path / "none/tables/readings.csv").exists()
    assert 'id="readings"' not in (tmp_path / "none/report.html").read_text("utf-8")


# --- compare ----------------------------------------------------------------------------------------------------


def test_compare_reads_the_asked_layers_and_heads_of_both_models(bert: Path, cases: Path, tmp_path: Path) -> None:
    import pandas as pd

    chosen = ["--layers", "0,2", "--heads", "1-2", "--no-cut"]
    assert run(["compare", str(bert), str(bert), str(cases), "--out", str(tmp_path / "run"), *chosen]) == 0
    seen = pd.read_parquet(tmp_path / "run/tables/observations.parquet")
    assert {tuple(pair) for pair in seen[["layer", "head"]].drop_duplicates().to_numpy()} == {
        (layer, head) for layer in (0, 2) for head in (1, 2)
    }
    assert seen["model"].nunique() == 2


@pytest.mark.parametrize("side", ["a", "b"])
def test_a_revision_of_one_side_is_asked_of_that_side_alone(
    side: str, bert: Path, llama: Path, cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", str(bert), str(llama), str(cases), "--out", str(tmp_path / "run")]
    assert run([*arguments, f"--revision-{side}", "main"]) == 2
    name = {"a": "bert", "b": "llama"}[side]
    assert capsys.readouterr().err == f"{name} is local and has no revisions; leave revision 'main' out\n"
    assert not (tmp_path / "run").exists()


def heed_ctrl_c() -> None:
    """A run that was started in the background hands on an ignored SIGINT; the program under test must not get it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_report_that_is_stopped_leaves_nothing_behind(
    bert: Path, cases: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    arguments = ["report", str(cases), "--model", str(bert), "--out", str(out / "run")]
    started = subprocess.Popen(
        [sys.executable, "-m", "probe", *arguments], env=environment, stderr=subprocess.PIPE, text=True,
        preexec_fn=heed_ctrl_c,
    )  # fmt: skip
    wait_for(lambda: any(out.iterdir()))
    started.send_signal(number)
    _, heard = started.communicate(timeout=60)
    assert started.returncode == code and "Traceback" not in heard
    assert list(out.iterdir()) == []


def wait_for(happened: Callable[[], bool], *, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


# --- the program itself -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["walk", "models", "report --help"])  # through rich, print and Typer's help
def test_a_reader_who_stops_early_is_no_error(arguments: str) -> None:
    """The pipe has no reader from the start, so the first line that is written breaks it."""
    command = f"{sys.executable} -m probe {arguments} | (exec <&-; sleep 3); exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 141 and done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_onto_a_full_disk_is_one_line() -> None:
    command = f"{sys.executable} -m probe models > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and re.fullmatch(r"cannot write .*No space left.*\n", done.stderr)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_output_is_no_crash(closed: str) -> None:
    command = f"{sys.executable} -m probe models {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and done.stderr == ""


def test_an_unexpected_error_is_one_line_and_a_traceback_only_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "probe.models", None)
    assert run(["models"]) == 1
    assert re.fullmatch(r"internal error: .*\(CIJING_DEBUG=1 shows where\)\n", capsys.readouterr().err)
    monkeypatch.setenv("CIJING_DEBUG", "1")
    with pytest.raises(ImportError):
        run(["models"])


def test_chinese_on_a_terminal_that_cannot_show_it_is_escaped_not_a_crash(bert: Path) -> None:
    done = program("attend", "我喜欢苹果", "-t", "苹果", "-m", str(bert), PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0 and r"\u82f9" in done.stdout


def test_an_earlier_run_survives_a_report_that_fails(bert: Path, tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as folder:
        folder.write_text("report.html", "first")
    bad = tmp_path / "bad.yaml"
    bad.write_text("- marked: 我喜欢[苹果]\n- text: " + "我" * 100 + "苹果\n  target: 苹果\n", encoding="utf-8")
    assert run(["report", str(bad), "--model", str(bert), "--out", str(tmp_path / "run"), "--force"]) == 2
    assert (tmp_path / "run/report.html").read_text() == "first"
    assert sorted(os.listdir(tmp_path)) == ["bad.yaml", "run"]


# --- the other program ------------------------------------------------------------------------------------------


def test_finetune_lists_its_commands_and_refuses_what_is_none_of_them() -> None:
    done = program("--help", module="finetune")
    assert done.returncode == 0 and "train" in done.stdout and "check" in done.stdout
    refused = program("teach", "config.yaml", module="finetune")
    assert refused.returncode == 2 and "teach" in refused.stderr and "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train"], "give a configuration file, or --model and --data"),
        (["train", "nothing.yaml"], "shipped are apple_senses, biochem_lm, chips_lm"),
        (["train", "chips_lm", "--set", "lora.rr=3"], "lora.rr: unknown key; did you mean r?"),
        (["train", "chips_lm", "--set", "lora"], "KEY=VALUE"),
        (["train", "--model", "builtin:nope", "--data", "chips/train"], "no builtin model"),
        (["train", "chips_lm", "--pairs", "none.yaml"], "none.yaml"),
        (["train", "--model", "builtin:e5-small", "--data", "missing.jsonl"], "missing.jsonl"),
        (["mine", "missing.jsonl", "--out", "pairs.txt"], "ending in .yaml"),
    ],
)
def test_a_mistake_in_a_command_of_finetune_is_one_line_with_what_is_allowed(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "run")] if arguments[0] == "train" else []
    done = program(*arguments, *out, module="finetune")
    assert done.returncode == 2, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_an_unknown_claim_is_refused_in_one_line_with_the_valid_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["claims", "--only", "watershed"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("--only 'watershed': no such claim; allowed are contexts, rungs, neighbours")
    assert run(["claims", "--markdown", "README.rst"]) == 2
    assert "allowed is a file ending in .md" in capsys.readouterr().err


def test_claims_that_need_no_model_are_answered_without_loading_one(bert: Path, llama: Path, tmp_path: Path) -> None:
    out, file = tmp_path / "run", tmp_path / "claims.md"
    done = program(
        *("claims", "--only", "entropy", "--only", "example", "--only", "heads"),
        *("--model", str(bert), "--decoder", str(llama)),
        *("--out", str(out), "--markdown", str(file), "--language", "zh"),
    )
    assert done.returncode == 0, done.stderr
    assert "newly initialised" not in done.stderr and "note" not in done.stderr
    keys = [line.split()[0] for line in done.stdout.splitlines() if line.split()[0] in ("entropy", "example", "heads")]
    # in the article's order, whatever the order asked; each a line with its wording and one a statement
    assert keys == ["example", "example", "entropy", "entropy", "heads", "heads"]
    assert done.stdout.splitlines()[0].split()[:3] == ["说法", "结论", "陈述的结论"]
    assert not any(line.endswith(" ") for line in done.stdout.splitlines())
    assert done.stdout.splitlines()[-1] == str(out / "report.html")
    text = file.read_text("utf-8")
    assert (out / "tables" / "claims.csv").is_file() and "python -m probe claims --only entropy" in text
    assert "99.2 %" in text and "反驳" in text
    again = program("claims", "--only", "entropy", "--out", str(out))
    assert again.returncode == 2 and len(again.stderr.splitlines()) == 1


def test_a_claim_runs_on_a_model_of_ones_own(bert: Path, llama: Path, tmp_path: Path) -> None:
    models = ("--model", str(bert), "--decoder", str(llama))
    done = program("claims", "--only", "contexts", "--quick", *models, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "quick trial run" in page and str(bert) in page
    assert "quick trial run" in done.stderr and "none (trial run)" in done.stdout
