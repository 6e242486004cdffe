"""Tables of the commands that convert, compare and calculate."""

from tests.every_flag.row import Row, has

COST = "{recipe}"
CONVERT = "{mlm} {out}/made --to own"
VOCABULARY = "{word} {out}/made --to own --add {words}"
VERIFY = "{mlm} --against bert4keras"

TABLES = {
    "runs": (
        "{run}",
        [
            Row("{run} {other_run}", "stdout", has("slow"), without="{run}", base=""),
        ],
    ),
    "cost": (
        COST,
        [
            Row("{other_recipe}", "stdout", without="{recipe}", base=""),
            Row(
                "--architecture {architecture}",
                "stdout",
                base=COST.replace("{recipe}", "{recipe_without_architecture}"),
            ),
            Row("--peak-flops 312e12", "stdout"),
            Row("--utilisation 0.2", "stdout"),
            Row("--efficiency 0.5", "stdout"),
            Row("--devices 4", "stdout"),
            Row("--price 1", "stdout"),
        ],
    ),
    "checkpoints inspect": (
        "{mlm}",
        [
            Row("{sim}", "stdout", has("pooler"), without="{mlm}", base=""),
            Row("--ignore-unknown", "stdout", has("strange"), base="{unknown}", exits=(2, 0)),
            Row("--prefix ema.", "stdout", has("mlm/dense"), base="{copies}", exits=(2, 0)),
        ],
    ),
    "checkpoints convert": (
        CONVERT,
        [
            Row(
                "{other_mlm} {out}/made",
                "made/model.safetensors",
                without="{mlm} {out}/made",
                base="--to own",
            ),
            Row(
                "{mlm} {out}/other",
                "other/config.json",
                without="{mlm} {out}/made",
                base="--to own",
            ),
            Row("--to tf1", "made/bert_config.json"),
            Row("--dtype float16", "made/model.safetensors"),
            Row("--attention-type unilm", "made/config.json", has("unilm")),
            Row(
                "--ignore-unknown",
                "made/model.safetensors",
                base=CONVERT.replace("{mlm}", "{unknown}"),
                exits=(2, 0),
            ),
            Row(
                "--prefix ema.",
                "made/model.safetensors",
                base=CONVERT.replace("{mlm}", "{copies}"),
                exits=(2, 0),
            ),
        ],
    ),
    "checkpoints vocabulary": (
        VOCABULARY,
        [
            Row(
                "{mlm} {out}/made",
                "made/vocab.txt",
                without="{word} {out}/made",
                base="--to own --add {words}",
            ),
            Row(
                "{word} {out}/other",
                "other/vocab.txt",
                without="{word} {out}/made",
                base="--to own --add {words}",
            ),
            Row("--to tf1", "made/bert_config.json"),
            Row("--dtype float16", "made/model.safetensors"),
            Row("--simplify", "made/vocab.txt", base="{word} {out}/made --to own", exits=(2, 0)),
            Row("--add {words}", "made/vocab.txt", base="{word} {out}/made --to own", exits=(2, 0)),
        ],
    ),
    "checkpoints average": (
        "{mlm} {other_mlm} --output {out}/made",
        [
            Row(
                "{mlm} {other_mlm} {other_mlm}",
                "made/model.safetensors",
                without="{mlm} {other_mlm}",
                base="--output {out}/made",
            ),
            Row("--output {out}/other", "other/config.json"),
        ],
    ),
    "checkpoints download": (
        "chinese_roformer-char-small",
        [
            Row("--from-file {release}", "exit", exits=(2, 0)),
            Row(
                "chinese_roformer-char-base",
                "exit",
                without="chinese_roformer-char-small",
                base="--from-file {release}",
                exits=(0, 2),
            ),
        ],
    ),
    "checkpoints verify": (
        VERIFY,
        [
            Row("{other_mlm}", "stdout", has("other_mlm"), without="{mlm}", base=VERIFY[6:]),
            Row("--against transformers", "stdout", has("compared with transformers")),
            Row("--attention-type causal", "stdout", has("attention causal")),
        ],
    ),
}
