"""Laws by name and by file: the published ones lie in `laws/`, with their sources."""

from pathlib import Path

from linnet.core.checksum import read_checked_json
from linnet.core.errors import UserError
from linnet.scaling.law import KaplanLaw, Law, ParametricLaw

LAWS = Path(__file__).parent / "laws"
FORMS: dict[str, type[Law]] = {"parametric": ParametricLaw, "kaplan": KaplanLaw}


def law_names() -> list[str]:
    """The names of the published laws."""
    return sorted(path.stem for path in LAWS.glob("*.json"))


def read_law(source: str | Path) -> Law:
    """A published law by its name, or one from a file as `linnet plan fit` writes it.

    A file needs no more than `{"E", "A", "B", "alpha", "beta"}`. `UserError` names what is missing or wrong.
    """
    known = LAWS / f"{source}.json"
    path = known if known.parent == LAWS and known.is_file() else Path(source)
    if not path.is_file():
        raise UserError(
            f"no such file, and no law of that name; laws: {', '.join(law_names())}", field="law", value=source
        )
    plain = read_checked_json(path)
    if not isinstance(plain, dict):
        raise UserError(f"{path}: expected a mapping with E, A, B, alpha, beta, found {type(plain).__name__}")
    form = plain.get("form", "parametric")
    if form not in FORMS:
        raise UserError(f"{path}: form: {form!r}: must be one of {', '.join(FORMS)}")
    return FORMS[form].parse({"name": path.stem, **plain}, str(path))


def published_laws() -> list[Law]:
    """All of them, in the order of their names."""
    return [read_law(name) for name in law_names()]


def laws_to_plan_with(source: str) -> tuple[Law, list[Law]]:
    """The law to plan with, and all that are asked: the published ones, and a user's own first."""
    published = published_laws()
    if source in law_names():
        return next(one for one in published if one.name == source), published
    own = read_law(source).model_copy(update={"name": source})
    return own, [own, *published]
