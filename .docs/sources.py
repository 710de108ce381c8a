"""Makes pages of the site from the repository's own Markdown files, with links that work on the site."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
MADE = {"METHODS.md": "methods.md", "DEVICES.md": "devices.md", "models/README.md": "training.md"}
"""The repository's files that become pages, and the pages' names."""
PAGES = ".docs/pages"

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    for source, name in MADE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(
            File.generated(config, name, content=relinked(text, Path(source), config.repo_url))
        )
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Rewrite the links of our own pages, since they also lead to files in the repository."""
    if page.file.src_uri in MADE.values():
        return markdown
    return relinked(markdown, Path(PAGES) / page.file.src_uri, config.repo_url)


def relinked(text: str, source: Path, repository: str | None) -> str:
    """Rewrite the links of a file at `source` for its page: to other pages, to the repository, or no link."""

    def link(found: re.Match[str]) -> str:
        mark, words, to, anchor = found.groups()
        path = Path(os.path.normpath(source.parent / to)).as_posix()
        if path in MADE:
            return f"[{words}]({MADE[path]}{anchor or ''})"
        if path.startswith(f"{PAGES}/"):
            return f"[{words}]({path.removeprefix(PAGES + '/')}{anchor or ''})"
        if path == "README.md":
            return f"[{words}](index.md)"
        return f"[{words}]({repository}/blob/main/{path})" if repository and not mark else words

    return _LINK.sub(link, text)
