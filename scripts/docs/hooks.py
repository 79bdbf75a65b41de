"""How MkDocs sees the repository: pages outside `docs/` are pages of the site too.

A page of `docs/` links to them as they lie in the repository, which works where the file is read there.
Here those links are turned to the pages of the site. Links to source files become plain text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
ROOT_PAGES = ("RESULTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)*)([^)#\s]*)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds to the navigation what there is: the results' pages and those at the root of the repository."""
    nav: list[Any] = list(config.nav or [])
    results = [f"results/{path.name}" for path in sorted((ROOT / "docs" / "results").glob("*.md"))]
    claims = ["results.md"] if (ROOT / "RESULTS.md").is_file() else []
    measured: list[Any] = ["benchmarks.md", *claims, *results]
    project = [name.lower() for name in ROOT_PAGES[1:] if (ROOT / name).is_file()]
    config.nav = [*nav, {"Results": measured}, {"Project": project}]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for name in ROOT_PAGES:
        if (ROOT / name).is_file():
            content = (ROOT / name).read_text(encoding="utf-8")
            files.append(File.generated(config, name.lower(), content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    depth = page.file.src_uri.count("/")
    from_root = page.file.src_uri.upper().replace(".MD", ".md") in ROOT_PAGES
    return LINK.sub(lambda link: _for_the_site(link, depth, from_root), markdown).replace(
        "](docs/" if from_root else "\0", "]("
    )


def _for_the_site(link: re.Match[str], depth: int, from_root: bool) -> str:
    """The link, where it leads out of `docs/`: to the page of the site, or as its text alone."""
    text, ups, path, anchor = link.group(1), link.group(2), link.group(3), link.group(4) or ""
    if not path or ":" in path:
        return link.group(0)
    if from_root:
        inside = path in ROOT_PAGES or path.startswith("docs/")
        target = path.lower() if path in ROOT_PAGES else path
        return f"[{text}]({target}{anchor})" if inside else text
    if len(ups) // 3 <= depth:  # it stays within docs/
        return link.group(0)
    return f"[{text}]({'../' * depth}{path.lower()}{anchor})" if path in ROOT_PAGES else text
