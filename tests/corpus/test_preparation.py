import gzip
import io
import json
import os
import shutil
import sys
import unicodedata
from collections import Counter

import fsspec
import jieba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.corpus import deduplication, manifests, preparation
from roformer_tf.corpus.documents import without_repeated_lines
from roformer_tf.corpus.part_writer import is_held_out
from roformer_tf.corpus.preparation import PreparationConfig, prepare
from roformer_tf.corpus.shards import PreparedRows, read_manifest
from roformer_tf.errors import InputError
from roformer_tf.tokenizers import segmentation
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS


@pytest.fixture
def corpus(tmp_path, write_news, monkeypatch):
    """The folder of a small corpus that is prepared in a dozen parts, and its texts."""
    monkeypatch.setattr(preparation, "PART_CHARACTERS", 5_000)
    folder = tmp_path / "corpus"
    folder.mkdir()
    texts = [write_news(folder / f"{n}.jsonl", 40, seed=n) for n in range(2)]
    (folder / "2.txt.gz").write_bytes(gzip.compress("一行。\n第二行。\n".encode()))
    return folder, [*texts[0], *texts[1], "一行。", "第二行。"]


@pytest.fixture
def configure(corpus, tmp_path, vocab_file):
    """A function that returns the config of a preparation of the corpus."""

    def make(**changes):
        settings = {
            "corpus": (str(corpus[0] / "*"),),
            "output": str(tmp_path / "rows"),
            "vocab": str(vocab_file),
            "length": 64,
            "held_out": 0.1,
            "workers": 1,
        }
        return PreparationConfig(**(settings | changes))

    return make


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")}


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def tokens_of(folder, split):
    """Count the text tokens of a split."""
    rows = np.stack(list(PreparedRows.open(folder, split)))
    return Counter(rows[:, 0][rows[:, 2] > 0].tolist())


def test_every_token_of_the_corpus_is_in_the_rows_of_its_split(configure, corpus, vocab_file):
    folder = prepare(configure())
    tokenizer = RoFormerTokenizer.from_pretrained(vocab_file)
    for split, held_out in (("train", False), ("held_out", True)):
        texts = [text for text in corpus[1] if is_held_out(text, 0.1) == held_out]
        assert texts
        counts = Counter(t for text in texts for t in tokenizer.ids_and_words(text)[0])
        assert tokens_of(folder, split) == counts
        described = read_manifest(folder)["splits"][split]
        assert described["documents"] == len(texts)
        assert described["characters"] == sum(map(len, texts))
        assert described["unknown"] == counts[tokenizer.unk_id]


def test_tokens_that_the_vocabulary_lacks_are_printed(configure, tmp_path, capsys):
    """The vocabulary of another language made a corpus of [UNK], with a high accuracy."""
    vocabulary = tmp_path / "other.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n", encoding="utf-8")
    corpus = tmp_path / "two.txt"
    corpus.write_text("甲乙the\n", encoding="utf-8")
    prepare(configure(corpus=(str(corpus),), vocab=str(vocabulary), held_out=0.0))
    assert "40.0% of the tokens unknown" in capsys.readouterr().out  # of [CLS] 甲 乙 the [SEP]


def test_the_manifest_has_the_right_counts(configure):
    folder = prepare(configure())
    manifest = read_manifest(folder)
    documents = [
        np.stack(list(PreparedRows.open(folder, split)))[:, 1] for split in ("train", "held_out")
    ]
    rows = np.concatenate(documents)
    assert len(manifest["shards"]) > 10
    assert manifest["rows"] == len(rows)
    assert manifest["tokens"] == np.count_nonzero(rows)
    assert manifest["utilization"] == np.count_nonzero(rows) / rows.size
    assert manifest["utilization"] > 0.97
    assert 0 < manifest["splits"]["train"]["cut"] < manifest["splits"]["train"]["documents"]
    for split, actual in zip(("train", "held_out"), documents, strict=True):
        assert manifest["splits"][split]["rows"] == len(actual)
        assert manifest["splits"][split]["tokens"] == np.count_nonzero(actual)
    names = {path.name for path in folder.iterdir()}
    assert names == {shard["file"] for shard in manifest["shards"]} | {
        *("manifest.json", "vocab.txt", "tokenizer_config.json")
    }


def test_short_documents_are_cut_only_to_fill_rows(configure, tmp_path):
    """Documents that fit into a row are cut only to fill rows.

    No two of these documents, of two thirds of a row each, fit into one row.
    """
    text = "的一是在不了有和人这中大为上个国我以要他" * 2
    (tmp_path / "alike.txt").write_text(40 * f"{text}\n", encoding="utf-8")
    alike = {"corpus": (str(tmp_path / "alike.txt"),), "held_out": 0.0, "tokenization": "char"}
    manifests = [
        read_manifest(prepare(configure(**alike, fill=fill, output=str(tmp_path / f"{fill}"))))
        for fill in (0.0, 0.99)
    ]
    assert [manifest["splits"]["train"]["documents"] for manifest in manifests] == [40, 40]
    assert [manifest["rows"] for manifest in manifests] == [40, 27]  # 27 is the minimum
    assert [manifest["splits"]["train"]["cut"] for manifest in manifests] == [0, 13]
    assert manifests[0]["utilization"] < 0.7
    assert manifests[1]["utilization"] >= 0.98  # only the last row is not full


@pytest.mark.quick_cases("choice0")  # a later test covers a built vocabulary
@pytest.mark.parametrize("choice", [{}, {"vocab": None, "vocab_size": 500}])
def test_files_do_not_depend_on_the_number_of_workers(configure, tmp_path, choice):
    single = prepare(configure(**choice, workers=1, output=str(tmp_path / "one")))
    parallel = prepare(configure(**choice, workers=2, output=str(tmp_path / "two")))
    assert content(single) == content(parallel)


def test_a_finished_preparation_is_not_repeated(configure, monkeypatch, capsys):
    folder = prepare(configure())
    before = stamps(folder)
    monkeypatch.setattr(preparation, "write_part", None)  # preparing again would fail
    capsys.readouterr()
    assert prepare(configure(workers=2)) == folder
    assert stamps(folder) == before
    assert "is prepared already" in capsys.readouterr().out


@pytest.mark.quick_cases("True-*")
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"length": 32}, r"length \(64 then, 32 now\)"),
        ({"held_out": 0.2}, r"held_out \(0\.1 then, 0\.2 now\)"),
        ({"lower_case": False}, "lower_case"),
        ({"tokenization": "char"}, "tokenization"),
        ({"vocab": None, "vocab_size": 500}, "vocab_size.*vocabulary"),
        ({"encoding": "gb18030"}, r"encoding \(None then, gb18030 now\)"),
        ({"min_characters": 9}, r"min_characters \(0 then, 9 now\)"),
        ({"drop_repeated_lines": True}, r"drop_repeated_lines \(False then, True now\)"),
        ({"duplicates": "near"}, r"duplicates \(keep then, near now\), similarity \(None then"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_of_other_settings_is_not_touched(configure, changes, named, finished):
    folder = prepare(configure())
    if not finished:
        make_unfinished(folder)
    before = content(folder)
    with pytest.raises(InputError, match=rf"prepared from other inputs or settings.*{named}"):
        prepare(configure(**changes))
    assert content(folder) == before


def test_a_folder_of_another_corpus_is_not_touched(configure, corpus):
    folder = prepare(configure())
    before = content(folder)
    with (corpus[0] / "1.jsonl").open("a") as file:
        file.write('{"text": "more"}\n')
    (corpus[0] / "0.jsonl").rename(corpus[0] / "3.jsonl")
    message = r"1\.jsonl has changed, 0\.jsonl is missing, 3\.jsonl is new\)\. Choose .*--rows "
    with pytest.raises(InputError, match=message):
        prepare(configure())
    assert content(folder) == before


def test_a_corpus_of_another_name_is_not_a_changed_file(configure, corpus):
    prepare(configure())
    with pytest.raises(InputError, match=r"files \(the same files, but other names of corpora"):
        prepare(configure(corpus=(f"news={corpus[0]}/*",)))


def test_many_changed_files_are_not_all_named(configure, corpus):
    prepare(configure())
    for number in range(9):
        (corpus[0] / f"n{number}.txt").write_text("多")
    with pytest.raises(InputError, match=r"n0\.txt is new, .*, n4\.txt is new and 4 more\)"):
        prepare(configure())


@pytest.mark.parametrize("finished", [True, False])
def test_a_touched_or_copied_corpus_is_accepted(configure, corpus, finished, capsys):
    folder = prepare(configure())
    want = content(folder)
    if not finished:
        make_unfinished(folder)
    shutil.move(corpus[0], corpus[0].with_name("moved"))
    for path in shutil.copytree(corpus[0].with_name("moved"), corpus[0]).iterdir():
        os.utime(path, (1, 1))
    prepare(configure())
    assert ("is prepared already" in capsys.readouterr().out) == finished
    assert content(folder) == want


def test_foreign_folders_are_not_touched(configure, tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="holds something else than prepared rows"):
        prepare(configure())
    assert [path.name for path in (tmp_path / "rows").iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match="holds something else than prepared rows"):
        prepare(configure(output=str(tmp_path / "rows" / "thesis.tex")))


def make_unfinished(folder):
    """Turn a finished folder into an unfinished one without a manifest and recorded parts."""
    settings = read_manifest(folder)["settings"]
    (folder / "unfinished").mkdir()
    (folder / "unfinished" / "settings.json").write_text(json.dumps(settings))
    (folder / "manifest.json").unlink()


def test_temporary_files_of_a_killed_run_are_removed(configure):
    folder = prepare(configure())
    want = content(folder)
    for finished in (True, False):
        if not finished:
            make_unfinished(folder)
            (folder / "unfinished" / ".part-00000.json.abcdefgh.tmp").write_text("{")
        (folder / ".train-00000.npy.abcdefgh.tmp").write_bytes(b"half")
        (folder / ".unfinished.abcdefgh.tmp").mkdir()
        prepare(configure())
        assert content(folder) == want
        assert not [path for path in folder.rglob("*") if path.name.startswith(".")]


def test_a_folder_with_only_a_first_temporary_file_counts_as_empty(configure, tmp_path):
    (tmp_path / "rows" / ".unfinished.abcdefgh.tmp").mkdir(parents=True)
    assert (prepare(configure()) / "manifest.json").is_file()


@pytest.mark.parametrize("damage", [lambda p: p.unlink(), lambda p: p.write_bytes(b"x")])
def test_a_part_with_a_damaged_shard_is_repeated(configure, monkeypatch, damage):
    def stop(*_):
        raise KeyboardInterrupt

    want = content(prepare(configure()))
    shutil.rmtree(configure().output)
    with monkeypatch.context() as patch:
        patch.setattr(manifests, "make_manifest", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(configure())
    folder = preparation.Path(configure().output)
    damage(folder / "train-00003.npy")
    before = stamps(folder)
    prepare(configure())
    assert content(folder) == want
    redone = {p.name for p, stamp in before.items() if p.is_file() and p.stat().st_mtime_ns > stamp}
    assert {name for name in redone if name.endswith("npy")} <= {
        *("train-00003.npy", "held_out-00003.npy")
    }


def lines_of(*lines):
    return lambda folder: (folder / "0.jsonl").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("write_files", "changes", "message"),
    [
        (None, {"corpus": ("missing/*.txt",)}, "no file matches the corpus pattern"),
        (lines_of(), {}, "no sequence to train on: 0 documents"),
        (
            lines_of('{"title": "甲"}'),
            {},
            r'sequence to train on(.|\n)*0\.jsonl:1: no field "text"',
        ),
        (lines_of('{"text": "\u200b"}'), {}, "no sequence to train on"),
        (lines_of('{"text": "甲"}', "{"), {"strict": True}, r"0\.jsonl:2: not JSON"),
        (None, {"vocab": "missing.txt"}, "missing.txt does not exist"),
        (None, {"vocab": None, "vocab_size": 20}, "a vocabulary of 20 tokens has no room"),
        (lines_of('{"text": "甲"}'), {"held_out": 0.999999}, "no sequence to train on"),
    ],
)
def test_bad_input_gives_one_message_and_leaves_nothing(
    configure, corpus, write_files, changes, message
):
    if write_files:
        shutil.rmtree(corpus[0])
        corpus[0].mkdir()
        write_files(corpus[0])
    with pytest.raises(InputError, match=message):
        prepare(configure(**changes))
    assert not preparation.Path(configure().output).exists()


def test_a_vocabulary_that_does_not_begin_with_padding_is_refused(
    configure, corpus, vocab_file, tmp_path
):
    first, *tokens = vocab_file.read_text("utf-8").splitlines()
    (tmp_path / "v.txt").write_text("\n".join([*tokens[:3], first, *tokens[3:]]), "utf-8")
    with pytest.raises(InputError, match=r"v\.txt does not begin with \[PAD\]"):
        prepare(configure(vocab=tmp_path / "v.txt"))
    assert not preparation.Path(configure().output).exists()


def test_a_vocabulary_of_special_tokens_alone_is_refused(configure, tmp_path):
    (tmp_path / "v.txt").write_text("\n".join([*SPECIAL_TOKENS, "[unused1]"]), "utf-8")
    with pytest.raises(InputError, match=r"v\.txt has only special tokens"):
        prepare(configure(vocab=tmp_path / "v.txt"))
    assert not preparation.Path(configure().output).exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_strict_stops_at_a_late_error_and_leaves_nothing(configure, corpus, workers):
    with (corpus[0] / "1.jsonl").open("ab") as file:
        file.write(b"\xff\n")
    with pytest.raises(InputError, match=r"1\.jsonl:41: not UTF-8.*without --strict"):
        prepare(configure(strict=True, workers=workers))
    assert not preparation.Path(configure().output).exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 1}, "length is 1, but must be at least 3"),
        ({"vocab": None}, "give either a vocabulary"),
        ({"vocab_size": 100}, "give either a vocabulary"),
        ({"held_out": 1.0}, "held_out is 1,"),
        ({"held_out": -0.1}, "held_out is -0.1"),
        ({"workers": 0}, "workers is 0"),
        ({"min_characters": -1}, "min_characters is -1"),
        ({"similarity": 1.0}, r"similarity is 1,"),
    ],
)
def test_invalid_settings_are_refused(configure, changes, message):
    with pytest.raises(InputError, match=message):
        configure(**changes)


def test_bad_lines_are_skipped_counted_and_reported(configure, corpus, capsys):
    clean = tokens_of(prepare(configure(output=configure().output + "-clean")), "train")
    good = (corpus[0] / "1.jsonl").read_bytes()
    (corpus[0] / "1.jsonl").write_bytes(b"\xff\n{\n" + good)
    (corpus[0] / "3.txt.gz").write_bytes(gzip.compress(b"")[:-4])
    capsys.readouterr()
    folder = prepare(configure())
    assert tokens_of(folder, "train") == clean
    cut = (
        "damaged: its .gz data is cut off, or none. Copy it again (the rest of the file is skipped)"
    )
    kinds = {"not UTF-8": 1, "not JSON": 1, cut: 1}
    assert read_manifest(folder)["bad_lines"] == kinds
    printed = capsys.readouterr().out
    assert f"{corpus[0] / '1.jsonl'}:2: not JSON" in printed
    assert f"{corpus[0] / '3.txt.gz'}:1: damaged" in printed


@pytest.mark.parametrize("encoding", ["auto", "gb18030"])
def test_a_corpus_in_gb18030_gives_the_same_rows_and_is_reported(
    configure, corpus, tmp_path, capsys, encoding
):
    _, texts = corpus
    lines = [text.replace("\n", "") for text in texts]
    rows = {}
    for codec in ("utf-8", "gb18030"):
        path = tmp_path / codec / "news.txt"
        path.parent.mkdir()
        path.write_bytes("\n".join(lines).encode(codec))
        chosen = {"encoding": encoding} if codec == "gb18030" else {}
        output = prepare(configure(corpus=(str(path),), output=f"{path.parent}/rows", **chosen))
        rows[codec] = tokens_of(output, "train")
        settings = read_manifest(output)["settings"]
        assert settings.get("encoding") == (chosen if encoding != "auto" else {}).get("encoding")
    assert rows["gb18030"] == rows["utf-8"]
    printed = capsys.readouterr().out
    assert printed.count(f"read as GB18030: {tmp_path}/gb18030/news.txt\n") == (encoding == "auto")
    assert printed.count("read as") == (encoding == "auto")


def test_held_out_documents_stay_held_out_in_a_larger_corpus(configure, write_news, corpus):
    before = tokens_of(prepare(configure()), "held_out")
    write_news(corpus[0] / "00.jsonl", 50, seed=9)  # read first
    after = tokens_of(prepare(configure(output=configure().output + "-2")), "held_out")
    assert before < after


@given(st.text(st.characters(exclude_categories=())), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_fraction_holds_out_a_superset(text, fraction, other):
    small, large = sorted([fraction, other])
    assert is_held_out(text, large) or not is_held_out(text, small)
    assert not is_held_out(text, 0)
    assert is_held_out(text, 1)


@given(
    st.text("甲乙ＡA １1", min_size=1), st.floats(0, 1), st.sampled_from(["{} ", "\n{}", "　{}"])
)
def test_white_space_and_width_do_not_change_the_split(text, fraction, form):
    expected = is_held_out(text, fraction)
    assert is_held_out(form.format(text), fraction) == expected
    assert is_held_out(" ".join(text), fraction) == expected
    assert is_held_out(unicodedata.normalize("NFKC", text), fraction) == expected


def test_the_fraction_of_held_out_documents():
    fraction = np.mean([is_held_out(str(number), 0.03) for number in range(20_000)])
    assert abs(fraction - 0.03) < 0.005


@pytest.mark.parametrize("tokenization", [None, "word", "char"])
def test_a_vocabulary_is_built_without_held_out_documents(configure, corpus, tokenization):
    rare = next(c for c in map(chr, range(0x3400, 0x4DBF)) if is_held_out(c, 0.1))
    (corpus[0] / "3.txt").write_text(f"{rare}\n")
    settings = {"vocab": None, "vocab_size": 50_000, "tokenization": tokenization}
    folder = prepare(configure(**settings))
    tokenizer = RoFormerTokenizer.from_pretrained(folder)
    assert tokenizer.tokens[:5] == list(SPECIAL_TOKENS)
    assert tokenizer.tokenization == (tokenization or "word")
    assert rare not in tokenizer.vocabulary
    assert tokens_of(folder, "held_out")[tokenizer.unk_id] >= 1
    assert tokens_of(folder, "train")[tokenizer.unk_id] == 0, "there was room for every word"


def words_in(folder):
    """Count the words of the rows, as text."""
    tokens = RoFormerTokenizer.from_pretrained(folder).tokens
    counts = Counter()
    for row in PreparedRows.open(folder):
        words = [""] * (row[2].max() + 1)
        for token, word in zip(row[0], row[2], strict=True):
            words[word] += tokens[token].removeprefix("##")
        counts.update(words[1:])
    return counts


@pytest.mark.slow
def test_characters_are_words_unless_whole_words_is_set(configure, corpus):
    settings = {"vocab": None, "vocab_size": 50_000, "tokenization": "char", "held_out": 0.0}
    settings |= {"length": 8000, "fill": 0.0}  # no document is cut
    by_characters = prepare(configure(**settings))
    with_whole_words = prepare(
        configure(**settings, whole_words=True, output=configure().output + "-whole")
    )
    texts = [segmentation.normalize(text) for text in corpus[1]]
    by_character = Counter(part for text in texts for part in segmentation.split(text))
    by_word = Counter(word for text in texts for word in jieba.cut(text, HMM=False))
    assert words_in(by_characters) == by_character
    assert words_in(with_whole_words) == by_word
    assert any(len(word) > 1 for word in by_word)
    for row, other in zip(
        PreparedRows.open(by_characters), PreparedRows.open(with_whole_words), strict=True
    ):
        np.testing.assert_array_equal(row[:2], other[:2])
    assert (by_characters / "vocab.txt").read_bytes() == (
        with_whole_words / "vocab.txt"
    ).read_bytes()
    assert RoFormerTokenizer.from_pretrained(with_whole_words).tokenization == "char"


def test_whole_words_are_a_setting_of_the_rows(configure):
    prepare(configure(tokenization="char"))
    with pytest.raises(InputError, match="prepared from other inputs"):
        prepare(configure(tokenization="char", whole_words=True))


def test_counting_keeps_the_frequent_words_when_there_are_too_many(configure, monkeypatch):
    settings = {"vocab": None, "vocab_size": 150}
    unpruned = prepare(configure(**settings, output=configure().output + "-whole"))
    monkeypatch.setattr(preparation, "COUNTED_WORDS", 500)
    pruned = prepare(configure(**settings))
    words = [set((folder / "vocab.txt").read_text().split()) for folder in (unpruned, pruned)]
    assert len(words[0] & words[1]) > 140


def test_lower_case_is_read_from_the_vocabulary_folder(configure, tmp_path, vocab_file):
    cased = tmp_path / "cased"
    RoFormerTokenizer.from_pretrained(vocab_file, "char", lower_case=False).save_pretrained(cased)
    manifest = read_manifest(prepare(configure(vocab=str(cased))))
    assert (manifest["lower_case"], manifest["tokenization"]) == (False, "char")
    tokenizer = RoFormerTokenizer.from_pretrained(configure().output)
    assert (tokenizer.lower_case, tokenizer.tokenization) == (False, "char")


# Several corpora, and what is excluded from them


@pytest.fixture
def web(tmp_path, write_news, monkeypatch):
    """Two corpora with menus, short and repeated documents: their entries and a reference.

    The reference is a function that returns the documents remaining after filters, with their
    corpora, in order.
    """
    monkeypatch.setattr(preparation, "PART_CHARACTERS", 3_000)
    folder = tmp_path / "web"
    folder.mkdir()
    news = write_news(folder / "source.jsonl", 24, seed=5)
    wiki = write_news(folder / "source.jsonl", 20, seed=6)
    menu = "首页\n 新闻\n"
    news = [f"{menu}{text}\n首页\n\n新闻" for text in news] + ["短", "短 "] * 4
    wiki[3:3] = [news[2], f" {wiki[0]}\n", unicodedata.normalize("NFKC", wiki[1])]  # duplicates
    wiki[9:9] = [_altered(text) for text in (news[7], wiki[0])]  # near duplicates
    wiki += [f"{wiki[-1]}\n{wiki[-1]}", *news[5:7]]
    assert len({is_held_out(text, 0.3) for text in news + wiki}) == 2
    for name, texts in (("b", news[:9]), ("a", wiki), ("c", news[9:])):
        records = [json.dumps({"text": text}) for text in texts]
        (folder / f"{name}.jsonl").write_text("\n".join(records))
    (folder / "source.jsonl").unlink()
    entries = (f"news={folder}/b.jsonl", f"wiki={folder}/a.jsonl", f"news={folder}/c.jsonl")

    def remaining(min_characters=0, drop_repeated_lines=False, duplicates="keep"):
        kept_documents, sets = [], []
        for corpus, texts in (("news", news), ("wiki", wiki)):
            for text in texts:
                text = without_repeated_lines(text)[0] if drop_repeated_lines else text
                plain = "".join(unicodedata.normalize("NFKC", text).split())
                shingles = {plain[i : i + 5] for i in range(max(1, len(plain) - 4))}
                shares = [len(shingles & other) / len(shingles | other) for other in sets]
                assert not [fraction for fraction in shares if 0.6 < fraction < 0.95], (
                    "not a clear case"
                )
                max_similarity = {"keep": 2, "exact": 1, "near": 0.8}[duplicates]
                if len(text.strip()) >= min_characters and max(shares, default=0) < max_similarity:
                    kept_documents.append((corpus, text))
                    sets.append(shingles)
        return kept_documents

    return entries, remaining


def _altered(text):
    return f"{text[: len(text) // 2]}？{text[len(text) // 2 + 1 :]}"


CHOICES = [
    {},
    {"min_characters": 2},
    {"drop_repeated_lines": True},
    {"duplicates": "exact"},
    {"duplicates": "near", "min_characters": 2},
    {"duplicates": "exact", "drop_repeated_lines": True},
]
ALL_FILTERS = {
    "duplicates": "near",
    "min_characters": 2,
    "drop_repeated_lines": True,
    "held_out": 0.3,
}


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_remaining_documents_are_in_the_rows_of_their_split_and_corpus(
    configure, web, vocab_file, choice
):
    if "near" in choice.values():
        pytest.importorskip("datasketch")
    entries, remaining = web
    folder = prepare(configure(corpus=entries, held_out=0.3, **choice))
    manifest = read_manifest(folder)
    tokenizer = RoFormerTokenizer.from_pretrained(vocab_file)
    kept_documents, everything = remaining(**choice), remaining()
    for split, held_out in (("train", False), ("held_out", True)):
        texts = [text for _, text in kept_documents if is_held_out(text, 0.3) == held_out]
        counts = Counter(t for text in texts for t in tokenizer.ids_and_words(text)[0])
        assert tokens_of(folder, split) == counts
        assert manifest["splits"][split]["documents"] == len(texts)
    assert list(manifest["corpora"]) == ["news", "wiki"]
    for name, files in (("news", 2), ("wiki", 1)):
        described = manifest["corpora"][name]
        texts = [text for corpus, text in kept_documents if corpus == name]
        shards = [shard for shard in manifest["shards"] if shard["corpus"] == name]
        assert described["files"] == files
        assert described["documents"] == len(texts)
        assert described["characters"] == sum(map(len, texts))
        assert described["rows"] == sum(shard["rows"] for shard in shards)
        assert described["tokens"] == sum(shard["tokens"] for shard in shards)
    if choice == {"drop_repeated_lines": True}:
        lines = sum(without_repeated_lines(text)[1] for _, text in everything)
        assert manifest["left_out"]["repeated_lines"] == lines > 40
    documents = len(everything) - len(kept_documents)
    assert manifest["left_out"]["short"] + manifest["left_out"]["duplicates"] == documents
    assert manifest["left_out"]["short"] == (8 if "min_characters" in choice else 0)


def test_the_rows_of_a_corpus_are_consecutive(configure, web, vocab_file):
    entries, remaining = web
    folder = prepare(configure(corpus=entries, held_out=0.3))
    tokenizer = RoFormerTokenizer.from_pretrained(vocab_file)
    for split, held_out in (("train", False), ("held_out", True)):
        rows = PreparedRows.open(folder, split)
        assert list(rows.corpora) == ["news", "wiki"]
        assert sum(rows.corpora.values()) == len(rows)
        content = np.stack(list(rows))
        for name, part in zip(rows.corpora, np.split(content, [rows.corpora["news"]]), strict=True):
            texts = [
                t for corpus, t in remaining() if corpus == name and is_held_out(t, 0.3) == held_out
            ]
            counts = Counter(t for text in texts for t in tokenizer.ids_and_words(text)[0])
            assert Counter(part[:, 0][part[:, 2] > 0].tolist()) == counts


def test_excluded_documents_are_reported(configure, web, capsys):
    pytest.importorskip("datasketch")
    folder = prepare(configure(corpus=web[0], **ALL_FILTERS))
    counts = read_manifest(folder)["left_out"]
    assert min(counts.values()) > 3
    assert (
        f"skipped: 8 documents under 2 characters, {counts['duplicates']} duplicates, "
        f"{counts['repeated_lines']} repeated lines\n"
    ) in capsys.readouterr().out


@pytest.mark.slow
def test_filtered_files_do_not_depend_on_the_number_of_workers(configure, web, tmp_path):
    pytest.importorskip("datasketch")
    settings = {"corpus": web[0], "vocab": None, "vocab_size": 500, **ALL_FILTERS}
    single, parallel = (
        prepare(configure(**settings, workers=workers, output=str(tmp_path / f"{workers}")))
        for workers in (1, 2)
    )
    assert content(single) == content(parallel)


@pytest.mark.parametrize(
    ("choice", "known"),
    [
        ({}, [True, True, True]),
        ({"min_characters": 2}, [False, True, True]),
        ({"duplicates": "near", "similarity": 0.5}, [True, True, False]),
    ],
)
def test_excluded_documents_add_no_word_to_the_vocabulary(configure, corpus, choice, known):
    if "near" in choice.values():
        pytest.importorskip("datasketch")
    texts = ["\u3400", "甲" * 400 + "\u3401", "甲" * 400 + "\u3401\u3402"]
    (corpus[0] / "9.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    settings = {"vocab": None, "vocab_size": 50_000, "tokenization": "char", "held_out": 0.0}
    vocabulary = (prepare(configure(**settings, **choice)) / "vocab.txt").read_text("utf-8")
    assert [word in vocabulary for word in "\u3400\u3401\u3402"] == known


def test_the_hash_identifies_the_texts_of_a_corpus(configure, tmp_path):
    def hashes(*texts, **changes):
        for name in "ab":
            (tmp_path / f"{name}.jsonl").write_text(
                "\n".join(json.dumps({"text": text}) for text in texts)
            )
            texts = ("乙二", "甲一")
        entries = (f"a={tmp_path}/a.jsonl", f"b={tmp_path}/b.jsonl")
        output = str(tmp_path / f"rows-{len(list(tmp_path.iterdir()))}")
        settings = {"corpus": entries, "output": output, "held_out": 0.0} | changes
        manifest = read_manifest(prepare(configure(**settings)))
        return [corpus["blake2b"] for corpus in manifest["corpora"].values()]

    first, other = hashes("甲一", "乙二")
    assert hashes("甲一", "乙二", length=32, tokenization="char") == [first, other]
    assert hashes("甲一", "乙二 ", min_characters=2)[0] != first
    changed = [hashes(*texts)[0] for texts in (("甲", "一乙二"), ("甲一乙二",), ("乙二", "甲一"))]
    assert len({first, *changed}) == 4
    assert changed[2] == other, "the same texts in the same order"


@pytest.mark.parametrize("first", [True, False])
def test_near_duplicates_of_held_out_documents_are_not_in_training(configure, tmp_path, first):
    pytest.importorskip("datasketch")
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    alike = sorted((f"{text}{i}" for i in range(40)), key=lambda t: is_held_out(t, 0.5) != first)
    assert len({is_held_out(text, 0.5) for text in alike}) == 2
    (tmp_path / "a.txt").write_text("\n".join([*alike, *"甲乙丙丁戊己庚"]))
    settings = {"corpus": (str(tmp_path / "a.txt"),), "duplicates": "near", "held_out": 0.5}
    splits = read_manifest(prepare(configure(**settings)))["splits"]
    rest = sum(is_held_out(text, 0.5) for text in "甲乙丙丁戊己庚")
    assert splits["held_out"]["documents"] == rest + first
    assert splits["train"]["documents"] == 7 - rest + (not first)


@pytest.mark.parametrize(
    ("module", "stopped"), [(preparation, "_built_tokenizer"), (manifests, "make_manifest")]
)
def test_the_search_for_duplicates_is_not_repeated(configure, web, monkeypatch, module, stopped):
    def stop(*_):
        raise KeyboardInterrupt

    settings = {"corpus": web[0], "vocab": None, "vocab_size": 500, "duplicates": "exact"}
    want = content(prepare(configure(**settings)))
    shutil.rmtree(configure().output)
    with monkeypatch.context() as patch:
        patch.setattr(module, stopped, stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(configure(**settings))
    monkeypatch.setattr(deduplication, "find_exact", None)  # a second search would fail
    assert content(prepare(configure(**settings))) == want


def test_a_file_that_grows_is_read_up_to_its_size_at_the_start(configure, tmp_path, monkeypatch):
    """As a log does. The search for duplicates read fewer documents than the passes after it."""
    monkeypatch.setattr(preparation, "PART_CHARACTERS", 20)
    log, empty = tmp_path / "log.txt", tmp_path / "empty.txt"
    empty.touch()
    log.write_text("".join(f"{n:04}\n" for n in (*range(50), 7, 8)), encoding="utf-8")
    build = preparation._built_tokenizer

    def grow(*arguments):  # after the first pass
        for path in (log, empty):
            with path.open("a", encoding="utf-8") as file:
                file.writelines(f"{n:04}\n" for n in range(100))
        return build(*arguments)

    monkeypatch.setattr(preparation, "_built_tokenizer", grow)
    settings = {"corpus": (str(tmp_path / "*.txt"),), "vocab": None, "held_out": 0.0}
    configured = configure(duplicates="exact", vocab_size=500, **settings)
    manifest = read_manifest(prepare(configured))
    assert manifest["splits"]["train"]["documents"] == 50
    assert manifest["left_out"]["duplicates"] == 2


def test_without_the_library_near_duplicates_leave_nothing(configure, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketch", None)
    with pytest.raises(InputError, match=r"pip install 'roformer-tf\[duplicates\]'"):
        prepare(configure(duplicates="near"))
    assert not preparation.Path(configure().output).exists()
    assert prepare(configure(duplicates="exact"))


def test_excluding_every_document_is_an_error(configure):
    message = r"no sequence to train on: 82 documents.*\nskipped: 82 documents under 99999"
    with pytest.raises(InputError, match=message):
        prepare(configure(min_characters=99_999))
    assert not preparation.Path(configure().output).exists()


# Remote corpora


class PayloadError(Exception):
    """An error like aiohttp's, which is not an OSError."""


@pytest.mark.parametrize(
    ("workers", "error", "choice", "readings"),
    [
        (2, OSError, {}, 1),
        (1, PayloadError, {"vocab": None, "vocab_size": 500, "duplicates": "exact"}, 3),
    ],
)
def test_a_broken_connection_keeps_finished_parts(
    configure, corpus, write_news, tmp_path, monkeypatch, workers, error, choice, readings
):
    """A broken connection does not lose finished parts.

    It breaks in the middle of the second file, when that is read for the last time.
    """
    for number in range(2):  # long enough for the workers to finish some parts before
        write_news(corpus[0] / f"{number}.jsonl", 80, seed=number)
    monkeypatch.setattr(preparation, "PART_CHARACTERS", 10_000)
    storage = fsspec.filesystem("memory")
    for path in corpus[0].iterdir():
        storage.pipe(f"/far/{path.name}", path.read_bytes())
    settings = {"corpus": ("memory://far/*",)} | choice
    want = content(prepare(configure(**settings, output=str(tmp_path / "undisturbed"))))
    original_open = type(storage)._open
    opened = []

    class BrokenConnection(io.RawIOBase):
        def __init__(self, file):
            self.file = file

        def readable(self):
            return True

        def tell(self):
            return self.file.tell()

        def readinto(self, buffer):
            data = self.file.read(min(len(buffer), 5_000))
            if self.file.tell() > 60_000:
                raise error("transfer closed with bytes outstanding")
            buffer[: len(data)] = data
            return len(data)

    def broken_open(self, path, *rest, **named):
        file = original_open(self, path, *rest, **named)
        if path.endswith("1.jsonl"):
            opened.append(path)
        return io.BufferedReader(BrokenConnection(file)) if len(opened) == readings else file

    with monkeypatch.context() as patch:
        patch.setattr(type(storage), "_open", broken_open)
        message = r"cannot read memory:/+far/1\.jsonl: transfer closed.*the same command continues"
        with pytest.raises(InputError, match=message):
            prepare(configure(**settings, workers=workers))
    folder = preparation.Path(configure().output)
    assert len([*(folder / "unfinished").glob("part-*.json")]) > 2
    assert not (folder / "manifest.json").exists()
    before = stamps(folder)
    prepare(configure(**settings))
    assert content(folder) == want
    done = [path for path in folder.glob("train-*.npy") if path in before]
    assert len(done) > 2
    assert all(path.stat().st_mtime_ns == before[path] for path in done)
