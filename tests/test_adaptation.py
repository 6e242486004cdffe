"""`finetune --adapt` first trains the checkpoint's masked language model on the task's texts."""

import json
import shutil
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

from roformer_tf import adaptation
from roformer_tf.cli import main
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.finetuning import command
from roformer_tf.finetuning.search import Search, Sets
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.finetuning.trainer import InitialState
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import Example
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.heads import RoFormerForMaskedLM, RoFormerForSentenceSimilarity
from roformer_tf.pretraining import command as pretraining_command
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.metrics import ACCURACY, MAE
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.vectors.ranked_texts import NDCG
from roformer_tf.tasks.vectors.retrieval import Retrieval
from roformer_tf.training.run_files import read_metrics
from roformer_tf.training.settings import FinetuneOptimizerConfig
from tests.support.random_model import LETTERS, TINY, tokenizer_of

WORDS = "roformer.embeddings.word_embeddings.weight"
FIXED = ["--no-baseline", "--precision", "float32", "--max-length", "12", "--learning-rate", "0.01"]


@pytest.fixture(scope="module", autouse=True)
def quick(eagerly):
    """Run few steps, without tracing."""
    with eagerly(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(adaptation, "PASSES", 10)
        patch.setattr(adaptation, "SAVE_EVERY", 12)
        yield


def masked_lm_config():
    return RoFormerConfig(**TINY, vocab_size=tokenizer_of().vocab_size)


def masked_lm(folder, seed):
    keras.utils.set_random_seed(seed)
    model = RoFormerForMaskedLM(masked_lm_config())
    model.tokenizer = tokenizer_of()
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a checkpoint, three labelled sets of different texts, and unlabelled texts."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)

    def text():  # each character is followed by its neighbour, which can be learned
        start = rng.integers(len(LETTERS))
        return "".join(np.roll(list(LETTERS), -start)[:9])

    for name, count in (("train", 20), ("valid", 8), ("test", 8)):
        rows = [f"{text()}{name}{n}\t{'好坏'[n % 2]}\n" for n in range(count)]
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "".join(rows), encoding="utf-8")
    (folder / "more.txt").write_text("".join(f"{text()}\n" for _ in range(20)), encoding="utf-8")
    masked_lm(folder / "mlm", 0)
    return folder


def finetune(files, output, *flags):
    sets = [f"--{name}={files / name}.tsv" for name in ("train", "valid", "test")]
    common = ["--checkpoint", str(files / "mlm"), "--output", str(output), "--batch-size", "2"]
    assert main(["finetune", *common, *sets, *FIXED, "--epochs", "1", *flags]) == 0


@pytest.fixture(scope="module")
def run(files, tmp_path_factory):
    output = tmp_path_factory.mktemp("auto") / "run"
    finetune(files, output, "--adapt", "auto", "--unlabelled", str(files / "more.txt"))
    return output


@pytest.mark.slow
def test_adaptation_trains_on_training_and_unlabelled_texts(files, run):
    lines = (run / "adapted" / "texts.jsonl").read_text(encoding="utf-8").splitlines()
    rows = (files / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    more = (files / "more.txt").read_text(encoding="utf-8").splitlines()
    want = [*(row.split("\t")[0] for row in rows), *more]
    assert [json.loads(line)["text"] for line in lines] == want
    manifest = json.loads((run / "adapted" / "rows" / "manifest.json").read_text("utf-8"))
    assert manifest["splits"]["train"]["documents"] == 20 + 20
    losses = [line["loss"] for line in read_metrics(run / "adapted" / "metrics.jsonl")]
    assert losses[-1] < losses[0]
    before, after = (load_file(x / "model.safetensors") for x in (files / "mlm", adapted(run)))
    assert before.keys() == after.keys()
    assert np.abs(before[WORDS] - after[WORDS]).max() > 0.01


def adapted(run):
    return run / "adapted" / "model"


@pytest.mark.slow
def test_auto_keeps_the_better_model_on_the_validation_set(run):
    best = {}
    for name in ("plain", "adapted"):
        (folder,) = (run / "trials").glob(f"{name}-*")
        lines = read_metrics(folder / "evaluations.jsonl")
        best[max(line["accuracy"] for line in lines), name == "plain"] = folder / "best"
    weights = (best[max(best)] / "model.safetensors").read_bytes()
    assert (run / "model" / "model.safetensors").read_bytes() == weights
    assert len({(folder / "model.safetensors").read_bytes() for folder in best.values()}) == 2


@pytest.mark.slow
def test_a_killed_adaptation_resumes_bit_for_bit(files, run, capsys):
    weights = [run / "model" / "model.safetensors", adapted(run) / "model.safetensors"]
    before = [file.read_bytes() for file in weights]
    for name in ("model", "trials", "adapted/model"):
        shutil.rmtree(run / name)
    first, last = sorted((run / "adapted" / "checkpoints").iterdir())
    shutil.rmtree(last)
    finetune(files, run, "--adapt", "auto", "--unlabelled", str(files / "more.txt"))
    assert f"continuing from {first}" in capsys.readouterr().out
    assert [file.read_bytes() for file in weights] == before


def test_fine_tuning_starts_from_the_adapted_model(files, tmp_path):
    other = masked_lm(tmp_path / "other", 1)
    settings = {name: str(files / f"{name}.tsv") for name in ("train", "valid", "test")}
    config = FinetuneConfig(
        checkpoint=str(files / "mlm"),
        output=str(tmp_path / "run"),
        **settings,
        adapt="yes",
        epochs=1,
        baseline=False,
        precision="float32",
        optimizer=FinetuneOptimizerConfig(learning_rate=1e-9),
    )
    command.finetune(config, lambda config, texts: other)
    start = RoFormerEncoder.from_pretrained(other)
    end = RoFormerEncoder.from_pretrained(tmp_path / "run" / "model")
    for weight, same in zip(start.weights, end.weights, strict=True):
        np.testing.assert_allclose(weight, same, atol=1e-5)


def test_the_pooler_of_a_sim_model_stays_as_it_is(files, tmp_path):
    """Filling masks does not train it, and the adapted checkpoint has none."""
    keras.utils.set_random_seed(2)
    model = RoFormerForSentenceSimilarity(masked_lm_config())
    model.tokenizer = tokenizer_of()
    model.save_pretrained(tmp_path / "sim")
    settings = {"checkpoint": str(tmp_path / "sim"), "adapt": "yes", "precision": "float32"}
    config, kind = FinetuneConfig(train="x", output=str(tmp_path), **settings), TASKS["embedding"]
    sets = Sets([Example(("今天", "天气"), None, "")], [], [], [])
    before = command.read_initial_state(config, kind)
    search = Search(config, sets, before, Retrieval(), NDCG)
    other = masked_lm(tmp_path / "other", 1)
    after = command.adapted_search(search, lambda config, texts: other).initial
    assert before.architecture.pooling == after.architecture.pooling == "pooler"
    arrays = RoFormerEncoder.from_pretrained(other).named_variables()
    assert after.weights.keys() == before.weights.keys()
    for name, array in after.weights.items():
        want = before.weights[name] if name.startswith("pooler/") else arrays[name]
        np.testing.assert_array_equal(array, want)


def test_adaptation_has_the_settings_of_fine_tuning(files, tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(pretraining_command, "pretrain", trained.append)
    settings = {"seed": 5, "batch_size": 4, "dropout": 0.3, "precision": "float32"}
    run, rate = tmp_path / "run", FinetuneOptimizerConfig(learning_rate=0.02)
    config = FinetuneConfig(
        checkpoint=str(files / "mlm"), train="x", output=str(run), optimizer=rate, **settings
    )
    assert adaptation.adapt(config, ["今天天气很好", "我们去公园"]) == adapted(run)
    (pretraining,) = trained
    assert {name: getattr(pretraining, name) for name in settings} == settings
    assert pretraining.optimizer.learning_rate == 0.02
    assert pretraining.init_from == config.checkpoint


@pytest.mark.parametrize(("metric", "better"), [(ACCURACY, "adapted-"), (MAE, "plain-")])
def test_auto_chooses_by_the_metric(files, tmp_path, monkeypatch, metric, better):
    figures = {"plain-": 0.25, "adapted-": 0.5}

    def first(search):
        scores = {metric.name: figures[search.prefix]}
        return SimpleNamespace(goodness=(metric.goodness(scores), 0), metrics={"valid": scores})

    monkeypatch.setattr(Search, "first", first)
    settings = {"adapt": "auto", "precision": "float32"}
    config = FinetuneConfig(
        checkpoint=str(files / "mlm"), train="x", output=str(tmp_path), **settings
    )
    examples = [Example(("今天",), "a", "")]
    initial = InitialState(masked_lm_config(), {"encoder": np.zeros(1)}, None, "float32")
    search = Search(config, Sets(examples, examples, [], []), initial, Classification(), metric)
    other = masked_lm(tmp_path / "other", 1)
    chosen = command.adapted_search(search, lambda config, texts: other)
    assert chosen.prefix == better
    assert (chosen.initial is initial) == (better == "plain-")


MORE = {  # unlabelled files: the columns of training, other ones, none
    "a.jsonl": '{"评论": "很好"}\n{"评论": "很差"}\n',
    "a.csv": "编号,评论\n1,很好\n2,很差\n",
    "a.tsv": "评论\t编号\n很好\t1\n很差\t2\n",
    "other.jsonl": '{"text": "很好"}\n{"text": "很差"}\n',
    "a.txt": "很好\n很差\n",
}


@pytest.mark.parametrize(
    ("name", "named"),
    [(name, named) for name in MORE for named in [(), ("评论",)] if not named or name[0] == "a"],
)
def test_unlabelled_files_are_read_by_the_columns_of_training(name, named, tmp_path):
    (tmp_path / name).write_text(MORE[name], encoding="utf-8")
    columns = ColumnsConfig(text_columns=named)
    settings = {"unlabelled": (str(tmp_path / name),), "adapt": "yes", "columns": columns}
    config = FinetuneConfig(train="x", output="y", **settings)
    task = Classification(text_columns=("评论",))
    search = SimpleNamespace(config=config, sets=Sets([], [], [], []), task=task)
    seen = []

    def adapt(config, texts):
        seen.extend(texts)
        raise StopIteration

    with pytest.raises(StopIteration):
        command.adapted_search(search, adapt)
    assert seen == ["很好", "很差"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unlabelled": ("a.txt",)}, "--unlabelled needs --adapt yes"),
        ({"adapt": "yes", "from_scratch": True}, "there is nothing to adapt"),
        ({"adapt": "auto", "folds": 3}, "that no training sees"),
    ],
)
def test_settings_that_cannot_be_adapted_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        FinetuneConfig(train="x", output="y", **settings)


@pytest.mark.slow
def test_a_model_without_a_masked_lm_head_is_refused(files, run, tmp_path, capsys):
    flags = ["--checkpoint", str(run / "model"), "--train", str(files / "train.tsv")]
    assert main(["finetune", *flags, "--output", str(tmp_path / "x"), *FIXED, "--adapt=yes"]) == 2
    assert "cannot be adapted: it has no head" in capsys.readouterr().err
