"""The page's tokenizer gives Python's ids for any text; what it cannot read is refused when a page is made."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from small_sentencepieces import BPE, NASTY, OPTIONS, SENTENCES, trained
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.interop.gguf.vocabulary import PRE_TOKENIZERS
from linnet.interop.sentencepiece import tokenizer_from_sentencepiece
from linnet.interop.ted import tokenizer_from_characters
from linnet.interop.web.export import ACCEPTED, check_tokenizer
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
    check_page(script, tokenizer, tmp_path, some_texts())


def byte_level(pre: str) -> tokenizers.Tokenizer:
    """Byte pairs with the pre-tokenizer that has this name in llama.cpp, in the form of published files."""
    cuts, whole_words = PRE_TOKENIZERS[pre]
    library = tokenizers.Tokenizer(models.BPE(ignore_merges=whole_words))
    steps: list[Any] = [pre_tokenizers.Split(tokenizers.Regex(cut), "isolated") for cut in cuts]
    steps = {"gpt-2": [], "smollm": [pre_tokenizers.Digits(individual_digits=True)]}.get(pre, steps)
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre in ("gpt-2", "smollm")))
    library.pre_tokenizer, library.decoder = pre_tokenizers.Sequence(steps), decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator([*stories(40, seed=0), "12 345 don't WE'LL\r\n\r\n x"], trainer)
    return library


ADDED = ["<tool_call>", "<tool", "  ", "   ", "e\u0301\u0301", "éé", "Ġx", "dog", "$^.*-/\\|"]


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_the_page_takes_added_tokens_out_of_a_text(pre: str, both: bool, tmp_path: Path, script):
    """Such as those of Qwen's files, and the spaces of Pythia's.

    A text is normalized in every second case, and in each either these names or those are found after that.
    """
    library, number = byte_level(pre), list(PRE_TOKENIZERS).index(pre) + both
    library.normalizer, normalized = normalizers.NFC() if both else None, number % 2 == 0
    library.add_tokens([AddedToken(name, normalized=normalized) for name in ADDED[:4]])
    library.add_tokens([AddedToken(name, normalized=not normalized) for name in ADDED[4:]])
    drawn = random.Random(2)
    mixed = [
        "".join(drawn.choices([*ADDED, "a", " ", "\u0301", "e", "\r\n", "12", "<|endoftext|>"], k=12))
        for _ in range(60)
    ]
    check_page(script, Tokenizer(json.loads(library.to_str()), "here"), tmp_path, [*mixed, *some_texts()])


@pytest.mark.parametrize("kind", ["char", "bytes", "characters", "unigram"])
def test_the_page_takes_added_tokens_out_of_any_kind(kind: str, tmp_path: Path, script):
    own = characters(tmp_path) if kind == "characters" else Tokenizer.train(kind, stories(20, seed=0))
    library = tokenizers.Tokenizer.from_str(json.dumps(own.definition))
    library.add_tokens([AddedToken(name, normalized=False) for name in ADDED])
    texts = ["a<tool_call>b  c   d", "".join(ADDED), "".join(ADDED[::-1]), *some_texts()]
    check_page(script, Tokenizer(json.loads(library.to_str()), "here"), tmp_path, texts)


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_page_speaks_as_sentencepiece_does(kind: str, tmp_path: Path, script):
    model = trained(**OPTIONS[kind])
    check_page(script, of_sentencepiece(model, tmp_path), tmp_path, [*NASTY, *SENTENCES, *some_texts()])


@pytest.mark.parametrize("kind", ["UNUSED", "USER_DEFINED"])
@pytest.mark.parametrize("options", [{}, BPE, {**BPE, "byte_fallback": True}])
def test_pieces_that_became_others(kind: str, options: dict[str, object], tmp_path: Path, script):
    """Unused ones are left out, though byte-pair encoding gets past them; user-defined ones come first."""
    message = ModelProto.FromString(trained(**options))
    for piece in message.pieces:
        if piece.type == piece.NORMAL and piece.piece != "▁" and random.Random(piece.piece).random() < 0.3:
            piece.type = getattr(piece, kind)
    tokenizer = of_sentencepiece(message.SerializeToString(), tmp_path)
    check_page(script, tokenizer, tmp_path, [*SENTENCES, *NASTY, " ".join(SENTENCES * 3)])


def test_rounding_decides_as_in_sentencepiece(tmp_path: Path, script):
    """Equally good segmentations, behind sums of all sizes; and sums so large that they are begun anew."""
    drawn = random.Random(1)
    runs = ["a girl. " * count + "!" * count + " " + "abc" * count + "-" * count for count in range(1, 60)]
    mixed = "".join(drawn.choices("ab!-東", k=20_000))
    texts = [*runs, mixed, "a girl. " * 30_000 + mixed]
    check_page(script, of_sentencepiece(trained(), tmp_path), tmp_path, texts)


def test_rules_that_give_two_spaces(tmp_path: Path, script):
    rules = tmp_path / "rules.tsv"
    rules.write_text("A0\t20 20\n65 301\t20 78 20 20\n")
    tokenizer = of_sentencepiece(trained(normalization_rule_tsv=str(rules)), tmp_path)
    texts = ["\u00a0", "a\u00a0b", "e\u0301", " e\u0301a\u00a0 \u00a0be\u0301 ", "e\u0302\u0301"]
    check_page(script, tokenizer, tmp_path, texts)


def test_the_page_speaks_as_pldr_s_tokenizer_does(real_data: Path, tmp_path: Path, script):
    tokenizer = tokenizer_from_sentencepiece(real_data / "tokenizer" / "pldr_refinedweb_unigram_32k.model")
    real = [path.read_bytes()[:20_000].decode(errors="ignore") for path in sorted((real_data / "text").iterdir())]
    check_page(script, tokenizer, tmp_path, [*NASTY, *SENTENCES, *some_texts(), *real])


def of_sentencepiece(model: bytes, folder: Path) -> Tokenizer:
    (folder / "any.model").write_bytes(model)
    return tokenizer_from_sentencepiece(folder / "any.model")


def check_page(script, tokenizer: Tokenizer, folder: Path, texts: list[str]) -> None:
    """Its ids of texts, its texts of ids, token by token, and where it stands behind them, are Python's."""
    tokenizer.save(folder / "tokenizer.json")
    definition = json.loads((folder / "tokenizer.json").read_text())
    check_tokenizer(definition, "here")
    drawn = random.Random(1)
    cut = tokenizer.encode_batch(texts)
    spoken = [ids[: drawn.randint(0, len(ids))] for ids in cut]
    noise = [[drawn.randrange(tokenizer.vocab_size) for _ in range(30)] for _ in range(40)]
    found = script(
        """const { Tokenizer } = await import("./tokenizer.js");
        const tokenizer = new Tokenizer(given.definition, given.end);
        const said = ids => {
            const decoder = tokenizer.decoder(), half = ids.length >> 1;
            const first = ids.slice(0, half).map(token => decoder.push(token));
            const other = tokenizer.decoder(decoder.state);
            return { said: [...first, ...ids.slice(half).map(token => other.push(token))], standing: other.state };
        };
        return { ids: given.texts.map(text => tokenizer.encode(text)), spoken: given.spoken.map(said),
                 noise: given.noise.map(said) };""",
        {"definition": definition, "end": tokenizer.end_id, "texts": texts, "spoken": spoken, "noise": noise},
    )
    for text, own, ids in zip(texts, cut, found["ids"], strict=True):
        assert ids == own, text
    for ids, one in zip(spoken, found["spoken"], strict=True):
        stream = tokenizer.stream()
        assert one["said"] == [stream.push(token) for token in ids]
        assert {**one["standing"], "held": bytes(one["standing"]["held"]).hex()} == stream.state_dict()
    for ids, one in zip(noise, found["noise"], strict=True):  # but for a character that is begun at the end
        said = "".join(one["said"])
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
        (
            {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True), "decoder": decoders.ByteLevel()},
            "pre_tokenizer ByteLevel",
        ),
        ({"model": models.BPE(vocab={"a": 0, "<|end|>": 1}, merges=[])}, "unk_token None, fuse_unk False"),
        (
            {"model": models.BPE(vocab={"a": 0, "b": 1, "ab": 2, "<|end|>": 3}, merges=[("a", "b")], unk_token="a")},
            "model BPE whose pieces are not single characters",
        ),
    ],
)
def test_what_the_page_cannot_read_is_refused(changes: dict[str, object], message: str, tmp_path: Path):
    tokenizer = imported(**changes)
    tokenizer.save(tmp_path / "tokenizer.json")
    with pytest.raises(UserError) as caught:
        check_tokenizer(json.loads((tmp_path / "tokenizer.json").read_text()), "here")
    assert message in str(caught.value)
    assert f"expected {ACCEPTED}" in str(caught.value)


def test_an_added_token_that_takes_spaces_with_it_is_the_cause(tmp_path: Path):
    library = tokenizers.Tokenizer.from_str(json.dumps(Tokenizer.train("bytes", []).definition))
    library.add_tokens([AddedToken("<tool>", lstrip=True)])
    with pytest.raises(
        UserError, match=r"^here: tokenizer: added token '<tool>': lstrip true: the page cannot read it"
    ):
        check_tokenizer(json.loads(library.to_str()), "here")


def test_a_byte_level_tokenizer_with_marked_words_is_refused():
    tokenizer = Tokenizer.train("bpe", ["some text"], 300)
    definition = {**tokenizer._definition, "model": {**tokenizer._definition["model"], "end_of_word_suffix": "</w>"}}
    with pytest.raises(UserError, match="end_of_word_suffix '</w>'"):
        check_tokenizer(definition, "here")
