"""The output of `checkpoints list` and `checkpoints download`."""

import os

import pytest

from roformer_tf.checkpoints.registry import BY_HAND, MINI, releases
from roformer_tf.conversion.downloads import (
    DownloadConfig,
    ListConfig,
    download,
    list_checkpoints,
    table,
)
from roformer_tf.errors import InputError
from tests.support.download_server import FILE, NAME, make_zip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROFORMER_TF_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def rows():
    return {line.split()[0]: line for line in table().splitlines() if line.startswith("  ")}


def test_every_release_has_a_line_under_its_family(capsys, cache):
    list_checkpoints(ListConfig())
    out = capsys.readouterr().out
    assert list(rows()) == [MINI, *(release.name for release in releases())]
    for release in releases():
        assert f"{release.family}: {release.what_for}\n" in out
        assert release.aliases[0] in rows()[release.name]
    assert "24 × 1024" in rows()["chinese_roformer-v2-char_L-24_H-1024_A-16"]
    assert max(map(len, out.splitlines())) <= 120
    assert str(cache) in out


def test_local_checkpoints_are_shown_with_their_size(cache, tmp_path):
    (tmp_path / BY_HAND).mkdir()
    for folder, size in ((cache, 12_000_000), (tmp_path / BY_HAND, 34_000_000)):
        absent = rows().keys() - {MINI, FILE[:-4]}
        assert all(rows()[name].endswith(" -") for name in absent)
        (folder / FILE).touch()
        os.truncate(folder / FILE, size)  # a sparse file
        location = "in the cache" if folder == cache else "in checkpoints/"
        assert rows()[FILE[:-4]].endswith(f"  {location}, {size // 1_000_000} MB")


def test_download_prints_only_the_path(cache, tmp_path, capsys):
    content = make_zip(tmp_path / "mine.zip")
    download(DownloadConfig(name=NAME, from_file=tmp_path / "mine.zip"))
    assert capsys.readouterr().out == f"{cache / FILE}\n"
    assert (cache / FILE).read_bytes() == content


def test_an_unknown_name_is_refused():
    with pytest.raises(InputError, match="Did you mean chinese_roformer-gpt-char-base"):
        download(DownloadConfig(name="chinese_roformer-gpt-char-bsae"))
