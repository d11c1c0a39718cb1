import json
from pathlib import Path

import pytest

from linnet.core.errors import UserError
from linnet.data.corpus_tokenizer import train_tokenizer
from linnet.data.prepare import prepare
from linnet.data.tokenizer import Tokenizer
from linnet.data.tokenizer_report import HARD_TEXTS, report_on

TEXTS = ["the bird sang to the tree. ", "a tree 42 was glad, ", "die Bäume 🙂"] * 40


@pytest.mark.parametrize("kind", ["bytes", "char", "bpe", "unigram"])
def test_sums_are_those_of_the_encodings(kind: str):
    tokenizer = Tokenizer.train(kind, TEXTS, 300 if kind in ("bpe", "unigram") else None)
    report = report_on(tokenizer, iter(TEXTS))
    encoded = [tokenizer.encode(text) for text in TEXTS]
    uses = [token for ids in encoded for token in ids]
    assert report.documents == len(TEXTS) and report.tokens == len(uses)
    assert report.bytes == report.token_bytes == sum(len(text.encode()) for text in TEXTS)
    assert report.bytes_per_token == report.bytes / report.tokens
    assert report.unknown == 0 and report.changed == ()
    assert report.unused == tokenizer.vocab_size - 1 - len(set(uses))  # but for the end token
    assert {each.token for each in report.unused_pieces} == set(range(tokenizer.vocab_size)) - {*uses, tokenizer.end_id}
    assert [each.bytes for each in report.unused_pieces] == sorted(
        (e.bytes for e in report.unused_pieces), reverse=True
    )
    most = report.most_used[0]
    assert most.uses == uses.count(most.token) == max(map(uses.count, set(uses)))
    assert report.longest[0].bytes == max(tokenizer.token_bytes()[: tokenizer.vocab_size])
    assert json.loads(json.dumps(report.to_dict()))["bytes_per_token"] == report.bytes_per_token


def test_what_an_imported_tokenizer_changes_or_does_not_know_is_told(tmp_path: Path):
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    pieces = [("<unk>", 0.0), ("<|endoftext|>", 0.0), ("▁the", -1.0), ("▁bird", -1.0), ("▁", -2.0)]
    library = Library(models.Unigram(pieces, unk_id=0))
    library.normalizer, library.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.save(str(tmp_path / "tokenizer.json"))
    report = report_on(Tokenizer.load(tmp_path), ["The bird", "a bird"])
    assert (report.tokens, report.unknown) == (5, 1)  # "a" behind its space
    assert report.token_bytes < report.bytes
    assert {each.name for each in report.changed} >= {"emoji", "case"}
    assert all(each.text == HARD_TEXTS[each.name] != each.decoded for each in report.changed)


def test_a_tokenizer_is_trained_on_all_documents(tmp_path: Path):
    """That of `prepare` does not see what is held out."""
    file = tmp_path / "text.txt"
    file.write_text("<|endoftext|>".join(f"{chr(0x4E00 + n)} sang to the tree" for n in range(60)))
    trained = train_tokenizer([str(file)], "char")
    manifest = prepare([str(file)], tmp_path / "data", "char", validation=0.3)
    assert trained.vocab_size > manifest.tokenizer.vocab_size
    assert all(len(trained.encode(chr(0x4E00 + n))) == 1 for n in range(60))


def test_another_kind_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"kind: .*wordpiece.*expected one of bytes"):
        train_tokenizer([str(tmp_path)], "wordpiece")
