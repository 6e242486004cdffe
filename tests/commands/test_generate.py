"""`roformer-tf generate`: arguments, outputs and errors."""

import csv
import os
import re
import sys

import numpy as np
import pytest

from roformer_tf import cli
from roformer_tf.inference import generate
from roformer_tf.inference.generate import GenerateConfig, nearest_paraphrases, sampling_settings
from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.models.heads import RoFormerForCausalLM, RoFormerForSentenceSimilarity


@pytest.fixture(scope="module", autouse=True)
def eager_generation(eagerly):
    """Generate few tokens eagerly."""
    with eagerly():
        yield


@pytest.fixture(scope="module")
def gpt(released):
    return RoFormerForCausalLM.from_pretrained(released("gpt_char"))


@pytest.fixture(scope="module")
def sim(released):
    return RoFormerForSentenceSimilarity.from_pretrained(released("sim_char"))


@pytest.fixture
def run(capsys):
    """run("gpt.zip", "今天", …) → exit code, stdout, stderr."""

    def run(model, *flags):
        try:
            code = cli.main(["generate", "--model", str(model), *map(str, flags)])
        except SystemExit as stopped:  # wrong flags
            code = stopped.code
        return (code, *capsys.readouterr())

    return run


def table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_stdout_contains_only_the_generated_texts(run, released, gpt):
    code, out, err = run(released("gpt_char"), "今天", "天气很", "--max-tokens", 6)
    assert code == 0
    assert out.split("\n")[:-1] == [x[0] for x in gpt.generate(["今天", "天气很"], max_tokens=6)]
    assert "prompts: 2;" in err


def test_flags_set_the_sampling_settings(run, released, gpt):
    flags = {
        "max_tokens": 7, "min_tokens": 5, "samples": 3, "temperature": 1.5, "top_k": 9,
        "top_p": 0.8, "repetition_penalty": 1.3, "seed": 4,
    }  # fmt: skip
    typed = [x for name, value in flags.items() for x in (f"--{name.replace('_', '-')}", value)]
    code, out, _ = run(released("gpt_char"), "今天", *typed)
    assert code == 0
    assert out.split("\n")[:-1] == gpt.generate(["今天"], **flags)[0]


def test_flags_set_the_beam_search(run, released, gpt):
    flags = ("--beams", 4, "--length-penalty", 2.0, "--max-tokens", 6, "--stop", "的", "。")
    code, out, _ = run(released("gpt_char"), "今天", *flags)
    expected = gpt.generate(["今天"], beams=4, length_penalty=2.0, max_tokens=6, stop=("的", "。"))
    assert (code, out) == (0, expected[0][0] + "\n")


@pytest.mark.slow
def test_one_seed_gives_the_same_text_in_another_process(start_command, released, gpt):
    flags = ("--samples", 3, "--temperature", 1.5, "--seed", 7, "--max-tokens", 8)
    process = start_command(
        "roformer-tf", "generate", "--model", released("gpt_char"), "今天", *flags
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    expected = gpt.generate(["今天"], samples=3, temperature=1.5, seed=7, max_tokens=8)[0]
    assert out.split("\n")[:-1] == expected
    assert len(err.splitlines()) == 1  # only the elapsed time, and no message of TensorFlow


def test_flags_set_precision_and_batch_size(run, released, monkeypatch):
    calls = {}

    def spy(model, prompts, config, *, rows, **settings):
        calls.update(dtype=model.compute_dtype, rows=rows)
        return generate_ids(model, prompts, config, rows=rows, **settings)

    generate_ids = RoFormerForCausalLM.generate_ids
    monkeypatch.setattr(RoFormerForCausalLM, "generate_ids", spy)
    flags = ("--precision", "bfloat16", "--batch-size", 3, "--max-tokens", 2)
    assert run(released("gpt_char"), "今天", *flags)[0] == 0
    assert calls == {"dtype": "bfloat16", "rows": 3}


def test_a_stream_ends_with_its_reader(released, monkeypatch):
    """`| head -c 3` closes the pipe like this."""
    read, write = os.pipe()
    os.close(read)
    flags = ["--model", str(released("gpt_char")), "今天", "--stream", "--max-tokens", "3"]
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert cli.main(["generate", *flags]) == 0


def test_stream_prints_a_text_while_it_is_generated(run, released, gpt, monkeypatch):
    calls_of_print = []
    monkeypatch.setattr("builtins.print", lambda *a, **k: calls_of_print.append((a, k)))
    assert cli.main(
        ["generate", "--model", str(released("gpt_char")), "今天", "--stream", "--max-tokens", "6"]
    ) == 0  # fmt: skip
    printed = [a[0] for a, k in calls_of_print if a and k.get("flush")]
    assert len(printed) > 3
    assert "".join(printed) == gpt.generate(["今天"], max_tokens=6)[0][0]


def test_a_file_gives_a_line_with_a_score_for_each_text(run, released, gpt, tmp_path):
    texts = ["今天", "天气很好的时候", "公园"]
    source, target = tmp_path / "prompts.txt", tmp_path / "written.tsv"
    source.write_text("\n".join(texts) + "\n", encoding="utf-8")
    flags = ("--input", source, "--output", target, "--max-tokens", 5)
    code, out, _ = run(released("gpt_char"), *flags, "--samples", 2, "--seed", 1)
    assert (code, out) == (0, "")
    header, *rows = table(target)
    assert header == ["input", "output", "score"]
    assert [row[0] for row in rows] == [text for text in texts for _ in range(2)]
    expected = gpt.generate(texts, max_tokens=5, samples=2, seed=1)
    assert [row[1] for row in rows] == [item for outputs in expected for item in outputs]
    assert all(float(row[2]) < 0 for row in rows)


def test_equal_prompts_of_a_long_file_have_different_samples(
    run, released, gpt, tmp_path, monkeypatch
):
    monkeypatch.setattr(generate, "CHUNK", 2)
    texts = ["今天", "公园", "今天", "今天", "今天"]
    source, target = tmp_path / "prompts.txt", tmp_path / "written.tsv"
    source.write_text("\n".join(texts) + "\n", encoding="utf-8")
    flags = ("--input", source, "--output", target, "--max-tokens", 8, "--temperature", 1.5)
    assert run(released("gpt_char"), *flags)[0] == 0
    written = [row[:2] for row in table(target)[1:]]
    expected = gpt.generate(texts, max_tokens=8, temperature=1.5)
    assert written == [[text, output] for text, (output,) in zip(texts, expected, strict=True)]
    assert len({output for _, output in written}) == len(texts)


def test_a_sim_model_generates_paraphrases(run, released, sim, tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "CHUNK", 1)  # the second text is in a chunk of its own
    source, target = tmp_path / "prompts.tsv", tmp_path / "written.tsv"
    source.write_text("text\n今天天气很好\n我们去公园\n", encoding="utf-8")
    flags = ("--input", source, "--output", target, "--max-tokens", 6, "--paraphrases", 3)
    code, _, err = run(released("sim_char"), *flags)
    assert code == 0, err
    rows = table(target)[1:]
    for text in ("今天天气很好", "我们去公园"):
        paraphrases = [(row[1], float(row[2])) for row in rows if row[0] == text]
        assert len(paraphrases) == 3
        assert text not in [item for item, _ in paraphrases]
        vectors = sim.embed([text, *[item for item, _ in paraphrases]])
        cosines = vectors[1:] @ vectors[0]
        np.testing.assert_allclose([score for _, score in paraphrases], cosines, atol=1e-5)
        assert (np.diff(cosines) <= 1e-6).all()
        drawn = sim.generate([text], max_tokens=6, samples=20, top_k=5)[0]
        rest = [x for x in dict.fromkeys(drawn) if x and x != text]
        vectors = sim.embed([text, *rest])
        best = np.argsort(-(vectors[1:] @ vectors[0]), kind="stable")[:3]
        assert [item for item, _ in paraphrases] == [rest[number] for number in best]


def test_paraphrases_are_sampled_as_released_by_default():
    def drawn(count, **settings):
        config = GenerateConfig(
            model="m", text=("今天",), paraphrases=count, generation=GenerationConfig(**settings)
        )
        actual = sampling_settings(config.generation, config.paraphrases)
        return actual.samples, actual.top_k, actual.top_p

    assert drawn(3) == (20, 5, None)
    assert drawn(10) == (40, 5, None)
    assert drawn(3, samples=7) == (7, 5, None)
    assert drawn(3, top_k=9) == (20, 9, None)
    assert drawn(3, top_p=0.9) == (20, None, 0.9)


def test_paraphrases_exclude_the_source_and_duplicates(sim):
    texts = ["今天天气很好", "Deep Learning"]  # the model generates no capitals
    drawn = [["我们", texts[0], "我们", "", "去公园"], ["deep learning", "学习"]]
    actual = nearest_paraphrases(sim, texts, drawn, 9)
    assert [sorted(x.text for x in outputs) for outputs in actual] == [["去公园", "我们"], ["学习"]]


def test_a_sim_model_is_greedy_by_default(run, released, sim):
    _, out, _ = run(released("sim_char"), "今天天气很好", "--max-tokens", 6)
    assert out == sim.generate(["今天天气很好"], max_tokens=6)[0][0] + "\n"


@pytest.mark.parametrize(
    ("model", "flags", "message"),
    [
        ("gpt_char", (), "give prompts"),
        ("gpt_char", ("",), "blank"),
        ("gpt_char", ("今天", " "), "text 2 is blank"),
        ("gpt_char", ("今" * 600,), "601 tokens"),
        ("gpt_char", ("😀🙂",), "no character"),
        ("gpt_char", ("今天", "--top-p", "0"), "--top-p is 0"),
        ("gpt_char", ("今天", "--beams", "4", "--top-k", "3"), "beams is 4"),
        ("gpt_char", ("今天", "--beams", "4", "--samples", "2"), "beams is 4, but several"),
        ("gpt_char", ("今天", "--length-penalty", "1"), "beam search, of two beams or more"),
        ("gpt_char", ("今天", "--paraphrases", "3"), "pooler"),
        ("gpt_char", ("今天", "天气", "--stream"), "--stream"),
        ("gpt_char", ("今天", "--stream", "--output", "x.tsv"), "--stream"),
        ("gpt_char", ("今天", "--paraphrases", "10", "--samples", "3"), "--samples is 3"),
        ("gpt_char", ("今天", "--input", "x.txt", "--output", "y.tsv"), "not both"),
        ("gpt_char", ("--input", "x.txt"), "--output"),
        ("word", ("今天",), "masked language model"),
        ("hf_word_seqcls", ("今天",), "cannot generate"),
    ],
    ids=str,
)
def test_impossible_requests_give_one_message(run, released, model, flags, message, tmp_path):
    code, out, err = run(released(model), *flags)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert re.search(message, " ".join(err.replace("│", " ").split()))


def test_rows_without_a_text_are_reported_and_nothing_is_written(run, released, tmp_path):
    source, target = tmp_path / "prompts.txt", tmp_path / "written.tsv"
    source.write_bytes("今天\n\n".encode() + b"\xff\n")
    code, _, err = run(released("gpt_char"), "--input", source, "--output", target)
    assert code == 2
    assert "prompts.txt:2 is blank" in err
    assert "prompts.txt:3 is not in the encoding" in err
    assert not list(tmp_path.glob("*written*"))


def test_blank_lines_are_skipped_and_reported(run, released, tmp_path):
    source, target = tmp_path / "prompts.txt", tmp_path / "written.tsv"
    source.write_text("今天\n \n公园\n\n", encoding="utf-8")
    flags = ["--max-tokens", 2, "--output", target]
    code, _, err = run(released("gpt_char"), "--input", source, *flags)
    assert code == 0
    assert f"rows skipped: 2\n  {source}:2,4 is blank\n" in err
    assert [row[0] for row in table(target)[1:]] == ["今天", "公园"]


def test_texts_of_a_file_are_counted_in_messages_not_their_lines(run, released, tmp_path):
    source = tmp_path / "prompts.csv"
    source.write_text('text\n"今天\n公园"\n😀\n', encoding="utf-8")
    code, _, err = run(released("gpt_char"), "--input", source, "--output", tmp_path / "out.tsv")
    assert code == 2
    assert f"generate: text 2 of {source}, '😀', has no character" in " ".join(err.split())


def test_characters_missing_from_the_vocabulary_are_reported(run, released):
    code, out, err = run(released("gpt_char"), "今天😀", "--max-tokens", 2)
    assert code == 0
    assert out.strip()
    assert "😀" in err


def test_attention_type_turns_an_encoder_into_a_generator(run, released):
    code, out, _ = run(released("char"), "今天", "--attention-type", "causal", "--max-tokens", 3)
    assert code == 0
    causal = RoFormerForCausalLM.from_pretrained(released("char"), attention_type="causal")
    assert out == causal.generate(["今天"], max_tokens=3)[0][0] + "\n"
