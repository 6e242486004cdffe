"""Tables of the commands that prepare text and train on it."""

from tests.every_flag.row import Row, has

READ = "--vocab-size 110 --tokenization char --length 16 --held-out 0.2"
PREPARE = f"--corpus {{passages}} {READ} --output {{out}}/rows"
ROWS = "rows/train-00000.npy"


def saved(events):
    """The number of times a training run was saved."""
    return sum(event == "saved" for event, *_ in events)


def preparation_rows(base, rows):
    """Rows of the flags of corpus preparation."""

    def base_with(name):
        return base.replace("{passages}", f"{{{name}}}")

    return [
        Row("--corpus {more_passages}", rows),
        Row("--field 甲", rows, base=base_with("corpus")),
        Row("--encoding gb18030", rows, base=base_with("corpus_big5")),
        Row("--strict", "exit", base=base_with("damaged"), exits=(0, 2)),
        Row("--min-characters 30", rows),
        Row("--drop-repeated-lines", rows, base=base_with("repeated")),
        Row(
            "--vocab {word}",
            rows,
            base=base.replace("--vocab-size 110 --tokenization char", "--tokenization char"),
            without="--vocab {mlm}",
        ),
        Row("--vocab-size 90", rows),
        Row("--tokenization word", rows),
        Row("--lower-case False", rows, base=base_with("latin").replace("110", "200")),
        Row("--whole-words", rows),
        Row("--length 12", rows),
        Row("--fill 0", rows, base=base.replace("--length 16", "--length 40")),
        Row("--held-out 0.5", rows),
        Row("--duplicates exact", rows, base=base_with("doubled")),
        Row("--similarity 0.3", rows, base=f"{base_with('near')} --duplicates near"),
        Row("--workers 2", "computed", lambda _, events: ("processes", None, (2,)) in events),
        Row("--engine dask", "stderr", has("127.0.0.1:9"), exits=(0, 2)),
        Row(
            "--scheduler tcp://127.0.0.1:10",
            "stderr",
            has("127.0.0.1:10"),
            base=f"{base} --engine dask",
            exits=(2, 2),
        ),
    ]


PRETRAIN = (
    "--rows {rows} --output {out}/run --architecture {architecture} --steps 2 --batch-size 4 "
    "--log-every 1 --learning-rate 0.01 --evaluation-rows 4 --dropout 0"
)
PRETRAIN_CORPUS = (
    f"--corpus {{passages}} {READ} --output {{out}}/run --architecture {{architecture}}"
)
STAGED = PRETRAIN.replace("--steps 2 ", "")
ONE_STEP = PRETRAIN.replace("--steps 2", "--steps 1")
METRICS, EVALUATIONS = "run/metrics.jsonl", "run/evaluations.jsonl"
STAGES = "'length=16 steps=2' 'length=16 steps=3 batch-size=2'"


def optimizer_rows(part, base, learning_rate="0.02", steps="--steps 3"):
    """Rows of the flags of an optimizer."""
    base = f"{base} {steps}"
    return [
        Row("--optimizer lamb", part, base=base),
        Row("--muon-learning-rate-scale 9", part, base=f"{base} --optimizer muon", slow=True),
        Row(f"--learning-rate {learning_rate}", part, base=base, slow=True),
        Row("--warmup 0.9", part, base=base, slow=True),
        Row("--schedule cosine", part, base=base),
        Row("--decay-share 0.5", part, base=f"{base} --schedule wsd --warmup 0", slow=True),
        Row("--weight-decay 9", part, base=base, slow=True),
        Row("--beta-2 0.5", part, base=base, slow=True),
        Row("--clip-norm 0.01", part, base=base, slow=True),
    ]


def masking_rows(part, base):
    """Rows of the flags of masking."""
    return [
        Row("--mask-rate 0.5", part, base=base),
        Row("--mask-replace-rate 0.1", part, base=base, slow=True),
        Row("--random-replace-rate 0.2", part, base=base, slow=True),
    ]


TRAINING_FLAGS = (
    "--epochs 1 --batch-size 8 --learning-rate 0.01 --log-every 1 --dropout 0 --precision float32"
)
FINETUNE = f"--checkpoint {{mlm}} --train {{examples}} --output {{out}}/run {TRAINING_FLAGS}"
ONE_BATCH = FINETUNE.replace("--batch-size 8", "--batch-size 16")
TAGS = FINETUNE.replace("{examples}", "{tags}")
SCORED = FINETUNE.replace("{examples}", "{scored} --task embedding")
MATCHES = FINETUNE.replace("{examples}", "{matches} --task embedding")
PARAPHRASES = FINETUNE.replace("{examples}", "{matches} --task paraphrase")
REPORT = "run/report.json"

# Rows marked as slow are for settings whose effect other quick tests check.
# `test_every_flag_has_a_row` shows for each of them that the flag sets the value.
TABLES = {
    "prepare": (
        PREPARE,
        [
            *preparation_rows(PREPARE, ROWS),
            Row("--output {out}/other", "other/train-00000.npy"),
        ],
    ),
    "pretrain (preparation)": (
        PRETRAIN_CORPUS,
        [  # `pretrain` passes the settings of `prepare` on unchanged
            row._replace(slow=row.with_flags.split()[0] not in ("--corpus", "--vocab", "--engine"))
            for row in preparation_rows(PRETRAIN_CORPUS, "run/rows/train-00000.npy")
        ]
        + [
            Row(
                "--extend-vocab {words}",
                "run/rows/vocab.txt",
                has("公园学习"),
                base="--corpus {passages} --length 16 --init-from {word} --output {out}/run",
            )
        ],
    ),
    "pretrain": (
        PRETRAIN,
        [
            Row("--output {out}/other", "other/metrics.jsonl", slow=True),
            Row("--architecture {other_architecture}", "run/model/config.json", slow=True),
            Row(
                f"--stages {STAGES}",
                "computed",
                lambda _, x: x[-1][-1] == (2, 16),
                without="--stages 'length=16 steps=2'",
                base=STAGED,
                slow=True,
            ),
            Row("--one-schedule", METRICS, base=f"{STAGED} --stages {STAGES}", slow=True),
            Row("--save-every 1", EVALUATIONS, lambda *texts: '"step": 1' in texts[1], slow=True),
            Row("--ema 0.5", EVALUATIONS, slow=True),
            Row("--devices 2", "exit", exits=(0, 2)),
            Row("--model-parallel 2", "exit", exits=(0, 2)),
            Row("--distributed", "exit", exits=(0, 2)),
            Row("--evaluation-rows 2", EVALUATIONS),
            Row(
                "--keep-checkpoints 1",
                "run/checkpoints/step-00000001/state.json",
                lambda before, now: before and not now,
                base=f"{PRETRAIN} --save-every 1",
                slow=True,
            ),
            Row("--tracker wandb", "computed", lambda _, x: ("wandb", "roformer-tf", (0,)) in x),
            Row(
                "--project other",
                "computed",
                lambda _, x: ("wandb", "other", (0,)) in x,
                base=f"{PRETRAIN} --tracker wandb",
                slow=True,
            ),
        ],
    ),
    "pretrain (steps)": (
        PRETRAIN,
        [
            Row("--rows {more_rows}", METRICS, base=ONE_STEP, slow=True),
            Row("--objective causal", METRICS, base=ONE_STEP, slow=True),
            Row(
                "--init-from {other_mlm}",
                METRICS,
                without="--init-from {mlm}",
                base=ONE_STEP.replace("--architecture {architecture}", ""),
                slow=True,
            ),
            Row("--embeddings neighbours", METRICS, base=ONE_STEP, slow=True),
            Row("--dropout 0.5", METRICS, without="--dropout 0", base=ONE_STEP),
            Row("--attention-dropout 0.5", METRICS, base=ONE_STEP),
            Row("--batch-size 8", METRICS, base=ONE_STEP),
            Row(
                "--steps 3",
                METRICS,
                lambda *texts: [len(x.splitlines()) for x in texts] == [2, 3],
                slow=True,
            ),
            Row("--log-every 2", METRICS, slow=True),
            Row("--seed 3", METRICS, base=ONE_STEP),
            Row("--accumulate 2", "computed", lambda _, x: x[0][-1] == (2, 16), base=ONE_STEP),
            *optimizer_rows(METRICS, PRETRAIN),
            Row(
                "--spike-factor 1.01",
                METRICS,
                base=f"{PRETRAIN} --learning-rate 0.3 --warmup 0 --steps 6",
                slow=True,
            ),
            Row(
                "--max-skipped 1",
                "exit",
                base=f"{PRETRAIN} --learning-rate 0.3 --warmup 0 --steps 6 --spike-factor 1.01",
                exits=(0, 1),
                slow=True,
            ),
            *masking_rows(METRICS, ONE_STEP),
            Row(
                "--corpus-weights a 1 b 9",
                METRICS,
                base=PRETRAIN.replace("{rows}", "{two_corpora}"),
                slow=True,
            ),
            Row(
                "--corpus-temperature 5",
                METRICS,
                base=PRETRAIN.replace("{rows}", "{two_corpora}"),
                slow=True,
            ),
            Row("--peak-flops 1e9", METRICS, has("mfu"), base=ONE_STEP, slow=True),
            Row(
                "--precision mixed_bfloat16",
                METRICS,
                without="--precision float32",
                base=ONE_STEP,
                slow=True,
            ),
            Row("--rematerialize", "computed", base=ONE_STEP),
        ],
    ),
    "finetune": (
        FINETUNE,
        [
            Row("--output {out}/other", "other/metrics.jsonl", slow=True),
            Row("--test {more_examples}", REPORT, slow=True),
            Row(
                "--strict",
                "exit",
                base=FINETUNE.replace("{examples}", "{with_holes}"),
                exits=(0, 2),
                slow=True,
            ),
            Row(
                "--epochs 2",
                EVALUATIONS,
                lambda *texts: texts[1].count("epoch") > texts[0].count("epoch"),
                slow=True,
            ),
            Row("--ema 0.5", "run/model/model.safetensors", slow=True),
            Row(
                "--method vectors",
                "run/model/model.safetensors",
                base=f"{FINETUNE.removesuffix(TRAINING_FLAGS)} --precision float32",
                without="--method full",
                slow=True,
            ),
            Row(
                "--pattern {{text}}{{label}}",
                "exit",
                base=f"{FINETUNE} --method cloze --label-names 好 天",
                exits=(2, 0),
                slow=True,
            ),
            Row("--metric macro_f1", REPORT, slow=True),
            Row(
                "--patience 1",
                EVALUATIONS,
                base=f"{FINETUNE} --epochs 3 --learning-rate 1e-12",
                slow=True,
            ),
            Row("--seeds 2", REPORT, slow=True),
            Row("--folds 2", REPORT, slow=True),
            Row("--sweep", REPORT, slow=True),
            Row("--no-baseline", REPORT),
            Row("--compare-without-teacher", "exit", exits=(0, 2), slow=True),
            Row(
                "--lexical-features yes",
                REPORT,
                has("'lexical'"),
                without="--lexical-features no",
                slow=True,
            ),
            Row(
                "--first-stage {mlm}",
                REPORT,
                base=FINETUNE.replace("{examples}", "{matches} --task reranking --keep-useless"),
            ),
            Row(
                "--keep-useless",
                "exit",
                base=FINETUNE.replace("{examples}", "{ordered} --task reranking"),
                exits=(2, 0),
                slow=True,
            ),
            Row("--language en", "run/report.md", slow=True),
            Row("--label-names a b", "run/model/task.json", slow=True),
            Row("--export onnx", "run/export/onnx/model.onnx", slow=True),
            Row(
                "--save-every 1",
                "computed",
                lambda default, flagged: saved(flagged) > saved(default),
                slow=True,
            ),
        ],
    ),
    "finetune (steps)": (
        ONE_BATCH,
        [
            Row("--checkpoint {other_mlm}", METRICS, slow=True),
            Row("--train {more_examples}", METRICS, slow=True),
            Row("--valid {more_examples}", METRICS, slow=True),
            Row("--valid-share 0.3", METRICS),
            Row("--test-share 0.3", METRICS),
            Row("--task regression", METRICS, slow=True),
            Row("--text-columns 备注", METRICS, slow=True),
            Row("--label-column 类", METRICS, slow=True),
            Row(
                "--first-line header",
                METRICS,
                base=ONE_BATCH.replace("{examples}", "{without_header} --text-columns 1")
                + " --label-column 2",
                slow=True,
            ),
            Row(
                "--label-separator ;",
                METRICS,
                base=ONE_BATCH.replace("{examples}", "{separated} --task multilabel"),
                exits=(2, 0),
                slow=True,
            ),
            Row(
                "--encoding gb18030",
                METRICS,
                base=ONE_BATCH.replace("{examples}", "{examples_big5}"),
                slow=True,
            ),
            Row(
                "--sheet 二",
                METRICS,
                base=ONE_BATCH.replace("{examples}", "{examples_book}"),
                slow=True,
            ),
            Row("--max-length 6", METRICS),
            Row("--long-texts head-tail", METRICS, base=f"{ONE_BATCH} --max-length 6"),
            Row("--pooling mean", METRICS),
            Row("--crf", METRICS, base=TAGS, slow=True),
            Row("--label-prompts", METRICS, base=f"{TAGS} --task spans"),
            Row("--from-scratch", METRICS),
            Row("--adapt yes", METRICS, slow=True),
            Row("--unlabelled {passages}", METRICS, base=f"{ONE_BATCH} --adapt yes", slow=True),
            Row("--batch-size 4", "computed", base=FINETUNE, slow=True),
            Row("--learning-rate 0.02", METRICS, base=FINETUNE),
            Row("--crf-learning-rate 0.5", METRICS, base=f"{TAGS} --crf", slow=True),
            Row("--layer-decay 0.1", METRICS, base=FINETUNE),
            Row("--warmup 0.9", METRICS, base=FINETUNE, slow=True),
            Row("--schedule constant", METRICS, base=FINETUNE, slow=True),
            Row("--weight-decay 9", METRICS, base=FINETUNE, slow=True),
            Row("--beta-2 0.5", METRICS, base=FINETUNE, slow=True),
            Row("--clip-norm 0.01", METRICS, base=FINETUNE, slow=True),
            Row("--accumulate 2", METRICS, base=FINETUNE),
            Row("--label-smoothing 0.1", METRICS, slow=True),
            Row("--focal 2", METRICS, slow=True),
            Row("--class-weights balanced", METRICS, slow=True),
            Row(
                "--r-drop 1",
                METRICS,
                base=ONE_BATCH.replace("--dropout 0", "--dropout 0.3"),
                slow=True,
            ),
            Row("--fgm 0.5", METRICS, base=FINETUNE, slow=True),
            Row("--loss classifier", METRICS, base=SCORED, slow=True),
            Row("--hard-negatives 1", METRICS, base=MATCHES, slow=True),
            Row("--dimensions 4", METRICS, base=MATCHES, slow=True),
            Row("--teacher {other_mlm}", METRICS, base=PARAPHRASES, slow=True),
            Row("--micro-batches 2", "computed", base=MATCHES, slow=True),
            Row("--dropout 0.5", METRICS, slow=True),
            Row("--precision mixed_bfloat16", METRICS, slow=True),
            Row("--seed 3", METRICS),
            Row("--log-every 2", METRICS, base=FINETUNE, slow=True),
        ],
    ),
}
