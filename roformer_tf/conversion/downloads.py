"""The released checkpoints on the command line: which there are, and fetching one."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated

import tyro

from roformer_tf.checkpoints import registry
from roformer_tf.checkpoints.registry import Release


@dataclass(frozen=True, kw_only=True)
class ListConfig:
    """Show every released checkpoint: its name, its short name, its size and whether it is here."""


@dataclass(frozen=True, kw_only=True)
class DownloadConfig:
    """Fetch a released checkpoint into the cache, or go on where a broken download stopped."""

    name: Annotated[str, tyro.conf.Positional]
    """A name that `roformer-tf checkpoints list` shows."""
    from_file: Path | None = None
    """A zip that you fetched yourself: it is checked, and copied into the cache."""


def list_checkpoints(config: ListConfig) -> None:
    """Print the table of released checkpoints."""
    print(table())


def download(config: DownloadConfig) -> None:
    """Print where the checkpoint lies, once it does."""
    print(registry.download(config.name, from_file=config.from_file))


def table() -> str:
    """Lay out the registry: for each family what it is for, then a line for each size.

    char: fills masks …
      chinese_roformer-char_L-6_H-384_A-6  chinese_roformer-char-small   6 × 384  in the cache
    """
    lines = []
    for family, group in groupby(registry.releases(), key=lambda release: release.family):
        members = list(group)
        lines += [f"{family}: {members[0].what_for}", *map(_line, members), ""]
    return "\n".join([*lines, *_notes()])


def _line(release: Release) -> str:
    sizes = f"{release.config['num_hidden_layers']} × {release.config['hidden_size']}"
    return f"  {release.name:49} {release.aliases[0]:34} {sizes:>9}  {_where(release)}"


def _where(release: Release) -> str:
    """Whether a release is here, without a look into it."""
    for path, place in (
        (registry.BY_HAND / release.file, f"in {registry.BY_HAND}/"),
        (registry.folder() / release.file, "in the cache"),
    ):
        if path.is_file():
            return f"{place}, {path.stat().st_size / 1e6:,.0f} MB"
    return f"{release.bytes / 1e6:,.0f} MB" if release.bytes else "-"


def _notes() -> Iterator[str]:
    yield "Name, short name, layers × hidden size, and where it is (-: not here)."
    yield f"The cache: {registry.folder()}"
    yield "`roformer-tf checkpoints download NAME` fetches one; so does using its name as a source."
