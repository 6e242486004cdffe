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
from roformer_tf.labelled.encoding import encode_examples, row_targets
from roformer_tf.labelled.reading import ColumnsConfig, find_layout, read_examples
from roformer_tf.labelled.splits import split
from roformer_tf.labelled.task import make_task
from roformer_tf.runs.feeding import fed, prefetched

checkpoint, file = sys.argv[1:]
columns = ColumnsConfig()
layout = find_layout(file, columns, task="classification")
train, valid, _ = split(read_examples(file, layout, columns), layout.task, shares=(0.2, 0.0))
task = make_task(layout.task, train, max_length=128)

tokenizer = RoFormerTokenizer.from_pretrained(checkpoint)
model = RoFormerForSequenceClassification.from_pretrained(checkpoint, num_labels=task.outputs)
model.compile(
    keras.optimizers.AdamW(1e-3, weight_decay=0.01),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    weighted_metrics=["accuracy"],
)

encoded = encode_examples(train, tokenizer, task)
batches = finetuning_batches(encoded, *row_targets(encoded, train, task), batch_size=16, seed=0)
steps = steps_per_epoch(encoded, 16)
model.fit(fed(prefetched(batches)), epochs=3, steps_per_epoch=steps, shuffle=False)

answers = predict(model, tokenizer, task, valid)
right = sum(answer.label == example.label for answer, example in zip(answers, valid, strict=True))
print(f"{right} of {len(valid)} held-out texts right")

model.tokenizer = tokenizer
model.save_pretrained("finetuned")
task.save("finetuned")  # now `roformer-tf predict --model finetuned` reads it
print(f"saved in {Path('finetuned').resolve()}")
