"""Configuration of the site of the documentation: ``python -m sphinx -W -q -c docs . site``.

The source is the whole tree, so that links between pages, code and docker/ work on the site and in the
checkout. README.md is the front page. The navigation is the list of docs/index.md, grouped by its headings.
A page that this list lacks is an error, as is a link without a target.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

project = "distributedlog"
author = "the authors of distributedlog"
copyright = "Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
include_patterns = ["*.md", "docs/**", "docker/README.md"]
exclude_patterns = [".*", "**/.*", "site", "build", "dist", "**/__pycache__"]
root_doc = "README"

myst_heading_anchors = 4
myst_links_external_new_tab = False
default_role = "py:obj"  # a name in single backticks, in docstrings
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_type_aliases = {"Registry": "Registry"}
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_title = "distributedlog"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)\)")
GROUP = re.compile(r"^## (.+)\n((?:(?!^## ).*\n)*)", re.M)
PAGE = re.compile(r"^- \[[^\]]*\]\(([^)#\s]+)\.md\)", re.M)


def _navigation(index: str) -> str:
    """Return one tree of pages per group of docs/index.md, with paths from the root."""
    trees = [_hidden_tree(["docs/index"])]
    for heading, lines in GROUP.findall(index):
        pages = [posixpath.normpath(f"docs/{page}") for page in PAGE.findall(lines)]
        trees.append(_hidden_tree(pages, f":caption: {heading}"))
    return "".join(trees)


def _hidden_tree(names: list[str], *more: str) -> str:
    """Return a tree of pages that only the navigation shows."""
    return "\n\n".join(["", "```{toctree}\n" + "\n".join([":hidden:", *more, "", *names]), "```\n"])


def _source(app: Any, name: str, text: list[str]) -> None:
    """Replace links to folders by links to their README.md, or by text; add the trees of pages."""
    here = (ROOT / name).parent

    def link(match: re.Match[str]) -> str:
        words, target = match.groups()
        if not (here / target).is_dir():
            return match.group()
        inside = here / target / "README.md"
        return f"[{words}]({target.rstrip('/')}/README.md)" if inside.is_file() else words

    text[0] = LINK.sub(link, text[0])
    if name == root_doc:
        text[0] += _navigation((ROOT / "docs" / "index.md").read_text())
    elif name == "docs/decisions/README":
        text[0] += _hidden_tree(["0*"], ":glob:")


def _docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """An indented block after a paragraph is code, as everybody reads it; a star or bar is itself."""
    found: list[str] = []
    for n, line in enumerate(lines):
        code = line.startswith("    ")
        begins = code and n > 0 and not lines[n - 1].strip()
        before = next((one for one in reversed(lines[:n]) if one.strip()), "")
        if begins and before and not before.startswith(" ") and not before.endswith("::"):
            found += [".. code-block:: python", ""]
        if not code:
            parts = re.split(r"(`+[^`]*`+)", line)
            parts[::2] = [re.sub(r"([*|])", r"\\\1", part) for part in parts[::2]]
            line = "".join(parts)
        found.append(line)
    lines[:] = found


def _front(app: Any, error: Exception | None) -> None:
    if error is None:
        page = '<!doctype html><title>distributedlog</title><meta http-equiv="refresh"'
        page += ' content="0; url=README.html">\n'
        (Path(app.outdir) / "index.html").write_text(page)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _source)
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("build-finished", _front)
