"""Recipes: how published models were trained, as the `training` section of a run."""

from pathlib import Path
from typing import Any

from linnet.core.errors import UserError
from linnet.core.spec import read_yaml

AUTO = "auto"
"""In the place of a name: the recipe that fits model and tokens (`training.automatic`)."""

RECIPES = Path(__file__).parent / "recipes"


def recipe_names() -> list[str]:
    """The names of the recipes that come with linnet: those of the presets they were made for."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def read_recipe(source: str | Path) -> dict[str, Any]:
    """The plain fields of `training`, from a recipe's name or a YAML file; `UserError` where there is no such thing."""
    known = RECIPES / f"{source}.yaml"
    path = known if known.parent == RECIPES and known.is_file() else Path(source)
    if not path.is_file():
        raise UserError(
            f"no such file, and no recipe of that name; recipes: {AUTO}, {', '.join(recipe_names())}",
            field="recipe",
            value=source,
        )
    fields = read_yaml(path)
    if not isinstance(fields, dict):
        raise UserError(
            field="recipe", value=source, accepted=f"a mapping of training's fields, found {type(fields).__name__}"
        )
    return fields


def merged(below: dict[str, Any], above: Any) -> Any:
    """The fields of both, sections merged; where both have one, that of `above` counts."""
    if not isinstance(above, dict):
        return above
    fields = dict(below)
    for name, value in above.items():
        under = fields.get(name)
        fields[name] = merged(under, value) if isinstance(under, dict) else value
    return fields
