"""Tables of the commands that use a model."""

from tests.every_flag.row import Row, has


def fewer(without, with_flag):
    return len(with_flag.splitlines()) < len(without.splitlines())


def batches(rows):
    """A check: the largest batch has this many rows."""
    return lambda _, computed: max(shape[0] for *_, shape in computed) == rows


def prompts(count):
    """A check: the largest batch of a generator has this many prompts."""
    return lambda _, computed: max(shape for *_, shape in computed) == (count,)


def computed_by(engine, precision=None):
    return lambda _, computed: all(
        result == engine and precision in (None, kind) for result, kind, _ in computed
    )


def reading(part, base, before="{texts}", flag="--input", example="{columns}", first="example"):
    """Rows of the flags that control how a file of texts is read."""
    plain = base.replace(f"{flag} {before}", "")
    return [
        Row("--text-columns 乙", part, base=f"{plain} {flag} {{columns}}"),
        Row("--encoding gb18030", part, base=f"{plain} {flag} {{big5}}"),
        Row(f"--first-line {first}", part, base=f"{plain} {flag} {example} --text-columns 1"),
        Row("--sheet 二", part, base=f"{plain} {flag} {{book}}"),
    ]


def reranking(base):
    """Rows of the flags that a reranker uses as well."""
    return [
        Row(f"--rerank {{pair}} {flag}", "computed", check, "--rerank {pair}", base)
        for flag, check in (
            ("--batch-size 2", batches(2)),
            ("--precision int8", computed_by("onnx", "int8")),
        )
    ]


PREDICT = "--model {classifier} --input {texts} --output {out}/answers.tsv"
ZERO_SHOT = PREDICT.replace("{classifier}", "{nli}") + " --labels 天气 公园"
EMBED = "--model {mlm} --input {texts} --output {out}/vectors.npy"
SIMILARITY = "--model {mlm} --input {pairs_file} --output {out}/scores.tsv"
PAIRS = "--model {{mlm}} --input {} --output {{out}}/scores.tsv"
SEARCH = "--model {mlm} --documents {texts} --queries 天气 --output {out}/found.tsv"
EVALUATE = "--model {classifier} --data {labelled} --output {out}/figures.json"
CORPUS = "--model {mlm} --corpus {texts} --lengths 8 --output {out}/lengths.json"
FILL = "--model {mlm} 天[MASK]很好"
GENERATE = "--model {writer} 天气 --max-tokens 6"
GENERATE_MANY = "--model {writer} --input {texts} --output {out}/written.tsv --max-tokens 4"
EXPORT = "--model {classifier} --to onnxruntime --output {out}/exported"

SERVE = "--model {classifier} --port 0"
SERVE_VECTORS = "--model {mlm} --pooling mean --port 0"
SERVE_INDEX = "--model {mlm} --index {index} --port 0"
SERVE_WRITER = "--model {writer} --port 0"

TABLES = {
    "predict": (
        PREDICT,
        [
            Row("--model {other_classifier}", "answers.tsv"),
            Row("--input {more_texts}", "answers.tsv"),
            Row("--output {out}/other.tsv", "other.tsv"),
            Row("--with-text", "answers.tsv", has("公园学习")),
            Row("--top-k 1", "answers.tsv"),
            Row(
                "学习", "answers.tsv", has("p(学习)"), base=ZERO_SHOT
            ),  # one more label for --labels
            Row("--template {{}}今天去公园", "answers.tsv", base=ZERO_SHOT),
            Row("--strict", "exit", base=PREDICT.replace("{texts}", "{holes}"), exits=(0, 2)),
            Row("--batch-size 2", "computed", batches(2)),
            Row("--precision int8", "computed", computed_by("onnx", "int8")),
            Row("--engine keras", "computed", computed_by("keras")),
            *reading("answers.tsv", PREDICT),
        ],
    ),
    "embed": (
        EMBED,
        [
            Row("--model {other_mlm}", "vectors.npy"),
            Row("--input {more_texts}", "vectors.npy"),
            Row("--output {out}/other.npy", "other.npy"),
            Row("--pooling cls", "vectors.npy"),
            Row("--dimensions 4", "vectors.npy", lambda _, x: x.shape[1] == 4),
            Row("--max-length 5", "vectors.npy"),
            Row("--batch-size 2", "computed", batches(2)),
            Row("--precision int8", "computed", computed_by("onnx", "int8")),
            Row("--engine keras", "computed", computed_by("keras")),
            *reading("vectors.npy", EMBED),
        ],
    ),
    "similarity": (
        SIMILARITY,
        [
            Row("--model {other_mlm}", "scores.tsv"),
            Row("天气 学习", "stdout", without="天气 公园", base="--model {mlm}"),
            Row("--input {more_pairs}", "scores.tsv"),
            Row("--output {out}/other.tsv", "other.tsv"),
            Row("--pooling cls", "scores.tsv"),
            Row("--dimensions 4", "scores.tsv"),
            Row("--max-length 5", "scores.tsv"),
            Row("--batch-size 2", "computed", batches(2)),
            Row("--precision int8", "computed", computed_by("onnx", "int8")),
            Row("--engine keras", "computed", computed_by("keras")),
            Row(
                "--text-columns 甲 丙",
                "scores.tsv",
                without="--text-columns 甲 乙",
                base="--model {mlm} --input {triples} --output {out}/scores.tsv",
            ),
            Row("--encoding gb18030", "scores.tsv", base=PAIRS.format("{pairs_big5}")),
            Row("--first-line example", "scores.tsv"),
            Row("--sheet 二", "scores.tsv", base=PAIRS.format("{pairs_book}")),
        ],
    ),
    "search": (
        SEARCH,
        [
            Row("--model {other_mlm}", "found.tsv"),
            Row("--documents {more_texts}", "found.tsv"),
            Row("--index {out}/index", "index/index.sqlite"),
            Row(
                "--delete 甲",
                "stderr",
                has("no document has the id 甲"),
                base=SEARCH.replace("--documents {texts}", "--index {index}"),
            ),
            Row("--id-column 乙", "found.tsv", base=SEARCH.replace("{texts}", "{columns}")),
            Row(
                "--where \"乙 like '%北京%'\"",
                "found.tsv",
                fewer,
                base=SEARCH.replace("{texts}", "{columns}"),
            ),
            Row("--queries 学习", "found.tsv"),
            Row("--top 1", "found.tsv", fewer),
            Row("--hybrid", "found.tsv"),
            Row("--hybrid-weight 3", "found.tsv", base=f"{SEARCH} --hybrid"),
            Row(
                "--beginning-weight 3",
                "found.tsv",
                base=SEARCH.replace("{texts}", "{long} --max-length 9"),
            ),
            Row("--rerank {pair}", "found.tsv"),
            Row("--rerank-top 2", "found.tsv", base=f"{SEARCH} --rerank {{pair}}"),
            *reranking(SEARCH),
            Row("--passage-length 6", "found.tsv", base=SEARCH.replace("{texts}", "{long}")),
            Row("--output {out}/other.tsv", "other.tsv"),
            Row("--pooling cls", "found.tsv"),
            Row("--dimensions 4", "found.tsv"),
            Row("--max-length 5", "found.tsv"),
            Row("--batch-size 2", "computed", batches(2)),
            Row("--precision int8", "computed", computed_by("onnx", "int8")),
            Row("--engine keras", "computed", computed_by("keras")),
            *reading("found.tsv", SEARCH, "{texts}", "--documents"),
        ],
    ),
    "evaluate": (
        EVALUATE,
        [
            # For a reranker: tests/tasks/test_reranking.py.
            Row("--first-stage {mlm}", "exit", exits=(0, 2)),
            Row("--model {other_classifier}", "figures.json"),
            Row("--data {more_labelled}", "figures.json"),
            Row("--output {out}/other.json", "other.json"),
            Row("--text-columns 备注", "figures.json", base=EVALUATE),
            Row("--label-column 类", "figures.json"),
            Row(
                "--first-line example",
                "figures.json",
                base=EVALUATE.replace("{labelled}", "{headless} --text-columns 1 --label-column 2"),
            ),
            Row(
                "--label-separator ;",
                "figures.json",
                base="--model {multilabel} --data {several} --output {out}/figures.json",
                exits=(2, 0),
            ),
            Row(
                "--encoding big5",
                "figures.json",
                base="--model {regression} --data {labelled_big5} --output {out}/figures.json",
            ),
            Row(
                "--sheet 二", "figures.json", base=EVALUATE.replace("{labelled}", "{labelled_book}")
            ),
            Row(
                "--strict",
                "exit",
                base=EVALUATE.replace("{labelled}", "{labelled_holes}"),
                exits=(0, 2),
            ),
            Row("--batch-size 2", "computed", batches(2)),
            Row("--precision int8", "computed", computed_by("onnx", "int8")),
            Row("--engine keras", "computed", computed_by("keras")),
        ],
    ),
    "fill-mask": (
        FILL,
        [
            Row("--model {other_mlm}", "stdout"),
            Row("我[MASK]好", "stdout", without="天[MASK]好", base="--model {mlm}"),
            Row("--top 2", "stdout", lambda *texts: len(texts[0]) > len(texts[1])),
            Row("--precision int8", "computed", computed_by("onnx", "int8")),
            Row("--engine keras", "computed", computed_by("keras")),
        ],
    ),
    "generate": (
        GENERATE,
        [
            Row("--model {other_writer}", "stdout"),
            Row("学习", "stdout", without="天气", base="--model {writer}"),
            Row("--input {more_texts}", "written.tsv", base=GENERATE_MANY),
            Row("--output {out}/other.tsv", "other.tsv"),
            Row("--max-tokens 3", "stdout"),
            Row("--min-tokens 5", "stdout"),
            Row("--samples 3", "stdout", lambda _, x: len(x.splitlines()) == 3),
            Row("--temperature 5", "stdout"),
            Row("--top-k 1", "stdout", base=f"{GENERATE} --temperature 3"),
            Row("--top-p 0.01", "stdout", base=f"{GENERATE} --temperature 3"),
            Row("--repetition-penalty 9", "stdout", base=f"{GENERATE} --min-tokens 6"),
            Row("--beams 4", "stdout"),
            Row("--length-penalty 9", "stdout", base=f"{GENERATE} --beams 4"),
            Row("--stop 天", "stdout"),
            Row("--seed 3", "stdout", base=f"{GENERATE} --temperature 3"),
            Row("--paraphrases 2", "stdout", base="--model {sim} 天气"),
            Row("--attention-type unilm", "stdout"),
            Row("--stream", "writes", lambda before, now: len(now) > len(before)),
            Row("--batch-size 2", "computed", prompts(2), base=GENERATE_MANY),
            Row("--precision bfloat16", "written.tsv", base=GENERATE_MANY),
            *reading("written.tsv", GENERATE_MANY, example="{triples}", first="header"),
        ],
    ),
    "export": (
        EXPORT,
        [
            Row("--model {other_classifier}", "exported/model.onnx"),
            Row("--to savedmodel", "exported/saved_model.pb"),
            Row("--output {out}/elsewhere", "elsewhere/model.onnx"),
            Row("--dimensions 4", "stdout", base=EXPORT.replace("{classifier}", "{mlm}")),
        ],
    ),
    "serve": (
        SERVE,
        [
            Row("--model {other_classifier}", "predict"),
            Row("--names reviews", "models", has('"reviews"')),
            Row("--index {index}", "search", base=SERVE_VECTORS),
            Row("--hybrid", "search", base=SERVE_INDEX),
            Row("--writable", "documents", has("422 "), base=SERVE_INDEX),
            Row("--rerank {pair}", "search", base=SERVE_INDEX),
            *reranking(SERVE_INDEX),
            Row("--pooling cls", "embed", base=SERVE_VECTORS),
            Row("--pooling cls", "exit", base=SERVE_INDEX, exits=(0, 2)),
            Row("--host 127.0.0.2", "host", lambda _, host: host == "127.0.0.2"),
            Row("--port {port}", "port", lambda before, now: now and not before),
            Row("--batch-size 2", "computed", batches(2)),
            Row("--batch-size 2", "computed", prompts(2), base=SERVE_WRITER),
            Row("--workers 2", "processes", lambda before, now: (before, now) == (0, 2)),
            Row("--precision int8", "computed", computed_by("onnx", "int8")),
            Row("--precision bfloat16", "generate", base=SERVE_WRITER),
            Row("--engine keras", "computed", computed_by("keras")),
            Row("--engine keras", "computed", computed_by("keras"), base=SERVE_INDEX),
            Row("--top-k 1", "predict"),
            Row("--attention-type unilm", "generate", base=SERVE_WRITER),
            Row("--api-key k", "predict", has("401 ")),
            Row("--cors-origins *", "cors", has("access-control")),
            Row("--root-path /x", "servers", lambda _, now: "/x" in str(now)),
            Row("--tls-key {texts}", "exit", exits=(0, 2)),
            Row("--tls-certificate {texts}", "exit", exits=(0, 2)),
            Row("--accept-token-ids", "token ids", has("200 "), base=SERVE_VECTORS),
            Row("--max-texts 4", "many", has("422 ")),
            Row("--max-characters 40", "long", has("422 ", "at most 40 are allowed")),
            Row("--max-megabytes 1", "large", has("413 ")),
            Row("--max-waiting 1", "burst", has("503")),
            Row("--max-connections 1", "two connections", has("503")),
            Row(
                "--max-answer-megabytes 1",
                "vectors",
                has("413"),
                base=f"{SERVE_VECTORS} --max-texts 8000",
            ),
            Row("--max-text-tokens 2", "generate", base=SERVE_WRITER),
            Row("--max-request-tokens 40", "generate", has("422 "), base=SERVE_WRITER),
            Row("--max-samples 2", "samples", has("422 "), base=SERVE_WRITER),
        ],
    ),
    "evaluate (corpus)": (
        CORPUS,
        [
            Row("--model {other_mlm}", "lengths.json"),
            Row("--lengths 8 12", "lengths.json"),
            Row("--output {out}/other.json", "other.json"),
            Row("--corpus {more_texts}", "lengths.json"),
            Row("--field 甲", "lengths.json", base=CORPUS.replace("{texts}", "{corpus}")),
            Row(
                "--encoding gb18030",
                "lengths.json",
                base=CORPUS.replace("{texts}", "{corpus_big5}"),
            ),
            Row("--strict", "exit", base=CORPUS.replace("{texts}", "{damaged}"), exits=(0, 2)),
            Row("--min-characters 12", "lengths.json"),
            Row(
                "--drop-repeated-lines",
                "lengths.json",
                base=CORPUS.replace("{texts}", "{repeated}"),
            ),
            Row("--max-tokens 20", "lengths.json"),
            Row("--held-out 0.5", "lengths.json"),
            Row("--only-long", "lengths.json", base=f"{CORPUS} --lengths 12"),
            Row("--scalings linear", "lengths.json"),
            Row("--trained-length 4", "lengths.json", base=f"{CORPUS} --scalings linear"),
            Row("--objective causal", "lengths.json"),
            Row("--mask-rate 0.5", "lengths.json"),
            Row("--mask-replace-rate 0.1", "lengths.json"),
            Row("--random-replace-rate 0.2", "lengths.json"),
            Row("--seed 3", "lengths.json"),
            Row("--precision mixed_bfloat16", "lengths.json"),
            Row("--data {labelled}", "exit", exits=(0, 2)),
        ],
    ),
}
