"""The README as a package index shows it: no file of the repository lies beside it there.

With ``TRAINMEM_REPOSITORY`` (such as ``https://example.org/name/trainmem``) set for a release,
links and pictures lead there. Without, the pictures are left out, and links are only their text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"<picture>.*?</picture>\s*", re.S)
SOURCE = re.compile(r'\b(src|srcset)="(?!https?:)([^"]+)"')
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def long_description(text: str, repository: str = "") -> str:
    """Return the README with links to the repository, or without pictures and links to files."""
    home = repository.rstrip("/")
    if not home:
        text = PICTURE.sub("", text)
        return LINK.sub(lambda link: "" if link[1] else link[2], text)
    text = SOURCE.sub(lambda m: f'{m[1]}="{home}/raw/HEAD/{m[2]}"', text)
    kind = {"": "blob", "!": "raw"}
    return LINK.sub(lambda m: f"{m[1]}[{m[2]}]({home}/{kind[m[1]]}/HEAD/{m[3]})", text)


class LongDescription(MetadataHookInterface):
    """Sets the long description of each build."""

    def update(self, metadata: dict[str, object]) -> None:
        """Write the readme into the metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        shown = long_description(text, os.environ.get("TRAINMEM_REPOSITORY", ""))
        metadata["readme"] = {"content-type": "text/markdown", "text": shown}
