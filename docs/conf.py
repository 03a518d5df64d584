"""What Sphinx makes the site of (`make docs`): this folder, and the texts beside it that a code host shows, too.

The source folder is the repository's, so that a relative link leads to the same file here and on a code host.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import clusterfl

project = "clusterfl"
author = copyright = "The clusterfl developers"
version = release = clusterfl.__version__

root_doc = "README"
include_patterns = ["*.md", "docs/**", "config/README.md", "src/clusterfl/claims/data/README.md"]
# Not even looked through: environments, data and results have ten thousands of files.
exclude_patterns = [".*", "data", "results", "site", "tests", "workflow", "profiles", "docs/_site", "docs/figures"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "_site.access",
    "_site.files",
    "_site.mathml",
    "_site.navigation",
    "_site.reference",
    "_site.versions",
]

# Notebooks are shown as they were run and stored: tests/docs/test_notebooks.py runs them.
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 6  # as a code host makes them

default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"clusterfl {version}"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_js_files = ["access.js"]
html_copy_source = False
html_show_sphinx = False
copybutton_prompt_text = "$ "
templates_path = ["_site/templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "versions.html",
        "sidebar/scroll-end.html",
    ]
}

suppress_warnings = ["myst.header"]  # pages whose headings skip a level, for how large a code host shows them
