"""The text and the training stages of our own checkpoint."""

import gzip
import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from pretrain.mini import __main__ as mini
from pretrain.mini import comparison, joint, sources, text
from pretrain.mini.card import STAGES
from pretrain.mini.joint import JointConfig, contrastive_loss
from roformer_tf import RoFormerConfig, RoFormerForMaskedLM
from roformer_tf.cli import main as roformer_tf
from roformer_tf.training.run_files import read_metrics

TEST_TEXT = "这家酒店的早餐种类很多，房间也十分干净整洁"


@pytest.fixture
def clones(tmp_path):
    """A folder with two tiny clones: news with markup, and questions, one from a test set."""
    news = tmp_path / "china-data" / "xwlb" / "assets" / "2019"
    news.mkdir(parents=True)
    detail = {
        "title": "[视频]各地多措并举保障春耕",
        "content": "<p>央视网消息（新闻联播）：眼下正是春耕的好时节，各地备足农资。</p>\r\n"
        "<p>农业部门的技术人员走进田间&mdash;指导农民。<br/></p>",
    }
    (news / "1.json").write_text(json.dumps({"videoList": [{"video_detail": detail}, {}]}))
    questions = tmp_path / "lonnyzhang423" / "zhihu-hot-hub" / "raw"
    questions.mkdir(parents=True)
    entries = [
        {"title_area": {"text": title}, "excerpt_area": {"text": excerpt}}
        for title, excerpt in (
            ("怎样才能养成每天早起的习惯？", "试过很多方法，都坚持不了几天。"),
            ("如何评价下面的说法？", f"有人说：{TEST_TEXT}。"),
        )
    ]
    content = json.dumps({"data": [{"target": entry} for entry in entries]})
    for day in (1, 2):  # both days have the same questions
        (questions / f"hot-question-{day}.json").write_text(content)
    return tmp_path


@pytest.fixture
def text_folder(clones, tmp_path, monkeypatch):
    """The folder of text written from these clones."""
    chosen = [x for x in sources.SOURCES if (clones / x.repository).exists()]
    monkeypatch.setattr(text, "SOURCES", chosen)
    tests = tmp_path / "test.tsv.gz"
    tests.write_bytes(gzip.compress(f"text\tlabel\n{TEST_TEXT}\t1\n".encode()))
    text.write_text(tmp_path / "text", clones, tmp_path, [tests])
    return tmp_path / "text"


def documents(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_text_has_no_markup_repeated_lines_or_test_texts(text_folder):
    assert [x["text"] for x in documents(text_folder / "news.jsonl")] == [
        "各地多措并举保障春耕\n眼下正是春耕的好时节，各地备足农资。\n"
        "农业部门的技术人员走进田间—指导农民。"
    ]
    assert [x["text"] for x in documents(text_folder / "questions.jsonl")] == [
        "怎样才能养成每天早起的习惯？\n试过很多方法，都坚持不了几天。",
        "如何评价下面的说法？",
    ]
    counts = json.loads((text_folder / "counts.json").read_text(encoding="utf-8"))["sources"]
    assert counts[1]["tested_lines"] == 2  # one on each day
    assert counts[1]["repeated_lines"] == 3


def test_pairs_are_titles_and_their_texts(text_folder):
    pairs = documents(text_folder / "pairs.jsonl")
    assert [pair["text_a"] for pair in pairs] == [
        "各地多措并举保障春耕", "怎样才能养成每天早起的习惯？"
    ]  # fmt: skip
    assert pairs[1]["text_b"] == "试过很多方法，都坚持不了几天。"


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("---\ntitle: 甲\n---\n# 标题\n见[文档](https://x.y)。", "标题\n见文档。"),
        ("前\n```python\n代码 = 1\n```\n后 **重点**", "前\n后 重点"),
        ("- 一<br>\n2. 二", "一\n二"),
    ],
)
def test_markdown_is_reduced_to_text(tmp_path, page, expected):
    (tmp_path / "page.md").write_text(page, encoding="utf-8")
    text = next(sources.markdown(tmp_path / "page.md"))
    assert [x.strip() for x in text.splitlines() if x.strip()] == expected.splitlines()


def test_contrastive_loss_is_the_mean_cross_entropy_of_both_directions():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 5, 8)).astype("float32")
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b)]
    scores = (unit[0] @ unit[1].T).astype("float64") / 0.1
    expected = np.mean(
        [np.log(np.exp(matrix).sum(axis=1)) - np.diag(matrix) for matrix in (scores, scores.T)]
    )
    assert float(contrastive_loss(a, b, 0.1)) == pytest.approx(expected, rel=1e-5)


def test_two_texts_in_one_sequence_show_which_tokens_both_have():
    cls, sep, unk = 1, 2, 3
    titles = np.array([[cls, 7, 8, sep, 0], [cls, 9, unk, 5, sep], [cls, 6, 5, 4, sep]] * 4)
    texts = np.array([[cls, 9, 7, sep], [cls, 5, unk, sep], [cls, 8, 8, sep]] * 4)
    rows = comparison.side_by_side(titles, texts, (cls, sep, unk), np.random.default_rng(0))
    begins_with_title = set()
    for row, padded_ids in enumerate(rows["both"]):
        length = np.count_nonzero(padded_ids)
        ids, segments = padded_ids[:length], rows["segments"][row, :length]
        assert not rows["segments"][row, length:].any()
        assert ids[0] == cls
        sides = [ids[segments == 0][1:].tolist(), ids[segments == 1].tolist()]
        title = [x for x in titles[row].tolist() if x not in (0, cls)]
        begins_with_title.add(title == sides[0])
        if title != sides[0]:
            sides.reverse()
        assert title == sides[0]
        if row % 3 < 2:  # its own text, or that of the title before the last
            assert sides[1] == texts[row if row % 3 == 0 else row - 2].tolist()[1:]
        else:
            assert sides[1][-1] == sep
            assert {*sides[1]} <= {*title, *texts[row - 2].tolist()}
        expected = [
            -1 if x in (cls, sep, unk) else int(x in sides[0] and x in sides[1]) for x in ids
        ]
        not_asked = [-1] * (len(padded_ids) - length)
        assert rows["shared"][row].tolist() == expected + not_asked
        asked = [x for x in expected if x >= 0]
        assert rows["overlap"][row] == pytest.approx(sum(asked) / len(asked))
    assert begins_with_title == {True, False}


def test_a_copy_is_altered_by_a_random_fraction():
    title, other = np.array([1, *range(10, 20), 2]), np.array([1, *range(30, 60), 2])
    rng = np.random.default_rng(0)
    copies = [comparison.altered(title, other, rng) for _ in range(200)]
    kept = [np.isin(copy[1:-1], title).mean() for copy in copies]
    assert min(kept) < 0.1 < 0.9 < max(kept)
    assert 0.4 < np.mean(kept) < 0.6
    moved = [copy[1] in (15, 35) for copy in copies]  # the first token of the second half
    assert 0.4 < np.mean(moved) < 0.6
    assert all(copy[0] == 1 and copy[-1] == 2 and len(copy) == 12 for copy in copies)


def test_a_side_of_a_comparison_that_is_cut_ends_in_sep():
    ids = np.array([[1, *range(10, 50), 2], [1, 10, 2, *[0] * 39]])
    sides = comparison.cut(ids, 28, separator=2)
    assert sides[0].tolist() == [1, *range(10, 36), 2]
    assert sides[1].tolist() == [1, 10, 2, *[0] * 25]
    shorter = comparison.cut(ids[:, :5], 28, separator=2)
    assert shorter[0].tolist() == [1, 10, 11, 12, 2]


def test_a_step_compares_its_first_pairs_with_longer_texts_than_it_matches():
    sizes = {"title_length": 5, "text_length": 6, "compared_length": 9}
    batch = {"pair_batch_size": 4, "compared_batch_size": 2, "comparison_weight": 1.0}
    files = dict.fromkeys(("init_from", "rows", "characters", "pairs", "output"), "")
    batches = joint.Batches(JointConfig(**files, **sizes, **batch))
    tokenizer = SimpleNamespace(cls_id=1, sep_id=2, unk_id=3)
    pairs = np.full((8, 5), 7), np.full((8, 12), 8)
    rows = [({"token_ids": np.ones((1, 3))}, np.ones((1, 1)), np.ones((1, 1)))]
    batches.files = (tokenizer, pairs, pairs, rows)
    inputs, _, _ = batches(0)
    assert inputs["titles"].shape == (4, 5)
    assert inputs["texts"].shape == (4, 6)
    assert inputs["both"].shape == (2, 5 + 9 - 1)


def test_comparison_loss_is_that_of_tokens_plus_that_of_the_overlap():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 4, 2)).astype("float32")
    shared = np.array([[-1, 1, 0, -1], [-1, 0, -1, -1]])
    overlap = np.array([0.5, 0.0], "float32")
    probabilities = 1 / (1 + np.exp(-logits.astype("float64")))
    tokens = [probabilities[0, 1, 0], 1 - probabilities[0, 2, 0], 1 - probabilities[1, 1, 0]]
    first, second = probabilities[:, 0, 1]
    expected = -np.log(tokens).mean()
    expected -= (np.log(first) / 2 + np.log(1 - first) / 2 + np.log(1 - second)) / 2
    actual = comparison.comparison_loss(logits, shared, overlap)
    assert float(actual) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("comparison_weight", [0.0, 0.5])
def test_the_loss_is_the_sum_of_all_objectives(comparison_weight):
    keras.utils.set_random_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    model = RoFormerForMaskedLM(RoFormerConfig(vocab_size=30, intermediate_size=16, **sizes))
    files = dict.fromkeys(("init_from", "rows", "characters", "pairs", "output"), "")
    config = JointConfig(**files, pair_weight=0.7, comparison_weight=comparison_weight)
    trained = joint.training_model(model, config)
    trained.compile(
        joint.make_optimizer(config.optimizer, model.trainable_variables, 2),
        joint.MaskedTokenLoss(),
    )
    rng = np.random.default_rng(0)
    words = rng.integers(1, 30, (3, 6))
    rows = {
        "token_ids": words,
        "masked_positions": np.tile([2, 4], (3, 1)),
        "labels": words[:, [1, 3]],
    }
    weights = np.array([[1, 1], [1, 0], [0, 1]], "float32")
    texts = {"titles": padded(rng, 4), "texts": padded(rng, 7)}
    compared = comparison.side_by_side(*texts.values(), (1, 2, 3), rng)
    inputs = rows | texts | compared
    actual = trained.compute_loss(inputs, rows["labels"], trained(inputs), weights)
    losses = keras.ops.convert_to_numpy(model(rows))
    hidden = [keras.ops.convert_to_numpy(model.encoder({"token_ids": x})) for x in texts.values()]
    first = contrastive_loss(*(x[:, 0] for x in hidden), config.temperature)
    means = [
        np.stack([x[ids > 0].mean(axis=0) for x, ids in zip(each, tokens, strict=True)])
        for each, tokens in zip(hidden, texts.values(), strict=True)
    ]
    pairs = float(first) + float(contrastive_loss(*means, config.temperature))
    expected = (losses * weights).sum() / 4 + 0.7 * pairs
    if comparison_weight:
        both = {"token_ids": compared["both"], "segment_ids": compared["segments"]}
        logits = trained.comparison_head(model.encoder(both))
        differences = comparison.comparison_loss(logits, compared["shared"], compared["overlap"])
        expected += comparison_weight * float(differences)
    assert float(actual) == pytest.approx(expected, rel=1e-5)


def padded(rng, length):
    """Return three texts of tokens; the last one is padded."""
    tokens = rng.integers(1, 30, (3, length))
    tokens[-1, length - 2 :] = 0
    return tokens


def test_each_stage_reads_the_output_of_the_earlier_ones(tmp_path, monkeypatch):
    """Rows of words and of characters have one vocabulary; the last stage's model is the result."""
    commands, stages = [], []
    monkeypatch.setattr(mini, "command", lambda *words: commands.append([*map(str, words)]))
    monkeypatch.setattr(mini.joint, "main", stages.append)
    monkeypatch.setattr(mini.joint, "tokens_per_step", lambda config: 1)
    cards = []
    monkeypatch.setattr(mini, "write_card", lambda run, length, tokens: cards.append([*tokens]))
    (tmp_path / "text").mkdir()
    folders = dict.fromkeys(("clones", "corpora", "test_sets"), tmp_path)
    steps = {"steps": 5, "joint_steps": 7, "compare_steps": 9, "longer_steps": 3}
    assert mini.main(mini.MiniConfig(**folders, **steps, output=tmp_path)) == 0
    stage, *more = stages
    words, characters, training, converted = commands
    assert words[-1] == stage.rows != stage.characters == characters[-1]
    assert characters[characters.index("--vocab") + 1] == stage.rows
    assert {"char", "--whole-words"} <= {*characters}
    assert "--vocab-size" in words
    assert training[training.index("--rows") + 1] == stage.rows
    assert stage.init_from == f"{training[-1]}/model"
    assert stage.steps == 7
    assert stage.mixing.corpus_weights.keys() == {x.corpus for x in sources.SOURCES}
    third, fourth = more
    assert [x.init_from for x in more] == [f"{x.output}/model" for x in (stage, third)]
    assert [(x.steps, x.comparison_weight) for x in stages] == [(7, 0), (9, 1), (3, 1)]
    assert training[training.index("--steps") + 1] == "5"
    optimizers = [x.optimizer for x in stages]
    assert [x.decay_share for x in optimizers] == [0.4, 0.6, 0.6]
    assert [x.learning_rate for x in optimizers] == [7e-4, 7e-4, 5e-4]
    assert {x.weight_decay for x in optimizers} == {0.3}
    changed = {"init_from", "output", "steps", "seed", "comparison_weight", "optimizer"}
    longer = {"compared_length", "compared_batch_size"}
    for name in vars(stage).keys() - changed:
        assert getattr(third, name) == getattr(stage, name), name
        assert (getattr(fourth, name) == getattr(stage, name)) == (name not in longer), name
    (described,) = cards
    assert described == [*STAGES]
    assert converted[2:4] == [f"{fourth.output}/model", str(tmp_path / "model")]


@pytest.mark.slow
@pytest.mark.parametrize("comparison_weight", [0.0, 1.0])
def test_a_stage_trains_and_resumes(text_folder, tmp_path, comparison_weight):
    """A run killed after three steps and resumed gives the weights of an uninterrupted run."""
    rows, characters = tmp_path / "rows", tmp_path / "characters"
    corpus = [f"{name}={text_folder / name}.jsonl" for name in ("news", "questions")]
    flags = ["--length", "16", "--held-out", "0.3", "--workers", "1"]
    prepare = ["prepare", "--corpus", *corpus, *flags]
    assert roformer_tf([*prepare, "--vocab-size", "200", "--output", str(rows)]) == 0
    split = ["--vocab", str(rows), "--tokenization", "char", "--whole-words"]
    assert roformer_tf([*prepare, *split, "--output", str(characters)]) == 0
    vocabulary = len((rows / "vocab.txt").read_text(encoding="utf-8").splitlines())
    keras.utils.set_random_seed(0)
    model = RoFormerForMaskedLM(
        RoFormerConfig(
            vocab_size=vocabulary, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=16,
        )
    )  # fmt: skip
    model.tokenizer = joint.RoFormerTokenizer.from_pretrained(rows)
    model.save_pretrained(tmp_path / "start")

    def config(output, **settings):
        return JointConfig(
            init_from=str(tmp_path / "start"), rows=str(rows), characters=str(characters),
            pairs=str(text_folder / "pairs.jsonl"), output=str(tmp_path / output), steps=6,
            batch_size=3, character_rows=1, pair_batch_size=2,
            comparison_weight=comparison_weight, **settings,
        )  # fmt: skip

    joint.main(config("whole", save_every=6))
    (tmp_path / "parts").mkdir()  # pairs of other settings, from a run that saved no checkpoint
    np.savez(tmp_path / "parts" / joint.PAIRS, titles=np.ones((4, 3)), texts=np.ones((4, 3)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint.Batches, "__call__", _killed_at(joint.Batches.__call__, killed_step=3))
        with pytest.raises(Exception, match="killed"):
            joint.main(config("parts", save_every=2))
    joint.main(config("parts", save_every=2))
    first, second = (
        RoFormerForMaskedLM.from_pretrained(tmp_path / name / "model")
        for name in ("whole", "parts")
    )
    for name, variable in first.named_variables().items():
        np.testing.assert_array_equal(variable, second.named_variables()[name], err_msg=name)
    batches = [joint.Batches(config("whole"))(step) for step in range(6)]
    tokens = (rows / "vocab.txt").read_text(encoding="utf-8").splitlines()
    for row, has_words in ((0, True), (2, False)):  # the last row has characters
        learned = {tokens[i] for _, labels, used in batches for i in labels[row][used[row] > 0]}
        assert any(len(token) > 1 for token in learned) == has_words, learned
    losses = [line["loss"] for line in read_metrics(tmp_path / "parts" / "metrics.jsonl")]
    assert np.isfinite(losses).all()


def test_evaluation_rows_are_an_even_sample_of_all(monkeypatch):
    rows = SimpleNamespace(corpora={"news": 600, "law": 400})
    monkeypatch.setattr(joint.PreparedRows, "open", lambda *_: rows)
    monkeypatch.setattr(joint, "make_objective", lambda *_: None)
    monkeypatch.setattr(joint, "held_out_batches", lambda _, numbers, **__: numbers)
    folders = dict.fromkeys(("init_from", "rows", "characters", "pairs", "output"), "-")
    numbers = np.array(joint.held_out(JointConfig(**folders), None))
    assert len(numbers) == joint.EVALUATION_ROWS
    assert (numbers < 600).mean() == pytest.approx(0.6, abs=0.01)
    assert np.diff(numbers).max() == 2


def _killed_at(make, killed_step):
    def run_batch(batches, step):
        if step == killed_step:
            raise RuntimeError("killed")
        return make(batches, step)

    return run_batch
