"""A word read alone and behind passages, against transformers' own pair call and sums written out by hand."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from tokenizers import processors

from finetune.__main__ import run
from finetune.errors import RetrievalError
from finetune.rag.chunks import Chunk
from finetune.rag.hits import Hit
from finetune.rag.index import IndexSettings, build_index
from finetune.rag.readings import controls_for, passage_readings
from finetune.rag.references import sense_readings, shipped_senses
from probe import capture_cases, case_of, load_prompts, part_shares, read_state
from probe.models import model_from_parts
from tests.tiny import FAMILIES, SPREAD, tiny_bert, tiny_llama
from tests.tokenizers_zoo import metaspace_unigram

SENTENCE, TARGET = "我喜欢苹果", "苹果"
SENTENCES = {
    "fruit": ["我喜欢苹果但讨厌梨子", "牛顿被苹果砸中"],
    "company": ["苹果公司发布了新品", "苹果手机"],
}


def chunk(name, text, *, document=""):
    return Chunk(id=name, document=document or name, start=0, end=len(text), text=text, title="", tokens=0)


PASSAGES = [chunk("one", "苹果公司发布了新品"), chunk("two", "牛顿被苹果砸中")]
CONTROLS = {"one": [chunk("free", "我们热爱和平"), chunk("more", "他讨厌菠菜")], "two": [chunk("free", "我们热爱和平")]}


def pairs_as_bert(tokenizer):
    """A tiny BERT's tokenizer with the frame of pairs and their types, as bert-base has it."""
    ids = [(name, tokenizer.convert_tokens_to_ids(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return tokenizer


def bert():
    model, tokenizer = tiny_bert()
    return model_from_parts(model, pairs_as_bert(tokenizer), name="bert")


def xlmr():
    tokenizer = metaspace_unigram()
    core = tokenizer.backend_tokenizer
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    fresh = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
        cls_token="<s>", sep_token="</s>", model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
    config = transformers.XLMRobertaConfig(
        vocab_size=len(fresh), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=66, type_vocab_size=1, pad_token_id=1, initializer_range=SPREAD,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    return model_from_parts(transformers.XLMRobertaModel(config).eval(), fresh, name="xlmr")


@pytest.fixture(scope="module")
def models():
    return {"bert": bert(), "xlmr": xlmr()}


def by_hand(loaded, first, *, word=TARGET):
    """The target's mean state [layer, dim] and attention [layer, head, query, key] from a plain pair call."""
    given = loaded.tokenizer(*([SENTENCE] if first is None else [first, SENTENCE]), return_tensors="pt")
    offsets = loaded.tokenizer(
        *([SENTENCE] if first is None else [first, SENTENCE]), return_offsets_mapping=True
    )  # fmt: skip
    which, spans = offsets.sequence_ids(), offsets["offset_mapping"]
    start = SENTENCE.index(word)
    places = [
        at for at, (s, e) in enumerate(spans)
        if which[at] == (0 if first is None else 1) and s < start + len(word) and e > start
    ]  # fmt: skip
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        out = loaded.model(**given, output_hidden_states=True, output_attentions=True)
    loaded.model.set_attn_implementation("sdpa")
    states = np.stack([one[0, places].double().mean(0).numpy() for one in out.hidden_states])
    maps = torch.stack(out.attentions)[:, 0, :, places]
    inside = [at for at, one in enumerate(which) if one == 0]
    return states, maps[..., inside].sum(-1).mean(-1).numpy()


def cosine(one, other):
    return float(one @ other / math.sqrt((one @ one) * (other @ other)))


def readings_of(loaded, **more):
    return passage_readings(loaded, SENTENCE, TARGET, PASSAGES, **{"controls": CONTROLS, **more})


# ---- against transformers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "xlmr"])
def test_states_and_shares_are_those_of_the_tokenizers_own_pair_call(models, name) -> None:
    loaded = models[name]
    found = readings_of(loaded)
    alone, _ = by_hand(loaded, None)
    assert found.alone == pytest.approx(alone, abs=1e-5)
    assert found.empty == pytest.approx(by_hand(loaded, "")[0], abs=1e-5)
    heads = found.head_shares().set_index(["passage", "attention_layer", "head"]).share
    for passage in (*PASSAGES, *CONTROLS["one"]):
        states, shares = by_hand(loaded, passage.text)
        assert found.behind[passage.id] == pytest.approx(states, abs=1e-5)
        assert found.rest[passage.id] == pytest.approx(by_hand(loaded, passage.text, word="我喜欢")[0], abs=1e-5)
        for layer, head in np.ndindex(shares.shape) if passage in PASSAGES else ():
            assert heads[passage.id, layer, head] == pytest.approx(shares[layer, head], abs=1e-5)


def test_berts_second_text_has_the_other_token_type_and_it_counts(models) -> None:
    loaded = models["bert"]
    prompt = readings_of(loaded).prompts[1]
    (question,) = prompt.parts_of("question")
    assert set(prompt.token_types[question.first :]) == {1} and set(prompt.token_types[: question.first]) == {0}
    plain = replace(prompt, token_types=(0,) * len(prompt.token_types))
    typed, untyped = (part_shares(loaded, one, rows="target").shares for one in (prompt, plain))
    assert np.abs(typed - untyped).max() > 1e-3


@pytest.mark.parametrize("name", ["bert", "xlmr"])
def test_how_far_a_reading_moved_is_one_less_the_cosine_of_states_less_the_mean(models, name) -> None:
    loaded = models[name]
    senses = sense_readings(loaded, TARGET, SENTENCES)
    found = readings_of(loaded, senses=senses).moved().set_index(["passage", "layer"])
    texts = [text for several in SENTENCES.values() for text in several]
    with torch.no_grad():
        states = []
        for text in texts:
            at = loaded.tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
            start = text.index(TARGET)
            places = [n for n, (s, e) in enumerate(at) if s < e and s < start + 2 and e > start]
            out = loaded.model(**loaded.tokenizer(text, return_tensors="pt"), output_hidden_states=True)
            states.append(torch.stack([one[0, places].double().mean(0) for one in out.hidden_states]).numpy())
    mean = np.mean(states, axis=0)
    assert senses.centre == pytest.approx(mean, abs=1e-5)
    alone, _ = by_hand(loaded, None)
    behind = {one.id: by_hand(loaded, one.text)[0] for one in (*PASSAGES, *CONTROLS["one"])}
    for layer in range(1, len(alone)):
        of = {
            name: 1 - cosine(state[layer] - mean[layer], alone[layer] - mean[layer]) for name, state in behind.items()
        }
        row = found.loc["one", layer]
        assert row.moved == pytest.approx(of["one"], abs=1e-4)
        assert row.raw == pytest.approx(1 - cosine(behind["one"][layer], alone[layer]), abs=1e-4)
        assert row.control == pytest.approx((of["free"] + of["more"]) / 2, abs=1e-4)
        assert (row.lowest, row.highest) == pytest.approx(sorted([of["free"], of["more"]]), abs=1e-4)
        assert row.controls == 2 and found.loc["two", layer].controls == 1
    towards = readings_of(loaded, senses=senses).towards().set_index(["passage", "layer", "sense"])
    last = len(alone) - 1
    company = np.mean(states[2:], axis=0)[last] - mean[last]
    row = towards.loc["one", last, "company"]
    assert row.behind == pytest.approx(cosine(behind["one"][last] - mean[last], company), abs=1e-4)
    assert row.alone == pytest.approx(cosine(alone[last] - mean[last], company), abs=1e-4)
    assert row.gain == pytest.approx(row.behind - row.control)


def test_a_sentence_alone_is_read_as_probe_reads_a_case(models) -> None:
    for loaded in models.values():
        (capture,) = capture_cases(loaded, [case_of(SENTENCE, target=TARGET)])
        assert readings_of(loaded).alone == pytest.approx(read_state(capture, "target"), abs=1e-5)


# ---- what is said of it ------------------------------------------------------------------------------------------


def made(models, *, alone, behind, control):
    """Readings of three-dimensional states, with senses along the first two axes."""
    loaded = models["bert"]
    senses = sense_readings(loaded, TARGET, SENTENCES)
    found = readings_of(loaded, senses=senses, layers={3})
    axes = np.zeros((2, 4, 3))
    axes[0, :, 0] = axes[1, :, 1] = 1
    grid = lambda state: np.array([state], dtype=float)  # noqa: E731
    return replace(
        found, senses=replace(senses, centre=np.zeros((4, 3)), centroids=axes), alone=grid(alone), empty=grid(alone),
        behind={"one": grid(behind), "two": grid(alone), "free": grid(control), "more": grid(control)},
    )  # fmt: skip


def test_a_reading_that_no_control_follows_has_moved_towards_a_sense_and_one_that_all_follow_has_not(models) -> None:
    row = made(models, alone=[1, 0.2, 0.5], behind=[0.1, 1, 0.5], control=[1, 0.3, 0.5]).summary().iloc[0]
    assert (row.before, row.after, row.towards) == ("fruit", "company", "company")
    assert row.moved == pytest.approx(1 - cosine(np.array([0.1, 1, 0.5]), np.array([1, 0.2, 0.5])))
    behind, control = (cosine(np.array(state), np.array([0, 1, 0])) for state in ([0.1, 1, 0.5], [1, 0.3, 0.5]))
    assert row.gain == pytest.approx(behind - control)
    row = made(models, alone=[1, 0.2, 0.5], behind=[0.1, 1, 0.5], control=[0.1, 1.1, 0.4]).summary().iloc[0]
    assert (row.before, row.after) == ("fruit", "company") and row.towards == ""


def test_along_two_senses_the_controls_go_nowhere_and_the_other_words_stand_beside(models) -> None:
    found = made(models, alone=[9, 9, 9], behind=[0.1, 1, 0.5], control=[0.3, 0.4, 7])
    grid = lambda state: np.array([state], dtype=float)  # noqa: E731
    rest = {"one": grid([0, 0.5, 0]), "two": grid([0, 0, 0]), "free": grid([0, 0, 1]), "more": grid([0, 0.2, 1])}
    row = replace(found, rest=rest).along("company", "fruit").iloc[0]
    assert row.target == pytest.approx(((1 - 0.4) - (0.1 - 0.3)) / 2)  # the axis is (-1, 1, 0)
    assert row.rest == pytest.approx((0.5 - 0.1) / 2)
    with pytest.raises(RetrievalError, match="senses acid and fruit: allowed are two of fruit, company"):
        found.along("acid", "fruit")


def test_without_senses_cosines_are_raw_and_without_controls_there_is_none(models) -> None:
    found = readings_of(models["bert"], controls={})
    assert not found.centred and found.towards().empty
    table = found.moved()
    assert table.moved.to_numpy() == pytest.approx(table.raw.to_numpy()) and table.control.isna().all()
    assert list(found.summary().columns[:3]) == ["passage", "tokens", "moved"]
    assert set(found.table().measure) == {"moved", "raw"}


def test_senses_are_scored_with_the_group_left_out_and_the_sentence_itself_is_no_reference(models) -> None:
    loaded = models["bert"]
    assert sense_readings(loaded, TARGET, {"fruit": ["我喜欢苹果"], "company": ["苹果手机"]}, without=SENTENCE) is None
    found = sense_readings(loaded, TARGET, {**SENTENCES, "fruit": [*SENTENCES["fruit"], SENTENCE]}, without=SENTENCE)
    assert found.counts == (2, 2) and found.names == ("fruit", "company") and found.majority == 0.5
    assert found.accuracy.shape == (4,) and 0 <= found.best_layer < 4
    assert replace(found, accuracy=np.array([0.5, 0.8, 0.8, np.nan])).best_layer == 1
    assert replace(found, accuracy=np.full(4, np.nan)).best_layer == 3


def test_the_shipped_senses_are_those_of_the_word_itself() -> None:
    cases = shipped_senses(TARGET)
    assert {one.sense for one in cases} == {"fruit", "company", "device", "chip", "acid"}
    assert all(one.target.cut(one.text) == TARGET for one in cases)
    assert shipped_senses("菠菜") == ()


def test_controls_are_of_other_documents_without_the_word_and_nearest_in_this_models_tokens(models) -> None:
    pool = [
        chunk("same", "我们热爱和平", document="one"),
        chunk("word", "我喜欢苹果但讨厌梨子"),
        chunk("short", "我们"),
        chunk("like", "他讨厌菠菜我们热爱"),
        chunk("near", "我们热爱和平我们热爱"),
        chunk("long", "我们热爱和平" * 6),
        PASSAGES[1],
    ]
    found = controls_for(models["bert"], PASSAGES, pool, target=TARGET, each=2)
    assert [one.id for one in found["one"]] == ["like", "near"]
    assert found["one"][0].tokens == 9
    assert [one.id for one in controls_for(models["bert"], PASSAGES, pool, target=TARGET, each=9)["one"]] == [
        "like", "near", "short", "long",
    ]  # fmt: skip
    short = controls_for(models["bert"], PASSAGES, pool, target=TARGET, longest=9)
    assert [one.id for one in short["one"]] == ["like", "short"]
    assert controls_for(models["bert"], PASSAGES, pool[:2], target=TARGET) == {"one": (), "two": ()}


def test_hits_are_read_as_their_chunks_and_progress_counts_the_texts(models) -> None:
    told = []
    hits = [Hit(chunk=one, rank=rank, score=1.0) for rank, one in enumerate(PASSAGES, 1)]
    found = passage_readings(
        models["xlmr"], SENTENCE, TARGET, hits, controls=CONTROLS, progress=lambda *pair: told.append(pair)
    )
    assert found.passages == tuple(PASSAGES) and told == [(n, 4) for n in range(1, 5)]
    assert [one.id for one in found.prompts] == ["alone", "behind-one", "behind-two"]


# ---- what cannot be read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "香蕉"}, "target: "),
        ({"passages": []}, "no passage is given"),
        ({"passages": [PASSAGES[0], PASSAGES[0]]}, "two passages have the id one"),
        ({"passages": [chunk("bare", " \n")]}, "passage bare is empty"),
        ({"passages": [chunk("long", "我们热爱和平" * 11)]}, "passage long does not fit: .* 74 tokens, the budget 64"),
        ({"sentence": " "}, "the question is empty"),
        ({"sentence": "我喜欢榴莲", "target": "榴莲"}, "the target '榴莲' is unknown to the tokenizer of bert"),
        ({"layers": {4}}, r"state layers \[4\]: allowed are one or more of 0 to 3"),
        ({"controls": {"one": [PASSAGES[1]]}}, "passage two is a control as well"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_one_line(models, changes, message) -> None:
    given = {"sentence": SENTENCE, "target": TARGET, "passages": PASSAGES, **changes}
    with pytest.raises(RetrievalError, match=message) as caught:
        passage_readings(models["bert"], given.pop("sentence"), given.pop("target"), given.pop("passages"), **given)
    assert "\n" not in str(caught.value)


def test_a_decoder_is_sent_to_the_commands_that_are_for_it() -> None:
    loaded = model_from_parts(*tiny_llama(), name="llama")
    with pytest.raises(RetrievalError, match=r"no encoder but a decoder: .*finetune ask.*probe prompt"):
        passage_readings(loaded, SENTENCE, TARGET, PASSAGES)
    t5 = model_from_parts(*FAMILIES["t5"](), name="t5")
    with pytest.raises(RetrievalError, match="no encoder but an encoder-decoder"):
        sense_readings(t5, TARGET, SENTENCES)


# ---- the command -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    longer, tokenizer = tiny_bert(max_position_embeddings=128)  # the shipped controls have 60 tokens and more
    longer.save_pretrained(place / "bert")
    pairs_as_bert(tokenizer).save_pretrained(place / "bert")
    tiny_llama(place)
    return place


@pytest.fixture
def cases(tmp_path):
    lines = [f"- {{marked: '{text.replace('苹果', '[苹果]')}', sense: {sense}}}"
             for sense, texts in SENTENCES.items() for text in texts]  # fmt: skip
    (tmp_path / "senses.yaml").write_text("\n".join(lines), "utf-8")
    return tmp_path / "senses.yaml"


def test_the_command_shows_each_passage_and_writes_numbers_and_prompts(folder, cases, tmp_path, capsys) -> None:
    csv, prompts = tmp_path / "read.csv", tmp_path / "read.jsonl"
    asked = ["read", SENTENCE, "--target", TARGET, "--model", str(folder / "bert"), "--senses", str(cases)]
    asked += [word for one in PASSAGES for word in ("--passage", one.text)]
    assert run([*asked, "--layer", "2", "--csv", str(csv), "--prompts", str(prompts)]) == 0
    seen = capsys.readouterr()
    lines = seen.out.splitlines()
    assert lines[0].split()[:3] == ["passage", "tokens", "moved"] and lines[0].split()[-1] == "towards"
    assert [line.split()[:2] for line in lines[1:]] == [[f"passage-{n}", one.text] for n, one in enumerate(PASSAGES, 1)]
    assert "state layer 2: " in seen.err and "(fruit 2, company 2)" in seen.err
    table = pd.read_csv(csv)
    assert set(table.measure) == {"moved", "raw", "cosine to fruit", "cosine to company"} and set(table.layer) == {
        0,
        1,
        2,
        3,
    }
    row = table[(table.layer == 2) & (table.measure == "moved") & (table.passage == "passage-1")].iloc[0]
    assert f"{row.behind:.2f}" in lines[1] and f"{row.control:.2f} ({row.lowest:.2f}–{row.highest:.2f})" in lines[1]
    assert [one.id for one in load_prompts(prompts)] == ["alone", "behind-passage-1", "behind-passage-2"]
    from probe.__main__ import run as look

    assert look(["prompt", str(prompts), "--model", str(folder / "bert"), "--id", "behind-passage-1"]) == 0
    assert "passage-1" in capsys.readouterr().out


def test_the_command_takes_passages_and_controls_of_an_index(folder, cases, tmp_path, capsys) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for name, text in {"a": "苹果公司发布了新品", "b": "我们热爱和平", "c": "他讨厌菠菜"}.items():
        (docs / f"{name}.txt").write_text(text, "utf-8")
    settings = IndexSettings(encoder=None, tokenizer=str(folder / "bert"), size=32)
    build_index([str(docs)], tmp_path / "index", settings)
    asked = ["read", SENTENCE, "--target", TARGET, "--model", str(folder / "bert"), "--senses", str(cases)]
    assert run([*asked, "--index", str(tmp_path / "index"), "--k", "1", "--csv", str(tmp_path / "read.csv")]) == 0
    seen = capsys.readouterr()
    assert len(seen.out.splitlines()) == 2 and "苹果公司发布了新品" in seen.out
    assert seen.out.splitlines()[1].startswith("a.txt [0–9] 苹果公司发布了新品")
    assert set(pd.read_csv(tmp_path / "read.csv").controls) == {2}
    asked[1] = "苹果公司和我们热爱的菠菜"
    assert run([*asked, "--index", str(tmp_path / "index"), "--k", "3"]) == 0
    assert "no passage of another document without 苹果 could be a control" in capsys.readouterr().err


def test_the_command_without_senses_says_that_cosines_are_raw(folder, capsys) -> None:
    asked = ["read", SENTENCE, "--target", TARGET, "--model", str(folder / "bert"), "--passage", "他讨厌菠菜"]
    assert run([*asked, "--senses", "none"]) == 0
    seen = capsys.readouterr()
    assert "cosines are raw" in seen.err and "towards" not in seen.out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--passage", "我们", "--model", "{folder}/llama"], "finetune ask"),
        (["--passage", "我们", "--target", "香蕉"], "香蕉"),
        (["--passage", " "], "passage passage-1 is empty"),
        (["--passage", "我们热爱和平" * 22], "passage passage-1 does not fit"),
        (["--passage", "我们", "--layer", "9"], "state layers [9]"),
        (["--passage", "我们", "--senses", "nowhere.yaml"], "nowhere.yaml"),
        (["--passage", "我们", "--csv", "read.txt"], "allowed is a file ending in .csv"),
        (["--passage", "我们", "--prompts", "read.txt"], ".jsonl"),
        (["--passage", "我们", "--index", "nowhere"], "give either --passage TEXT or --index FOLDER"),
        ([], "give either --passage TEXT or --index FOLDER"),
        (["--index", "nowhere"], "nowhere"),
    ],
)  # fmt: skip
def test_a_mistake_of_the_command_is_one_line_and_exit_code_2(folder, cases, capsys, changes, message) -> None:
    asked = {"--target": TARGET, "--model": f"{folder}/bert", "--senses": str(cases)}
    given = [word.replace("{folder}", str(folder)) for word in changes]
    rest = [word for name, value in asked.items() if name not in given for word in (name, value)]
    assert run(["read", SENTENCE, *given, *rest]) == 2
    seen = capsys.readouterr()
    assert message in seen.err and len(seen.err.strip().splitlines()) == 1 and not seen.out
