import io

import pytest
from sentencepiece import SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from linnet.data.sentencepiece.charsmap import Charsmap

RULES = {
    "a": "b",
    "e\u0301": "é",
    "e\u0301\u0302": "!",
    "😀": "",
    "xyz": "uv w",
    "\u00a0": " ",
    "東京": "京",
    "東": "e",
}


@pytest.fixture(scope="module")
def charsmap(tmp_path_factory: pytest.TempPathFactory) -> Charsmap:
    rules = tmp_path_factory.mktemp("rules") / "rules.tsv"
    codes = {key: " ".join(f"{ord(character):X}" for character in key) for pair in RULES.items() for key in pair}
    rules.write_text("".join(f"{codes[key]}\t{codes[value]}\n" for key, value in RULES.items()))
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(["some words to train on"] * 9),
        model_writer=model,
        vocab_size=50,
        hard_vocab_limit=False,
        normalization_rule_tsv=str(rules),
        minloglevel=2,
    )
    return Charsmap(ModelProto.FromString(model.getvalue()).normalizer_spec.precompiled_charsmap)


@pytest.mark.parametrize("key", RULES)
def test_rules(charsmap: Charsmap, key: str) -> None:
    assert charsmap.longest(f"..{key}", 2) == (2 + len(key), RULES[key])


@pytest.mark.parametrize("text", ["", "e", "x", "xy", "\x00", "é", "京", "\u0301", "\U0001f601"])
def test_what_is_no_key(charsmap: Charsmap, text: str) -> None:
    assert charsmap.longest(text, 0) is None


def test_the_longest_key_wins(charsmap: Charsmap) -> None:
    assert charsmap.longest("e\u0301\u0302\u0302", 0) == (3, "!")
    assert charsmap.longest("e\u0301x", 0) == (2, "é")
    assert charsmap.longest("東京", 0) == (2, "京")


def test_characters_of_the_keys(charsmap: Charsmap) -> None:
    assert charsmap.singles == {"a", "😀", "\u00a0", "東"}
    assert charsmap.followers == {"\u0301", "\u0302", "y", "z", "京"}
    assert not charsmap.has_double_space
