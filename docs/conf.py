"""How the site is built: `make docs` reads Markdown from the whole project, and docstrings, into `build/site`.

The source folder is the project, so that every relative link of a page holds both in the repository and on the site.
"""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "linnet"
author = "the authors of linnet"
release = installed_version("linnet")
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "rooms", "verbs", "plain_docstrings"]
root_doc = "docs/index"
include_patterns = ["docs/**", "CONTRIBUTING.md", "CHANGELOG.md", "experiments/LOG.md", "benchmarks/README.md"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_heading_anchors = 4

default_role = "py:obj"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {
    "members": True,
    "ignore-module-all": True,  # a name is told of where it is written, not again where it is passed on
    "exclude-members": "model_config, model_post_init, model_fields",
}
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = "linnet"
html_show_copyright = False
html_extra_path = ["site"]
html_copy_source = False
