"""Figures: Chinese is drawn, zeros and gaps are seen, and the same numbers give the same bytes."""

import io
import resource
import subprocess
import sys

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from probe import figures
from probe.canvas import ABSENT, png_bytes, save_png
from probe.colours import attention_colours
from probe.curves import forest, layer_curve
from probe.errors import FigureError, OutputError
from probe.figures import head_map, head_maps, sentence_map
from probe.fonts import chinese_font, drawable, font_families, latin_font


def pixels(figure):
    return np.asarray(Image.open(io.BytesIO(png_bytes(figure))).convert("RGB")).astype(int)


def title_only(text, families):
    figure = Figure(figsize=(2, 1))
    figure.text(0.1, 0.4, text, family=families, size=20)
    return figure


def colours_in(figure):
    return {tuple(colour) for colour in pixels(figure).reshape(-1, 3)}


def grid_of(layers, heads):
    return np.random.default_rng(0).beta(1, 8, (layers, heads))


def names(count):
    return [str(number) for number in range(count)]


def test_the_chinese_font_has_the_glyphs_and_draws_them():
    choice = chinese_font()
    assert choice.path.is_file() and choice.source in ("system", "zhplot")
    drawn = pixels(head_map(grid_of(2, 2), title="苹果", layers=["0", "1"], label="质量", language="zh"))
    assert (drawn < 128).any()


def test_drawn_chinese_differs_from_the_box_of_a_missing_glyph():
    families = list(font_families())
    apple, pear = (pixels(title_only(word, families)) for word in ("苹果", "梨子"))
    with pytest.warns(UserWarning, match="missing from"):
        figure = title_only("苹果", ["DejaVu Sans"])
        figure.savefig(buffer := io.BytesIO(), format="png", dpi=160)
    box = np.asarray(Image.open(buffer).convert("RGB")).astype(int)
    assert np.abs(apple - box).sum() > 10_000 and np.abs(apple - pear).sum() > 10_000


def test_a_missing_glyph_is_an_error_that_names_the_character():
    with pytest.raises(FigureError, match=r"苹.*U\+82F9"):
        png_bytes(title_only("苹", ["DejaVu Sans"]))
    emoji = head_map(grid_of(2, 2), title="🍎", layers=["0", "1"], label="")
    with pytest.raises(FigureError, match=r"U\+1F34E RED APPLE"):
        png_bytes(emoji)


def test_what_no_font_has_becomes_a_box_and_is_named():
    assert drawable("苹果🍎x🍎") == ("苹果□x□", ("🍎",))
    assert drawable("苹\u200d果\ufeff\ufe0f\u200f") == ("苹果", ())
    assert drawable("a\n\tb") == ("a↓→b", ())
    figure = sentence_map(["苹果", "🍎"], np.ones((1, 2)) / 2, rows=["0"], target=[0], cues=[], title="t")
    assert any("U+1F34E" in text.get_text() for text in figure.texts)
    png_bytes(figure)


def test_dollar_signs_and_markup_of_a_text_are_not_mathematics():
    labels = ["$x^2$", r"\frac", "$", "苹果"]
    png_bytes(sentence_map(labels, np.ones((1, 4)) / 4, rows=["$1$"], target=[3], cues=[0], title="$\\bad{$"))


@pytest.mark.parametrize(("layers", "heads"), [(12, 12), (18, 4), (24, 16), (48, 32), (1, 1)])
def test_head_maps_of_every_size_fit_a_page(layers, heads):
    content = png_bytes(head_map(grid_of(layers, heads), title="t", layers=names(layers), label="mass"))
    width, height = Image.open(io.BytesIO(content)).size
    assert 500 <= width <= 1100 and 250 <= height <= 1300
    assert len(content) < 90_000


def test_an_exact_zero_is_white_and_a_missing_value_is_grey():
    tiny, zero, missing = np.full((2, 2), 1e-9), np.zeros((2, 2)), np.full((2, 2), np.nan)
    tiny[0, 0] = zero[0, 0] = missing[0, 0] = 1.0
    drawn = [head_map(grid, title="", layers=["0", "1"], label="") for grid in (tiny, zero, missing)]
    lowest = tuple(bytes.fromhex(attention_colours(256)[0][1:]))
    grey = tuple(bytes.fromhex(ABSENT[1:]))
    counts = [[(pixels(figure) == colour).all(axis=-1).sum() for colour in (lowest, grey)] for figure in drawn]
    assert counts[0][0] > 3000 and counts[0][1] < 100
    assert counts[1][0] < 1000 and counts[1][1] < 100
    assert counts[2][1] > 3000
    assert [text.get_text() for text in drawn[1].legends[0].get_texts()] == ["exactly 0"]
    assert [text.get_text() for text in drawn[2].legends[0].get_texts()] == ["no value"]


def test_a_diverging_map_is_even_about_its_centre():
    grid = np.array([[-0.1, 0.4], [0.0, 0.2]])
    mesh = head_map(grid, title="", layers=["0", "1"], label="", centre=0.0).axes[0].collections[0]
    assert mesh.get_clim() == (-0.4, 0.4)


def test_several_maps_share_one_scale():
    grids = [np.array([[0.1, 0.2]]), np.array([[0.0, 0.7]])]
    limits = figures.colour_limits(grids)
    meshes = [head_map(g, title="", layers=["0"], label="", limits=limits).axes[0].collections[0] for g in grids]
    assert [mesh.get_clim() for mesh in meshes] == [(0.0, 0.7)] * 2
    assert figures.colour_limits([np.full((2, 2), np.nan)]) == (0.0, 1.0)


def test_a_curve_across_something_else_than_layers_says_what():
    frame = pd.DataFrame({"depth": [0.0, 0.5, 1.0], "y": [1.0, 2.0, 3.0], "low": [0.5] * 3, "high": [3.5] * 3})
    drawn = layer_curve(frame, x="depth", y="y", low="low", high="high", title="t", label="y", across="depth of 1")
    axes = drawn.axes[0]
    assert axes.get_xlabel() == "depth of 1" and {0.0, 0.5, 1.0} <= {
        round(float(tick), 3) for tick in axes.get_xticks()
    }


def test_significant_heads_are_framed():
    grid = grid_of(3, 3)
    chosen = grid > np.median(grid)
    plain, framed = (head_map(grid, title="", layers=names(3), label="", significant=marks) for marks in (None, chosen))
    assert len(framed.axes[0].patches) - len(plain.axes[0].patches) == chosen.sum()
    assert colours_in(framed) - colours_in(plain)


def test_chosen_heads_keep_their_own_numbers():
    figure = head_map(grid_of(2, 2), title="", layers=["0", "1"], label="", heads=["3", "11"])
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["3", "11"]


def test_all_zero_and_all_missing_maps_are_drawn():
    for value in (0.0, np.nan):
        for centre in (None, 0.0):
            png_bytes(head_map(np.full((2, 3), value), title="t", layers=["0", "1"], label="", centre=centre))


def test_the_same_numbers_give_the_same_bytes_without_date_or_software():
    first, second = (png_bytes(head_map(grid_of(4, 4), title="苹果", layers=names(4), label="")) for _ in range(2))
    assert first == second
    assert b"tEXt" not in first and b"tIME" not in first


def test_drawing_leaves_matplotlibs_settings_and_pyplot_alone():
    def settings():  # read past RcParams, whose own reading chooses a backend
        return {name: dict.__getitem__(matplotlib.rcParams, name) for name in matplotlib.rcParams}

    before = settings()
    png_bytes(head_map(grid_of(3, 3), title="苹果", layers=names(3), label=""))
    assert settings() == before
    from matplotlib import pyplot

    assert pyplot.get_fignums() == []


def test_a_few_values_across_are_the_ticks_and_nothing_between_them():
    frame = pd.DataFrame({"place": [1, 3, 5], "value": [0.1, 0.2, 0.3], "low": [0.0] * 3, "high": [0.5] * 3})
    given = {"x": "place", "y": "value", "low": "low", "high": "high", "title": "places", "label": "share"}
    axes = layer_curve(frame, **given, across="place").axes[0]
    assert axes.get_xticks().tolist() == [1, 3, 5]


def test_a_layer_curve_has_one_line_a_series_and_leaves_gaps():
    frame = pd.DataFrame({"layer": [0, 1, 2] * 2, "e": [0.1, np.nan, 0.3, 0.2, 0.2, 0.2], "model": list("aaabbb")})
    frame = frame.assign(low=frame.e - 0.05, high=frame.e + 0.05)
    figure = layer_curve(frame, x="layer", y="e", low="low", high="high", series="model", title="苹果", label="效应")
    labels = [line.get_label() for line in figure.axes[0].lines if not line.get_label().startswith("_")]
    assert labels == ["a", "b"]
    styles = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in figure.axes[0].lines[:2]}
    assert len(styles) == 2
    png_bytes(figure)
    with pytest.raises(FigureError, match="no column 'lo'"):
        layer_curve(frame, x="layer", y="e", low="lo", high="high", title="t", label="")


def test_in_a_diverging_map_an_exact_zero_is_the_neutral_colour_and_no_value_is_hatched():
    neutral, grey = (tuple(bytes.fromhex(colour[1:])) for colour in (figures._NEUTRAL, ABSENT))
    for grid, rings in ((np.array([[0.0, 0.5]]), 1), (np.array([[np.nan, 0.5]]), 0), (np.array([[-1e-9, 0.5]]), 0)):
        figure = head_map(grid, title="", layers=["0"], label="", centre=0.0)
        patches = figure.axes[0].patches
        drawn = pixels(figure).reshape(-1, 3)
        counts = {colour: int((drawn == colour).all(axis=-1).sum()) for colour in (neutral, grey)}
        hatched = [patch for patch in patches if patch.get_hatch()]
        assert len(hatched) == int(np.isnan(grid).sum()) and len(figure.axes[0].lines) == rings
        if np.isnan(grid).any():
            assert counts[grey] > 500
        else:
            assert counts[grey] < 100
        if rings:
            assert counts[neutral] > 1500 and patches[0].get_facecolor()[:3] == pytest.approx(np.array(neutral) / 255)


def test_several_maps_in_one_figure_share_one_scale_and_one_bar():
    grids = [np.array([[-0.1, 0.2]]), np.array([[0.0, 0.7]]), np.array([[np.nan, 0.1]])]
    figure = head_maps(grids, names=["甲\n− 乙", "b", "c"], title="t", layers=["0"], label="份额", centre=0.0)
    meshes = [axes.collections[0] for axes in figure.axes if axes.get_title(loc="left") in ("甲\n− 乙", "b", "c")]
    assert [mesh.get_clim() for mesh in meshes] == [(-0.7, 0.7)] * 3
    assert [axes.get_title(loc="left") for axes in figure.axes].count("份额") == 1
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"exactly 0", "no value"}
    png_bytes(figure)


@pytest.mark.parametrize(("layers", "heads", "count"), [(18, 4, 6), (12, 12, 5), (48, 32, 2), (1, 1, 1)])
def test_maps_side_by_side_never_overlap_and_end_in_the_picture(layers, heads, count):
    grids = [grid_of(layers, heads)] * count
    figure = head_maps(
        grids, names=["LoRA＋注意力监督\n− 基础模型"] * count, title="t", layers=names(layers), label="m"
    )
    image = pixels(figure)
    assert (image[:, -4:] == 255).all() and image.shape[1] < 2000
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in figure.axes if axes.collections and axes.get_visible()]
    overlaps = [one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place]]
    assert len(boxes) >= count and not any(overlaps)


def differences():
    """Two groups: shown, not shown; without an interval, without an estimate."""
    rows = [("苹果 − 梨", 0.2, 0.1, 0.3, "测试", 0.1, 0.25), ("b", -0.02, -0.1, 0.04, "测试", -0.05, 0.01)]
    rows += [("c", -0.3, np.nan, np.nan, "held", -0.3, -0.3), ("d", np.nan, np.nan, np.nan, "held", np.nan, np.nan)]
    return pd.DataFrame(rows, columns=["name", "estimate", "low", "high", "part", "lowest", "highest"])


def forest_of(frame, **more):
    given = {name: name for name in ("name", "estimate", "low", "high")}
    return forest(frame, **given, title="t", label="nats", **more)


def markers(figure):
    """Marker, filled or not, and place of every point."""
    lines = [line for line in figure.axes[0].lines if line.get_marker() != "None"]
    return [(line.get_marker(), line.get_markerfacecolor() != "white", float(line.get_xdata()[0])) for line in lines]


def test_a_forest_tells_what_is_shown_what_is_not_and_what_has_no_interval():
    figure = forest_of(differences(), group="part", reach=("lowest", "highest"))
    assert markers(figure) == [("o", True, 0.2), ("o", False, -0.02), ("x", True, -0.3)]
    said = {text.get_text() for text in figure.legends[0].get_texts()}
    assert said == {"difference shown", "no difference shown", "no interval", "lowest to highest seed"}
    beside = [text.get_text() for text in figure.axes[0].texts]
    assert beside[:4] == ["+0.200 (+0.100 to +0.300)", "−0.020 (−0.100 to +0.040)", "−0.300", "–"]
    assert beside[4:] == ["测试", "held"]
    ticks = figure.axes[0].get_yticklabels()
    assert [(tick.get_text(), tick.get_position()[1]) for tick in ticks] == [
        ("苹果 − 梨", 1),
        ("b", 2),
        ("c", 4),
        ("d", 5),
    ]
    png_bytes(figure)


def test_a_forest_has_its_line_at_0_and_claims_no_more_than_it_is_told():
    rows = differences().assign(claimed=[False, False, False, False])
    figure = forest_of(rows, shown="claimed")
    assert [filled for marker, filled, _ in markers(figure) if marker == "o"] == [False, False]
    upright = [line for line in figure.axes[0].lines if list(line.get_xdata()) == [0, 0]]
    assert len(upright) == 1
    low, high = figure.axes[0].get_xlim()
    assert low < -0.3 and high > 0.3
    touching = pd.DataFrame({"name": ["a"], "estimate": [0.1], "low": [0.0], "high": [0.2]})
    assert markers(forest_of(touching)) == [("o", False, 0.1)]


def test_long_names_and_numbers_of_a_forest_stay_in_the_picture():
    rows = differences().assign(
        name=["LoRA＋注意力监督＋检索到的资料 − LoRA＋随机词对"] * 4, estimate=[1234.5, -2, 3, 4]
    )
    image = pixels(forest_of(rows.assign(low=-1200.25, high=2345.0), group="part", language="zh"))
    assert (image[:, -4:] == 255).all() and (image[:, :4] == 255).all()
    emoji = forest_of(rows.assign(name="🍎"))
    assert any("U+1F34E" in text.get_text() for text in emoji.texts)
    png_bytes(emoji)


def test_a_picture_of_few_colours_looks_the_same_and_is_smaller():
    figure = forest_of(differences(), group="part", reach=("lowest", "highest"))
    whole, few = png_bytes(figure), png_bytes(figure, colours=256)
    assert few == png_bytes(figure, colours=256) and len(few) < len(whole) / 2
    drawn = [np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int) for png in (whole, few)]
    assert drawn[0].shape == drawn[1].shape and np.abs(drawn[0] - drawn[1]).max() <= 24
    assert np.abs(drawn[0] - drawn[1]).mean() < 0.5


def test_a_sentence_map_frames_the_target_and_underlines_the_cues():
    weights = np.random.default_rng(0).dirichlet(np.ones(4), 3)
    figure = sentence_map(["我", "喜欢", "苹", "果"], weights, rows=names(3), target=[2, 3], cues=[1], title="t")
    ticks = figure.axes[0].get_xticklabels()
    assert [tick.get_bbox_patch() is not None for tick in ticks] == [False, False, True, True]
    assert len(figure.axes[0].lines) == 1
    png_bytes(figure)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: head_map(np.zeros((2, 2)), title="t", layers=["0"], label=""),
        lambda: head_map(np.zeros((2, 2)), title="t", layers=["0", "1"], label="", significant=np.zeros(3, bool)),
        lambda: head_map(np.zeros((1, 2)), title="t", layers=["0"], label="", heads=["7"]),
        lambda: head_maps([np.zeros((2, 2))], names=["a", "b"], title="t", layers=["0", "1"], label=""),
        lambda: head_maps([np.zeros((2, 2)), np.zeros((2, 3))], names="ab", title="t", layers=["0", "1"], label=""),
        lambda: head_maps([np.zeros((2, 2))], names="a", title="t", layers=["0"], label=""),
        lambda: head_maps([np.zeros((1, 2))], names="a", title="t", layers=["0"], label="", heads=["0"]),
        lambda: head_maps([], names=[], title="t", layers=[], label=""),
        lambda: forest_of(differences().head(0)),
        lambda: forest_of(differences(), group="section"),
        lambda: sentence_map(["a"], np.zeros((1, 2)), rows=["0"], target=[], cues=[], title="t"),
        lambda: sentence_map([], np.zeros((1, 0)), rows=["0"], target=[], cues=[], title="t"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(draw):
    with pytest.raises(FigureError, match="'t'"):
        draw()


def test_a_folder_that_is_not_there_is_one_line(tmp_path):
    figure = head_map(np.ones((1, 1)), title="t", layers=["0"], label="")
    with pytest.raises(OutputError, match=r"cannot write .*gone"):
        save_png(figure, tmp_path / "gone" / "a.png")
    save_png(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == png_bytes(figure)


def test_the_latin_faces_are_there():
    assert latin_font("Regular").is_file() and latin_font("Italic").is_file()


def test_figures_and_report_need_no_torch():
    code = "import sys, probe.figures, probe.report, probe.messages; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_picture_that_cannot_be_written_leaves_the_earlier_one_and_nothing_else(tmp_path):
    save_png(head_map(np.ones((1, 1)), title="first", layers=["0"], label=""), tmp_path / "a.png")
    first = (tmp_path / "a.png").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # Python ignores SIGXFSZ: writing fails as on a full disk
    try:
        with pytest.raises(OutputError, match=r"cannot write .*a\.png"):
            save_png(head_map(np.ones((1, 1)), title="second", layers=["0"], label=""), tmp_path / "a.png")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "a.png").read_bytes() == first and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("label", ["名次，1 为最多", "difference of shares", "占最大值的比例"])
def test_the_title_of_the_colour_bar_ends_within_the_picture(label):
    figure = head_map(grid_of(12, 12), title="t", layers=names(12), label=label)
    assert (pixels(figure)[:, -4:] == 255).all()


def test_ranks_are_dark_at_one_which_stands_on_top_of_the_bar():
    grid = np.array([[1.0, 9.0]])
    figure = head_map(grid, title="", layers=["0"], label="", limits=(1.0, 9.0), reverse=True)
    png_bytes(figure)
    first, last = figure.axes[0].collections[0].get_facecolors()[:, :3].sum(1)
    assert first < last
    assert figure.axes[1].get_yticks()[0] == 1.0 and figure.axes[1].get_ylim() == (9.0, 1.0)
