"""What a notebook shows of a fit."""

import base64
import html
import io
import re
import sys
import time
from html.parser import HTMLParser

import numpy as np
import pytest
from plots.conftest import fit_of

from langevin.plots import notebook


class Read(HTMLParser):
    """The words, and what was opened and closed."""

    def __init__(self, page):
        super().__init__()
        self.words, self.open, self.tags, self.attributes = [], [], set(), []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def rows_of(page):
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]


def test_the_verdict_is_said_with_its_remedies(many):
    page = many._repr_html_()
    assert many.verdict.word == "wrong"
    assert f"background:{notebook.COLORS['wrong']}" in page
    words = " ".join(Read(page).words)
    for finding in many.verdict:
        for part in (finding.finding, finding.meaning, finding.remedy):
            assert part in words


def test_of_many_coordinates_the_worst_are_in_the_table(many):
    rows = rows_of(many._repr_html_())
    assert len(rows) == 1 + notebook.MOST_ROWS
    assert [html.unescape(row[0]) for row in rows[1:3]] == ["theta[<7>]", "theta[<31>]"]
    assert "20 of 62 coordinates: those with the smallest effective sizes; fit.summary() has all." in many._repr_html_()
    table = many.summary()
    for row in rows[1:]:
        wanted = table.loc[html.unescape(row[0])]
        assert [float(cell.replace(",", "")) for cell in row[1:5]] == pytest.approx(
            wanted[:4], abs=0.006 * wanted["sd"]
        )
        assert float(row[5].replace(",", "")) == pytest.approx(wanted["ess"], abs=0.5)
        assert float(row[7]) == pytest.approx(wanted["r_hat"], abs=0.0005)


def test_few_coordinates_are_in_their_order_with_weighted_numbers(uneven):
    rows = rows_of(uneven._repr_html_())
    assert [row[0] for row in rows[1:]] == ["w[0]", "w[1]", "w[2]"]
    wanted = uneven.summary()
    for row, (_, numbers) in zip(rows[1:], wanted.iterrows(), strict=True):
        assert float(row[1]) == pytest.approx(numbers["mean"], abs=0.006)
        assert float(row[2]) == pytest.approx(numbers["sd"], abs=0.006)


def test_names_are_escaped():
    name = '<script src="x">&amp;'
    fit = fit_of({name: ((), np.random.default_rng(0).normal(size=(2, 100)))}, method="<b>")
    page = fit._repr_html_()
    read = Read(page)
    assert "script" not in read.tags
    assert name in read.words
    assert "Fit by <b>" in read.words
    assert f"Distributions and traces of {name}" in [value for key, value in read.attributes if key == "alt"]


def test_the_page_asks_for_nothing(many):
    read = Read(many._repr_html_())
    assert not read.open
    assert read.tags <= {"div", "b", "i", "span", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "img"}
    assert "http" not in many._repr_html_()
    for key, value in read.attributes:
        assert key in ("style", "alt", "src")
        assert key != "src" or value.startswith("data:image/png;base64,")


def test_the_pictures_are_small_and_of_the_worst(many):
    import matplotlib.image

    page = many._repr_html_()
    assert 'alt="Distributions and traces of theta[&lt;7&gt;], theta[&lt;31&gt;],' in page
    content = base64.b64decode(re.search(r'base64,([^"]+)"', page)[1])
    assert len(content) < 150_000
    pixels = matplotlib.image.imread(io.BytesIO(content))
    assert pixels.shape[2] == 4
    # The background is see-through, for pages that are dark.
    assert np.mean(pixels[:, :, 3] == 0) > 0.3


def test_no_ink_is_too_dark_for_a_dark_page_or_too_light_for_a_light_one(many):
    """Contrast ratios of WCAG: 3 for large text and lines, against white and against a notebook's dark grey."""
    colors = set(re.findall(r"[^-]color:(#[0-9a-f]{6})", many._repr_html_())) - {"#ffffff"}
    assert colors == {notebook.INK}

    def luminance(color):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    ink = luminance([int(notebook.INK[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    for page in (1.0, luminance([0x11 / 255] * 3)):
        light, dark = max(ink, page), min(ink, page)
        assert (light + 0.05) / (dark + 0.05) > 3
    for word in notebook.COLORS.values():
        assert 1.05 / (luminance([int(word[i : i + 2], 16) / 255 for i in (1, 3, 5)]) + 0.05) > 4


def test_without_matplotlib_there_are_no_pictures(many, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page = notebook.page(many)
    assert "<img" not in page
    assert "wrong" in page


def test_a_point_has_no_pictures(engines):
    page = engines["map"]._repr_html_()
    assert "<img" not in page
    assert "1 chain of 1 draw:" in page
    assert "a mode of the unconstrained log-density" in page


@pytest.mark.parametrize("name", ["nuts", "decreasing", "sghmc", "vi", "steps"])
def test_every_engine_shows_itself(engines, name):
    page = engines[name]._repr_html_()
    assert engines[name].verdict.word in page
    assert "<img" in page
    assert html.escape(engines[name].settings["approximation"]) in page


def test_the_page_is_made_once(many):
    assert many._repr_html_() is many._repr_html_()


def test_what_goes_wrong_leaves_the_text():
    fit = fit_of({"x": ((), np.zeros((2, 100)))})
    del fit.tree["posterior"]
    assert fit._repr_html_() is None


def test_the_page_is_made_quickly():
    """200 coordinates; the fastest of three, since others may be using the machine."""
    fit = fit_of({"x": (("k",), np.random.default_rng(0).normal(size=(4, 1000, 200)))})
    fit.verdict  # noqa: B018
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        notebook.page(fit)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 2.0


def test_a_hundred_thousand_coordinates_are_no_trouble():
    fit = fit_of({"x": (("k",), np.random.default_rng(0).normal(size=(1, 20, 100_000)).astype(np.float32))})
    page = fit._repr_html_()
    assert "20 of 100,000 coordinates" in page
