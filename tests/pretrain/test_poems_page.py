"""The page of poems: all poems, escaped, and the figures."""

import re
from html.parser import HTMLParser

import pytest

from pretrain.poems.forms import FORMS, lines_of
from pretrain.poems.measures import Measures, Rhymes
from pretrain.poems.page import ShownPoem, page

WUJUE, QIJUE = FORMS[:2]
DENG = "白日依山盡，黃河入海流。欲窮千里目，更上一層樓。"
FACTS = {
    "model_bits": 7.654,
    "kneser_ney_bits": 8.321,
    "steps": 1_249,
    "trained": 204_911,
    "held_out": 3_954,
    "generated": Measures(1000, 0.987, Rhymes(200, 71, 0.06), 0.934, 0.7),
    "real": Measures(3954, 1.0, Rhymes(1000, 452, 0.048), 1.0, 1.0),
    "tries": 8,
}


class Columns(HTMLParser):
    """Collects the texts of the spans in each element of a class."""

    def __init__(self, html, class_name):
        super().__init__()
        self.class_name, self.columns, self.inside = class_name, [], False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        if tag == "div":
            self.inside = dict(attributes).get("class") == self.class_name
            if self.inside:
                self.columns.append([])
        if tag == "span" and self.inside:
            self.columns[-1].append("")

    def handle_endtag(self, tag):
        if tag == "div":
            self.inside = False

    def handle_data(self, data):
        if self.inside and data.strip():
            self.columns[-1][-1] += data


@pytest.fixture(scope="module")
def html():
    lines = lines_of(DENG)
    odd = ["<b>&amp;", *lines[1:]]
    shown = [
        ShownPoem("nothing", QIJUE, ["朝辭白帝彩雲間"] * 4),
        ShownPoem("first line", WUJUE, lines, lines[0], ["白日依山盡", *lines[:0:-1]]),
        ShownPoem("first line", WUJUE, odd),
    ]
    return page(shown, FACTS)


def test_every_poem_is_on_the_page_line_by_line_and_escaped(html):
    lines = lines_of(DENG)
    assert Columns(html, "verse").columns == [
        ["五絕", *lines],
        ["五絕", "<b>&amp;", *lines[1:]],
        ["七絕", *["朝辭白帝彩雲間"] * 4],
    ]
    assert Columns(html, "original").columns == [["原詩", "白日依山盡", *lines[:0:-1]]]
    assert "<b>&amp;" not in html
    assert "&lt;b&gt;&amp;amp;" in html
    assert html.count('class="given"') == 1
    assert "限韻" not in html  # no poem had a given rhyme
    assert "出自未用于训练的诗" in html
    assert "出自未用于训练的诗" not in page(
        [ShownPoem("first line", WUJUE, lines, lines[0])], FACTS
    )


def test_the_figures_are_the_measured_ones(html):
    figures = re.findall(r"<td><b>([\d.]+)( %)?</b></td>", html)
    shown = ["7.65", "8.32", "98.7", "35.5", "45.2", "93.4"]
    assert [number for number, _ in figures] == shown
    assert "204,911" in html
    assert "3,954" in html
    assert "随机约 5 %" in html
    assert "每题写8首" in html


def test_the_page_needs_no_other_files_and_contains_its_font(html):
    assert not re.findall(r'(?:src|href)="?(?!data:)|url\((?!data:font/woff;base64,)', html)
    assert page([], FACTS).startswith("<!doctype html>")
