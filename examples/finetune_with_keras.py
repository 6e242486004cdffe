"""Fine-tune a checkpoint in plain Keras: python examples/finetune_with_keras.py CHECKPOINT TSV

The TSV has the columns `text` and `label`. What `roformer-tf finetune` adds to this: resuming, the
best weights, several seeds, a report.
"""

import sys
from pathlib import Path

import keras

from roformer_tf import LabelledDataset, RoFormerForSequenceClassification

checkpoint, file = sys.argv[1:]
train, valid = LabelledDataset.from_file(file, max_length=128).split(valid=0.2)

model = RoFormerForSequenceClassification.from_pretrained(checkpoint, num_labels=train.task.outputs)
model.compile(
    # For chinese_roformer-tf-mini; a larger model needs a lower rate, a base model 2e-5.
    keras.optimizers.AdamW(2e-4, weight_decay=0.01),
    # The reduction ignores what fills up the last batch; Keras' default would count it as 0.
    keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    ),
    weighted_metrics=["accuracy"],
)
model.fit(
    train.batches(model.tokenizer, batch_size=16),
    validation_data=valid.batches(model.tokenizer, batch_size=16),
    epochs=3,
    shuffle=False,  # the batches are, in every epoch anew
)

predictions = valid.predict(model)
right = [
    prediction.label == example.label
    for prediction, example in zip(predictions, valid.examples, strict=True)
]
print(f"{sum(right)} of {len(valid)} held-out texts right")

train.save_model(model, "finetuned")  # now `roformer-tf predict --model finetuned` reads it
print(f"saved in {Path('finetuned').resolve()}")
