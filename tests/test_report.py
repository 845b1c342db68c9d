"""The page: one file that asks nobody for anything, in which a text stays a text and a weight stays what it was."""

import base64
import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from html.parser import HTMLParser

import numpy as np
import pytest

from probe.canvas import png_bytes
from probe.errors import FigureError
from probe.figures import head_map
from probe.fonts import chinese_font
from probe.report import Picture, Section, SentenceMap, SentenceMaps, Table, render_report
from probe.report.numbers import column_text, value_html
from probe.report.page import PAGE_BYTES
from probe.report.sentences import dequantise, direction_of, pack_sentences, quantise, safe_json
from probe.report.typeface import FONT_BYTES, font_faces, subset_font
from tests.browsing import opened

INJECTION = "<img src=x onerror=\"document.title='broken'\"></script><script>document.title='broken'</script>苹果"
SENTENCES = [
    (("我", "喜欢", "苹果", "。"), (2,), (1,), "fruit"),
    (("苹果", "手机", "很", "贵", "。"), (0,), (1,), "device"),
    (("苹", "果", "公司", "发布", "了", "新品"), (0, 1), (2,), "company"),
    (("苹果", "酸", "脱氢酶", "催化", "反应"), (0,), (1, 2), "malic acid"),
    (("牛顿", "被", "苹果", "砸中"), (2,), (3,), "fruit"),
    (("今天", "我", "在", "超市", "门口", "看见", "一", "大", "箱", "苹果"), (9,), (), ""),
]
ODD_SENTENCES = [
    ((INJECTION[:40], INJECTION[40:-2], "苹果"), (2,), (0,), "<b>bold</b>"),
    (("🍎", "👩‍🔬", "吃", "苹果"), (3,), (2,), "emoji"),
    (("אני", "אוהב", "תפוח", "苹果"), (2,), (1,), "rtl"),
]


@dataclass(frozen=True)
class Check:
    name: str
    status: str
    value: float | None
    bound: float | None
    why: str


def sentence_maps(count: int, *, layers: int = 12, heads: int = 12, seed: int = 0) -> SentenceMaps:
    """Sentences with a head (7, 3) that reads the cue, a sink, and a weight that is exactly zero."""
    random = np.random.default_rng(seed)
    items = []
    for number in range(count):
        odd = number - 6
        words, target, cues, sense = (
            ODD_SENTENCES[odd] if 0 <= odd < len(ODD_SENTENCES) else SENTENCES[number % len(SENTENCES)]
        )
        labels = ("<s>", *words, "</s>")
        logits = random.normal(0, 1.2, (layers, heads, len(labels)))
        logits[:, :, 0] += random.uniform(0, 3, (layers, heads))
        logits[7 % layers, 3 % heads, [place + 1 for place in cues]] += 4
        weights = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
        weights[2 % layers, 2 % heads] = 0
        weights[2 % layers, 2 % heads, 0] = 1
        items.append(
            SentenceMap(
                case=f"case-{number + 1:03d}",
                labels=labels,
                target=tuple(place + 1 for place in target),
                cues=tuple(place + 1 for place in cues),
                special=(0, len(labels) - 1),
                sense=sense,
                weights=weights,
            )
        )
    return SentenceMaps(layers=tuple(str(layer) for layer in range(layers)), heads=heads, items=tuple(items))


def realistic_sections(count: int = 60, *, chinese: bool = False) -> list[Section]:
    random = np.random.default_rng(1)
    grid = random.beta(1, 9, (12, 12))
    grid[7, 3], grid[2, 2], grid[5, 5] = 0.72, 0.0, np.nan
    names = ["目标词 → 线索词", "线索词 → 目标词"] if chinese else ["Target → cue", "Cue → target"]
    label = "质量" if chinese else "mass"
    pictures = tuple(
        Picture(
            caption=f"{name}：60 句的平均注意力质量。"
            if chinese
            else f"{name}: mean attention mass over 60 sentences.",
            png=png_bytes(
                head_map(
                    grid if place == 0 else grid.T,
                    title=name,
                    layers=[str(layer) for layer in range(12)],
                    label=label,
                    significant=grid > 0.4 if place == 0 else None,
                    language="zh" if chinese else "en",
                )
            ),
            alt=f"{name}, 12 × 12; largest 0.72 in layer 7, head 3",
            source=f"figures/mass-{place}.png",
        )
        for place, name in enumerate(names)
    )
    checks = (
        Check("rows against eager", "pass", 3.2e-7, 1e-6, "largest difference over 12 layers, same q, k and mask"),
        Check("row sums", "pass", 1.2e-7, 1e-5, "largest distance from 1"),
        Check("padding, left and right", "fail", 0.0213, 1e-5, "rows change when a longer text is in the batch"),
        Check("causality", "skip", None, None, "an encoder reads both ways"),
    )
    rows = tuple(
        (layer, head, "cue", float(value), float(value) - 0.03, float(value) + 0.03, 10.0 ** -(head % 6))
        for (layer, head), value in list(np.ndenumerate(np.nan_to_num(grid)))[:40]
    )
    text_en = (
        "On these 60 sentences one head carries most of what 苹果 reads from its cue: layer 7, head 3, "
        "with 0.72 of the target’s attention (0.69 to 0.75).",
        "Mass describes, it does not explain. Cutting the edge from target to cue in this head moves the target’s "
        "state by 0.08 along the fruit–company axis; cutting it everywhere moves it by 0.25. The rest goes elsewhere.",
    )
    text_zh = (
        "在这 60 个句子中，“苹果”从线索词读取的信息主要由一个头承担："
        "第 7 层第 3 头，占目标词注意力的 0.72（0.69 至 0.75）。",
        "注意力质量只是描述，不是解释。在这个头中切断目标词到线索词的边，"
        "目标词的状态沿水果—公司方向移动 0.08；在所有头中切断则移动 0.25。其余信息经由别的路径。",
    )
    maps = sentence_maps(count)
    return [
        Section(key="summary", title="结论" if chinese else "What was found", text=text_zh if chinese else text_en),
        Section(key="self-check", title="自检" if chinese else "Self-check", checks=checks),
        Section(
            key="heads",
            title="各层各头" if chinese else "Layer by layer, head by head",
            text=("两个方向的注意力质量。" if chinese else "Attention mass in both directions.",),
            figures=pictures,
            tables=(
                Table(
                    caption="最强的头" if chinese else "Strongest heads, with bootstrap intervals over cue words",
                    columns=("layer", "head", "key", "estimate", "low", "high", "p"),
                    rows=rows,
                    source="tables/results.csv",
                ),
            ),
        ),
        Section(
            key="sentences",
            title="逐句查看" if chinese else "Sentence by sentence",
            text=("选择句子、层和头。" if chinese else "Choose a sentence, a layer and a head.",),
            sentences=maps,
        ),
    ]


MANIFEST = (("model", "builtin:e5-small"), ("cases", "relations, 60 sentences, sha256 3f9a…"), ("torch", "2.13.0"))


def realistic_page(language: str = "en", count: int = 60) -> str:
    chinese = language == "zh"
    return render_report(
        realistic_sections(count, chinese=chinese),
        title="多语言 e5-small 如何阅读“苹果”" if chinese else "How multilingual-e5-small reads 苹果",
        subtitle="12 层 × 12 头，60 个句子" if chinese else "Twelve layers of twelve heads on sixty sentences",
        language=language,
        manifest_rows=MANIFEST,
    )


class Outline(HTMLParser):
    """What a browser would find: elements with attributes, and the text of script and style."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.raw, self.inside = [], [], None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = (tag, dict(attrs)) if tag in ("script", "style") else self.inside
        if self.inside and self.inside[0] == tag:
            self.raw.append([tag, dict(attrs), ""])

    def handle_data(self, data):
        if self.inside:
            self.raw[-1][2] += data

    def handle_endtag(self, tag):
        if self.inside and tag == self.inside[0]:
            self.inside = None


@pytest.fixture(scope="module")
def page():
    return realistic_page()


def test_the_page_names_nothing_outside_itself(page):
    for tag, attributes in Outline(page).elements:
        for name in ("src", "href", "srcset", "action", "data"):
            value = attributes.get(name)
            if value is not None:
                assert value.startswith(("data:", "#", "./")), (tag, name, value[:80])
    assert not re.search(r"url\((?![\"']?data:)|@import|\brequire\(|\bfetch\(|XMLHttpRequest", page)


def test_the_policy_allows_the_pages_own_script_and_style_and_no_other(page):
    outline = Outline(page)
    policy = next(a["content"] for t, a in outline.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    code = [(tag, text) for tag, attributes, text in outline.raw if attributes.get("type") != "application/json"]
    assert [tag for tag, _ in code] == ["style", "script"]
    for tag, text in code:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not any(name == "style" or name.startswith("on") for _, a in outline.elements for name in a)


def test_markup_in_a_text_stays_text_everywhere():
    evil = INJECTION
    maps = SentenceMaps(
        layers=(evil,),
        heads=1,
        items=(SentenceMap(case=evil, labels=(evil,), target=(0,), sense=evil, note=evil, weights=np.ones((1, 1, 1))),),
    )
    picture = Picture(
        caption=evil, png=png_bytes(head_map(np.ones((1, 1)), title="", layers=["0"], label="")), alt=evil
    )
    table = Table(caption=evil, columns=(evil,), rows=((evil,),), source="javascript:alert(1)")
    check = Check(evil, "pass", 1.0, None, evil)
    section = Section(
        key="x", title=evil, text=(evil,), tables=(table,), figures=(picture,), sentences=maps, checks=(check,)
    )
    html = render_report([section], title=evil, language="en", subtitle=evil, manifest_rows=((evil, evil),))
    outline = Outline(html)
    assert [tag for tag, _ in outline.elements].count("script") == 3  # shared data, sentences, viewer
    assert [a["src"][:10] for t, a in outline.elements if t == "img"] == ["data:image"]
    assert not any(a.get("href", "").startswith("javascript") for _, a in outline.elements)
    data = next(text for _, a, text in outline.raw if a.get("id") == "data-x")
    assert json.loads(data)["cases"][0]["labels"] == [evil]


@pytest.mark.parametrize("text", ["</script>", "<!--<script>", "]]>", "\u2028", "a&b", "\\u003c", "苹果\ud800"])
def test_embedded_json_reads_back_and_holds_no_character_that_ends_a_script(text):
    written = str(safe_json([text]))
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == [text.replace("\ud800", "?")]


def test_a_weight_survives_in_one_byte_and_only_zero_becomes_zero():
    weights = np.concatenate([[0.0, 1e-12, 1e-5, 1.0], np.linspace(0, 1, 4001)])
    back = dequantise(quantise(weights))
    assert np.abs(back - weights).max() <= 0.004
    assert np.array_equal(back == 0, weights == 0)
    assert back[3] == 1.0


def test_sentences_past_the_budget_are_left_out_and_counted():
    maps = replace(sentence_maps(20), omitted=3)
    whole, omitted = pack_sentences(maps, budget=10**9)
    assert (len(whole["cases"]), omitted) == (20, 3)
    size = len(str(safe_json(whole["cases"])).encode())
    part, omitted = pack_sentences(maps, budget=size // 2)
    assert 0 < len(part["cases"]) < 20 and omitted == 3 + 20 - len(part["cases"])
    assert len(str(safe_json(part["cases"])).encode()) <= size // 2
    assert [case["id"] for case in part["cases"]] == sorted(case["id"] for case in part["cases"])


def test_five_hundred_cases_of_twelve_layers_and_heads_fit_into_five_megabytes():
    maps = sentence_maps(500)
    items = tuple(
        replace(
            item,
            labels=tuple(item.labels[place % len(item.labels)] for place in range(16)),
            weights=np.resize(item.weights, (12, 12, 16)),
            special=(0, 15),
        )
        for item in maps.items
    )
    picture = realistic_sections(1)[2].figures[0]
    sections = [
        Section(key="heads", title="Heads", figures=(picture,) * 12),
        Section(key="all", title="All", sentences=replace(maps, items=items)),
    ]
    html = render_report(sections, title="500", language="en")
    assert len(html.encode()) <= 5_000_000
    data = json.loads(next(text for _, a, text in Outline(html).raw if a.get("id") == "data-all"))
    assert len(data["cases"]) == 500


def test_a_page_that_would_be_too_large_says_how_many_sentences_it_left_out():
    maps = sentence_maps(360, layers=48, heads=32)
    html = render_report([Section(key="s", title="S", sentences=maps)], title="T", language="en")
    data = json.loads(next(text for _, a, text in Outline(html).raw if a.get("id") == "data-s"))
    left = 360 - len(data["cases"])
    assert 0 < left < 360 and f"{left} more sentences" in html
    assert len(html.encode()) <= PAGE_BYTES


def test_the_page_carries_the_chinese_glyphs_it_uses_in_at_most_400_kilobytes(page):
    fonts = [base64.b64decode(data) for data in re.findall(r"data:font/woff2?;base64,([A-Za-z0-9+/=]+)", page)]
    assert len(fonts) == 3 and sum(map(len, fonts)) <= FONT_BYTES
    assert "苹" in _characters_of(fonts[-1]) and "牛" in _characters_of(fonts[-1])
    assert "龘" not in _characters_of(fonts[-1])


def test_a_font_too_large_for_its_limit_loses_the_rarest_characters():
    text = Counter({"苹": 9, "果": 9, **{chr(code): 1 for code in range(0x4E00, 0x4F00)}})
    content = subset_font(chinese_font().path, text, 20_000)
    assert 5_000 < len(content) <= 20_000
    assert {"苹", "果"} <= _characters_of(content)


def _characters_of(font):
    import io

    from fontTools.ttLib import TTFont

    return {chr(code) for code in TTFont(io.BytesIO(font)).getBestCmap()}


def test_fonts_too_are_the_same_bytes_each_time(page):
    assert font_faces("苹果 apple") == font_faces("苹果 apple")
    assert realistic_page() == page


@pytest.mark.parametrize(("language", "tag", "word"), [("en", "en", "Find a sentence"), ("zh", "zh-Hans", "查找句子")])
def test_the_language_sets_fixed_strings_and_the_lang_attribute(language, tag, word):
    html = realistic_page(language, 3)
    assert f'<html lang="{tag}">' in html and word in html


def test_a_reader_without_javascript_is_told_so_and_has_tables_and_pictures(page):
    tags = Counter(tag for tag, _ in Outline(page).elements)
    assert "<noscript>" in page and tags["table"] == 2 and tags["img"] == 2
    assert all(a.get("alt") for t, a in Outline(page).elements if t == "img")
    viewer = next(a for _, a in Outline(page).elements if "data-viewer" in a)
    assert "hidden" in viewer


def test_every_check_stands_in_the_table_and_a_failure_is_said_first(page):
    for words in ("2 passed, 1 failed, 1 skipped", "3.2 × 10<sup>−7</sup>", "0.0213", "an encoder reads both ways"):
        assert words in page
    assert page.index("1 of the checks failed") < page.index("rows against eager")


def test_columns_share_their_decimals_and_never_show_a_false_zero():
    assert column_text((0.25, 0.0, 1e-5, -1e-5, None, float("nan")), missing="–") == (
        "0.250", "0", "<0.001", ">−0.001", "–", "–",
    )  # fmt: skip
    assert column_text((3, -4), missing="–") == ("3", "−4")
    assert column_text((1234.5, 0.4), missing="–") == ("1234.5", "0.4")
    assert column_text((0.012, 0.0034), missing="–") == ("0.0120", "0.0034")
    assert value_html(1.5e-8, missing="–") == "1.5 × 10<sup>−8</sup>"
    assert value_html(float("-inf"), missing="–") == "−∞"


@pytest.mark.parametrize(("text", "direction"), [("苹果", "ltr"), ("אני", "rtl"), ("123 تفاح", "rtl"), ("", "ltr")])
def test_direction_follows_the_first_strong_character(text, direction):
    assert direction_of(text) == direction


WEIGHTS = np.full((2, 3, 4), 0.25)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: SentenceMap(case="a", labels=("x",), target=(0,), weights=WEIGHTS), "(2, 3, 4) for 1 tokens"),
        (lambda: SentenceMap(case="a", labels=tuple("wxyz"), target=(4,), weights=WEIGHTS), "0 to 3"),
        (lambda: SentenceMap(case="a", labels=tuple("wxyz"), target=(), weights=WEIGHTS), "no target"),
        (lambda: SentenceMap(case="a", labels=tuple("wxyz"), target=(0,), weights=-WEIGHTS), "0 to 1"),
        (lambda: SentenceMap(case="a", labels=tuple("wxyz"), target=(0,), weights=WEIGHTS * np.nan), "0 to 1"),
        (lambda: Table(caption="t", columns=("a", "b"), rows=((1,),)), "1 cells for 2 columns"),
        (lambda: Table(caption="t", columns=("a",), rows=(), source="../secret"), "run folder"),
        (lambda: Picture(caption="p", png=b"GIF89a", alt="x"), "not a PNG"),
        (lambda: Section(key="a b", title="t"), "only letters"),
        (lambda: render_report([Section(key="a", title="t")] * 2, title="t", language="en"), "twice"),
        (lambda: render_report([], title="t", language="fr"), "en, zh"),
    ],
)
def test_what_cannot_be_a_page_is_refused_in_one_line(build, said):
    with pytest.raises(FigureError) as refusal:
        build()
    assert said in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_table_without_rows_and_a_page_without_sections_are_pages():
    empty = Section(key="e", title="E", tables=(Table(caption="none", columns=("a",), rows=()),), checks=())
    assert "<table>" in render_report([empty], title="t", language="zh")
    assert "<main" in render_report([], title="t", language="en")


# ---- in a browser


@pytest.fixture(scope="module")
def page_file(page, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def colours(tab):
    return tab.eval_on_selector_all(".sentence .token", "all => all.map(one => one.style.backgroundColor)")


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_opens_without_error_request_or_sideways_scroll(browser, page_file, width, scheme):
    with opened(browser, page_file, width=width, color_scheme=scheme) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.locator(".viewer").is_visible()
        assert tab.title() == "How multilingual-e5-small reads 苹果"
        assert tab.evaluate("document.fonts.check('1em \"Cijing Sans\"', '苹果')")
        assert tab.evaluate("[...document.fonts].filter(font => font.status === 'error').length") == 0


@pytest.mark.browser
def test_a_text_with_markup_is_shown_and_does_not_run(browser, page_file):
    with opened(browser, page_file) as tab:
        tab.locator(".cases li").nth(6).click()
        assert "<img src=x" in tab.locator(".sentence").inner_text()
        assert tab.locator(".sense").inner_text() == "<b>bold</b>"
        assert tab.title() == "How multilingual-e5-small reads 苹果"
        assert tab.locator(".viewer img, .viewer b").count() == 0


@pytest.mark.browser
def test_the_viewer_opens_on_the_head_that_reads_the_cue_and_shows_its_number(browser, page_file):
    item = sentence_maps(60).items[0]
    expected = item.weights[7, 3, list(item.cues)].sum()
    with opened(browser, page_file) as tab:
        readout = tab.locator(".readout").inner_text()
        assert readout.startswith("layer 7, head 3")
        assert abs(float(re.search(r"(\d\.\d+) on", readout)[1]) - expected) <= 0.01
        assert tab.locator(".reading li").first.inner_text().split()[0] == "喜欢"
        tab.locator(".layer").select_option("-1")
        tab.locator(".head").select_option("-1")
        mean = item.weights[:, :, list(item.cues)].mean(axis=(0, 1)).sum()
        assert abs(float(re.search(r"(\d\.\d+) on", tab.locator(".readout").inner_text())[1]) - mean) <= 0.01


@pytest.mark.browser
def test_picking_a_sentence_or_a_head_changes_the_drawing(browser, page_file):
    with opened(browser, page_file) as tab:
        before = colours(tab)
        tab.locator(".cell").nth(5).click()
        assert tab.locator(".readout").inner_text().startswith("layer 0, head 5")
        assert colours(tab) != before
        tab.locator(".cases li").nth(1).click()
        assert tab.locator(".sentence .target").inner_text() == "苹果"
        assert tab.locator(".sentence .cue").inner_text() == "手机"
        assert tab.locator(".case-id").inner_text() == "case-002"


@pytest.mark.browser
def test_the_grid_and_the_list_work_from_the_keyboard(browser, page_file):
    with opened(browser, page_file) as tab:
        tab.locator(".cell[tabindex='0']").focus()
        tab.keyboard.press("ArrowRight")
        tab.keyboard.press("ArrowDown")
        assert tab.locator(".readout").inner_text().startswith("layer 8, head 4")
        assert tab.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
        tab.keyboard.press("End")
        assert tab.locator(".readout").inner_text().startswith("layer 8, head mean")
        tab.locator(".cases").focus()
        tab.keyboard.press("ArrowDown")
        assert tab.locator(".case-id").inner_text() == "case-002"
        tab.keyboard.press("End")
        assert tab.locator(".case-id").inner_text() == "case-060"
        assert tab.locator(".cases li[aria-selected='true']").count() == 1


@pytest.mark.browser
def test_the_filter_finds_words_and_senses_and_says_when_nothing_matches(browser, page_file):
    with opened(browser, page_file) as tab:
        tab.locator(".filter").fill("牛顿")
        assert set(tab.locator(".cases li:visible .words").all_inner_texts()) == {"牛顿被苹果砸中"}
        tab.locator(".filter").fill("RTL")
        assert tab.locator(".cases li:visible").count() == 1
        tab.locator(".filter").fill("no such thing")
        assert tab.locator(".count").inner_text() == "No sentence matches."


@pytest.mark.browser
def test_without_special_tokens_the_row_sums_to_one_again(browser, page_file):
    with opened(browser, page_file) as tab:
        tab.locator(".cell").nth(0).click()
        tab.locator(".bare").check()
        numbers = [float(text) for text in tab.locator(".reading .value").all_inner_texts()]
        assert len(numbers) == 4 and abs(sum(numbers) - 1) < 0.02
        assert tab.locator(".token.out").count() == 2
        tab.locator(".cell").nth(2 * 13 + 2).click()  # the head that reads only the first special token
        assert "nothing is left" in tab.locator(".readout").inner_text()


@pytest.mark.browser
def test_an_exact_zero_is_drawn_and_written_as_zero(browser, page_file):
    with opened(browser, page_file) as tab:
        tab.locator(".cell").nth(2 * 13 + 2).click()
        assert tab.locator(".token.zero").count() == 5
        assert tab.locator(".reading .value").all_inner_texts() == ["1.00", "0", "0", "0", "0", "0"]


@pytest.mark.browser
def test_a_sentence_without_cue_shows_the_largest_weight_instead(browser, page_file):
    with opened(browser, page_file) as tab:
        tab.locator(".cases li").nth(5).click()
        assert "has no cue" in tab.locator(".grid-title").inner_text()
        assert "at most" in tab.locator(".readout").inner_text()


@pytest.mark.browser
def test_chosen_heads_keep_their_own_numbers(browser, tmp_path):
    maps = replace(sentence_maps(1, heads=2), head_names=("3", "11"))
    path = tmp_path / "chosen.html"
    path.write_text(render_report([Section(key="s", title="S", sentences=maps)], title="T", language="en"), "utf-8")
    with opened(browser, path) as tab:
        tab.locator(".cell").nth(1).click()
        assert tab.locator(".readout").inner_text().startswith("layer 0, head 11")
    with pytest.raises(FigureError, match="1 head names for 2 heads"):
        replace(maps, head_names=("3",))


@pytest.mark.browser
def test_a_right_to_left_sentence_runs_from_right_to_left(browser, page_file):
    with opened(browser, page_file) as tab:
        tab.locator(".cases li").nth(8).click()
        boxes = [tab.locator(".sentence .token").nth(place).bounding_box()["x"] for place in (1, 2, 3)]
        assert boxes == sorted(boxes, reverse=True)
        tab.locator(".cases li").nth(0).click()
        boxes = [tab.locator(".sentence .token").nth(place).bounding_box()["x"] for place in (1, 2, 3)]
        assert boxes == sorted(boxes)


@pytest.mark.browser
def test_the_dark_scheme_turns_page_and_colours_round(browser, page_file):
    def brightness(colour):
        return sum(int(part) for part in re.findall(r"\d+", colour)[:3])

    seen = {}
    for scheme in ("light", "dark"):
        with opened(browser, page_file, color_scheme=scheme) as tab:
            paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
            cue = tab.eval_on_selector(".token.cue", "one => getComputedStyle(one).backgroundColor")
            seen[scheme] = (brightness(paper), brightness(cue))
    assert seen["light"][0] > seen["light"][1] and seen["dark"][0] < seen["dark"][1]


@pytest.mark.browser
def test_words_stand_out_from_every_colour_behind_them(browser, page_file):
    contrast = """all => all.map(one => {
      const light = (colour) => { const [r, g, b] = colour.match(/[0-9.]+/g).map(Number).map((part) =>
        (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126*r + 0.7152*g + 0.0722*b };
      const style = getComputedStyle(one);
      const [a, b] = [light(style.color), light(style.backgroundColor)];
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) })"""
    for scheme in ("light", "dark"):
        with opened(browser, page_file, color_scheme=scheme) as tab:
            for place in range(0, 156, 11):
                tab.locator(".cell").nth(place).click()
                assert min(tab.eval_on_selector_all(".sentence .token:not(.zero)", contrast)) >= 4.5


@pytest.mark.browser
def test_without_javascript_tables_and_pictures_are_there_and_the_viewer_says_why_it_is_not(browser, page_file):
    with opened(browser, page_file, java_script_enabled=False) as tab:
        assert tab.locator("table").first.is_visible() and tab.locator("img").first.is_visible()
        assert tab.locator("noscript").inner_text().startswith("The sentence viewer needs JavaScript")
        assert not tab.locator(".viewer").is_visible()


@pytest.mark.browser
def test_a_model_of_many_heads_and_a_long_sentence_still_fit_a_telephone(browser, tmp_path):
    maps = sentence_maps(2, layers=48, heads=32)
    long = replace(
        maps.items[0], labels=tuple("苹果" * 150), special=(), weights=np.resize(maps.items[0].weights, (48, 32, 300))
    )
    page = render_report(
        [Section(key="s", title="S" * 80, sentences=replace(maps, items=(maps.items[1], long)))],
        title="T",
        language="zh",
    )
    path = tmp_path / "many.html"
    path.write_text(page, encoding="utf-8")
    with opened(browser, path, width=360) as tab:
        assert tab.locator(".cell").count() == 49 * 33
        tab.locator(".cases li").nth(1).click()
        assert tab.locator(".sentence .token").count() == 300
        assert tab.locator(".reading .rest").count() == 1
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360
        tab.screenshot(path=str(tmp_path / "many.png"), full_page=True)


@pytest.mark.browser
def test_the_page_prints_its_sentence_and_hides_what_cannot_be_clicked_on_paper(browser, page_file):
    with opened(browser, page_file, color_scheme="dark") as tab:
        tab.emulate_media(media="print", color_scheme="dark")
        assert tab.locator(".sentence").is_visible() and not tab.locator(".filter").is_visible()
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert len(tab.pdf(format="A4")) > 10_000


def table_file(path, *, rows, columns=9):
    """A page whose one table has a number, a Chinese text and columns of short sentences."""
    row = (1, "苹果公司发布了新品，" * 5, *("喜欢 0.250（注意力 10.0 %）、" * 3 for _ in range(columns - 2)))
    names = tuple(f"影响与注意力的相关{number}" for number in range(columns))
    table = Table(caption="表", columns=names, rows=(row,) * rows)
    path.write_text(render_report([Section(key="s", title="S", tables=(table,))], title="T", language="zh"), "utf-8")
    return path


def test_a_table_to_be_seen_whole_is_no_scroll_box_however_long():
    rows = tuple((f"row {place}",) for place in range(60))
    pages = [
        render_report(
            [Section(key="s", title="S", tables=(Table(caption="c", columns=("a",), rows=rows, whole=whole),))],
            title="T",
            language="en",
        )
        for whole in (False, True)
    ]
    assert ['class="scroll long"' in page for page in pages] == [True, False]
    assert ['class="scroll whole"' in page for page in pages] == [False, True]


def test_columns_of_long_text_are_marked_and_short_words_and_numbers_are_not():
    rows = ((1, "苹果公司发布了新品", "fruit", "target → cue"),)
    page = render_report(
        [Section(key="s", title="S", tables=(Table(caption="c", columns=("n", "text", "sense", "edge"), rows=rows),))],
        title="T",
        language="en",
    )
    assert re.findall(r"<td([^>]*)>", page) == [' class="number"', ' class="words"', "", ""]


@pytest.mark.browser
@pytest.mark.parametrize(("rows", "whole"), [(20, True), (40, False)])
def test_a_table_of_twenty_rows_stands_in_full_height_and_its_text_in_columns_that_can_be_read(
    browser, tmp_path, rows, whole
):
    with opened(browser, table_file(tmp_path / "t.html", rows=rows), width=1200) as tab:
        box = tab.locator(".scroll")
        assert box.evaluate("box => box.scrollHeight <= box.clientHeight + 1") == whole
        assert box.evaluate("box => box.scrollWidth > box.clientWidth"), "nine columns of text do not fit"
        assert min(tab.eval_on_selector_all("td.words", "all => all.map(one => one.clientWidth)")) >= 150
        assert "gradient" in box.evaluate("box => getComputedStyle(box).backgroundImage")


@pytest.mark.browser
def test_a_wide_table_is_not_cut_on_paper(browser, tmp_path):
    with opened(browser, table_file(tmp_path / "t.html", rows=40), width=1200) as tab:
        tab.emulate_media(media="print")
        tab.set_viewport_size({"width": 718, "height": 1000})  # A4 between margins
        box = tab.locator(".scroll")
        assert box.evaluate("box => getComputedStyle(box).overflow") == "visible"
        assert tab.evaluate("document.documentElement.scrollWidth") <= 718
        assert box.evaluate("box => box.scrollHeight <= box.clientHeight + 1")
