"""The registry of released checkpoints: names, aliases, and finding a source."""

import re
import zipfile
from pathlib import Path

import pytest

from roformer_tf.checkpoints import registry
from roformer_tf.checkpoints.registry import BY_HAND, find, locate, releases
from roformer_tf.errors import InputError
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from tests.support.vocabularies import read_vocabulary

ROOT = Path(__file__).parents[2]
SIZES = {"small": (6, 384, 6), "base": (12, 768, 12), "large": (24, 1024, 16)}
RELEASED = {
    "word": "small base",
    "char": "small base",
    "gpt-char": "base",
    "sim-char": "small base",
    "sim-char-ft": "small base",
    "v2-char": "small base large",
}


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROFORMER_TF_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def test_every_released_model_is_listed_once():
    actual = [(release.family, release.size) for release in releases()]
    assert sorted(actual) == sorted((f, s) for f, sizes in RELEASED.items() for s in sizes.split())


def test_names_and_aliases_are_unique():
    names = [name for release in releases() for name in (release.name, *release.aliases)]
    assert len(names) == len(set(names))
    assert all(find(name) for name in names)


@pytest.mark.parametrize("release", releases(), ids=lambda release: release.name)
def test_entries_are_consistent(release):
    layers, hidden, heads = SIZES[release.size]
    family = "" if release.family == "word" else f"-{release.family}"
    assert release.name == f"chinese_roformer{family}_L-{layers}_H-{hidden}_A-{heads}"
    assert release.aliases[0] == f"chinese_roformer{family}-{release.size}"
    assert release.file == f"{release.name}.zip"
    base = "https://open.zhuiyi.ai/releases/nlp/models/zhuiyi"
    assert release.url == f"{base}/{release.file}"
    sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads")
    assert tuple(release.config[key] for key in sizes) == (layers, hidden, heads)
    assert release.config.get("vocab_size") == {
        "word": 50_000,
        "char": 12_000,
        "v2-char": 12_000,
    }.get(release.family)
    assert re.fullmatch(r"https://pan\.baidu\.com/s/[\w-]{23}", release.baidu_url)
    assert re.fullmatch(r"\w{4}", release.baidu_code)
    if release.family == "gpt-char":
        assert release.huggingface is None
    else:
        assert re.fullmatch(r"junnyu/roformer_[a-z0-9_]+", release.huggingface)
        assert release.huggingface.endswith(f"_{release.size}")


def test_addresses_are_unique():
    for addresses in (
        {release.url for release in releases()},
        {release.baidu_url for release in releases()},
    ):
        assert len(addresses) == len(releases())


def test_an_alias_finds_its_release():
    assert find("chinese_roformer-char-base").name == "chinese_roformer-char_L-12_H-768_A-12"
    assert find("chinese_roformer-v2-large").name == "chinese_roformer-v2-char_L-24_H-1024_A-16"
    assert find("chinese_roformer-base") == find("chinese_roformer-word-base")
    with pytest.raises(InputError, match="chinese_roformer does not exist"):
        find("chinese_roformer")


def test_the_documentation_lists_every_release():
    table = (ROOT / "checkpoints" / "README.md").read_text(encoding="utf-8")
    for release in releases():
        (row,) = [line for line in table.splitlines() if f"`{release.name}`" in line]
        for message in (*release.aliases, release.baidu_url, release.baidu_code):
            assert message in row
        assert (release.huggingface or "–") in row


# --- Finding a source ---------------------------------------------------------------------------


def test_a_path_that_exists_is_the_source_itself(empty_cache, tmp_path):
    (tmp_path / "some.zip").write_bytes(b"")
    assert locate(tmp_path / "some.zip") == tmp_path / "some.zip"
    assert locate(str(tmp_path)) == tmp_path
    (tmp_path / "chinese_roformer-char-base").mkdir()
    assert locate("chinese_roformer-char-base") == Path("chinese_roformer-char-base")


def test_a_zip_in_the_folder_checkpoints_is_used_before_the_cache(empty_cache, tmp_path):
    release = find("chinese_roformer-char-base")
    for folder in (tmp_path / BY_HAND, empty_cache):
        folder.mkdir()
        with zipfile.ZipFile(folder / release.file, "w") as archive:
            archive.writestr("x", folder.name)
    assert locate("chinese_roformer-char-base") == BY_HAND / release.file
    assert [path.name for path in (tmp_path / BY_HAND).iterdir()] == [release.file]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.zip", r"^nowhere\.zip does not exist\. Give a released \.zip, a folder with"),
        ("chinese_roformer-char-bas", r"Did you mean chinese_roformer-char-base\b"),
        (
            "somewhere/chinese_roformer_L-12_H-768_A-12.zip",
            r"^somewhere/.* does not exist.*Did you mean chinese_roformer_L-12_H-768_A-12\b",
        ),
    ],
)
def test_anything_else_is_refused_with_a_hint(source, message, empty_cache):
    for resolve in (locate, registry.download):
        with pytest.raises(InputError, match=message):
            resolve(source)


@pytest.mark.parametrize("source", ["长" * 300, "a/" * 3000])
@pytest.mark.parametrize("read", [locate, RoFormerTokenizer.from_pretrained, read_vocabulary])
def test_an_impossible_file_name_is_refused(read, source, empty_cache):
    with pytest.raises(
        InputError, match=r"does not exist\. Give|cannot .*: File name too long\. Give"
    ):
        read(source)


def test_unrelated_names_get_no_suggestion(empty_cache):
    with pytest.raises(InputError, match=r"`roformer-tf checkpoints list` shows\.$"):
        locate("xyz")


def test_the_cache_folder_can_be_set(monkeypatch, tmp_path):
    monkeypatch.setenv("ROFORMER_TF_CACHE", "~/somewhere")
    assert registry.folder() == Path.home() / "somewhere"
    monkeypatch.delenv("ROFORMER_TF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert registry.folder().name == "roformer-tf"
    assert registry.folder().is_absolute()
