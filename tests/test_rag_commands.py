"""The commands on passages, as they are typed: index, search, ask, passages."""

import json
import re

import pytest

from finetune.__main__ import run
from finetune.rag.index import open_index
from finetune.rag.thresholds import load_threshold
from probe import load_prompts
from probe.models import UNTRAINED
from tests.passage_set import PASSAGES, QUESTIONS, write_set
from tests.tiny import FAMILIES, tiny_bert, tiny_llama

QUESTION = QUESTIONS[1][1]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a set, two models, and an index of words and one with vectors, sized in the decoder's tokens."""
    folder = tmp_path_factory.mktemp("commands")
    write_set(folder / "set")
    tiny_bert(folder)
    tiny_llama(folder, max_position_embeddings=4096)
    for name, encoder in (("words", "none"), ("vectors", str(folder / "bert"))):
        given = ["index", str(folder / "set" / "corpus.jsonl"), "--index", str(folder / name), "--id-column", "_id"]
        assert run([*given, "--encoder", encoder, "--tokenizer", str(folder / "llama")]) == 0
    return folder


@pytest.fixture(scope="module")
def chosen(place):
    """The run folder of the set searched by words, without a model."""
    given = ["passages", place / "set", "--model", "none", "--encoder", "none", "--out", place / "run"]
    assert run([*map(str, given), "--language", "en"]) == 0
    return place / "run"


@pytest.fixture
def typed(place, capsys):
    """Run a command that is to end with a code; gives standard output and standard error."""

    def command(*arguments, code=0):
        assert run([str(one) for one in arguments]) == code
        said = capsys.readouterr()
        return said.out, said.err

    capsys.readouterr()
    return command


@pytest.fixture
def asked(place, typed):
    """The command ask on an index, of words alone if none is named."""

    def command(*arguments, index="words", code=0, question=QUESTION):
        given = ["ask", question, "--index", place / index, "--model", place / "llama", "--max-new-tokens", 2]
        return typed(*given, "--k", 2, *arguments, code=code)

    return command


def test_a_set_is_indexed_and_an_index_brought_up_to_date(place, typed):
    given = ["index", place / "set" / "corpus.jsonl", "--index", place / "words", "--id-column", "_id"]
    out, err = typed(*given, "--encoder", "none", "--tokenizer", place / "llama")
    assert out.strip() == str(place / "words")
    assert "documents 8, chunks 8: all as before, nothing to do" in err


def test_an_update_that_removes_documents_says_so(place, typed, tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"苹果{name}", "utf-8")
    given = ["--index", tmp_path / "index", "--encoder", "none", "--tokenizer", place / "llama"]
    files = [tmp_path / f"{name}.txt" for name in "abc"]
    for sources, removed in ((files, None), (files[:1], "2 documents that are"), (files[1:], "1 document that is")):
        _, err = typed("index", *sources, *given)
        assert ("removed: " in err) == (removed is not None)
        if removed:
            said = f"removed: {removed} not among the sources any more (DOCS are the whole collection)"
            assert said in " ".join(err.split())


def test_a_search_tells_rank_scores_and_place(place, typed):
    out, _ = typed("search", QUESTION, "--index", place / "words", "--k", 2)
    assert "corpus.jsonl#acid-1 [0–" in out
    out, _ = typed("search", "苹果酸和苹果树", "--index", place / "words", "--k", 2, "--json")
    hits = [json.loads(line) for line in out.splitlines()]
    assert [one["rank"] for one in hits] == [1, 2]
    texts = {one["chunk"]["text"] for one in hits}
    assert texts <= {text for _, _, text, *_ in PASSAGES} and hits[0]["dense"] is None
    assert hits[0]["score"] == hits[0]["lexical"] >= hits[1]["lexical"] > 0


def test_a_search_that_finds_nothing_leaves_standard_output_empty(place, typed):
    out, err = typed("search", "qqq", "--index", place / "words", "--json")
    assert out == "" and "nothing was found" in err
    _, err = typed("search", "苹果", "--index", place / "words", "--mode", "dense", code=2)
    assert "the index has no vectors" in err


def test_an_answer_comes_with_its_sources_and_their_shares(asked):
    out, err = asked("--effects")
    assert "corpus.jsonl#acid-1 [0–" in out
    assert all(column in out for column in ("share", "per token", "dropped", "swapped", "unseen", "used"))
    assert "note: no threshold was chosen for this index's encoder" in err
    assert "sized in tokens" not in err


def test_json_is_one_object_with_numbers_that_json_has(asked):
    out, _ = asked("--json", "--effects", "--right", "草酰乙酸", "--threshold", "none")
    found = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert len(out.splitlines()) == 1
    assert found["question"] == QUESTION and found["sources"][0]["passage"]["document"] == "corpus.jsonl#acid-1"
    assert {"dropped", "swapped", "cut", "used"} <= set(found["sources"][0]["effect"])
    refused, _ = asked("--json", "--threshold", "1e9")
    assert json.loads(refused) | {"found": 0} == {
        "question": QUESTION, "answer": "资料没有说明", "refused": "below the threshold", "sources": [], "found": 0,
        "left_out": [],
    }  # fmt: skip


def test_a_question_that_finds_nothing_is_refused(asked):
    out, err = asked(question="qqq")
    assert out.strip() == "资料没有说明" and "refused: nothing found" in err
    out, _ = asked("--language", "en", question="qqq")
    assert out.strip() == "The passages do not say"


def test_effects_are_told_with_the_answer_that_they_are_of(asked):
    _, err = asked("--effects", "--right", "草酰乙酸")
    given = "effects: nats that the log-probability of “草酰乙酸” loses (the right answer, as given)"
    assert given in " ".join(err.split())
    _, err = asked("--effects", "--json")
    assert re.search(r"of “.+” loses \(the model's own answer; --right gives another\)", " ".join(err.split()))
    assert "effects:" not in asked()[1]


def test_a_refusal_tells_the_best_score_the_threshold_and_what_was_found(place, typed, asked):
    hit, _ = typed("search", QUESTION, "--index", place / "words", "--k", 1, "--json")
    best = json.loads(hit)["score"]
    out, err = asked("--threshold", "1000.5")
    assert f"refused: below the threshold: the best BM25 is {best:.4g}, the threshold 1000" in err
    lines = out.splitlines()
    assert lines[0] == "资料没有说明" and lines[1].split() == ["rank", "where", "score", "passage"]
    assert "corpus.jsonl#acid-1 [0–" in lines[2] and f"{best:.4g}" in lines[2] and "苹果酸脱氢酶催化" in lines[2]
    assert len(lines) > 2 and "passage" not in asked(question="qqq")[0]
    _, err = asked("--threshold", "1.5", "--mode", "dense", index="vectors")
    assert re.search(r"the best cosine is -?[01]", err)


def test_where_the_model_writes_no_answer_it_is_said(capsys):
    from finetune.commands.asking import _print_reply
    from finetune.rag.ask import Reply

    none = Reply(question=QUESTION, answer="", refused="the model wrote no answer", hits=())
    for language, words in (("zh", "没有回答"), ("en", "No answer")):
        _print_reply(none, language=language, threshold=None)
        said = capsys.readouterr()
        assert said.out == f"{words}\n" and "refused: the model wrote no answer" in said.err


def test_what_was_noted_of_the_model_is_said(place, typed, tmp_path):
    model, tokenizer = FAMILIES["llama"](head=False, max_position_embeddings=4096)
    model.save_pretrained(tmp_path / "headless")
    tokenizer.save_pretrained(tmp_path / "headless")
    given = ["ask", QUESTION, "--index", place / "words", "--max-new-tokens", 1]
    _, err = typed(*given, "--model", tmp_path / "headless")
    assert "note: " + UNTRAINED[:20] in err


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_a_threshold_that_is_no_number_is_refused(asked, number):
    _, err = asked(f"--threshold={number}", code=2)
    assert f"--threshold {number}: allowed are a finite number, a file, or none" in err


def test_a_threshold_is_held_against_the_scores_that_the_search_has(asked):
    out, err = asked("--threshold", "-1", "--mode", "lexical", index="vectors")  # a cosine is not what words give
    assert "refused" not in err and "acid-1" in out
    out, err = asked("--threshold", "1.5", "--mode", "dense", index="vectors")
    assert "refused: below the threshold" in err
    out, err = asked("--threshold", "1.5", index="vectors")  # hybrid: of cosines
    assert "refused: below the threshold" in err


def test_a_threshold_of_a_file_is_taken_where_it_fits_and_refused_where_not(place, chosen, asked):
    file = chosen / "threshold.json"
    with open_index(place / "words") as index:
        assert load_threshold(file, index.manifest.made_from).field == "lexical"
    _, err = asked("--threshold", file)
    assert "depend on the collection" in err
    _, err = asked("--threshold", file, "--mode", "dense", index="vectors", code=2)
    assert "is a threshold of lexical scores, which this search lacks; allowed are dense" in err
    _, err = asked("--threshold", place / "gone.json", code=2)
    assert "gone.json: cannot be read" in err


def test_an_index_sized_in_another_models_tokens_is_told(place, typed, tmp_path):
    given = ["index", place / "set" / "corpus.jsonl", "--index", tmp_path / "index", "--encoder", "none"]
    typed(*given, "--tokenizer", place / "bert")
    _, err = typed("ask", QUESTION, "--index", tmp_path / "index", "--model", place / "llama", "--max-new-tokens", 1)
    assert re.search(r"note: the index's chunks were sized in tokens of .*bert, not of .*llama", err)


def test_the_prompt_is_written_and_a_place_where_it_cannot_be_is_refused_first(place, typed, asked, tmp_path):
    asked("--prompt", tmp_path / "new" / "prompt.jsonl")
    (prompt,) = load_prompts(tmp_path / "new" / "prompt.jsonl")
    assert prompt.parts_of("passage")[0].source["document"] == "corpus.jsonl#acid-1"
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.jsonl").mkdir()
    for bad, said in (
        (tmp_path / "folder.jsonl", "a file in a folder that can be written"),
        (tmp_path / "file" / "prompt.jsonl", "a file in a folder that can be written"),
        (tmp_path / "prompt.txt", "a file ending in .jsonl"),
    ):
        given = ["ask", QUESTION, "--index", place / "words", "--model", "no/such/model"]
        _, err = typed(*given, "--prompt", bad, code=2)
        assert "--prompt" in err and f"allowed is {said}" in err
    _, err = asked("--prompt", tmp_path / "none.jsonl", question="qqq")
    assert "none.jsonl was not written" in err and not (tmp_path / "none.jsonl").exists()


def test_a_right_answer_without_effects_or_without_text_is_refused(asked):
    for given in (["--right", "草酰乙酸"], ["--right", " ", "--effects"], ["--right", "！？", "--effects"]):
        _, err = asked(*given, code=2)
        assert "allowed is both, or neither" in err


def test_a_set_is_measured_into_a_run_folder(place, typed, tmp_path):
    out, _ = typed(
        "passages", place / "set", "--model", place / "llama", "--encoder", "none", "--out", tmp_path / "run", "--k", 2,
        "--limit", 1, "--max-new-tokens", 2, "--order", "best-last",
    )  # fmt: skip
    assert out.splitlines()[-1] == str(tmp_path / "run")
    assert "margin" in out and "recall@1" in out
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "问了模型 1 个" in page
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text("utf-8"))
    assert manifest["model"] == str(place / "llama") and manifest["config"]["use"]["writing"]["order"] == "best-last"


def test_retrieval_alone_needs_no_answers(place, chosen, typed, tmp_path):
    plain = [(name, text, None, None) for name, text, *_ in QUESTIONS]
    write_set(tmp_path / "set", questions=plain, contradictions=None, elsewhere=None)
    given = ["passages", tmp_path / "set", "--encoder", "none", "--out", tmp_path / "run"]
    _, err = typed(*given, "--model", place / "llama", code=2)
    assert "no question of the set has an answer" in err and "--model none" in err
    assert not (tmp_path / "run").exists()
    page = (chosen / "report.html").read_text("utf-8")
    assert "BM25 · 8 questions, 6 that a passage answers and 2 that none does · 2 more about something else" in page


def test_the_terminal_has_the_results_and_the_weight_that_was_chosen(place, typed, tmp_path):
    given = ["passages", place / "set", "--model", "none", "--out", tmp_path / "run"]
    out, _ = typed(*given, "--encoder", place / "bert")
    assert len(re.findall(r"(?m)^(?:lexical|dense|hybrid) ", out)) == 9
    assert re.search(r"(?m)^weight [01]\.\d\d on vectors, chosen on \d other questions", out)
    out, _ = typed(*given, "--encoder", "none", "--force")
    assert len(re.findall(r"(?m)^lexical .* 6 *$", out)) == 3 and "weight" not in out


def test_the_help_says_that_the_page_is_in_the_language_too(typed):
    out, err = typed("passages", "--help")
    assert "of the page" in " ".join((out + err).replace("│", " ").split())


def test_an_encoder_writes_no_answers_and_is_refused_in_a_line(place, typed, tmp_path):
    given = ["passages", place / "set", "--model", place / "bert", "--encoder", "none", "--out", tmp_path / "run"]
    _, err = typed(*given, code=2)
    assert "is an encoder; allowed are decoders" in err
    assert not (tmp_path / "run").exists()
