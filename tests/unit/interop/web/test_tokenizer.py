"""The page's tokenizer gives Python's ids for any text; what it cannot read is refused when a page is made."""

import json
import random
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.interop.characters import tokenizer_from_characters
from linnet.interop.web.tokenizer import check_tokenizer
from linnet.stories import texts as stories

ODD = [
    "",
    " ",
    "  two  spaces \n\n\t tab ",
    "it's we'll I'D 'tis",
    "lll lllll eee ooo sss ttt",
    "naïve Straße Ωμέγα 漢字かな 한국어 עברית",
    "12,345.67 ½ ² Ⅷ",
    "🙂👩‍👩‍👧 e\u0301",
    "\ufeffBOM\x85next\xa0line\u2028\u200b",
    "<|end|> <0x41> </s>",
    "\0\x7f\x80",
]


def some_texts() -> list[str]:
    drawn = random.Random(0)
    ranges = [(32, 126), (9, 13), (160, 591), (0x370, 0x5FF), (0x3000, 0x30FF), (0x1F600, 0x1F64F)]
    mixed = ["".join(chr(drawn.randint(*drawn.choice(ranges))) for _ in range(drawn.randint(1, 40))) for _ in range(80)]
    return [*ODD, *mixed, *stories(10, seed=1)]


def characters(folder: Path) -> Tokenizer:
    """As TED's published code has them."""
    names = ["\n", " ", *"abcdefghijklmnopqrstuvwxyz'🙂", "$"]
    content = {"int_to_char": names, "char_to_int": {name: n for n, name in enumerate(names)}}
    (folder / "vocab.json").write_text(json.dumps(content))
    return tokenizer_from_characters(folder / "vocab.json", "$")


@pytest.mark.parametrize("kind", ["bytes", "char", "bpe", "unigram", "characters"])
def test_the_page_speaks_as_python_does(kind: str, tmp_path: Path, script):
    if kind == "characters":
        tokenizer = characters(tmp_path)
    else:
        tokenizer = Tokenizer.train(kind, [*stories(60, seed=0), "naïve 漢字 🙂"], 512 if kind != "bytes" else None)
    tokenizer.save(tmp_path / "tokenizer.json")
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    check_tokenizer(tokenizer, definition, "here")
    texts = some_texts()
    drawn = random.Random(1)
    cut = [tokenizer.encode(text) for text in texts]
    spoken = [ids[: drawn.randint(0, len(ids))] for ids in cut]
    noise = [[drawn.randrange(tokenizer.vocab_size) for _ in range(30)] for _ in range(40)]
    found = script(
        """const { Tokenizer } = await import("./tokenizer.js");
        const tokenizer = new Tokenizer(given.definition, given.end);
        const said = ids => { const speak = tokenizer.speaker(); return ids.map(speak); };
        return { ids: given.texts.map(text => tokenizer.encode(text)), said: given.spoken.map(said),
                 noise: given.noise.map(ids => said(ids).join("")),
                 unfinished: given.spoken.map(ids => tokenizer.unfinished(ids)) };""",
        {"definition": definition, "end": tokenizer.end_id, "texts": texts, "spoken": spoken, "noise": noise},
    )
    for text, own, ids in zip(texts, cut, found["ids"], strict=True):
        assert ids == own, text
    for ids, said, unfinished in zip(spoken, found["said"], found["unfinished"], strict=True):
        stream = tokenizer.stream()
        assert said == [stream.push(token) for token in ids]
        assert bytes(unfinished).hex() == stream.standing()["held"]
    for ids, said in zip(noise, found["noise"], strict=True):  # but for a character that is begun at the end
        assert tokenizer.decode(ids) in (said, said + "\N{REPLACEMENT CHARACTER}")


def imported(**changes: object) -> Tokenizer:
    """Of characters, unless something about it is changed."""
    model = models.BPE(vocab={" ": 0, "a": 1, "<|end|>": 2}, merges=[], unk_token=" ", fuse_unk=False)
    library = tokenizers.Tokenizer(model)
    library.decoder = decoders.Fuse()
    for name, part in changes.items():
        setattr(library, name, part)
    return Tokenizer(json.loads(library.to_str()), "here")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalizer": normalizers.Lowercase()}, "here: tokenizer: normalizer Lowercase: the page cannot read it"),
        ({"pre_tokenizer": pre_tokenizers.Metaspace(), "decoder": decoders.Metaspace()}, "pre_tokenizer Metaspace"),
        ({"decoder": decoders.Metaspace()}, "decoder Metaspace"),
        ({"model": models.BPE(vocab={"a": 0, "<|end|>": 1}, merges=[])}, "unk_token None, fuse_unk False"),
        (
            {"model": models.BPE(vocab={"a": 0, "b": 1, "ab": 2, "<|end|>": 3}, merges=[("a", "b")], unk_token="a")},
            "model BPE whose pieces are no single characters",
        ),
    ],
)
def test_what_the_page_cannot_read_is_refused(changes: dict[str, object], message: str, tmp_path: Path):
    tokenizer = imported(**changes)
    tokenizer.save(tmp_path / "tokenizer.json")
    with pytest.raises(UserError) as caught:
        check_tokenizer(tokenizer, json.loads((tmp_path / "tokenizer.json").read_text()), "here")
    assert message in str(caught.value)
    assert "expected single characters or bytes, or a byte-level BPE or unigram tokenizer" in str(caught.value)


def test_a_byte_level_tokenizer_with_marked_words_is_refused():
    tokenizer = Tokenizer.train("bpe", ["some text"], 300)
    definition = {**tokenizer._definition, "model": {**tokenizer._definition["model"], "end_of_word_suffix": "</w>"}}
    with pytest.raises(UserError, match="end_of_word_suffix '</w>'"):
        check_tokenizer(tokenizer, definition, "here")
