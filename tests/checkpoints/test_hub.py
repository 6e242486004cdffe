"""Downloading models from hubs, which are simulated by local servers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoints import registry
from roformer_tf.checkpoints.hub import HubModel, download, locate
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.cli import main
from roformer_tf.errors import InputError
from tests.support.hub_server import COMMITS, HubServer, ModelScopeServer
from tests.support.vocabularies import read_vocabulary

NAME = "someone/roformer-tiny"
OTHER_WEIGHTS = {"tf_model.h5": b"h5", "model.onnx": b"onnx", "onnx/model.onnx": b"onnx"}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROFORMER_TF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture
def files(released):
    return contents(released("hf_char"))


@pytest.fixture
def serve(cache, monkeypatch):
    """A function that starts a server with these models and sets HF_ENDPOINT to it."""
    servers = []

    def start(models, **settings):
        servers.append(HubServer(models, **settings).__enter__())
        monkeypatch.setenv("HF_ENDPOINT", servers[-1].url + "/")
        return servers[-1]

    yield start
    for server in servers:
        server.__exit__()


@pytest.fixture
def server(serve, files):
    old = files | {"vocab.txt": files["vocab.txt"] + "旧\n".encode()}
    return serve({NAME: {"main": files | OTHER_WEIGHTS, "v1": old}})


def test_a_model_is_read_like_its_folder(server, released, read):
    first, second = read(NAME), read(released("hf_char"))
    assert first.config == second.config
    for name, array in second.arrays.items():
        np.testing.assert_array_equal(first.arrays[name], array)
    assert read_vocabulary(NAME) == read_vocabulary(released("hf_char"))
    assert Path(NAME) not in Path().iterdir()


def test_only_needed_files_are_downloaded_and_only_once(server, files, cache):
    folder = locate(NAME)
    needed = {name for name in files if name.endswith((".json", ".txt", ".safetensors", ".md"))}
    assert set(contents(folder)) == needed
    assert sorted(server.downloads()) == sorted(needed)
    request_count = len(server.requests)
    assert locate(NAME) == locate(Path(NAME)) == folder
    assert len(server.requests) == request_count
    assert {path.suffix for path in cache.rglob("*.part")} == set()


def test_the_pooling_of_sentence_transformers_is_downloaded(serve, files):
    pooling = b'{"pooling_mode_cls_token": true}'
    serve({NAME: {"main": files | {"1_Pooling/config.json": pooling, "2_Dense/config.json": b""}}})
    folder = locate(NAME)
    assert (folder / "1_Pooling/config.json").read_bytes() == pooling
    assert not (folder / "2_Dense").exists()


def test_the_pooling_is_downloaded_from_modelscope(cache, files, monkeypatch):
    pooling = b'{"pooling_mode_cls_token": true}'
    models = {NAME: {"master": files | {"1_Pooling/config.json": pooling}}}
    with ModelScopeServer(models) as server:
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", server.url)
        folder = locate(f"modelscope:{NAME}")
    assert (folder / "1_Pooling/config.json").read_bytes() == pooling


def test_a_config_of_tensorflow_without_its_weights_is_no_obstacle(serve, files, read, released):
    serve({NAME: {"main": files | {"bert_config.json": files["config.json"]}}})
    assert read(NAME).arrays.keys() == read(released("hf_char")).arrays.keys()


def test_a_revision_selects_another_commit(server):
    with OpenedSource(f"{NAME}@v1") as old, OpenedSource(NAME) as new:
        assert old.read("vocab.txt") == new.read("vocab.txt") + "旧\n".encode()
        assert old.path.parent.name == COMMITS["v1"]
        assert old.names == new.names == {"roformer-tiny"}  # used to recognize a GPT
    assert locate(f"{NAME}@{COMMITS['v1']}") == old.path


def test_a_downloaded_model_works_without_the_hub(server, monkeypatch):
    expected = roformer_tf.load(NAME)("今[MASK]")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert roformer_tf.load(NAME)("今[MASK]") == expected
    with pytest.raises(InputError, match=r"@v1 does not exist\. .*Nor can it be found at the hub"):
        locate(f"{NAME}@v1")


@pytest.mark.parametrize("source", [None, 3, b"model", ["model"]])
def test_sources_of_other_types_are_refused(source):
    with pytest.raises(InputError, match=r"is no model\. Give a path or a name"):
        roformer_tf.load(source)


def test_a_local_folder_takes_precedence(server, released):
    shutil.copytree(released("hf_char"), NAME)
    assert locate(NAME) == Path(NAME)
    assert server.requests == []


def test_a_broken_download_resumes_and_is_not_used_before(server, files, cache):
    size = len(files["model.safetensors"])
    listed = sorted(name for name in files if name.endswith((".json", ".txt", ".safetensors")))
    before = listed.index("model.safetensors") + 1  # requests before, including the listing
    server.cuts = [None] * before + [size // 2, 0]
    with pytest.raises(InputError, match=r"cannot download .*too early\. Try again to continue"):
        locate(NAME)
    assert HubModel.parse(NAME).commits.exists() is False
    server.requests.clear()
    locate(NAME)
    assert "config.json" not in server.downloads()
    ranges = [
        byte_range for name, byte_range in server.requests if name.endswith("model.safetensors")
    ]
    assert ranges == [f"bytes={size // 2 // registry.CHUNK * registry.CHUNK}-"]
    assert (locate(NAME) / "model.safetensors").read_bytes() == files["model.safetensors"]


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt"])
def test_a_file_with_another_checksum_is_refused(name, server, files):
    changed = bytes([files[name][0] ^ 1]) + files[name][1:]
    path = f"{NAME}/resolve/{COMMITS['main']}/{name}"
    server.files[path] = changed
    with pytest.raises(InputError, match=rf"{name} is not the file that the hub lists"):
        locate(NAME)
    server.files[path] = files[name]
    assert (locate(NAME) / name).read_bytes() == files[name]


def test_a_mirror_may_list_no_checksums(serve, files):
    serve({NAME: {"main": files}}, checksums=False)
    assert (locate(NAME) / "model.safetensors").read_bytes() == files["model.safetensors"]


def test_the_download_command_updates_and_repairs(server, files, capsys):
    folder = locate(NAME)
    (folder / "vocab.txt").write_bytes(b"damaged")
    server.requests.clear()
    assert main(["checkpoints", "download", NAME]) == 0
    assert capsys.readouterr().out.strip() == str(folder)
    assert server.downloads() == ["vocab.txt"]
    listing = f"api/models/{NAME}/revision"
    server.files[f"{listing}/main"] = server.files[f"{listing}/v1"]
    assert locate(NAME) == folder  # only `download` looks for a newer commit
    assert download(HubModel.parse(NAME)).parent.name == COMMITS["v1"]
    assert locate(NAME).parent.name == COMMITS["v1"]


def test_a_token_is_sent_with_every_request(server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    locate(NAME)
    assert set(server.authorizations) == {"Bearer hf_secret"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("someone/else", r"^someone/else does not exist\. .* The hub has no such model, or none"),
        (f"{NAME}@v9", r"^someone/roformer-tiny@v9 does not exist\..*responds with 404"),
        ("someone/none", r"^someone/none has no checkpoint: .* It has readme\.txt\. Give another"),
        (
            "someone/damaged",
            r"revision/main\?blobs=true does not describe a model\. HF_ENDPOINT can name",
        ),
        ("someone/outside", "does not describe a model"),
        ("someone/models.zip", r"^someone/models\.zip does not exist\. Give a released"),
        ("./someone/roformer-tiny", r"^\./someone/roformer-tiny does not exist\. Give a released"),
    ],
)
def test_missing_models_of_the_hub_are_refused(source, message, serve, files, cache):
    models = {NAME: {"main": files}, "someone/none": {"main": {"readme.txt": b"x"}}}
    server = serve(models)
    server.files["api/models/someone/damaged/revision/main"] = b"<html>"
    outside = {"sha": "..", "siblings": [{"rfilename": "config.json"}]}  # no folder of the cache
    server.files["api/models/someone/outside/revision/main"] = json.dumps(outside).encode()
    with pytest.raises(InputError, match=message):
        locate(source)
    assert not list(cache.rglob("*.safetensors"))


@pytest.mark.parametrize("status", [401, 403])
def test_a_private_model_needs_a_token(status, server):
    server.statuses = [status]
    with pytest.raises(InputError, match=rf"none that is public: .* {status} .*HF_TOKEN"):
        locate(NAME)


def test_sharded_and_tensorflow_weights_are_downloaded_completely(serve, files, unpacked):
    shards = {f"model-0000{n}-of-00002.safetensors": bytes([n]) for n in (1, 2)}
    index = {"model.safetensors.index.json": json.dumps({"weight_map": {}}).encode()}
    rest = {name: content for name, content in files.items() if name != "model.safetensors"}
    tensorflow = contents(unpacked("char"))
    serve(
        {
            "a/shards": {"main": rest | shards | index | {"pytorch_model.bin": b"x"}},
            "a/pickle": {"main": rest | {"pytorch_model.bin": b"x"}},
            "a/tf1": {"main": tensorflow},
        }
    )
    assert set(contents(locate("a/shards"))) >= {*shards, *index}
    assert "pytorch_model.bin" not in contents(locate("a/shards"))
    assert "pytorch_model.bin" in contents(locate("a/pickle"))
    needed = {"bert_config.json", "vocab.txt", *(x for x in tensorflow if ".ckpt." in x)}
    assert {*contents(locate("a/tf1"))} == {x for x in needed if not x.endswith(".meta")}


def test_a_model_is_downloaded_from_modelscope(cache, files, monkeypatch):
    old = files | {"vocab.txt": files["vocab.txt"] + "旧\n".encode()}
    with ModelScopeServer({NAME: {"master": files | OTHER_WEIGHTS, "v1": old}}) as server:
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", server.url + "/")
        folder = locate(f"modelscope:{NAME}")
        needed = {name for name in files if name.endswith((".json", ".txt", ".safetensors", ".md"))}
        assert contents(folder) == {name: files[name] for name in needed}
        assert sorted(server.downloads()) == sorted(needed)
        assert folder.name == "roformer-tiny"  # used to recognize a GPT
        assert (locate(f"modelscope:{NAME}@v1") / "vocab.txt").read_bytes() == old["vocab.txt"]

        assert roformer_tf.load(f"modelscope:{NAME}")("今[MASK]")["filled"]

        weights = f"api/v1/models/{NAME}/repo?Revision=master&FilePath=model.safetensors"
        server.files[weights] = b"other"
        assert locate(f"modelscope:{NAME}") == folder  # downloaded before
        (folder / "model.safetensors").unlink()
        with pytest.raises(InputError, match=r"safetensors is not the file that the hub lists"):
            download(HubModel.parse(f"modelscope:{NAME}"))
        for source, message in {
            "modelscope:someone/else": r"^modelscope:someone/else does not exist\. .* 404 ",
            f"modelscope:{NAME}@v9": r"roformer-tiny@v9 does not exist\. .*MODELSCOPE_ENDPOINT can",
        }.items():
            with pytest.raises(InputError, match=message):
                locate(source)
