"""Question answering: reading, windows, loss, decoding and metrics against reference code."""

import gzip
import json
import math

import keras
import numpy as np
import pytest
from nltk.tokenize import NLTKWordTokenizer

from roformer_tf.errors import InputError
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.questions import RIGHT, encode_questions
from roformer_tf.labelled.reading import find_layout, read_examples
from roformer_tf.labelled.splits import split_examples
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.extraction.answer_scoring import answer_f1, best_sentence, exact_match
from roformer_tf.tasks.extraction.question_answering import QuestionAnswering, best_span
from roformer_tf.tasks.losses import span_losses
from roformer_tf.tasks.table import TASKS
from tests.support.random_model import tokenizer_of

CONTEXT = "今天天气很好，我们去公园学习。中国经济发展，人民生活很好。"
LETTERS = "今天气很好我们去公园学习中国经济发展人民生活，。"


def question(number, answers, context=CONTEXT, **more):
    return {"id": f"q{number}", "context": context, "question": "我们去公园学习？", **more} | (
        {} if answers is None else {"answers": answers}
    )


def flat(*answers):
    return {"text": [text for text, _ in answers], "answer_start": [start for _, start in answers]}


def write_questions(folder, rows, name="train.jsonl.gz"):
    path = folder / name
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    return path


def read(path, task=None, **settings):
    columns = ColumnsConfig(**settings)
    layout = find_layout(path, columns, task, TASKS)
    assert layout.task is QuestionAnswering
    return read_examples(path, layout, columns)


# Files


ARTICLES = [
    {
        "title": "一",
        "paragraphs": [
            {
                "context": CONTEXT,
                "qas": [
                    {"id": "a", "question": "谁", "answers": [{"text": "我们", "answer_start": 7}]},
                    {"id": "b", "question": "何", "answers": [], "is_impossible": True},
                ],
            },
            {"context": "上海。", "qas": [{"id": "c", "question": "哪", "answers": ["上海"]}]},
        ],
    }
]
TRIAL = [
    {
        "context_id": "T",
        "context_text": CONTEXT,
        "qas": [
            {"query_text": "谁", "query_id": "a", "answers": ["我们", "我们去公园"]},
            {"query_text": "何", "query_id": "b", "answers": ["经济"]},
        ],
    }
]


def test_articles_of_a_test_set_have_no_answers_that_could_be_wrong(tmp_path):
    question = {"id": "d", "question": "谁"}
    path = tmp_path / "test.json"
    articles = [{"paragraphs": [{"context": CONTEXT, "qas": [question]}]}, *ARTICLES]
    path.write_text(json.dumps({"data": articles}), encoding="utf-8")
    assert [example.texts[0] for example in read(path)] == ["谁", "何", "哪"]


@pytest.mark.parametrize(
    ("name", "content", "want"),
    [
        ("flat.jsonl", None, ()),
        ("squad.json", {"version": "v2.0", "data": ARTICLES}, "indented"),
        ("squad.json", {"data": ARTICLES, "version": "v2.0"}, "one line"),
        ("articles.json", ARTICLES, "one line"),
        ("trial.json", TRIAL, "indented"),
    ],
)
def test_every_layout_is_read(name, content, want, tmp_path):
    if content is None:
        path = write_questions(tmp_path, [question(1, flat(("我们", 7), ("我们去", 7)))], name)
        (example,) = read(path)
        assert example.texts == ("我们去公园学习？", CONTEXT)
        assert example.label == (("我们", 7), ("我们去", 7))
        return
    indent = 2 if want == "indented" else None
    path = tmp_path / name
    path.write_text(json.dumps(content, ensure_ascii=False, indent=indent), encoding="utf-8")
    labels = {example.texts[0]: example.label for example in read(path)}
    if content is TRIAL:
        assert labels == {"谁": (("我们", 7), ("我们去公园", 7)), "何": (("经济", 17),)}
    else:
        assert labels == {"谁": (("我们", 7),), "何": (), "哪": (("上海", 0),)}


def test_answers_are_located_near_their_start_or_skipped(tmp_path, capsys):
    rows = [
        question(1, flat(("很好", 4))),
        question(2, flat(("很好", 20))),
        question(3, flat((" 很好 ", 3))),
        question(4, flat(("不在", 4), ("公园", 4))),
        question(5, flat(("不在", 4))),
        question(6, flat(("很好", 4)), context=" "),
        {"id": "q7", "context": CONTEXT, "question": "", "answers": flat(("很好", 4))},
        question(8, {"text": "很好"}),
        question(9, 3),
        question(10, flat()),
    ]
    examples = read(write_questions(tmp_path, rows))
    numbers = [int(example.source_line.rpartition(":")[2]) for example in examples]
    assert dict(zip(numbers, (example.label for example in examples), strict=True)) == {
        1: (("很好", 4),),
        2: (("很好", 26),),
        3: (("很好", 4),),
        4: (("公园", 10),),
        8: (("很好", 4),),
        10: (),
    }
    message = capsys.readouterr().err
    assert "4 of 10 rows skipped" in message
    for problem in (
        ":5 has an answer that is not in its context, such as '不在'",
        ":6 has an empty text in 'context'",
        ":7 has an empty text in 'question'",
        ":9 has answers that are neither",
    ):
        assert problem in message


def test_answers_in_a_csv_written_by_pandas_are_read(tmp_path):
    cells = ["谁", CONTEXT, str(flat(("我们", 7)))]
    line = ",".join(f'"{cell}"' for cell in cells)
    (path := tmp_path / "train.csv").write_text(f"question,context,answers\n{line}\n", "utf-8")
    assert [example.label for example in read(path)] == [(("我们", 7),)]


def test_column_names_can_be_passed(tmp_path):
    rows = [{"q": "谁", "文": CONTEXT, "a": flat(("我们", 7))}]
    path = write_questions(tmp_path, rows)
    (example,) = read(path, "question-answering", text_columns=("q", "文"), label_column="a")
    assert example.texts == ("谁", CONTEXT)
    with pytest.raises(InputError, match="no column 'question'"):
        read(path, "question-answering")
    with pytest.raises(InputError, match=r"columns of the task question-answering: 2, not 1 \(q\)"):
        read(path, "question-answering", text_columns=("q",), label_column="a")


def test_questions_about_one_context_stay_in_one_split():
    examples = [
        Example((f"问{i}", f"文{i % 20}"), (("文", 0),) if i % 3 else (), f"f:{i}")
        for i in range(200)
    ]
    sets = split_examples(examples, QuestionAnswering, (0.2, 0.2))
    contexts = [{example.texts[1] for example in part} for part in sets]
    assert all(contexts)
    assert sum(map(len, contexts)) == 20


# Windows and targets


@pytest.mark.parametrize("max_length", [12, 17, 30, 100])
def test_windows_cover_the_context_and_mark_the_answer(max_length):
    tokenizer = tokenizer_of(LETTERS)
    labels = [(("公园", 10),), (("很好", 4), ("人民生活", 22)), (), (("。", 28),), (("今", 0),)]
    examples = [Example(("我们去", CONTEXT), label, f"f:{i}") for i, label in enumerate(labels)]
    task = QuestionAnswering.from_examples(examples, max_length=max_length)
    encoded = task.labelling.encode(examples, tokenizer)
    targets, weights = task.labelling.row_targets(encoded, examples)
    for number, label in enumerate(labels):
        rows = np.flatnonzero(encoded.example == number)
        assert weights[rows].sum() == pytest.approx(1)
        seen = set()
        for row in rows:
            ids, spans = encoded.token_ids[row], encoded.spans[row]
            assert len(ids) <= max_length
            assert ids[:5].tolist() == [
                tokenizer.cls_id,
                *tokenizer.ids("我们去"),
                tokenizer.sep_id,
            ]
            shown = [CONTEXT[a:b] for a, b in spans[5:-1]]
            assert ids[5:-1].tolist() == tokenizer.ids("".join(shown))
            assert encoded.segment_ids[row].tolist() == [0] * 5 + [1] * len(spans[5:])
            seen |= {int(a) for a, _ in spans[5:-1]}
            contained = [
                (s, s + len(t)) for t, s in label if spans[5][0] <= s and s + len(t) <= spans[-2][1]
            ]
            right = [np.flatnonzero(targets[row][:, side] == RIGHT).tolist() for side in (0, 1)]
            if contained:
                assert {int(spans[i][0]) for i in right[0]} == {s for s, _ in contained}
                assert {int(spans[i][1]) for i in right[1]} == {e for _, e in contained}
            else:
                assert right == [[0], [0]]
            possible = np.flatnonzero(targets[row].min(axis=1) > 0)
            assert possible.tolist() == [0, *range(5, len(ids) - 1)]
        assert seen == set(range(len(CONTEXT)))


def repeated_example(count, label, name):
    return [Example(("我", CONTEXT), label, f"f:{name}{i}") for i in range(count)]


def test_an_answer_longer_than_a_window_has_no_answer_targets():
    examples = repeated_example(1, ((CONTEXT[:20], 0),), "long")
    task = QuestionAnswering.from_examples(examples, max_length=16)
    data = task.labelling.training_data(examples, tokenizer_of(LETTERS))
    for epoch in range(4):
        inputs, targets, _ = data.batches(1, seed=3)[epoch]
        assert (inputs["token_ids"] > 0).sum() == 16
        assert np.argwhere(targets[0] == RIGHT).tolist() == [[0, 0], [0, 1]]


def test_unlearnable_questions_are_rejected():
    examples, tokenizer = repeated_example(2, (("公园", 10),), "a"), tokenizer_of(LETTERS)
    with pytest.raises(InputError, match="max_length is 4, but must be at least 5, for a question"):
        encode_questions(examples, tokenizer, 4)
    with pytest.raises(InputError, match="no training question has an answer"):
        QuestionAnswering.from_examples(repeated_example(3, (), "none"))


def test_training_windows_contain_the_answer_and_vary_between_epochs():
    tokenizer = tokenizer_of(LETTERS)
    examples = [*repeated_example(40, (("公园", 10),), "a"), *repeated_example(10, (), "b")]
    task = QuestionAnswering.from_examples(examples, max_length=16)
    data = task.labelling.training_data(examples, tokenizer)
    batches = data.batches(50, seed=3)
    begins, with_answer = set(), 0
    for epoch in range(4):
        inputs, targets, weights = batches[epoch]
        assert weights.sum() == 50
        assert targets.shape == (*inputs["token_ids"].shape, 2)
        for ids, target in zip(inputs["token_ids"], targets, strict=True):
            context = ids[3 : np.flatnonzero(ids == tokenizer.sep_id)[1]]
            begin = CONTEXT.index(tokenizer.decode(context))
            begins.add(begin)
            right = [np.flatnonzero(target[:, side] == RIGHT).tolist() for side in (0, 1)]
            if right != [[0], [0]]:
                with_answer += 1
                assert right == [[3 + 10 - begin], [3 + 11 - begin]]
    assert len(begins) > 8
    assert 0.75 * 160 < with_answer < 160
    for first, again in zip(batches[2], data.batches(50, seed=3)[2], strict=True):
        assert json.dumps(first, default=np.ndarray.tolist) == json.dumps(
            again, default=np.ndarray.tolist
        )


def test_a_token_partly_covered_by_the_answer_is_included():
    tokenizer = tokenizer_of(LETTERS)
    examples = [Example(("我", "今天 2023年"), (("023", 4),), "f:1")]
    encoded = encode_questions(examples, tokenizer, 20)
    (target,), _ = QuestionAnswering().labelling.in_rows(encoded, [np.array([[4, 7]])])
    start, end = (int(np.flatnonzero(target[:, side] == RIGHT)[0]) for side in (0, 1))
    assert ("今天 2023年"[encoded.spans[0][start][0] : encoded.spans[0][end][1]]) == "2023"


# Loss and decoding


def test_the_loss_equals_a_numpy_reference():
    rng = np.random.default_rng(0)
    marks = rng.choice(3, (6, 9, 2), p=[0.4, 0.4, 0.2])
    marks[:, 0] = 2
    marks[5] = 0  # padding
    targets = marks.astype("int8")
    logits = rng.normal(scale=5, size=(6, 9, 2)).astype("float32")
    losses = keras.ops.convert_to_numpy(span_losses(targets, logits))
    assert losses[5] == 0
    for row in range(5):
        side_losses = []
        for side in (0, 1):
            exponents = np.exp(logits[row, :, side].astype("float64"))
            right = exponents[marks[row, :, side] == 2].sum()
            side_losses.append(-math.log(right / exponents[marks[row, :, side] > 0].sum()))
        assert losses[row] == pytest.approx(sum(side_losses) / 2, abs=1e-5)


def spans_of(length, question_end, start):
    """Spans of [CLS], a question, a context that starts at `start`, and [SEP].

    Each context token has two characters.
    """
    spans = np.full((length, 2), -1)
    inside = np.arange(length - question_end - 1)
    spans[question_end : length - 1] = start + 2 * np.stack([inside, inside + 1], axis=1)
    return spans


@pytest.mark.parametrize("longest", [None, 1, 2, 7])
def test_the_best_span_equals_a_brute_force_search(longest):
    rng = np.random.default_rng(1)
    for _ in range(20):
        windows = [
            (rng.normal(scale=3, size=(12, 2)).astype("float32"), spans_of(12, 3, start))
            for start in (0, 6, 20)
        ]
        scores = {}
        for window, (logits, spans) in enumerate(windows):
            for first in range(3, 11):
                for last in range(first, 11):
                    start, end = spans[first][0], spans[last][1]
                    if longest is None or first == last or end - start <= longest:
                        value = float(logits[first, 0]) + float(logits[last, 1])
                        value -= float(logits[0, 0]) + float(logits[0, 1])
                        scores[window, int(start), int(end)] = value
        best = max(scores, key=scores.__getitem__)
        got = best_span(windows, longest)
        assert (got.start, got.end) == best[1:]
        assert got.margin == pytest.approx(scores[best], abs=1e-5)
        assert got.total == pytest.approx(math.log(sum(map(math.exp, scores.values()))), abs=1e-5)


def test_a_context_without_tokens_has_no_answer():
    tokenizer = tokenizer_of(LETTERS)
    task = QuestionAnswering(text_columns=("question", "context"))
    encoded = task.labelling.encode([Example(("我", "\u200b"), None, "")], tokenizer)
    logits = [np.zeros((len(ids), 2), "float32") for ids in encoded.token_ids]
    (prediction,) = task.decoding.read_rows(logits, encoded)
    example = Example(("我", "\u200b"), None, "")
    want = {"answer": "", "start": None, "score": 1.0}
    assert task.decoding.as_json(example, prediction) == want


@pytest.mark.parametrize("seed", range(5))
def test_the_no_answer_threshold_has_the_highest_f1(seed):
    rng = np.random.default_rng(seed)
    gold = [(("甲乙", 0),) if rng.random() < 0.5 else () for _ in range(40)]
    predictions = [
        Prediction(((str(rng.choice(["甲乙", "甲", "丙"])), 0),), np.array([0.1, p], "float32"))
        for p in rng.choice([0.1, 0.3, 0.35, 0.6, 0.9, 1.0], 40)
    ]
    task = QuestionAnswering(unanswerable=True)
    chosen = task.decoding.with_choices(gold, predictions)

    def f1(threshold):
        answers = ["" if p.scores[1] >= threshold else p.label[0][0] for p in predictions]
        return np.mean([answer_f1(x, y) for x, y in zip(answers, gold, strict=True)])

    best = max(map(f1, (0, 0.2, 0.32, 0.5, 0.8, 0.95)))
    assert f1(chosen.no_answer_threshold) == pytest.approx(best)
    reread = list(map(chosen.decoding.reread, predictions))
    assert chosen.metrics.compute(gold, reread)["f1"] == pytest.approx(best)
    assert QuestionAnswering().decoding.with_choices(gold, predictions) == QuestionAnswering()


# Metrics


REMOVED = "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』"


def split_units(text):
    """Split into Chinese characters, and what nltk makes of the rest, without punctuation."""
    units, rest = [], ""
    for character in [x for x in text.lower().strip() if x not in REMOVED] + ["一"]:
        if "\u4e00" <= character <= "\u9fa5":
            units += [*NLTKWordTokenizer().tokenize(rest), character]
            rest = ""
        else:
            rest += character
    return units[:-1]


def substrings(units):
    return {tuple(units[a:b]) for a in range(len(units)) for b in range(a + 1, len(units) + 1)}


def official_f1(answer, references):
    values = []
    for text in references:
        a, b = split_units(answer), split_units(text)
        common = max((len(x) for x in substrings(a) & substrings(b)), default=0)
        precision, recall = (common / len(x) if x else 0 for x in (a, b))
        total = precision + recall
        values.append(2 * precision * recall / total if total else 0)
    return max(values)


def official_exact(answer, references):
    def plain(text):
        return "".join(x for x in text.lower().strip() if x not in REMOVED)

    return any(plain(answer) == plain(text) for text in references)


def test_f1_and_exact_match_equal_cmrc_evaluation():
    rng = np.random.default_rng(0)
    parts = ["中", "国", "经济", "，", "《", "》", "。", "NBA", "Java", " ", "2008", "年", "-", "·"]
    parts += ["80-95cm", "S.K.", "1,000", "3.5%", "C++", "MP3", "、", "(", ")", ", ", "~", "R"]

    def text():
        return "".join(rng.choice(parts, rng.integers(1, 8)))

    for _ in range(1000):
        answer, references = text(), [text() for _ in range(rng.integers(1, 4))]
        if rng.random() < 0.3:
            answer = f"《{references[0].lower()}》"
        labelled = [(x, 0) for x in references]
        assert answer_f1(answer, labelled) == pytest.approx(official_f1(answer, references))
        assert exact_match(answer, labelled) == official_exact(answer, references)


@pytest.mark.parametrize(
    ("answer", "references", "f1", "exact"),
    [
        ("《红楼梦》", ["红楼梦"], 1, True),
        ("红楼", ["红楼梦", "水浒传"], 0.8, False),
        ("NBA 总决赛", ["nba总决赛"], 1, False),
        ("3.5亿", ["3.5亿元"], 2 * 2 / 5, False),
        ("", ["红楼梦"], 0, False),
        ("", [], 1, True),
        ("红", [], 0, False),
    ],
)
def test_f1_and_exact_match_of_known_answers(answer, references, f1, exact):
    labelled = [(text, 0) for text in references]
    assert answer_f1(answer, labelled) == pytest.approx(f1)
    assert exact_match(answer, labelled) is exact


def test_the_baseline_returns_the_sentence_most_similar_to_the_question():
    assert best_sentence("中国经济怎么样？", CONTEXT) == ("中国经济发展，人民生活很好。", 15)
    assert best_sentence("天气", "天气") == ("天气", 0)
