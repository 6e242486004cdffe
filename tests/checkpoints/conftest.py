"""Copies of the recorded checkpoints that a test may break."""

import shutil
import zipfile

import pytest


@pytest.fixture
def unpacked(released, tmp_path):
    """unpacked("word") → a folder of its own with the checkpoint's files."""

    def unpack(name):
        source, target = released(name), tmp_path / name
        if source.is_dir():
            return shutil.copytree(source, target)
        with zipfile.ZipFile(source) as archive:
            archive.extractall(tmp_path)
        return (tmp_path / source.stem).rename(target)

    return unpack
