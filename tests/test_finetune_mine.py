"""Mining: the tied and neglected pair comes first, the attended one later, chance and frequency propose nothing."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from finetune.errors import DataError
from finetune.mine import MineSettings, default_reference, mine, pairs_text, write_pairs
from finetune.neglect import base_masses
from finetune.pairs import load_pairs, pairs_in
from finetune.words import Segmenter
from probe import CijingError, RowRequest, Span, load_model, model_from_parts, tap, tokenize, tokens_of

NEGLECTED, ATTENDED = ("mono", "dioxide"), ("ferro", "magnet")
WORDS = ("often", "common", *NEGLECTED, *ATTENDED, *(f"filler{number}" for number in range(30)))
WIDTH = 64
SETTINGS = MineSettings(how="bigrams", layers="all", places=20)
REFERENCE = [f"filler{number} filler{number + 1}" for number in range(29)] * 10


def word_tokenizer():
    core = Tokenizer(
        models.WordLevel({word: at for at, word in enumerate(("<s>", "<unk>", *WORDS))}, unk_token="<unk>")
    )
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", unk_token="<unk>")


def planted_model(strength=0.8):
    """One head: each word of ATTENDED draws attention to both, each of NEGLECTED turns it away from both.

    Embeddings are unit vectors; the pair's score runs over dimensions that rotary positions hardly turn.
    """
    tokenizer = word_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, max_position_embeddings=64, rope_parameters={"rope_type": "default", "rope_theta": 1e30},
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(len(tokenizer), WIDTH))
        for weight in (attention.q_proj.weight, attention.k_proj.weight):
            weight.zero_()
        for pair, dimension, sign in ((ATTENDED, 31, 1.0), (NEGLECTED, 30, -1.0)):
            for word in pair:
                attention.q_proj.weight[dimension, tokenizer.convert_tokens_to_ids(word)] = strength
                attention.k_proj.weight[dimension, tokenizer.convert_tokens_to_ids(word)] = sign * strength
    return model_from_parts(model, tokenizer, name="planted")


def corpus(seed=0, size=400):
    """Independent words, two of them in most sentences, and two pairs that stand together or not at all."""
    drawn = random.Random(seed)
    shares = {"often": 0.7, "common": 0.7, **{word: 0.15 for word in WORDS if word.startswith("filler")}}
    texts = []
    for _ in range(size):
        words = [word for word, share in shares.items() if drawn.random() < share]
        for pair in (NEGLECTED, ATTENDED):
            words += pair if drawn.random() < 0.1 else []
        drawn.shuffle(words)
        texts.append(" ".join(words) or "often")
    return texts


@pytest.fixture(scope="module")
def planted():
    return planted_model()


@pytest.fixture(scope="module")
def mined(planted):
    return mine(planted, corpus(), reference=REFERENCE, settings=SETTINGS)


def sides(proposal):
    return {proposal.query, proposal.key}


def test_the_tied_and_neglected_pair_comes_first(mined):
    first = mined.proposals[0]
    assert sides(first) == set(NEGLECTED)
    assert first.base.mass < 0.5 * first.base.expected
    assert first.score == pytest.approx(first.tie.tie * (1 - first.base.mass / first.base.expected))
    assert len(first.examples) == 2 and all(word in text for text in first.examples for word in NEGLECTED)


def test_the_tied_pair_that_is_attended_to_comes_lower_and_is_not_proposed(mined):
    ranked = [sides(proposal) for proposal in (*mined.proposals, *mined.attended)]
    assert ranked.index(set(ATTENDED)) > ranked.index(set(NEGLECTED))
    attended = next(proposal for proposal in mined.attended if sides(proposal) == set(ATTENDED))
    assert attended.base.mass > 2 * attended.base.expected and attended.score < 0


def test_the_attended_pair_comes_first_where_the_model_neglects_it():
    swapped = planted_model(strength=0.0)
    found = mine(swapped, corpus(), reference=REFERENCE, settings=SETTINGS)
    attended = next(one for one in (*found.proposals, *found.attended) if sides(one) == set(ATTENDED))
    assert attended.base.deficit == pytest.approx(0.0, abs=0.2)


def test_frequent_and_independent_words_do_not_appear(mined):
    assert not any({"often", "common"} & sides(proposal) for proposal in (*mined.proposals, *mined.attended))


@pytest.mark.parametrize("seed", range(4))
def test_a_corpus_dealt_out_at_random_proposes_nearly_nothing(planted, seed):
    words = [word for text in corpus(seed) for word in text.split()]
    random.Random(seed).shuffle(words)
    dealt = [" ".join(words[start : start + 8]) for start in range(0, len(words), 8)]
    assert mine(planted, dealt, reference=["often"] * 300, settings=SETTINGS).tied <= 1


def test_mass_is_the_row_of_the_tap_and_expected_that_of_other_words(planted):
    text = "often mono filler0 dioxide common"
    pairs = [NEGLECTED, NEGLECTED[::-1]]
    found = base_masses(planted, {text: pairs}, Segmenter(how="bigrams"), layers=(0,))
    tokens = tokenize(planted.tokenizer, text)
    request = RowRequest([range(6)])
    with torch.inference_mode(), tap(planted.backbone, request):
        planted.backbone(input_ids=torch.tensor([tokens.ids]))
    rows = next(iter(request.rows.values()))[0, 0].numpy()
    assert list(found) == [("dioxide", "mono")]  # causal: the later reads the earlier
    base = found["dioxide", "mono"]
    query, key = (int(tokens_of(Span.of(text, word), tokens)[0]) for word in ("dioxide", "mono"))
    assert base.mass == pytest.approx(float(rows[query, key])) and base.places == 1
    at_two = [rows[query, query - 2] for query in range(3, 6)]  # without the first token
    assert base.expected == pytest.approx(float(np.mean(at_two)))


def test_words_of_several_tokens_are_summed_over_the_key_and_averaged_over_the_query():
    from tests.tiny import tiny_bert

    model, tokenizer = tiny_bert()
    loaded = model_from_parts(model, tokenizer, name="tiny")
    text = "苹果公司喜欢手机"
    segmenter = Segmenter(["苹果公司", "手机", "喜欢"], how="bigrams")
    found = base_masses(
        loaded, {text: [("手机", "苹果公司"), ("苹果公司", "手机")]}, segmenter, layers=(1, 2), heads=(0, 3)
    )
    tokens = tokenize(tokenizer, text)
    request = RowRequest([range(len(tokens.ids))], layers=(1, 2), heads=(0, 3))
    with torch.inference_mode(), tap(loaded.backbone, request):
        loaded.backbone(input_ids=torch.tensor([tokens.ids]))
    rows = torch.stack([rows[0].mean(0) for rows in request.rows.values()]).mean(0).numpy()
    company, phone = (tokens_of(Span.of(text, word), tokens) for word in ("苹果公司", "手机"))
    assert found["手机", "苹果公司"].mass == pytest.approx(float(rows[np.ix_(phone, company)].sum(1).mean()), rel=1e-5)
    assert found["苹果公司", "手机"].mass == pytest.approx(float(rows[np.ix_(company, phone)].sum(1).mean()), rel=1e-5)


def test_texts_that_are_too_long_are_left_out(planted):
    text = "mono often dioxide"
    assert base_masses(planted, {text: [NEGLECTED[::-1]]}, Segmenter(how="bigrams"), layers=(0,), longest=3) == {}


def test_the_file_is_read_by_load_pairs_and_its_pairs_stand_in_the_corpus(mined, tmp_path):
    write_pairs(mined, tmp_path / "pairs.yaml")
    book = load_pairs(tmp_path / "pairs.yaml")
    assert [(str(rule.query), str(rule.key)) for rule in book.pairs] == [
        (one.query, one.key) for one in mined.proposals
    ]
    assert all(rule.direction == "either" for rule in book.pairs)
    found = [pair for text in corpus() for pair in pairs_in(text, book, rules=[0])[0]]
    assert len(found) == mined.proposals[0].tie.together


def test_the_file_tells_every_number_and_the_reference(mined):
    text = pairs_text(mined)
    first = mined.proposals[0]
    for told in (
        f"tie LLR {first.tie.tie:.1f}", f"contrast LLR {first.tie.contrast:.1f}", f"expected {first.base.expected:.4f}",
        f"mass {first.base.mass:.4f}", f"in {first.tie.together} of 400 windows", "in the reference in 0 of 290",
        "Reference: the user's texts, 290 windows.", "False discovery rate",
    ):  # fmt: skip
        assert told in text
    assert "  # - {query: " in text.split("attended to already")[1]


def test_odd_words_and_line_breaks_stay_inside_the_file(mined, tmp_path):
    odd = replace(mined.proposals[0], query='a"b: #{', key="no", examples=('one\ntwo\u2028a"b: #{ no\x00',))
    write_pairs(replace(mined, proposals=(odd,), words=("yes", "a,]b")), tmp_path / "pairs.yaml")
    book = load_pairs(tmp_path / "pairs.yaml")
    assert (book.pairs[0].query.word, book.pairs[0].key.word, book.words) == ('a"b: #{', "no", ("yes", "a,]b"))
    assert yaml.safe_load(pairs_text(mined))["name"] == "mined"


def test_the_held_out_share_is_drawn_by_the_seed(planted):
    def parts(**changes):
        found = mine(planted_model(0.0), corpus(), reference=REFERENCE, settings=replace(SETTINGS, **changes))
        return [proposal.part for proposal in found.proposals]

    assert set(parts(held_out=1.0)) <= {"held_out"} and set(parts(held_out=0.0)) <= {"train"}
    assert parts(held_out=0.5, seed=3) == parts(held_out=0.5, seed=3)


def test_words_that_nearly_always_touch_are_joined():
    drawn = random.Random(0)
    texts = []
    for number in range(200):
        tail = "苹果手机" if number % 5 == 0 else "喜欢和平"
        texts.append(("牛顿。" if drawn.random() < 0.5 else "讨厌菠菜。") + tail + "。")
    from tests.tiny import tiny_bert

    loaded = model_from_parts(*tiny_bert(), name="tiny")
    settings = MineSettings(layers="all")
    pytest.importorskip("rjieba")
    found = mine(loaded, texts, reference=["我们热爱和平"] * 50, settings=settings)
    assert "苹果手机" in found.joined
    assert not any(sides(one) == {"苹果", "手机"} for one in (*found.proposals, *found.attended))


def test_generators_and_empty_corpora_are_refused(planted):
    with pytest.raises(DataError, match="generator"):
        mine(planted, (text for text in corpus()), reference=REFERENCE)
    with pytest.raises(DataError, match="holds no text"):
        mine(planted, [], reference=REFERENCE)


def test_a_file_without_a_pair_is_refused(planted, tmp_path):
    found = mine(planted, ["often common"] * 20, reference=["often common"] * 20, settings=SETTINGS)
    assert found.proposals == ()
    with pytest.raises(DataError, match="no pair to propose"):
        write_pairs(found, tmp_path / "pairs.yaml")


def test_progress_is_told(planted):
    lines = []
    mine(planted, corpus() * 15, reference=REFERENCE, settings=SETTINGS, progress=lines.append)
    assert any("pairs counted in 5,000 texts" in line for line in lines)
    assert any("base model read" in line for line in lines)


def test_the_default_reference_is_that_of_the_case_sets():
    texts = default_reference()
    assert len(texts) > 1000 and len(set(texts)) == len(texts)


@pytest.mark.real
def test_shipped_pairs_of_the_chip_corpus_are_among_those_mined():
    try:
        loaded = load_model("builtin:e5-small", device="cpu")
    except CijingError as error:
        pytest.skip(str(error))
    folder = Path(__file__).resolve().parents[1] / "finetune" / "data" / "chips"
    texts = [json.loads(line)["text"] for line in (folder / "train.jsonl").read_text("utf-8").splitlines()]
    book = load_pairs(folder / "pairs.yaml")
    found = mine(loaded, texts, terms=book.lexicon.words, settings=MineSettings(places=4))
    shipped = {frozenset((str(rule.query), str(rule.key))) for rule in book.pairs}
    ranked = [frozenset(sides(one)) for one in (*found.proposals, *found.attended)]
    assert len(shipped & set(ranked)) >= len(shipped) // 2
    assert found.proposals[0].tie.reference_windows > 1000 and "case sets" in found.reference
