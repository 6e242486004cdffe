"""Kills, a full disk and a read-only disk do not lose documents that an index reported as added."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from roformer_tf.search.database import open_to_write
from roformer_tf.search.document_files import Document
from roformer_tf.search.index import SearchIndex
from roformer_tf.search.writing import add_documents
from tests.support.fake_embedder import FakeEmbedder

ROOT = Path(__file__).parents[2]
DOCUMENTS = 400
ADD = """
import sys
from roformer_tf.search import writing
from roformer_tf.search.document_files import Document
from tests.support.fake_embedder import FakeEmbedder

written = 0

class Reported(writing.Progress):
    def update(self, count):
        global written
        written += count
        print(written, flush=True)

writing.Progress, writing.CHUNK = Reported, 10
documents = [Document(f"今天第{n}份文件", str(n), {"n": n}) for n in range(int(sys.argv[2]))]
writing.add_documents(sys.argv[1], FakeEmbedder(), documents)
"""


def start(folder):
    return subprocess.Popen(
        [sys.executable, "-c", ADD, str(folder), str(DOCUMENTS)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def check(folder, at_least):
    """Check the database's integrity, and that it contains all reported documents completely."""
    with closing(open_to_write(folder)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        database.execute("INSERT INTO words (words) VALUES ('integrity-check')")
        count = "SELECT count(*), count(passages), count(words.text) FROM documents LEFT JOIN "
        count += "vectors USING (number) LEFT JOIN words ON words.rowid = number"
        (counts,) = database.execute(count).fetchall()
    assert counts[0] >= at_least
    assert len(set(counts)) == 1
    return counts[0]


def test_a_killed_command_loses_nothing_that_it_reported(tmp_path):
    """Kill the command at random moments until all documents are added."""
    folder, rng, before, killed = tmp_path / "index", random.Random(0), 0, 0
    while before < DOCUMENTS:
        process = start(folder)
        kill_at = rng.randrange(1, 12)
        reported = 0
        for number, line in enumerate(process.stdout, 1):
            reported = int(line)
            if number == kill_at and killed < 6:
                process.send_signal(signal.SIGKILL)
                killed += 1
                break
        process.stdout.close()
        process.wait(60)
        before = check(folder, before + reported)
    assert killed >= 3  # a fast process may finish before the sixth kill
    query = FakeEmbedder().embed(["今天第7份文件"])
    with SearchIndex(folder) as index:
        assert index.read(index.search(["第7份"], query, 1, hybrid=True)[0])[0].id == "7"


DISK = """
import io, json, os, subprocess, sys
from contextlib import redirect_stderr
import tensorflow  # before sqlite3: TensorFlow's own SQLite must not be used
from roformer_tf import cli
from roformer_tf.conversion.downloads import ListConfig
from roformer_tf.search import writing
from roformer_tf.search.document_files import Document
from roformer_tf.search.index import SearchIndex
from tests.support.fake_embedder import FakeEmbedder

disk = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=True)
folder = os.path.join(disk, "index")
documents = [Document(f"{n}" * 300, str(n)) for n in range(400)]
embedder, writing.CHUNK = FakeEmbedder(size=512), 10

def add(_):
    print(writing.add_documents(folder, embedder, documents, passage_length=100))

cli.load_function, cli.load_settings = lambda *_: add, lambda *_: ListConfig
err = io.StringIO()
with redirect_stderr(err):
    code = cli.main(["checkpoints", "list"])
with SearchIndex(folder) as index:
    kept = len(index)
subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
again = cli.main(["checkpoints", "list"])
subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
with SearchIndex(folder) as index:
    hits = index.search(["7" * 300], embedder.embed(["7" * 100]), 1, hybrid=True)[0]
    found = index.read(hits)[0].id
    counts = [kept, len(index)]
print(json.dumps([code, err.getvalue(), counts, again, found]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("unshare"), reason="needs util-linux to mount a small disk")
def test_a_full_disk_ends_in_a_message_and_a_read_only_one_can_be_searched(tmp_path):
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", sys.executable, "-c", DISK, tmp_path],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=300,
        env=os.environ,
    )
    if "unshare" in done.stderr:
        pytest.skip("this machine does not allow users to mount")
    assert done.returncode == 0, done.stderr
    code, err, (before, total), again, hit = json.loads(done.stdout.splitlines()[-1])
    assert code == 1
    assert "index.sqlite: No space left on device. Completed files are intact" in err
    assert "Traceback" not in err
    assert 0 < before < total == 400
    assert again == 0
    assert hit == "7"


def test_a_limit_of_the_file_size_gives_a_message(tmp_path):
    """The limit acts like a disk quota: SQLite reports an I/O error."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, before[1]))
    try:
        documents = [Document(f"{n}" * 300, str(n)) for n in range(400)]
        with pytest.raises(OSError, match=r"index\.sqlite"):
            add_documents(tmp_path / "index", FakeEmbedder(), documents, passage_length=10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    check(tmp_path / "index", 0)
