"""The whole `make poems` on a few artificial poems: output, figures and files."""

import json
import re
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import pytest
import yaml

from pretrain.poems.__main__ import HELD_OUT, ORDER, Poems, main, make
from pretrain.poems.corpus import read_corpus
from pretrain.poems.forms import FORMS, MARKS, is_of_form, with_marks
from pretrain.poems.kneser_ney import KneserNey, bits
from pretrain.poems.measures import measure
from pretrain.poems.writing import plan_shown, write_shown
from roformer_tf.corpus.part_writer import is_held_out
from roformer_tf.errors import InputError
from roformer_tf.models.heads import RoFormerForCausalLM
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

CHARACTERS = (
    "白日依山盡黃河入海流欲窮千里目更上一層樓朝辭帝彩雲間江陵還兩岸猿聲啼不住輕舟已過萬重中"
)
RHYMES = ("里依", "樓舟", "中重")  # i, ou, ong
ARCHITECTURE = {
    "vocab_size": 1,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
FLAGS = {
    "objective": "causal",
    "batch-size": 8,
    "log-every": 100,
    "evaluation-rows": 8,
    "learning-rate": 2e-2,
    "optimizer": "muon",
    "precision": "float32",
}


@pytest.fixture(scope="module")
def poems(tmp_path_factory):
    """The settings for a corpus of random poems of the four forms whose even lines rhyme."""
    pytest.importorskip("pypinyin", reason="pypinyin is not installed: pip install -e '.[poems]'")
    folder = tmp_path_factory.mktemp("poems")
    corpus, architecture, config = folder / "corpus", folder / "a.json", folder / "c.yaml"
    corpus.mkdir()
    architecture.write_text(json.dumps(ARCHITECTURE))
    config.write_text(yaml.safe_dump({"architecture": str(architecture)} | FLAGS))
    rng = np.random.default_rng(0)
    all_poems = []
    for number in range(1000):
        form, rhyme = FORMS[number % 4], RHYMES[number % 3]
        lines = ["".join(x) for x in rng.choice(list(CHARACTERS), (form.lines, form.size))]
        lines[1::2] = [line[:-1] + str(rng.choice(list(rhyme))) for line in lines[1::2]]
        all_poems.append({"paragraphs": [with_marks(lines)]})
    (corpus / "poet.tang.0.json").write_text(json.dumps(all_poems))
    return Poems(corpus=corpus, output=folder / "run", config=config, steps=200, samples=20)


@pytest.fixture(scope="module")
def printed(poems):
    """The output of the whole command."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
        patch.setattr("pretrain.poems.__main__.TRIES", 3)
        assert make(poems) == 0
    return out.getvalue()


@pytest.fixture(scope="module")
def figures(poems, printed):
    return json.loads((poems.output / "poems.json").read_text(encoding="utf-8"))


def split(poems):
    """Return the held-out poems and the training poems."""
    all_poems = read_corpus(poems.text)
    return [
        [p for p in all_poems if is_held_out(p.text, HELD_OUT) == side] for side in (True, False)
    ]


@pytest.mark.slow
def test_the_bits_equal_a_reference_on_the_held_out_poems(poems, figures, printed):
    """The bits of the model and of the n-grams equal a reference.

    The reference computes the model's with NumPy, and counts n-grams in the corpus instead of rows.
    """
    model = RoFormerForCausalLM.from_pretrained(poems.output / "model")
    tokenizer = RoFormerTokenizer.from_pretrained(poems.rows)
    held_out, trained = split(poems)
    ids = {p.text: tokenizer.encode(p.text)[0] for p in (*held_out, *trained)}
    rows = tokenizer([p.text for p in held_out])["token_ids"]
    logits = np.asarray(model({"token_ids": rows}), "float64")[:, :-1]
    targets = rows[:, 1:]
    likely = np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    losses = np.logaddexp.reduce(logits, axis=-1) - likely
    letters = [tokenizer.vocabulary[c] for c in CHARACTERS]
    fronts = [number for token, number in tokenizer.vocabulary.items() if "a" <= token[0] <= "z"]
    characters = sum(p.form.characters for p in held_out)
    model_bits = losses[np.isin(targets, [*letters, *fronts])].sum() / np.log(2) / characters
    assert figures["held_out"]["poems"] == len(held_out)
    assert figures["held_out"]["characters"] == characters
    assert figures["held_out"]["model"] == pytest.approx(model_bits, abs=1e-4)

    def stream(chosen):
        tokens = np.concatenate([ids[p.text] for p in chosen])
        return tokens, tokens == tokenizer.cls_id

    counted = KneserNey(*stream(trained), ORDER, tokenizer.vocab_size)
    tokens, begins = stream(held_out)
    never = [tokenizer.vocabulary[x] for x in (*MARKS, "[SEP]")]
    kneser_ney_bits = bits(counted, tokens, begins, never)[
        np.isin(tokens[~begins], [*letters, *fronts])
    ]
    kneser_ney_bits = kneser_ney_bits.sum() / characters
    assert figures["held_out"]["kneser_ney"] == pytest.approx(kneser_ney_bits, abs=1e-9)
    message = re.findall(
        r"^  (characters counted|this model)\D.* +([\d.]+)$", printed, re.MULTILINE
    )
    for (_, number), expected in zip(message, (kneser_ney_bits, model_bits), strict=True):
        assert float(number) == pytest.approx(expected, abs=0.0051)


@pytest.mark.slow
def test_the_requested_number_of_poems_is_measured_each_by_its_form(poems, figures, printed):
    held_out, trained = split(poems)
    fronts = [poem["asked"] for poem in figures["poems"]]
    assert len(fronts) == 20
    assert set(fronts) <= {p.front for p in held_out}
    texts_with_forms = [
        (next(f for f in FORMS if poem["asked"].startswith(f.token)), poem["text"])
        for poem in figures["poems"]
    ]
    measured = measure(texts_with_forms, {line for p in trained for line in p.lines})
    assert measured.of_form > 0.3  # it has learned to count
    assert figures["written"] == measured._asdict() | {"rhymes": measured.rhymes._asdict()}
    shares = (
        measured.of_form,
        measured.rhymes.share,
        figures["real"]["rhymes"]["alike"] / figures["real"]["rhymes"]["pairs"],
    )
    message = re.findall(r"^  (?:have|pairs| .*real).* ([\d.]+)%$", printed, re.MULTILINE)
    assert message == [f"{100 * share:.1f}" for share in shares]
    assert figures["real"]["of_form"] == figures["real"]["new_lines"] == 1.0


@pytest.mark.slow
def test_shown_poems_start_from_first_lines_forms_or_nothing(poems, figures, printed):
    held_out, _ = split(poems)
    shown = re.findall(r"^  (..)  (?:（(\S+)）)?(\S+。)$", printed, re.MULTILINE)
    assert len(shown) > 6
    by_name = {form.name: form for form in FORMS}
    first_lines = {p.lines[0]: p.form for p in held_out}
    arguments = 0
    page = (poems.output / "poems.html").read_text(encoding="utf-8")
    for name, line, rest in shown:
        text = line + rest if line else rest
        assert is_of_form(text, by_name[name])
        assert text in page
        if line:
            arguments += 1
            assert first_lines[line] is by_name[name]
    assert arguments > 0


@pytest.mark.slow
def test_a_second_run_does_not_train_and_writes_the_same_figures(poems, figures, capsys):
    before = (poems.output / "poems.json").read_bytes()
    assert (
        main(
            [f"--{key}={getattr(poems, key)}" for key in ("corpus", "output", "config", "samples")]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "the run is finished: 200 steps" in out
    assert (poems.output / "poems.json").read_bytes() == before


@pytest.mark.slow
def test_given_first_lines_are_continued_in_both_forms(poems, figures, capsys):
    model = RoFormerForCausalLM.from_pretrained(poems.output / "model")
    line = "白日依山盡"
    given_line = Poems(output=poems.output, first_lines=(line,), seed=3)
    shown = [p for p in write_shown(model, given_line, split(poems)[0]) if p.kind == "first line"]
    assert shown
    assert {p.form.token for p in shown} <= {"wujue", "wulv"}
    assert all(p.lines[0] == p.first_line == line for p in shown)
    given_form = Poems(output=poems.output, form="qijue")
    assert {p.form.token for p in write_shown(model, given_form, split(poems)[0])} == {"qijue"}
    given_rhyme = Poems(output=poems.output, form="qilv", rhyme="an")
    assert {p.front for p in plan_shown(given_rhyme, split(poems)[0])} == {"qilvan"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--corpus", "elsewhere"], "was started with the poems of"),
        (["--first-lines", "龍龍龍龍龍"], "traditional characters"),
        (["--first-lines", "白日依山"], "not a line of five or seven"),
        (["--form", "haiku"], "wujue, qijue, wulv, qilv"),
        (["--rhyme", "xyz"], "in which no poem rhymes"),
        (["--minutes", "0"], "above 0"),
        (["--samples", "0"], "at least 1"),
    ],
)
@pytest.mark.slow
def test_bad_flags_give_one_message(poems, figures, capsys, flags, message):
    usual = [f"--corpus={poems.corpus}", f"--output={poems.output}", f"--config={poems.config}"]
    try:
        code = main([*usual, *flags])
    except SystemExit as ended:  # raised by the argument parser
        code = ended.code
    assert code == 2
    out, error = capsys.readouterr()
    assert message in " ".join(error.split())
    assert "Traceback" not in error
    assert not out


@pytest.mark.slow
def test_the_number_of_steps_follows_from_minutes_and_measured_speed(
    poems, figures, monkeypatch, tmp_path
):
    commands = []

    def command(*words):
        commands.append([str(word) for word in words])
        return 0

    monkeypatch.setattr("pretrain.poems.__main__.command", command)
    monkeypatch.setattr("pretrain.demo.__main__.command", command)
    monkeypatch.setattr("pretrain.demo.__main__.steps_per_second", lambda run, length: 2.5)
    monkeypatch.setattr("pretrain.poems.__main__.report", lambda poems: None)
    assert make(Poems(corpus=poems.corpus, output=tmp_path / "new", minutes=3)) == 0
    assert [words[0] for words in commands] == ["prepare", "pretrain", "pretrain"]
    assert commands[-1][commands[-1].index("--steps") + 1] == "450"
    commands.clear()
    assert make(poems) == 0
    assert [words[0] for words in commands] == ["prepare", "pretrain"]


def test_a_missing_pypinyin_is_reported_before_any_work(monkeypatch, tmp_path, capsys):
    def missing(character):
        raise InputError("not installed. Run `make poems`.")

    monkeypatch.setattr("pretrain.poems.__main__.final_of", missing)
    assert main(["--output", str(tmp_path / "run")]) == 2
    assert "make poems" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
