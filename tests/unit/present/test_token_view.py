"""A conversation as tokens: brackets where there are no colours, colours on a terminal, one page."""

import html
import sys

from linnet.present.token_view import ShownToken, TokenView, plain_text, write_terminal, write_token_page

VIEW = TokenView(
    "f.jsonl, line 1",
    [
        ShownToken(0, "<|end|>", "template", None, False),
        ShownToken(1, "<b>\n", "user", 0, False),
        ShownToken(2, ":So", "assistant", 1, False, True),
        ShownToken(3, " ", "assistant", 1, True),
        ShownToken(4, "on\x1b", "assistant", 1, True),
        ShownToken(5, "\n", "assistant", 1, False),
    ],
)


def test_plain_text_has_brackets_around_runs_of_trained_tokens():
    text = plain_text(VIEW)
    assert "\nuser, message 0: 1 token, 0 trained\n<b>\u23ce\n" in text
    assert "\nassistant, message 1: 4 tokens, 2 trained\n:So[[ on\\x1b]]\u23ce\n" in text
    assert (
        VIEW.summary()
        == "f.jsonl, line 1: 6 tokens, 2 of them trained on; 1 across the border of an answer, not trained on"
    )
    assert VIEW.to_dict()["trained"] == 2 and VIEW.to_dict()["tokens"][2]["is_torn"]


def test_a_terminal_gets_colours(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    write_terminal(VIEW)
    printed = capsys.readouterr().out
    assert "[[" not in printed
    assert "\x1b[30;102mon\\x1b\x1b[0m" in printed or "\x1b[30;42mon\\x1b\x1b[0m" in printed
    assert "\x1b[37;41m:So\x1b[0m" in printed and "\x1b[2m" in printed


def test_the_page_colours_and_escapes(tmp_path):
    write_token_page(VIEW, tmp_path / "page.html", "linnet data show <f>")
    page = (tmp_path / "page.html").read_text()
    assert '<span class="torn" title="2 (assistant)">:So</span>' in page
    assert page.count('<span class="trained"') == 2
    assert "&lt;b&gt;\u23ce\n</span>" in page and "<b>" not in page
    assert html.escape(VIEW.summary()) in page and "linnet data show &lt;f&gt;" in page
