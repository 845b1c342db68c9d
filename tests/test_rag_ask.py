"""A question asked of passages: found or not, written greedily, cut at its line, and each source with its numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from finetune.errors import RetrievalError
from finetune.rag.answers import exact_match
from finetune.rag.ask import SAYS_NOTHING, Writing, _said_nothing, answer_from, ask, put_before
from finetune.rag.causes import answer_ids, answer_log_probability
from finetune.rag.chunks import Chunk
from finetune.rag.forms import WORDINGS
from finetune.rag.hits import Hit, Ranked
from finetune.rag.inject import inject
from finetune.rag.lexical import LexicalIndex
from finetune.rag.searchwords import SearchWords
from finetune.rag.threshold import Threshold
from probe.generation import replay_rows
from probe.models import model_from_parts
from tests.tiny import FAMILIES, byte_fallback_tokenizer

QUESTION = "牛顿被苹果砸中"
SHORT = Writing(instruction="", max_new_tokens=8)


def chunk(number: int, text: str) -> Chunk:
    return Chunk(
        id=f"c{number}", document=f"d{number}.txt", start=3, end=3 + len(text), text=text, title="苹果",
        tokens=len(text),
    )  # fmt: skip


CHUNKS = [
    chunk(0, "牛顿被苹果砸中我们热爱和平"),
    chunk(1, "苹果公司发布了新品手机"),
    chunk(2, "我喜欢苹果但讨厌梨子"),
    chunk(3, "他讨厌菠菜我们热爱和平"),
    chunk(4, "苹果酸脱氢酶我喜欢"),
    chunk(5, "手机新品梨子菠菜"),
]
HITS = [Hit(chunk=one, rank=rank, score=9.0 / rank) for rank, one in enumerate(CHUNKS[:3], 1)]


@dataclass
class Words:
    """An index of words alone, as `retrieve` searches it."""

    chunks: Sequence[Chunk]
    lexical: LexicalIndex
    has_dense: bool = False

    def dense_search(self, queries: Sequence[str], k: int) -> list[list[Ranked]]:
        raise AssertionError("it has no vectors")


class Scripted(LlamaForCausalLM):
    """Writes the tokens of its script after whatever it is given to go on from."""

    script: tuple[int, ...] = ()

    def forward(self, input_ids: Any = None, **more: Any) -> Any:
        cache = next((more[name] for name in ("cache", "past_key_values") if more.get(name) is not None), None)
        before = 0 if cache is None else cache.get_seq_length()
        found = super().forward(input_ids=input_ids, **more)
        self.start = input_ids.shape[1] if before == 0 else self.start
        place = before + input_ids.shape[1] - self.start
        if place < len(self.script):
            found.logits[:, -1] = torch.nn.functional.one_hot(
                torch.tensor(self.script[place]), found.logits.shape[-1]
            ).float()
        return found


@pytest.fixture(scope="module")
def llama():
    return model_from_parts(*FAMILIES["llama"](max_position_embeddings=1024), name="llama")


@pytest.fixture(scope="module")
def reply(llama):
    return answer_from(llama, QUESTION, HITS, writing=SHORT, effects_on=CHUNKS, right="苹果酸")


class Parrot(Scripted):
    """Writes its script; once it was kept from a token of it, it writes the other one."""

    other: tuple[int, ...] = ()

    def forward(self, input_ids: Any = None, **more: Any) -> Any:
        cache = next((more[name] for name in ("cache", "past_key_values") if more.get(name) is not None), None)
        before = 0 if cache is None else cache.get_seq_length()
        self.start = input_ids.shape[1] if before == 0 else self.start
        place = before + input_ids.shape[1] - self.start
        if place and place <= len(self.script) and int(input_ids[0, -1]) != self.script[place - 1]:
            self.script = self.other
        found = super().forward(input_ids=input_ids, **more)
        if place < len(self.other):
            found.logits[:, -1, self.other[place]] += 0.5
        return found


def scripted(text: str, *, template: str | None = None, then_end: bool = False) -> Any:
    tokenizer = byte_fallback_tokenizer()
    tokenizer.chat_template = template
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=1024, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = Scripted(config).eval()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
    model.script = (*ids, *([tokenizer.eos_token_id] if then_end else []))
    return model_from_parts(model, tokenizer, name="scripted")


TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_where_nothing_is_found_or_too_little_the_passages_do_not_say(llama) -> None:
    found = answer_from(llama, QUESTION, [])
    assert (found.answer, found.refused, found.sources) == ("资料没有说明", "nothing found", ())
    threshold = Threshold(score=9.5, false_refusals=0.0, false_answers=0.0)
    found = answer_from(llama, QUESTION, HITS, threshold=threshold, writing=Writing(language="en"))
    assert (found.answer, found.refused) == ("The passages do not say", "below the threshold")
    assert found.hits == tuple(HITS)
    assert found.generation is None


def test_what_says_nothing_is_what_the_prompt_asks_for() -> None:
    for language, sentence in SAYS_NOTHING.items():
        assert sentence in WORDINGS[language].delimited
        assert sentence in WORDINGS[language].bare


def test_the_answer_is_the_likeliest_token_after_another(llama, reply) -> None:
    read = list(reply.injection.prompt.tokens.ids)
    written = []
    for _ in range(len(reply.generation.ids)):
        with torch.no_grad():
            written.append(int(llama.model(torch.tensor([read])).logits[0, -1].argmax()))
        read.append(written[-1])
    assert reply.generation.ids == tuple(written)
    assert reply.answer == llama.tokenizer.decode(written, skip_special_tokens=True).strip().split("\n")[0]


def test_sources_stand_by_rank_with_their_offsets_and_scores_whatever_the_order_of_the_prompt(llama) -> None:
    writing = Writing(instruction="", max_new_tokens=2, order="best-last")
    found = answer_from(llama, QUESTION, HITS, writing=writing, shares=False)
    assert [one.id for one in found.injection.passages] == ["c2", "c1", "c0"]
    assert [(one.rank, one.score, one.passage.document, one.passage.start) for one in found.sources] == [
        (1, 9.0, "d0.txt", 3), (2, 4.5, "d1.txt", 3), (3, 3.0, "d2.txt", 3)
    ]  # fmt: skip
    assert all(CHUNKS[place].end == one.passage.end for place, one in enumerate(found.sources))
    assert [one.share for one in found.sources] == [None, None, None]


def test_a_sources_share_is_the_mean_attention_of_the_rows_that_gave_the_answer(llama, reply) -> None:
    prompt, ids = reply.injection.prompt, reply.generation.spoken
    rows = replay_rows(llama, list(prompt.tokens.ids), list(ids), prompt_rows="last").rows  # [layer, head, row, key]
    assert rows.shape[2] == len(ids)
    for source, part in zip(reply.sources, prompt.parts_of("passage"), strict=True):
        mass = rows[..., part.first : part.stop].sum(-1).mean()
        assert source.share == pytest.approx(float(mass), abs=1e-6)
        assert source.effect.share == source.share
        lengths = np.arange(len(prompt.tokens.ids), len(prompt.tokens.ids) + len(ids))
        even = np.mean((part.stop - part.first) / lengths)
        assert source.per_token == pytest.approx(float(mass / even), rel=1e-4)


def test_a_sources_effect_is_that_of_its_passage_alone(llama, reply) -> None:
    def log_of(chunks):
        prompt = inject(
            llama.tokenizer, QUESTION, chunks, budget=1000, instruction="", marker=reply.injection.marker, near=None
        ).prompt  # fmt: skip
        return answer_log_probability(llama, prompt, answer_ids(llama, "苹果酸", after=prompt))

    whole = log_of(CHUNKS[:3])
    second = reply.sources[1].effect
    assert second.passage.id == "c1"
    assert second.dropped == pytest.approx(whole - log_of([CHUNKS[0], CHUNKS[2]]), abs=1e-5)
    swap = next(one for one in CHUNKS if one.id == second.swap)
    assert second.swap == "c3"  # c4 has the answer, c5 is farther in length
    assert second.swapped == pytest.approx(whole - log_of([CHUNKS[0], swap, CHUNKS[2]]), abs=1e-5)


def test_a_base_model_is_stopped_after_its_first_line_with_text() -> None:
    found = answer_from(
        scripted("\n苹果酸\n我们热爱和平"), QUESTION, HITS, writing=Writing(instruction="", max_new_tokens=40)
    )
    assert (found.answer, found.generation.ended) == ("苹果酸", "newline")
    assert found.refused is None
    assert len(found.generation.ids) == len(found.generation.spoken) + 1  # the end of the line is no part of it
    assert len(found.shares.queries) == len(found.generation.spoken)


def test_a_chat_model_goes_on_over_lines_to_its_end_token() -> None:
    loaded = scripted("苹果酸\n我们", template=TEMPLATE, then_end=True)
    found = answer_from(loaded, QUESTION, HITS, writing=Writing(instruction="", max_new_tokens=40))
    assert found.injection.prompt.form == "chat"
    assert (found.answer, found.generation.ended) == ("苹果酸\n我们", "end")
    assert found.generation.ids[-1] == loaded.tokenizer.eos_token_id
    assert found.generation.spoken == found.generation.ids[:-1]
    exactly = Writing(instruction="", max_new_tokens=len(found.generation.ids))
    assert answer_from(loaded, QUESTION, HITS, writing=exactly).generation.ended == "end"


def test_what_is_cut_off_is_told() -> None:
    found = answer_from(
        scripted("苹果酸我们热爱和平"), QUESTION, HITS, writing=Writing(instruction="", max_new_tokens=3)
    )
    assert (len(found.generation.ids), found.generation.ended) == (3, "length")


def test_a_model_that_says_that_the_passages_do_not_say_is_heard() -> None:
    loaded = scripted("资料没有说明。", then_end=True)
    found = answer_from(loaded, QUESTION, HITS, writing=Writing(instruction="", max_new_tokens=60))
    assert exact_match(found.answer, "资料没有说明")
    assert found.refused == "the model says so"


def test_a_model_that_writes_nothing_is_told_and_has_no_shares() -> None:
    found = answer_from(scripted("", then_end=True), QUESTION, HITS, writing=SHORT, effects_on=CHUNKS)
    assert (found.answer, found.refused) == ("", "the model wrote no answer")
    assert found.effects is None
    assert [one.share for one in found.sources] == [None] * 3


def test_a_question_goes_from_the_index_to_its_answer(llama) -> None:
    words = SearchWords()
    index = Words(chunks=CHUNKS, lexical=LexicalIndex.build([one.text for one in CHUNKS], words))
    told: list[tuple[int, int]] = []
    found = ask(
        llama, index, "牛顿砸中", k=2, instruction="", max_new_tokens=3,
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert found.sources[0].passage.id == "c0"
    assert found.sources[0].score == found.hits[0].score > 0
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert found.injection.prompt.form == "plain"
    assert found.injection.marker
    nothing = ask(llama, index, "qqq zzz", k=2)
    assert nothing.refused == "nothing found"
    with_effects = ask(
        llama, index, "牛顿砸中", k=1, instruction="", max_new_tokens=3, effects=True, right="和平", delimiters=False
    )
    assert with_effects.injection.marker == ""
    assert with_effects.effects.answer == "和平"
    assert with_effects.sources[0].effect.used is not None


@pytest.mark.parametrize(("family", "said"), [("bert", "bert is an encoder; allowed"), ("t5", "is an encoder-decoder")])
def test_a_model_that_goes_on_from_no_prompt_is_refused_before_anything_is_searched(family, said) -> None:
    loaded = model_from_parts(*FAMILIES[family](head=True), name=family)
    with pytest.raises(RetrievalError, match=said) as caught:
        ask(loaded, None, QUESTION)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_new_tokens": 1024}, r"budget 0 and max_new_tokens 1024: llama has room for 1024 tokens"),
        ({"max_new_tokens": 0}, r"max_new_tokens 0"),
        ({"budget": 1020}, r"budget 1020 and max_new_tokens 8: llama has room for 1024"),
        ({"budget": 60}, r"no passage can be put before the question: c0 does not fit"),
        ({"budget": 5}, r"the question alone has"),
        ({"form": "pair"}, r"form 'pair' is for encoders"),
        ({"form": "chat"}, r"form chat"),
    ],
)
def test_what_has_no_room_or_no_form_is_refused_in_a_line(llama, settings, said) -> None:
    writing = Writing(**{"instruction": "", "max_new_tokens": 8, **settings})
    with pytest.raises(RetrievalError, match=said) as caught:
        answer_from(llama, QUESTION, HITS, writing=writing)
    assert "\n" not in str(caught.value)


def test_what_the_budget_leaves_out_is_no_source(llama) -> None:
    long = Hit(chunk=chunk(9, "我们热爱和平" * 200), rank=1, score=10.0)
    found = answer_from(llama, QUESTION, [long, *HITS], writing=SHORT, shares=False)
    assert [one.passage.id for one in found.sources] == ["c0", "c1", "c2"]
    assert [one.chunk.id for one in found.injection.left_out] == ["c9"]


def test_a_mark_that_the_model_copied_is_no_answer():
    assert _said_nothing("<<<0badcafe", "0badcafe") == "the model wrote no answer"
    assert _said_nothing("0badcafe>>>", "0badcafe") == "the model wrote no answer"
    assert _said_nothing("草酰乙酸 0badcafe>>>", "0badcafe") is None
    assert _said_nothing("苹果", "") is None and _said_nothing("", "") == "the model wrote no answer"


def parrot(copy: str, other: str, writing: Writing) -> Any:
    """A model that writes a copy of the prompt; {mark} in it is the prompt's mark."""
    loaded = scripted("")
    mark = put_before(loaded, QUESTION, HITS, writing).marker
    loaded.model.__class__ = Parrot
    for name, text in (("script", copy.replace("{mark}", mark)), ("other", other)):
        ids = loaded.tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        setattr(loaded.model, name, (*ids, loaded.tokenizer.eos_token_id))
    return loaded, mark


@pytest.mark.parametrize("copy", ["{mark}>>>", "<<<{mark}", "\n{mark}>>>", " {mark}", "[1] 苹果", "\n\n[2] 苹果"])
def test_an_answer_does_not_begin_with_a_copy_of_the_mark_or_of_the_line_over_a_passage(copy) -> None:
    writing = Writing(instruction="", max_new_tokens=40)
    lead = copy[: len(copy) - len(copy.lstrip())]
    loaded, mark = parrot(copy, lead + "苹果酸", writing)
    found = answer_from(loaded, QUESTION, HITS, writing=writing)
    assert (found.answer, found.refused, found.injection.marker) == ("苹果酸", None, mark)
    assert loaded.tokenizer.decode(found.generation.spoken).strip() == "苹果酸"


def test_where_only_a_copy_is_written_the_answer_is_empty() -> None:
    writing = Writing(instruction="", max_new_tokens=40)
    loaded, mark = parrot("{mark}>>>", ">", writing)
    assert answer_from(loaded, QUESTION, HITS, writing=writing).answer == ""
    loaded, mark = parrot("{mark}>>>", f">{mark}", writing)
    found = answer_from(loaded, QUESTION, HITS, writing=writing)
    assert (found.answer, found.refused) == ("", "the model wrote no answer")
    assert (found.generation.text, found.generation.spoken, found.shares) == ("", (), None)


def test_an_answer_may_begin_as_the_mark_does() -> None:
    writing = Writing(instruction="", max_new_tokens=40)
    mark = put_before(scripted(""), QUESTION, HITS, writing).marker
    found = answer_from(scripted(mark[:1], then_end=True), QUESTION, HITS, writing=writing)
    assert found.answer == mark[:1]


def test_a_threshold_sees_the_best_of_its_field_although_the_first_hits_of_both_lack_it(llama) -> None:
    words = SearchWords()

    class WithVectors(Words):
        def dense_search(self, queries: Sequence[str], k: int) -> list[list[Ranked]]:
            return [[Ranked(4, 0.95), Ranked(3, 0.5)] for _ in queries]

    lexical = LexicalIndex.build([one.text for one in CHUNKS], words)
    index = WithVectors(chunks=CHUNKS, lexical=lexical, has_dense=True)
    at = Threshold(score=0.9, false_refusals=0.0, false_answers=0.0, field="dense")
    found = ask(llama, index, "牛顿砸中", k=1, weight=0.3, threshold=at, instruction="", max_new_tokens=2, shares=False)
    assert found.refused is None and [one.chunk.id for one in found.hits] == ["c0"]
    above = Threshold(score=0.96, false_refusals=0.0, false_answers=0.0, field="dense")
    refused = ask(llama, index, "牛顿砸中", k=1, weight=0.3, threshold=above)
    assert refused.refused == "below the threshold" and len(refused.hits) == 1
