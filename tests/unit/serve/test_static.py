"""The page of a server in a real browser."""

from pathlib import Path

import pytest

import linnet
from devtools import Page, browser_page

READY = "!document.getElementById('send').disabled"


def texts(page: Page) -> list[str]:
    """The text of each column."""
    return page.value("[...document.querySelectorAll('.text')].map(text => text.textContent)")


def write(page: Page, text: str, atleast: int) -> None:
    page.value(f"document.getElementById('prompt').value = {text!r}; document.getElementById('send').click()")
    page.until(f"{READY} && document.querySelector('.text').children.length >= {atleast}", 60)


@pytest.mark.slow
def test_two_models_write_and_streams_are_forked_and_rewound(running, folders, tmp_path: Path):
    with browser_page(tmp_path) as page:
        page.resize(1400)
        page.open(running.url)
        page.until(READY)
        page.value("document.getElementById('add').click(); document.getElementById('seed').value = 5")
        page.value("document.getElementById('tokens').value = 20; document.getElementById('temperature').value = 1; 0")
        write(page, "Once", 24)
        own = linnet.load(folders["tiny"])
        session = linnet.Session(own)
        session.feed("Once")
        expected = "Once" + session.generate(20, seed=5, temperature=1.0)
        assert [texts(page)[0].replace("\ufffd", ""), len(texts(page))] == [expected.replace("\ufffd", ""), 2]
        page.value("document.querySelectorAll('.token')[9].click()")
        page.until("document.querySelector('.text').children.length == 10", 20)
        page.value("document.querySelector('.fork').click()")
        page.until("document.querySelectorAll('.card').length == 3", 20)
        assert texts(page)[2] == texts(page)[0]
        assert page.value("document.querySelector('.layers').children.length") >= 2
        page.value("document.querySelector('input[value=chat]').click()")
        write(page, "Hello", 2)
        for width, dark in ((360, True), (1600, False)):
            page.resize(width, dark=dark)
            assert page.value("document.documentElement.scrollWidth") <= width
        assert page.errors == []
