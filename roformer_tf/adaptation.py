"""`finetune`, with its `--adapt`: first continue the checkpoint's pretraining on the task's texts.

Pretraining and fine-tuning do not import each other. This module, which is above both, gives one to
the other as a function.

OUTPUT/adapted/texts.jsonl    the training texts, and those of --unlabelled
OUTPUT/adapted/               the folder of a run of `pretrain`; model/ is the adapted checkpoint
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.errors import InputError
from roformer_tf.files import write_text
from roformer_tf.finetuning import command
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.terminal import say
from roformer_tf.training.run_files import MODEL
from roformer_tf.training.settings import DevicesConfig, OptimizerConfig

# Passes over the texts, and the largest number of steps, which is a few minutes of a small model.
PASSES, MAX_STEPS, SAVE_EVERY = 30, 600, 50
# Texts of a task are short: longer ones are split.
LENGTH = 128


def finetune(config: FinetuneConfig, files: Mapping[Path, str] = MappingProxyType({})) -> None:
    """Fine-tune a checkpoint on labelled texts, and report on the result; see `command`."""
    command.finetune(config, adapt, files)


def adapt(config: FinetuneConfig, texts: Iterable[str]) -> Path:
    """Train the checkpoint to fill masks in these texts.

    `config`: with a number for the learning rate. Returns the folder of the adapted checkpoint. A
    killed training goes on, a finished one is used again. Raises InputError for a checkpoint that
    is not a masked language model, and as `pretrain`.
    """
    # Not above: only --adapt needs these modules, which take a fifth of a second to load.
    from roformer_tf.corpus.objectives import MaskingConfig
    from roformer_tf.corpus.preparation import PreparationConfig, prepare
    from roformer_tf.corpus.shards import PreparedRows
    from roformer_tf.pretraining.command import pretrain
    from roformer_tf.pretraining.settings import PretrainConfig

    with OpenedSource(config.checkpoint) as source:
        if not source.checkpoint().is_language_model:
            raise InputError(
                f"{config.checkpoint} cannot be adapted: it has no head that scores the "
                "vocabulary. Remove --adapt, or give a masked language model."
            )
    output = Path(config.output, "adapted")
    corpus = output / "texts.jsonl"
    lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    write_text(corpus, lines)
    rows = prepare(
        PreparationConfig(
            corpus=(str(corpus),),
            output=str(output / "rows"),
            vocab=config.checkpoint,
            length=LENGTH,
            held_out=0.0,
        )
    )
    sequences = PASSES * len(PreparedRows.open(rows))
    steps = min(MAX_STEPS, -(-sequences // config.batch_size))
    say(
        "adapting {checkpoint}: {steps} steps to fill masks in the texts of the task",
        checkpoint=config.checkpoint,
        steps=steps,
    )
    pretrain(
        PretrainConfig(
            rows=str(rows),
            output=str(output),
            init_from=config.checkpoint,
            batch_size=config.batch_size,
            steps=steps,
            save_every=SAVE_EVERY,
            seed=config.seed,
            dropout=config.dropout,
            precision=config.precision,
            masking=MaskingConfig(mask_rate=0.2),
            optimizer=OptimizerConfig(learning_rate=float(config.optimizer.learning_rate)),
            # As many as fine-tuning has. JAX would split the models of fine-tuning, too.
            hardware=DevicesConfig(devices=1),
        )
    )
    return output / MODEL
