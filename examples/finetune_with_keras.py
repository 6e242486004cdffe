"""Fine-tune a checkpoint in plain Keras: python examples/finetune_with_keras.py CHECKPOINT TSV

The TSV has the columns `text` and `label`. What `roformer-tf finetune` adds to this: resuming, the
best weights, several seeds, a report.
"""

import sys
from pathlib import Path

import keras

from roformer_tf import RoFormerForSequenceClassification, RoFormerTokenizer
from roformer_tf.inference.predict import predict
from roformer_tf.labelled.batches import finetuning_batches, steps_per_epoch
from roformer_tf.labelled.reading import ColumnsConfig, find_layout, read_examples
from roformer_tf.labelled.splits import split_examples
from roformer_tf.runs.feeding import fed, prefetched
from roformer_tf.tasks.table import TASKS

checkpoint, file = sys.argv[1:]
columns = ColumnsConfig()
layout = find_layout(file, columns, "classification", TASKS)
examples = read_examples(file, layout, columns)
train, valid, _ = split_examples(examples, layout.task, shares=(0.2, 0.0))
task = layout.task.from_examples(train, max_length=128)

tokenizer = RoFormerTokenizer.from_pretrained(checkpoint)
model = RoFormerForSequenceClassification.from_pretrained(checkpoint, num_labels=task.outputs)
model.compile(
    keras.optimizers.AdamW(1e-3, weight_decay=0.01),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    weighted_metrics=["accuracy"],
)

encoded = task.encode(train, tokenizer)
batches = finetuning_batches(encoded, *task.row_targets(encoded, train), batch_size=16, seed=0)
steps = steps_per_epoch(encoded, 16)
model.fit(fed(prefetched(batches)), epochs=3, steps_per_epoch=steps, shuffle=False)

answers = predict(model, tokenizer, task, valid)
right = sum(answer.label == example.label for answer, example in zip(answers, valid, strict=True))
print(f"{right} of {len(valid)} held-out texts right")

model.tokenizer = tokenizer
model.save_pretrained("finetuned")
task.save("finetuned")  # now `roformer-tf predict --model finetuned` reads it
print(f"saved in {Path('finetuned').resolve()}")
