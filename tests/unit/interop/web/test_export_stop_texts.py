"""Where a text of the page ends is where Python ends it, and it shows as much of it at every token."""

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.data.pieces import TextStream, TokenBytes
from linnet.inference.streams import Event
from linnet.inference.text_events import TextEvents

PIECES = ["a", "b", "ab", "ba", "aab", "a b", " ", "b\n", "\n\n", "é", "aé", "🙂", "b🙂a", "", "", "bab"]
STOPS = ["b", "ab", "aba", "abab", "a a", " a b", "\n", "\na", "é", "éa", "a🙂", "🙂🙂", "aabba", "ba\n\nb"]

PUSHED = """
const { StopTexts } = await import("./stop_texts.js");
const { TokenDecoder } = await import("./token_decoder.js");
return given.cases.map(({ stop, tokens }) => {
    const stops = new StopTexts(stop), decoder = new TokenDecoder({ bytes: given.bytes }), steps = [];
    for (const token of tokens) {
        steps.push(stops.push(steps.length, decoder.push(token)));
        if (stops.hasStopped) break;
    }
    return { steps, rest: stops.finish(), stopped: stops.hasStopped };
});
"""


class Names:
    """Of a tokenizer no more than the names of tokens without bytes."""

    def token_name(self, token: int) -> str:
        return f"<{token}>"


def cases(seed: int, tokens: int) -> list[dict[str, Any]]:
    """Random texts of up to 24 tokens, each with up to three stop texts."""
    draw = random.Random(seed)
    return [
        {
            "stop": draw.sample(STOPS, draw.randrange(4)),
            "tokens": [draw.randrange(tokens) for _ in range(draw.randrange(1, 25))],
        }
        for _ in range(2000)
    ]


def by_python(table: list[bytes], case: dict[str, Any]) -> tuple[list[list[str]], list[str], bool]:
    """The texts that are certain with each token, those at the end, and whether a stop text came."""
    stream = TextStream(TokenBytes(table, table))
    texts, steps = TextEvents(Names(), stop=case["stop"], stream=stream, ends=False), []  # type: ignore[arg-type]
    for token in case["tokens"]:
        steps.append([event.text for event in texts.push(Event(token))])
        if texts.has_stopped:
            break
    return steps, [event.text for event in texts.finish()], texts.has_stopped


def test_the_same_text_is_certain_at_every_token(script):
    table = [piece.encode() for piece in PIECES]
    drawn = cases(0, len(table))
    stopped = 0
    for case, found in zip(drawn, script(PUSHED, {"cases": drawn, "bytes": [list(one) for one in table]}), strict=True):
        steps, rest, has_stopped = by_python(table, case)
        assert [[text for _, text in step] for step in found["steps"]] == steps, case
        assert [text for _, text in found["rest"]] == rest, case
        assert found["stopped"] == has_stopped, case
        places = [place for step in [*found["steps"], found["rest"]] for place, _ in step]
        assert places == list(range(len(places)))
        if not has_stopped:
            assert len(places) == len(case["tokens"])
        stopped += has_stopped
    assert 500 < stopped < 1500


def test_characters_over_several_tokens(script):
    """Python also holds back what ends within a character; the texts of the tokens are the same."""
    table = [b"a", b"b", b" ", b"\n", b"ab", b"a\xc3", b"\xa9", b"\xa9b", b"\xf0\x9f", b"\x99\x82", b"\xff", b"\xc3"]
    drawn = cases(1, len(table))
    for case, found in zip(drawn, script(PUSHED, {"cases": drawn, "bytes": [list(one) for one in table]}), strict=True):
        steps, rest, has_stopped = by_python(table, case)
        assert found["stopped"] == has_stopped and len(found["steps"]) == len(steps), case
        shown = expected = ""
        for pairs, texts in zip(found["steps"], steps, strict=True):
            shown, expected = shown + "".join(text for _, text in pairs), expected + "".join(texts)
            assert shown.startswith(expected), case
        pairs_of_page = [pair for step in [*found["steps"], found["rest"]] for pair in step]
        texts_of_python = enumerate(text for step in [*steps, rest] for text in step)
        assert [(place, text) for place, text in pairs_of_page if text] == [pair for pair in texts_of_python if pair[1]]


READ = """const { readStopTexts } = await import("./stop_texts.js");
    return given.map(text => { try { return readStopTexts(text); } catch (error) { return error.message; } });"""


def test_stop_texts_are_read_or_refused(script):
    found = script(READ, ["", "\n\n", " a \n\\n", r"\\n\t\r", r"a\q", "ends\\"])
    assert found[:4] == [[], [], [" a ", "\n"], ["\\n\t\r"]]
    accepted = r"expected \n, \r, \t or \\"
    assert found[4:] == [rf"stop text a\q: \q: {accepted}", f"stop text ends\\: \\: {accepted}"]


@settings(max_examples=8, deadline=None)
@given(st.lists(st.lists(st.text(min_size=1), max_size=4), min_size=30, max_size=30))
def test_every_text_can_be_written(script, lists: list[list[str]]):
    escapes = {"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
    written = ["\n".join("".join(escapes.get(one, one) for one in text) for text in texts) for texts in lists]
    assert script(READ, written) == lists
