"""One site of the README, `docs/` and the READMEs beside the code, with links as they stand in the repository.

MkDocs reads one folder. The READMEs stay where people look for them, so this takes pages from the whole repository
instead: the pages that the navigation names, and every file that a page links to. A page is known by its path in the
repository. Relative links therefore lead to the same place on the site as in a repository browser, and MkDocs reports
those that lead nowhere.

The site needs nothing from other hosts, so reading it tells nobody. A page that would load something is an error.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

_ROOT = Path(__file__).resolve().parents[1]
_LOG = logging.getLogger("mkdocs.hooks.carpool")
_FROM_OUTSIDE = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')
_LINK = re.compile(r"\]\((?![a-z]+:|[#/])([^)\s#]+)")


def on_config(config: MkDocsConfig) -> None:
    """Name headings in links as GitHub does."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Replace the files of `docs/` by those of the whole repository that belong on the site."""
    for file in [each for each in files if each.src_dir == config.docs_dir]:
        files.remove(file)
    found: set[str] = set()
    waiting = [*_pages(config.nav), *map(str, config.extra_css)]
    while waiting:
        path = waiting.pop()
        if path in found or not (_ROOT / path).is_file():
            continue
        found.add(path)
        file = File(path, str(_ROOT), config.site_dir, config.use_directory_urls)
        files.append(file)
        if path.endswith(".md"):
            file.dest_uri = file.dest_uri.removeprefix("docs/")  # the reference stands at the top of the site
            folder = posixpath.dirname(path)
            links = _LINK.findall((_ROOT / path).read_text())
            waiting += [posixpath.normpath(posixpath.join(folder, link)) for link in links]


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> None:
    """Warn of what a reader's browser would load from another host; with `strict` a warning is an error."""
    for found in _FROM_OUTSIDE.findall(output):
        _LOG.warning("%s loads something from another host: %s", page.file.src_uri, found)


def _pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from _pages(each)
