"""Shares of a row's attention by part: against eager attention summed in plain loops, of several families."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from probe import shares as shares_module
from probe.__main__ import run
from probe.errors import BudgetError, CijingError, ModelError
from probe.models import model_from_parts
from probe.prompts import save_prompts
from probe.shares import part_shares
from tests import family_zoo
from tests.test_generation import NEW, bloom, by_eager_generation
from tests.test_prompts import mapped, pair
from tests.tiny import FAMILIES

DECODERS = ("llama", "gpt2", "qwen3", "gemma3")
ANSWER = "苹果,15"
WINDOW = 4  # of gemma3's layers 0 and 2
PIECES = (
    ("instruction", "", "like"),
    ("template", "", "[1]"),
    ("passage", "chips", "苹果公司 M1"),
    ("template", "", "[2]"),
    ("passage", "acid", "苹果酸"),
    ("question", "", "讨厌?"),
)
START = (("special", "", "<s>"), *PIECES)


@pytest.fixture(scope="module")
def loaded_of():
    made = {}

    def load(family):
        if family not in made:
            made[family] = model_from_parts(*FAMILIES[family](), name=family)
        return made[family]

    return load


def of(loaded, **options):
    """A prompt with two passages, as the family begins its texts."""
    return mapped(loaded.tokenizer, START if loaded.tokenizer.bos_token == "<s>" else PIECES, **options)


def eager_rows(loaded, ids, **extra):
    """Whole maps [layer, head, query, key] from the family's own eager attention."""
    model, before = loaded.backbone, loaded.backbone.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            output = model(torch.tensor([ids]), output_attentions=True, **extra)
    finally:
        model.set_attn_implementation(before)
    return np.stack([maps[0].float().numpy() for maps in output.attentions])


def names_of(prompt, length):
    """Which part each token belongs to, the first one apart, said token by token."""
    names = []
    for part in prompt.parts:
        names += [part.name or part.kind] * (part.stop - part.first)
    names += ["answer"] * (length - len(names))
    names[0] = "sink"
    return names


def summed(rows, names, labels):
    """Rows [..., key] summed over the tokens of each part, one addition after another."""
    found = np.zeros((*rows.shape[:-1], len(labels)))
    for key, name in enumerate(names):
        found[..., labels.index(name)] += rows[..., key]
    return found


def labels_of(found):
    return [part.label for part in found.parts]


# ---- rows of decoders ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", DECODERS)
def test_the_shares_of_a_given_answer_equal_eager_attention_summed_by_hand(loaded_of, family):
    loaded = loaded_of(family)
    prompt = of(loaded)
    found = part_shares(loaded, prompt, answer=ANSWER, rows="answer")
    ids, start = found.tokens.ids, len(prompt.tokens.ids)
    assert ids[:start] == prompt.tokens.ids and found.prompt_length == start and found.answer == ANSWER
    assert found.queries == tuple(range(start - 1, len(ids) - 1)) and len(found.queries) >= 3
    assert labels_of(found) == ["sink", "template", "instruction", "question", "chips", "acid", "answer"]
    maps = eager_rows(loaded, ids[:-1])[:, :, start - 1 :]
    expected = summed(maps, names_of(prompt, len(ids) - 1), labels_of(found))
    assert found.shares.shape == expected.shape and found.shares.dtype == np.float32
    assert np.abs(found.shares - expected).max() <= 2e-6
    assert np.abs(found.shares.sum(-1) - 1).max() <= 2e-6
    assert (found.shares[:, :, 0, found.part("answer")] == 0).all()  # the first row reads no answer yet
    assert found.shares[:, :, -1, found.part("answer")].max() > 0.01
    assert found.path == "tap" and found.rows_of == "answer"


@pytest.mark.parametrize("family", DECODERS)
def test_the_shares_of_a_generated_answer_equal_eagers_own_of_every_step(loaded_of, family):
    loaded = loaded_of(family)
    prompt = of(loaded)
    answer, stitched = by_eager_generation(loaded, prompt.tokens.ids, "dynamic")
    found = part_shares(loaded, prompt, generate=NEW)
    start = len(prompt.tokens.ids)
    assert found.tokens.ids[start:] == tuple(answer) and len(answer) == NEW and found.rows_of == "answer"
    expected = summed(stitched[:, :, start - 1 :, :-1], names_of(prompt, start + NEW - 1), labels_of(found))
    assert found.shares.shape == expected.shape == (*stitched.shape[:2], NEW, len(found.parts))
    assert np.abs(found.shares - expected).max() <= 1e-5
    again = part_shares(loaded, prompt, answer=answer)
    assert np.array_equal(again.shares, found.shares) and again.answer == found.answer


def test_the_rows_of_a_target_and_the_last_row_stand_in_the_prompt(loaded_of):
    loaded = loaded_of("llama")
    prompt = of(loaded, target="苹果酸")
    maps = eager_rows(loaded, prompt.tokens.ids)
    (acid,) = [part for part in prompt.parts if part.name == "acid"]
    names = names_of(prompt, len(prompt.tokens.ids))
    found = part_shares(loaded, prompt)
    assert found.rows_of == "target" and found.queries == tuple(range(acid.first, acid.stop))
    assert labels_of(found) == ["sink", "template", "instruction", "question", "chips", "acid"]
    expected = summed(maps[:, :, acid.first : acid.stop], names, labels_of(found))
    assert np.abs(found.shares - expected).max() <= 2e-6
    last = part_shares(loaded, prompt, rows="last")
    assert last.queries == (len(names) - 1,) and last.answer == ""
    assert np.abs(last.shares - summed(maps[:, :, -1:], names, labels_of(last))).max() <= 2e-6
    assert part_shares(loaded, replace(prompt, target=None)).rows_of == "last"


def test_layers_and_heads_can_be_chosen(loaded_of):
    loaded = loaded_of("gemma3")
    whole = part_shares(loaded, of(loaded), answer=ANSWER)
    some = part_shares(loaded, of(loaded), answer=ANSWER, layers=[3, 1], heads=[2, 0])
    assert [layer.index for layer in some.layers] == [1, 3] and some.heads == (0, 2)
    assert np.array_equal(some.shares, whole.shares[np.ix_([1, 3], [0, 2])])
    assert np.array_equal(some.uniform, whole.uniform[[1, 3]])


def test_passages_of_one_name_are_one_part(loaded_of):
    loaded = loaded_of("llama")
    apart = part_shares(loaded, of(loaded), rows="last")
    renamed = tuple(replace(part, name="chips") if part.name else part for part in of(loaded).parts)
    joined = part_shares(loaded, replace(of(loaded), parts=renamed), rows="last")
    assert labels_of(joined) == ["sink", "template", "instruction", "question", "chips"]
    both = apart.shares[..., [apart.part("chips"), apart.part("acid")]].sum(-1)
    assert np.allclose(joined.shares[..., joined.part("chips")], both, atol=1e-6)
    assert joined.parts[-1].tokens == apart.parts[-1].tokens + apart.parts[-2].tokens


def test_a_passage_called_like_a_kind_is_found_before_the_kind(loaded_of):
    loaded = loaded_of("llama")
    renamed = tuple(replace(part, name="question") if part.name == "acid" else part for part in of(loaded).parts)
    found = part_shares(loaded, replace(of(loaded), parts=renamed), rows="last")
    assert labels_of(found)[found.part("question")] == "question"
    assert found.parts[found.part("question")].kind == "passage" and found.parts[found.part("sink")].kind == "sink"


# ---- encoders --------------------------------------------------------------------------------------------------


def test_an_encoder_reads_a_pair_with_its_token_types(loaded_of):
    loaded = loaded_of("bert")
    prompt = pair(loaded.tokenizer, target="苹果")
    prompt = replace(prompt, target=replace(prompt.target, start=9, end=11))  # of the sentence, not of the passage
    found = part_shares(loaded, prompt, rows="target")
    assert prompt.target.cut(prompt.tokens.text) == "苹果" and found.queries == (11, 12)
    types = torch.tensor([prompt.token_types])
    maps = eager_rows(loaded, prompt.tokens.ids, token_type_ids=types)[:, :, 11:13]
    assert labels_of(found) == ["sink", "template", "question", "acid"]
    expected = summed(maps, names_of(prompt, len(prompt.tokens.ids)), labels_of(found))
    assert np.abs(found.shares - expected).max() <= 2e-6
    assert np.allclose(found.token_shares, [1 / 14, 2 / 14, 5 / 14, 6 / 14]) and len(found.token_shares) == 2
    untyped = part_shares(loaded, replace(prompt, token_types=None))
    assert np.abs(untyped.shares - found.shares).max() > 0.01


def test_the_sink_of_a_pair_is_its_first_special_token(loaded_of):
    loaded = loaded_of("bert")
    pieces = (("question", "", "苹果"), ("special", "", "[SEP]"), ("passage", "a", "梨子"))
    prompt = replace(mapped(loaded.tokenizer, pieces, form="pair", target="苹果"), token_types=None)
    found = part_shares(loaded, prompt)
    maps = eager_rows(loaded, prompt.tokens.ids)[:, :, :2]
    assert np.allclose(found.shares[..., found.part("sink")], maps[..., 2], atol=2e-6)
    assert [part.tokens for part in found.parts] == [1, 0, 2, 2]
    plain = part_shares(loaded, replace(prompt, form="plain"))
    assert np.allclose(plain.shares[..., plain.part("sink")], maps[..., 0], atol=2e-6)


# ---- what shares are held against ------------------------------------------------------------------------------


def test_even_attention_counts_the_tokens_that_a_layer_lets_the_row_see(loaded_of):
    loaded = loaded_of("gemma3")
    found = part_shares(loaded, of(loaded), answer=ANSWER)
    names = names_of(of(loaded), len(found.tokens.ids) - 1)
    for layer in range(4):
        for row, position in enumerate(found.queries):
            first = max(position - WINDOW + 1, 0) if layer in (0, 2) else 0
            seen = names[first : position + 1]
            expected = [seen.count(label) / len(seen) for label in labels_of(found)]
            assert np.allclose(found.uniform[layer, row], expected, atol=1e-6)
            if layer in (1, 3):
                assert np.allclose(found.token_shares[row], expected)
    assert not np.allclose(found.uniform[0], found.uniform[1])


@pytest.mark.parametrize("family", ["llama", "gemma3", "bert"])
def test_a_model_that_attends_evenly_gives_each_part_its_share_of_the_tokens(family):
    model, tokenizer = FAMILIES[family]()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_proj.weight", "query.weight", "query.bias")):
                weight.zero_()
    loaded = model_from_parts(model, tokenizer, name=family)
    if family == "bert":
        found = part_shares(loaded, pair(tokenizer, target="苹果"))
    else:
        found = part_shares(loaded, of(loaded), answer=ANSWER)
    assert np.allclose(found.shares, found.uniform[:, None], atol=1e-5)
    there = found.token_shares > 0
    full = [1, 3] if family == "gemma3" else slice(None)
    assert np.allclose(found.per_token[full][:, :, there], 1, atol=1e-4)
    assert np.isnan(found.per_token[:, :, ~there]).all()
    if family == "gemma3":  # a window cannot see a passage far back, which a share of tokens alone does not tell
        assert (found.shares[0][..., found.part("chips")] == 0).all()
        assert (found.uniform[0, :, found.part("chips")] == 0).all() and (found.token_shares > 0)[:, :6].all()


def test_per_token_is_the_share_over_the_share_of_the_tokens(loaded_of):
    loaded = loaded_of("llama")
    found = part_shares(loaded, of(loaded), rows="last")
    tokens = np.array([part.tokens for part in found.parts])
    assert tokens.sum() == len(found.tokens.ids)
    assert np.allclose(found.per_token, found.shares / (tokens / tokens.sum()), rtol=1e-5)
    summary = found.summary()
    means = found.shares.mean((0, 1, 2))
    assert list(summary["part"]) == labels_of(found) and np.allclose(summary["share"], means, atol=1e-6)
    assert np.allclose(summary["per_token"], means / (tokens / tokens.sum()), rtol=1e-5)
    assert np.allclose(summary["uniform"], tokens / tokens.sum())


def test_the_strongest_heads_of_a_part_and_the_long_table_name_the_same_numbers(loaded_of):
    loaded = loaded_of("gemma3")
    found = part_shares(loaded, of(loaded), answer=ANSWER, heads=[1, 3])
    grid = found.head_shares("acid")
    strongest = found.strongest("acid", 4)
    assert [share for _, _, share in strongest] == sorted(grid.ravel(), reverse=True)[:4]
    table = found.table()
    assert len(table) == found.shares.size
    for layer, head, share in strongest:
        own = table[(table["layer"] == layer.index) & (table["head"] == head) & (table["part"] == "acid")]
        assert own["share"].mean() == pytest.approx(share, abs=1e-6) and list(own["row"]) == list(found.queries)
    rows = table.groupby(["layer", "head", "row"])[["share", "uniform"]].sum()
    assert np.allclose(rows, 1, atol=1e-5)
    assert set(table["row_token"]) == {found.tokens.labels[place] for place in found.queries}


def test_of_heads_with_equal_shares_the_first_come_first(loaded_of):
    found = part_shares(loaded_of("llama"), of(loaded_of("llama")), rows="last", heads=[1, 3])
    even = replace(found, shares=np.full_like(found.shares, 0.5))
    even.shares[1, 1] = 0.75
    (first, second, *_) = found.layers
    assert even.strongest("acid", 4) == [(second, 3, 0.75), (first, 1, 0.5), (first, 3, 0.5), (second, 1, 0.5)]


# ---- other ways of attending -----------------------------------------------------------------------------------


def zoo(name):
    (family,) = [family for family in family_zoo.FAMILIES if family.name == name]
    return family_zoo.load(family)


def test_what_a_learned_sink_takes_counts_as_sink():
    loaded = zoo("gpt-oss")
    prompt = mapped(loaded.tokenizer, START)
    found = part_shares(loaded, prompt, rows="last")
    maps = eager_rows(loaded, prompt.tokens.ids)[:, :, -1:]
    expected = summed(maps, names_of(prompt, len(prompt.tokens.ids)), labels_of(found))
    assert expected.sum(-1).min() < 0.9
    assert np.abs(found.shares[..., 1:] - expected[..., 1:]).max() <= 2e-6
    assert np.abs(found.shares.sum(-1) - 1).max() <= 2e-6


def test_families_with_attention_of_their_own_are_summed_from_eager_maps():
    loaded = bloom()
    prompt = mapped(loaded.tokenizer, START)
    found = part_shares(loaded, prompt, answer=ANSWER)
    ids = found.tokens.ids
    maps = eager_rows(loaded, ids[:-1])[:, :, found.prompt_length - 1 :]
    expected = summed(maps, names_of(prompt, len(ids) - 1), labels_of(found))
    assert found.path == "eager" and np.abs(found.shares - expected).max() <= 2e-6
    assert np.array_equal(found.uniform[0], found.token_shares)
    with pytest.raises(CijingError, match="prompt p1: bloom: rows cannot be had while it generates"):
        part_shares(loaded, prompt, generate=2)


def test_sums_are_kept_and_no_rows(loaded_of, monkeypatch):
    loaded, kept, real = loaded_of("llama"), [], shares_module.forward_rows

    def watched(*arguments, **options):
        forward = real(*arguments, **options)
        kept.extend(rows.shape for rows in forward.rows.values())
        return forward

    monkeypatch.setattr(shares_module, "forward_rows", watched)
    found = part_shares(loaded, of(loaded), answer=ANSWER)
    assert kept == [(1, 4, len(found.queries), len(found.parts))] * 3


# ---- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "change", "options", "says"),
    [
        ("llama", {}, {"rows": "first"}, "rows 'first' is unknown; allowed are answer, target, last"),
        ("llama", {}, {"rows": "answer"}, 'rows "answer" need an answer'),
        ("llama", {}, {"rows": "target"}, 'rows "target" need a target'),
        ("llama", {}, {"rows": "last", "answer": "a"}, 'rows "last" stand in the prompt'),
        ("llama", {}, {"answer": ""}, "the answer is empty"),
        ("llama", {}, {"answer": []}, "the answer is empty"),
        ("llama", {}, {"answer": [10**6]}, "the answer's token 0 is 1000000, but llama has ids 0 to"),
        ("llama", {}, {"answer": ["a"]}, "the answer has 'a'"),
        ("llama", {}, {"answer": "a", "generate": 2}, "allowed is one of both"),
        ("llama", {}, {"generate": -1}, "generate -1: allowed is a whole number from 0"),
        ("llama", {}, {"layers": [9]}, "layers 9: this model has attention layers 0-2"),
        ("llama", {}, {"heads": [9]}, "heads 9: this model has heads 0-3"),
        ("llama", {}, {"memory_budget": 100}, "a larger memory budget"),
        ("gpt2", {}, {"generate": 60}, "tokens to read, but gpt2 has 64 positions"),
        ("gpt2", {}, {"answer": "x" * 60}, "tokens to read, but gpt2 has 64 positions"),
        ("llama", {"token_types": 1}, {}, "the prompt has token type 1, but llama has no token types"),
        ("bert", {"token_types": 2}, {"rows": "target"}, "token type 2, but bert has token types 0 to 1"),
        ("bert", {}, {"answer": "a"}, "bert is an encoder, it writes no answers"),
        ("bert", {}, {"generate": 1}, "bert is an encoder, it writes no answers"),
        ("bert", {}, {"rows": "last"}, "bert is an encoder, its last row gives no token"),
        ("bart", {}, {}, "bart reads its prompt apart from its answer"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_line_that_names_the_prompt(loaded_of, family, change, options, says):
    loaded = loaded_of(family)
    target = "苹果" if family == "bert" else None
    prompt = of(loaded, target=target)
    if change:
        prompt = replace(prompt, token_types=(change["token_types"],) * len(prompt.tokens.ids))
    with pytest.raises(CijingError) as caught:
        part_shares(loaded, prompt, **options)
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith("prompt p1: ")
    assert "budget" not in says or caught.type is BudgetError


def test_a_prompt_of_another_tokenizer_or_model_is_refused(loaded_of):
    with pytest.raises(CijingError, match="prompt p1: its token ids do not spell its text with this tokenizer"):
        part_shares(loaded_of("llama"), mapped(loaded_of("gpt2").tokenizer))
    prompt = of(loaded_of("llama"))
    beyond = replace(prompt, tokens=replace(prompt.tokens, ids=(*prompt.tokens.ids[:-1], 5000)))
    with pytest.raises(CijingError, match=r"prompt p1: the prompt's token .* is 5000, but llama has ids 0 to"):
        part_shares(loaded_of("llama"), beyond)


def test_token_types_of_one_kind_only_are_no_matter_to_a_model_without_them(loaded_of):
    loaded = loaded_of("gpt2")  # which would add the embedding of token 0 to every token
    prompt = of(loaded)
    typed = replace(prompt, token_types=(0,) * len(prompt.tokens.ids))
    assert np.array_equal(part_shares(loaded, typed).shares, part_shares(loaded, prompt).shares)


def test_damaged_weights_are_an_error_and_no_shares():
    model, tokenizer = FAMILIES["llama"]()
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[0] = float("nan")
    loaded = model_from_parts(model, tokenizer, name="broken")
    with pytest.raises(ModelError, match=r"prompt p1: .*layers\.1.* not finite; the weights are damaged"):
        part_shares(loaded, of(loaded), rows="last")


# ---- the command -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two models as folders, and prompts for each."""
    place = tmp_path_factory.mktemp("shares")
    for family in ("llama", "gpt2", "bert"):
        _, tokenizer = FAMILIES[family](place, **({} if family == "bert" else {"head": True}))
        prompts = [
            of(model_from_parts(*FAMILIES[family](), name=family), target="苹果酸", id=id) for id in ("p1", "p2")
        ]
        save_prompts([pair(tokenizer, target="苹果")] if family == "bert" else prompts, place / f"{family}.jsonl")
    return place


def shown(folder, capsys, *options, family="llama"):
    assert run(["prompt", str(folder / f"{family}.jsonl"), "-m", str(folder / family), *options]) == 0
    return capsys.readouterr().out


def test_the_command_shows_a_line_a_part_that_makes_a_hundred_percent(folder, capsys):
    first, header, *lines = shown(folder, capsys, "--id", "p2", "--answer", ANSWER).splitlines()
    assert first.startswith("p2: ") and first.endswith(f"rows that gave the answer {ANSWER}")
    assert header.split() == ["part", "tokens", "share", "even", "per", "token", "strongest", "heads"]
    names = [line.split()[0] for line in lines]
    assert names == ["sink", "template", "instruction", "question", "chips", "acid", "answer"]
    assert sum(float(line.split()[2]) for line in lines) == pytest.approx(100, abs=0.4)
    assert [line.count("head ") for line in lines] == [0, 0, 0, 0, 3, 3, 0]


def test_the_command_shows_every_prompt_of_a_file_and_rows_of_any_word(folder, capsys):
    out = shown(folder, capsys, "--target", "公司")
    assert [line for line in out.splitlines() if ":" in line] == ["p1: 1 row of 公司", "p2: 1 row of 公司"]
    assert "the last row" in shown(folder, capsys, "--rows", "last")
    assert "2 rows of 苹果" in shown(folder, capsys, family="bert")
    assert "4 rows that gave the answer " in shown(folder, capsys, "--generate", "4", "--id", "p1")


def test_table_picture_and_json_hold_the_shares_that_the_function_gives(folder, capsys, tmp_path, loaded_of):
    out = shown(
        folder, capsys, "--id", "p1", "--answer", ANSWER, "--json", "--csv", str(tmp_path / "a.csv"),
        "--png", str(tmp_path / "a.png"), "--part", "acid", "--layers", "1-2",
    )  # fmt: skip
    expected = part_shares(loaded_of("llama"), of(loaded_of("llama"), target="苹果酸"), answer=ANSWER, layers=[1, 2])
    table = pd.read_csv(tmp_path / "a.csv", keep_default_na=False, na_values=[""])
    assert np.allclose(table["share"], expected.shares.ravel(), atol=1e-6)
    assert list(table["part"])[: len(expected.parts)] == labels_of(expected) and set(table["prompt"]) == {"p1"}
    (found,) = json.loads(out)["prompts"]
    assert found["layers"] == [1, 2] and found["answer"] == ANSWER and found["rows_of"] == "answer"
    for place, part in enumerate(found["parts"]):
        assert np.allclose(part["heads"], expected.shares[..., place].mean(2), atol=1e-6)
        assert part["share"] == pytest.approx(expected.shares[..., place].mean(), abs=1e-6)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_passage_is_shown_by_its_place_in_its_document_and_written_by_its_id(folder, capsys, tmp_path):
    prompt = of(model_from_parts(*FAMILIES["llama"](), name="llama"), id="p1")
    place = {"document": "docs/{a}.txt", "start": 3, "end": 9}
    parts = [replace(one, source=place) if one.name == "acid" else one for one in prompt.parts]
    save_prompts([replace(prompt, parts=tuple(parts))], tmp_path / "placed.jsonl")
    files = ["--csv", str(tmp_path / "a.csv"), "--png", str(tmp_path / "a.png"), "--part", "docs/{a}.txt [3–9]"]
    given = ["prompt", str(tmp_path / "placed.jsonl"), "-m", str(folder / "llama"), "--rows", "last"]
    assert run([*given, *files]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line.startswith("docs/{a}.txt [3–9] ") for line in lines].count(True) == 1
    assert not any(line.startswith("acid") for line in lines) and any(line.startswith("chips ") for line in lines)
    assert "acid" in set(pd.read_csv(tmp_path / "a.csv")["part"]) and (tmp_path / "a.png").exists()
    assert run([*given, "--json"]) == 0
    assert "acid" in [one["part"] for one in json.loads(capsys.readouterr().out)["prompts"][0]["parts"]]


def test_json_without_a_number_per_token_has_none(folder, capsys):
    out = shown(folder, capsys, "--id", "p1", "--answer", "a", "--json")
    assert {part["part"]: part["per_token"] for part in json.loads(out)["prompts"][0]["parts"]}["answer"] is None


@pytest.mark.parametrize(
    ("family", "options", "says"),
    [
        ("llama", ["--id", "p3"], "llama.jsonl: no prompt 'p3'; did you mean p2? allowed are p1, p2"),
        ("llama", ["--target", "菠菜"], "--target: '菠菜', occurrence 1: the text"),
        ("llama", ["--target", "公司", "--occurrence", "2"], "has it 1 times"),
        ("llama", ["--rows", "answer"], 'prompt p1: rows "answer" need an answer'),
        ("llama", ["--answer", "a", "--generate", "1"], "--answer and --generate are given; allowed is one of both"),
        ("llama", ["--rows", "first"], "'first' is not one of"),
        ("llama", ["--png", "a.png"], "--png draws one prompt, and"),
        ("llama", ["--part", "acid"], "give --png FILE with it"),
        ("llama", ["--id", "p1", "--png", "a.png", "--part", "acids"], "no such part; did you mean acid?"),
        ("llama", ["--png", "a.svg"], "allowed is a file ending in .png"),
        ("llama", ["--csv", "a.txt"], "allowed is a file ending in .csv"),
        ("llama", ["--csv", "/dev/null/a.csv"], "cannot write the table"),
        ("gpt2", ["-m", "llama"], "prompt p1: its token ids do not spell its text with this tokenizer"),
        ("gpt2", ["--generate", "60"], "prompt p1: 82 tokens to read, but gpt2 has 64 positions"),
        ("bert", ["--answer", "a"], "is an encoder, it writes no answers"),
        ("llama", ["--layers", "7"], "layers 7: this model has attention layers 0-2"),
        ("llama", ["--memory-budget", "1KB"], "a larger memory budget"),
    ],
)
def test_what_the_command_cannot_do_is_one_line_and_exit_code_2(folder, capsys, family, options, says):
    options = [str(folder / option) if option == "llama" else option for option in options]
    model = [] if "-m" in options else ["-m", str(folder / family)]
    assert run(["prompt", str(folder / f"{family}.jsonl"), *model, *options]) == 2
    heard = capsys.readouterr()
    assert says in heard.err and heard.err.count("\n") == 1 and heard.out == ""


def test_a_file_that_is_not_there_or_of_another_version_is_refused_before_a_model_is_looked_for(folder, capsys):
    assert run(["prompt", str(folder / "no.jsonl"), "-m", "no/such-model"]) == 2
    assert "no.jsonl: cannot be read (No such file" in capsys.readouterr().err
    text = (folder / "llama.jsonl").read_text("utf-8").replace('"version": 1', '"version": 9')
    (folder / "newer.jsonl").write_text(text, "utf-8")
    assert run(["prompt", str(folder / "newer.jsonl"), "-m", "no/such-model"]) == 2
    assert capsys.readouterr().err == f"{folder / 'newer.jsonl'}:1: version 9 is unknown; allowed is 1\n"


def test_ids_beyond_the_models_vocabulary_are_one_line(folder, capsys):
    lines = [json.loads(line) for line in (folder / "llama.jsonl").read_text("utf-8").splitlines()]
    lines[0]["ids"][-1] = 99_999
    (folder / "beyond.jsonl").write_text(json.dumps(lines[0]), "utf-8")
    assert run(["prompt", str(folder / "beyond.jsonl"), "-m", str(folder / "llama")]) == 2
    assert "is 99999, but llama has ids 0 to" in capsys.readouterr().err.replace(str(folder) + "/", "")
