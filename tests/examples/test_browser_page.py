"""The page of `examples/browser` runs an export in transformers.js, in Node and in a browser.

`npm install --prefix .venv/node @huggingface/transformers` installs the package. NODE_MODULES sets
another folder.
"""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

import roformer_tf
from roformer_tf.export.command import export
from roformer_tf.finetuning.datasets import LabelledDataset
from roformer_tf.tasks.classification import Classification
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from tests.support.random_model import random_model
from tests.support.vocabularies import read_vocabulary

ROOT = Path(__file__).parents[2]
MODULES = Path(os.environ.get("NODE_MODULES", ROOT / ".venv/node/node_modules"))
PAGE = ROOT / "examples" / "browser" / "index.html"
URL = re.compile(r'"https://cdn\.jsdelivr\.net/npm/@huggingface/transformers@[\d.]+"')
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXTS = [
    "好",
    "今天天气很好，我们去公园。",
    "Hello 2023年，北京 café ＦＵＬＬ",
    "价格\ue5e5元，\u200b零\x01宽 각 😀👨\u200d👩 𫠠",
    "中国经济" * 15,
]
# A fake of the parts of `document` that the page uses.
DOCUMENT = """
const elements = { form: {}, "#text": {}, "#predict": {}, "#scores": {} };
elements.form.addEventListener = (_, listener) => (elements.submit = listener);
globalThis.document = { querySelector: (name) => elements[name] };
"""
ASK = """
const result = [];
for (const text of JSON.parse(process.argv[2])) {
  elements["#text"].value = text;
  await elements.submit({ preventDefault() {} });
  result.push(elements["#scores"].textContent);
}
console.log(JSON.stringify(result));
"""


@pytest.fixture
def site(tmp_path):
    """A folder with the page's `model`, and the scores that `load` gives for the texts."""
    if not (MODULES / "@huggingface" / "transformers").is_dir():
        pytest.skip(f"needs transformers.js in {MODULES}: npm install @huggingface/transformers")
    task = Classification(labels=("坏", "中", "好"), max_length=64)
    vocabulary = read_vocabulary(ROOT / "tests/fixtures/tokenizer/char")
    model = random_model(task, RoFormerTokenizer(vocabulary, "char"), **SIZES)
    LabelledDataset([], task).save_model(model, tmp_path / "own")
    export(tmp_path / "own", tmp_path / "model", "onnx")
    (tmp_path / "node_modules").symlink_to(MODULES)
    want = roformer_tf.load(tmp_path / "own", engine="keras")(TEXTS)
    return tmp_path, [answer["scores"] for answer in want]


def read(text):
    """The labels and probabilities that the page shows."""
    lines = [line.split() for line in text.splitlines()]
    assert [float(x) for _, x in lines] == sorted((float(x) for _, x in lines), reverse=True)
    return {label: pytest.approx(float(score), abs=1e-4) for label, score in lines}


@pytest.mark.clients
@pytest.mark.skipif(not shutil.which("node"), reason="needs Node.js")
def test_the_code_of_the_page_in_node(site):
    folder, want = site
    (code,) = re.findall(r'<script type="module">(.*)</script>', PAGE.read_text("utf-8"), re.S)
    code, count = URL.subn('"@huggingface/transformers"', code)
    assert count == 1
    (folder / "page.mjs").write_text(DOCUMENT + code + ASK, "utf-8")
    command = ["node", "page.mjs", json.dumps(TEXTS)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert list(map(read, json.loads(done.stdout.splitlines()[-1]))) == want


@pytest.mark.browser
def test_the_page_in_a_browser(site, browser):
    from selenium.webdriver.support.ui import WebDriverWait

    folder, want = site
    # Load the packages from this server instead of a CDN.
    local_module = '"./node_modules/@huggingface/transformers/dist/transformers.min.js"'
    page = URL.sub(local_module, PAGE.read_text("utf-8"))
    wasm = 'env.backends.onnx.wasm.wasmPaths = "/node_modules/onnxruntime-web/dist/";'
    page = page.replace("env.allowLocalModels", f"{wasm}\n  env.allowLocalModels")
    (folder / "index.html").write_text(page, "utf-8")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.get(f"http://127.0.0.1:{server.server_port}")

        def shown(name):
            return browser.execute_script(f'return document.querySelector("{name}").textContent')

        WebDriverWait(browser, 60).until(lambda _: "……" not in shown("#scores"))
        for text, scores in zip(TEXTS, want, strict=True):
            script = 'document.querySelector("#text").value = arguments[0]; scores.textContent = ""'
            browser.execute_script(script, text)
            browser.find_element("id", "predict").click()
            WebDriverWait(browser, 30).until(lambda _: shown("#scores"))
            assert read(shown("#scores")) == scores
        server.shutdown()
