"""What the project's files say of each other."""

import ast
import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from linnet.cli.main import VERBS
from linnet.core.spec import Spec
from linnet.design.space import SpaceSpec, build_space
from linnet.layers.feed_forwards.glu import GatedSpec
from linnet.layers.mixers.attention import RotarySpec
from linnet.layers.registry import FEED_FORWARDS, MIXERS
from linnet.model.spec import BlockSpec, EmbeddingSpec, HeadSpec, InitializationSpec, ModelSpec
from linnet.nn.norms import BlockNormSpec

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {**MIXERS, **FEED_FORWARDS}
DESCRIPTION_PAGE = ROOT / "docs" / "model-description.md"
PAGES = sorted(path.relative_to(ROOT) for folder in ("*.md", "docs/**/*.md") for path in ROOT.glob(folder))
TESTS = sorted((ROOT / "tests" / "unit").glob("*/**/test_*.py"))  # those beside this one are of the project itself


def fields_told(page: Path) -> set[str]:
    """The first column of a page's tables."""
    return set(re.findall(r"^\| `(?:[a-z]+\.)?([a-z_]+)` \|", page.read_text(), flags=re.MULTILINE))


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def dependencies(name: str, extra: str, known: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """What `name[extra]` needs on this machine, and what that needs."""
    if (name, extra) not in known:
        known.add((name, extra))
        for line in requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                for wanted in ("", *requirement.extras):
                    dependencies(canonicalize_name(requirement.name), wanted, known)
    return known


def test_every_version_is_pinned():
    needed = {name for name, _ in dependencies("linnet", "dev", set()) if name != "linnet"}
    assert needed - pinned().keys() == set()
    assert pinned()["torch"] == "2.13.0"


def test_the_pins_are_within_the_ranges_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    for requirement in map(Requirement, lines):
        if requirement.name != "linnet":
            assert requirement.specifier.contains(pinned()[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("kind", LAYERS)
def test_every_layer_has_a_page_with_every_field(kind: str):
    assert LAYERS[kind].model_fields.keys() - {"kind"} <= fields_told(ROOT / "docs" / "layers" / f"{kind}.md")


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/model-description.md"])
def test_every_mixer_stands_in_the_lists_of_all(page: str):
    told = set(re.findall(r"\]\((?:docs/)?layers/(\w+)\.md\)", (ROOT / page).read_text()))
    assert MIXERS.keys() - told == set()


@pytest.mark.parametrize(
    "spec", [ModelSpec, EmbeddingSpec, BlockSpec, HeadSpec, InitializationSpec, BlockNormSpec, GatedSpec]
)
def test_the_page_of_the_description_has_every_field(spec: type[Spec]):
    assert spec.model_fields.keys() <= fields_told(DESCRIPTION_PAGE)


def test_no_page_tells_of_a_field_that_is_not_there():
    described = [ModelSpec, EmbeddingSpec, BlockSpec, HeadSpec, InitializationSpec, BlockNormSpec, GatedSpec]
    assert fields_told(DESCRIPTION_PAGE) <= {name for spec in described for name in spec.model_fields}
    for kind, spec in LAYERS.items():
        known = spec.model_fields.keys() | RotarySpec.model_fields.keys()
        assert fields_told(ROOT / "docs" / "layers" / f"{kind}.md") <= known


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_models_on_a_page_are_valid(page: Path):
    for text in re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL):
        data = yaml.safe_load(text)
        if "feed_forward" in data and "mixer" not in data:
            data["mixer"] = {"kind": "ted"}
        if "mixer" in data:
            data = {"vocab_size": 9, "d_model": 9 * 12 * 14, "context_length": 8, "blocks": [data]}
        if "block" in data:
            build_space(SpaceSpec.parse(data, str(page)), str(page))
        elif "blocks" in data:
            ModelSpec.parse(data, str(page))


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_between_files_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def test_paths_on_the_page_about_the_code_exist():
    page = (ROOT / "docs" / "code-in-an-hour.md").read_text()
    rooms = {path.name for path in (ROOT / "src" / "linnet").iterdir() if path.is_dir()}
    paths = [path for path in re.findall(r"`([a-z_/.0-9]+)`", page) if path.split("/")[0] in rooms]
    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / "src" / "linnet" / path).exists()] == []


def test_the_makefile_and_the_verbs_agree():
    """`make demo` calls a verb that exists."""
    makefile = (ROOT / "Makefile").read_text()
    assert set(re.findall(r"linnet ([a-z]+)$", makefile, flags=re.MULTILINE)) <= VERBS.keys()


@pytest.mark.parametrize("test", TESTS, ids=lambda path: path.relative_to(ROOT / "tests" / "unit").as_posix())
def test_tests_mirror_the_sources(test: Path):
    """`a/test_b.py` tests `a/b.py` or the package `a/b`; a module's tests may go on in `a/test_b_ASPECT.py`."""
    room = ROOT / "src" / "linnet" / test.parent.relative_to(ROOT / "tests" / "unit")
    words = test.stem.removeprefix("test_").split("_")
    modules = [room / f"{'_'.join(words[:count])}.py" for count in range(1, len(words) + 1)]
    assert modules[-1].with_suffix("").is_dir() or any(module.is_file() for module in modules)


GENERAL = (
    *("core", "present", "model", "data", "inference", "training", "evaluation", "inspection", "design"),
    *("scaling", "experiments", "cli"),
)
KIND_WORDS = re.compile(
    r"(?<![a-z])(plga|pldr|ted|bank|evict\w*|operators?|power.law|g.cache|deduced?|deductive|acyclicity)(?![a-z])", re.I
)
NAMES = re.compile(
    r"\b(runs|demo|models|pages|hf|onnx|data|experiments|ablations)/[\w./-]*|`?--cache-policy[ =]\S+|\btiny-\w+"
    r"|\bted-tinystories|\bpldr-[\w-]+|import operator|operator\.\w+|linnet import .*|PLDR-LLM"
)
"""Names of runs, models and files, which users choose or presets have; Python's `operator`; the family's own name."""
ALLOWED = {
    "cli/import_.py": "the formats of published models are verbs of `linnet import`",
    "cli/evaluate.py": "a built-in suite is called pldr",
    "cli/demo.py": "the demo trains these three models",
    "experiments/demo": "the demo trains these three models",
    "core/spec.py": "a docstring shows a path into a description",
    "core/migration.py": "linnet 0.1 had these names of fields",
}


@pytest.mark.parametrize("room", GENERAL)
def test_no_general_package_knows_a_kind_of_layer(room: str):
    """Power-law graph attention and TED bring their options, inspections and files themselves."""
    found = []
    for path in sorted((ROOT / "src" / "linnet" / room).rglob("*.py")):
        name = path.relative_to(ROOT / "src" / "linnet").as_posix()
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not name.startswith(tuple(ALLOWED)) and KIND_WORDS.search(NAMES.sub("", line)):
                found.append(f"{name}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


def test_no_two_classes_share_a_name():
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src" / "linnet").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
