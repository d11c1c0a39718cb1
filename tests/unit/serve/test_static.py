"""The page of a server in a real browser."""

import time
from pathlib import Path

import pytest

import linnet
from devtools import Page, browser_page
from linnet.serve.app import Settings
from linnet.serve.conformance import Client
from linnet.serve.host import Limits
from serve_models import write_tiny

from .conftest import Running

NAMES = "[...document.querySelectorAll('.layers li span:first-child')]"
ROWS = f"{NAMES}.map(name => Number(name.textContent.split(': ')[1]))"
"""Entries that each layer holds."""

IGNORE_EOS = """
  const asked = window.fetch;
  window.fetch = (path, request) => path.endsWith("completions")
    ? asked(path, { ...request, body: JSON.stringify({ ...JSON.parse(request.body), ignore_eos: true }) })
    : asked(path, request);
  0
"""
"""A model with random weights may end its text at any token."""

READY = "!document.getElementById('send').disabled"


def texts(page: Page) -> list[str]:
    """The text of each column."""
    return page.value("[...document.querySelectorAll('.text')].map(text => text.textContent)")


def write(page: Page, text: str, atleast: int) -> None:
    page.value(f"document.getElementById('prompt').value = {text!r}; document.getElementById('send').click()")
    page.until(f"{READY} && document.querySelector('.text').children.length >= {atleast}")


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
        page.until("document.querySelector('.text').children.length == 10")
        page.value("document.querySelector('.fork').click()")
        page.until("document.querySelectorAll('.card').length == 3")
        assert texts(page)[2] == texts(page)[0]
        assert page.value("document.querySelector('.layers').children.length") >= 2
        page.value("document.querySelector('input[value=chat]').click()")
        write(page, "Hello", 2)
        for width, dark in ((360, True), (1600, False)):
            page.resize(width, dark=dark)
            assert page.value("document.documentElement.scrollWidth") <= width
        assert page.errors == []


KEYS = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowRight": 39}


def press(page: Page, key: str, shift: bool = False) -> None:
    """A key, as the browser gets it from a keyboard."""
    about = {"key": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 8 * shift}
    text = {"text": {"Enter": "\r", " ": " "}[key]} if key in ("Enter", " ") else {}
    page.call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
    page.call("Input.dispatchKeyEvent", type="keyUp", **about)


def walk_to(page: Page, name: str) -> None:
    """Press the tabulator until the element with this id or class has the focus."""
    for _ in range(40):
        press(page, "Tab")
        if page.value(f"document.activeElement.matches({name!r})"):
            return
    raise AssertionError(f"the tabulator does not reach {name}")


@pytest.mark.slow
def test_everything_is_done_by_the_keyboard_and_what_is_written_stays(running, tmp_path: Path):
    with browser_page(tmp_path) as page:
        page.resize(1000)
        page.open(running.url)
        page.until(READY)
        page.value("document.getElementById('tokens').value = 30; document.getElementById('seed').value = 5; 0")
        page.value(IGNORE_EOS)
        page.value(
            "first = null; new MutationObserver(([seen]) => first ??= seen.addedNodes[0]).observe("
            "document.querySelector('.text'), {childList: true}); 0"
        )
        walk_to(page, "#prompt")
        page.call("Input.insertText", text=" there")
        walk_to(page, "#send")
        press(page, " ")
        page.until(f"{READY} && document.querySelector('.text').children.length > 30")
        assert page.value("first.isConnected && first === document.querySelector('.text').firstChild")
        count = page.value("document.querySelector('.text').children.length")
        walk_to(page, ".text")
        for _ in range(3):
            press(page, "ArrowLeft")
        press(page, "Enter")
        page.until(f"{READY} && document.querySelector('.text').children.length == {count - 2}")
        assert page.value("first.isConnected")
        press(page, "Tab", shift=True)
        walk_to(page, ".fork")
        press(page, "Enter")
        page.until("document.querySelectorAll('.card').length == 2")
        walk_to(page, ".remove")
        press(page, "Enter")
        page.until("document.querySelectorAll('.card').length == 1")
        assert page.errors == []


@pytest.mark.slow
def test_a_conversation_by_keys_where_again_shows_the_new_answer_alone(running, tmp_path: Path):
    text = "document.querySelector('.text')"
    with browser_page(tmp_path) as page:
        page.open(running.url)
        page.until(READY)
        page.value(IGNORE_EOS)
        page.value("document.getElementById('tokens').value = 12; document.getElementById('seed').value = 5; 0")
        walk_to(page, "input[name=mode]")
        press(page, "ArrowLeft")
        assert page.value("document.querySelector('input[name=mode]:checked').value") == "chat"
        assert page.value("document.querySelector('.held').hidden")  # no layers are told of in a conversation
        page.value("document.getElementById('prompt').value = ''")
        walk_to(page, "#prompt")
        page.call("Input.insertText", text="Hello")
        walk_to(page, "#send")
        press(page, "Enter")
        page.until(f"{READY} && {text}.children.length == 2")
        page.value("document.getElementById('seed').value = 6; 0")
        walk_to(page, "#retry")
        press(page, "Enter")
        page.until(f"{READY} && {text}.children.length == 2")
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12}
        body |= {"temperature": 0.8, "seed": 6, "ignore_eos": True}
        answer = Client(running.url, model="tiny").post("/v1/chat/completions", **body)
        answer = answer["choices"][0]["message"]["content"]
        assert page.value(f"{text}.textContent") == f"userHelloassistant{answer}"
        walk_to(page, ".text")
        press(page, "ArrowLeft")
        press(page, "ArrowLeft")
        assert page.value(f"{text}.querySelector('.chosen').dataset.message") == "0"
        press(page, "Enter")
        assert page.value(f"[{text}.children.length, {text}.querySelectorAll('.chosen').length]") == [1, 0]
        assert page.errors == []


OPACITIES = "[...document.querySelectorAll('.text')].map(text => [...text.children].map(one => one.style.opacity))"


@pytest.mark.slow
def test_each_layer_has_sliders_and_a_fork_fades_as_its_origin(tmp_path: Path):
    folder = write_tiny(tmp_path / "ted", {"kind": "ted"}, 3, context_length=4096)
    server = Running({"ted": str(folder)}, Limits(timeout_s=60), Settings())
    try:
        with browser_page(tmp_path) as page:
            page.resize(1000)
            page.open(server.url)
            page.until(READY)
            page.value("document.getElementById('tokens').value = 40; document.getElementById('seed').value = 5; 0")
            page.value(IGNORE_EOS)
            write(page, "Once upon a time", 50)
            names = f"{NAMES}.map(name => name.textContent.split(':')[0])"
            assert page.value(names) == ["0 ted", "1 ted"]
            assert page.value("document.querySelector('.each').hidden") is False
            page.value("document.querySelector('.each').open = true; 0")
            few = "document.querySelectorAll('.choices li')[1].querySelector('.few')"
            page.value(f"{few}.value = 3; {few}.dispatchEvent(new Event('change'))")
            page.until(f"{READY} && {ROWS}[1] == 8")
            assert page.value("document.querySelector('.policy').value") == "full/top_k=8"
            assert page.value(ROWS)[0] > 8
            layers = server.server.sessions._held.values()
            assert [[layer.cache_policy.label for layer in held.session._state.layers] for held in layers] == [
                ["full", "top_k 8"]
            ]
            weak = "document.querySelectorAll('.choices li')[0].querySelector('.weak')"
            page.value(f"{weak}.value = -2; {weak}.dispatchEvent(new Event('change'))")
            policy = "document.querySelector('.policy').value"
            page.until(f"{READY} && {policy} == 'threshold=1e-2/top_k=8' && {ROWS}[1] == 8")
            shown = "[...document.querySelectorAll('.choices output')].map(output => output.value)"
            page.until(f"{shown}.join() == 'all,0.01,8,any'")
            page.value("document.querySelector('.fork').click()")
            page.until(f"{READY} && document.querySelectorAll('.card').length == 2")
            own, twin = page.value(OPACITIES)
            assert own == twin and len(own) > 50
            assert min(map(float, own)) == 0.25 and max(map(float, own)) > 0.7 and len(set(own)) > 4
            page.value("document.querySelectorAll('.token')[9].click()")
            page.until(f"{READY} && document.querySelector('.text').children.length == 10")
            rewound, kept = page.value(OPACITIES)
            assert kept == twin and rewound != twin[:10] and all(rewound)
            assert 0 < page.value(ROWS)[0] <= 11 and page.value(ROWS)[1] == 8
            page.value("few = document.querySelector('.few'); few.value = 4; few.dispatchEvent(new Event('change'))")
            page.until(f"{READY} && {policy} == 'top_k=16' && {shown}.slice(0, 4).join() == '16,any,16,any'")
            for width in (360, 1600):
                page.resize(width)
                assert page.value("document.documentElement.scrollWidth") <= width
            assert page.errors == [] and page.value("document.querySelector('.problem').textContent") == ""
    finally:
        server.close()


@pytest.mark.slow
def test_a_saved_session_is_loaded_again_and_continued(running, tmp_path: Path):
    with browser_page(tmp_path) as page:
        page.download_to(tmp_path)
        page.open(running.url)
        page.until(READY)
        page.value(IGNORE_EOS)
        page.value("document.getElementById('tokens').value = 12; 0")
        write(page, "Once", 12)
        (written,) = texts(page)
        page.value("document.querySelector('.save').click()")
        file, end_s = tmp_path / "tiny.safetensors", time.monotonic() + 120
        while not file.is_file() and time.monotonic() < end_s:
            time.sleep(0.05)
        page.open(f"{running.url}/?again")
        page.until(READY)
        page.give_file(".load", file)
        page.until(f"{READY} && document.querySelector('.text').children.length > 0")
        assert texts(page)[0] == written
        write(page, " upon", 20)
        assert texts(page)[0].startswith(f"{written} upon")
        assert page.errors == []


@pytest.mark.slow
def test_a_stream_of_the_page_begins_with_the_policy_of_the_server(tmp_path: Path):
    folder = write_tiny(tmp_path / "ted", {"kind": "ted"}, 3)
    server = Running({"ted": str(folder)}, Limits(cache_policy="top_k=8"), Settings())
    try:
        with browser_page(tmp_path) as page:
            page.resize(1000)
            page.open(server.url)
            page.until(READY)
            page.value("document.getElementById('tokens').value = 20; 0")
            page.value(IGNORE_EOS)
            write(page, "Once upon a time", 30)
            assert page.value(ROWS) == [8, 8] and page.value("document.querySelector('.few').value") == "3"
            assert page.value("document.querySelector('.policy').value") == ""
    finally:
        server.close()


@pytest.mark.slow
def test_the_cache_policy_changes_while_it_writes_and_a_stop_keeps_the_text(tmp_path: Path):
    folder = write_tiny(tmp_path / "ted", {"kind": "ted"}, 3, context_length=4096)
    server = Running({"ted": str(folder)}, Limits(timeout_s=60), Settings())
    try:
        with browser_page(tmp_path) as page:
            page.resize(1000)
            page.open(server.url)
            page.until(READY)
            page.value(IGNORE_EOS)
            page.value(
                "document.getElementById('tokens').value = 3000; document.getElementById('temperature').value = 1; 0"
            )
            page.value("document.getElementById('send').click()")
            page.until("document.querySelector('.text').children.length > 60")
            shown = page.value("document.querySelector('.text').children.length")
            page.value("few = document.querySelector('.few'); few.value = 3; few.dispatchEvent(new Event('change'))")
            page.until(f"!document.getElementById('stop').disabled && {ROWS}.length && {ROWS}.every(n => n <= 8)")
            page.until(f"document.querySelector('.text').children.length > {shown} + 60")
            page.value(
                "weak = document.querySelector('.weak'); weak.value = -2; weak.dispatchEvent(new Event('change'))"
            )
            assert page.value("document.querySelector('.policy').value") == "top_k=8,threshold=1e-2"
            written = page.value("document.querySelector('.text').children.length")
            page.until(f"document.querySelector('.text').children.length > {written} + 30")
            page.value("document.getElementById('stop').click()")
            page.until(READY)
            kept = page.value("document.querySelector('.text').children.length")
            (session,) = server.server.sessions._held.values()
            assert 0 < kept <= session.session.tokens - 1 <= kept + 3  # the rest of a character is not shown
            page.value("document.querySelectorAll('.token')[9].click()")
            page.until(f"{READY} && document.querySelector('.text').children.length == 10")
            assert session.session.tokens == 11
            page.resize(360, dark=True)
            assert page.value("document.documentElement.scrollWidth") <= 360
            assert page.errors == [] and page.value("document.querySelector('.problem').textContent") == ""
    finally:
        server.close()
