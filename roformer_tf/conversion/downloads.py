"""Our own and the released checkpoints on the command line: list them, download one."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from roformer_tf.checkpoints import hub, registry
from roformer_tf.checkpoints.archives import CONFIG, WEIGHTS
from roformer_tf.checkpoints.hub import HubModel
from roformer_tf.checkpoints.registry import Release
from roformer_tf.files import read_json
from roformer_tf.terminal import show


@dataclass(frozen=True, kw_only=True)
class ListConfig:
    """List our own and the released checkpoints: names, sizes, and whether they are downloaded.

    Examples:
        roformer-tf checkpoints list
        roformer-tf checkpoints download chinese_roformer-base
    """


@dataclass(frozen=True, kw_only=True)
class DownloadConfig:
    r"""Download a checkpoint into the cache, or resume a broken download.

    Examples:
        roformer-tf checkpoints download chinese_roformer-base
        roformer-tf checkpoints download chinese_roformer-base \
            --from-file downloaded.zip
    """

    name: str
    """A name that `roformer-tf checkpoints list` shows, owner/name[@revision] of Hugging Face, or
    modelscope:owner/name[@revision]. Of these two, a newer commit is then used."""
    from_file: Path | None = None
    """A zip that you downloaded yourself: it is checked and copied into the cache."""


def list_checkpoints(config: ListConfig) -> None:
    """Print the table of checkpoints."""
    show(table())


def download(config: DownloadConfig) -> None:
    """Download, and print the path of the zip or folder."""
    model = HubModel.parse(config.name)
    if model is not None and config.from_file is None:
        print(hub.download(model))
    else:
        print(registry.download(config.name, from_file=config.from_file))


def table() -> str:
    """The registry as text: for each family its purpose, then a line for each size.

    char: fills masks …
      chinese_roformer-char_L-6_H-384_A-6  chinese_roformer-char-small   6 × 384  in the cache
    """
    own, config = registry.own(), read_json(registry.own() / CONFIG, "Install the package again.")
    where = f"in this package, {(own / WEIGHTS).stat().st_size / 1e6:,.0f} MB"
    lines = [f"tf-mini: {_OWN}", _line(registry.MINI, "", config, where), ""]
    # registry.json lists the releases of a family together, as `groupby` requires.
    for family, group in groupby(registry.releases(), key=lambda release: release.family):
        members = list(group)
        shown = (_line(x.name, x.aliases[0], x.config, _where(x)) for x in members)
        lines += [f"{family}: {members[0].what_for}", *shown, ""]
    lines += [
        "Name, short name, layers × hidden size, and location or size (-: unknown).",
        f"The cache: {registry.folder()}",
        "`roformer-tf checkpoints download NAME` downloads it, as does any command with its name.",
    ]
    return "\n".join(lines)


def _line(name: str, alias: str, config: Mapping[str, Any], where: str) -> str:
    sizes = f"{config['num_hidden_layers']} × {config['hidden_size']}"
    return f"  {name:49} {alias:34} {sizes:>9}  {where}"


_OWN = "Our own, the default of `finetune`: fills masks, fine-tunes; words. Apache-2.0."


def _where(release: Release) -> str:
    """The location of a release if it is downloaded; the file is not checked."""
    for path, location in (
        (registry.BY_HAND / release.file, f"in {registry.BY_HAND}/"),
        (registry.folder() / release.file, "in the cache"),
    ):
        if path.is_file():
            return f"{location}, {path.stat().st_size / 1e6:,.0f} MB"
    return "-"
