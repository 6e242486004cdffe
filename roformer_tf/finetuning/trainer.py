"""What the trainings of a run share: the checkpoint that they begin with, and a compiled model."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import keras
import numpy as np

from roformer_tf.config import RoFormerConfig
from roformer_tf.finetuning.fgm import AdversarialModel
from roformer_tf.finetuning.task_loss import TaskLoss, make_loss
from roformer_tf.finetuning.vectors import BatchTraining, VectorTraining
from roformer_tf.labelled.examples import Example
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.training.devices import choose_jit
from roformer_tf.training.optimizers import make_finetune_optimizer, may_restart, restart
from roformer_tf.training.settings import FinetuneOptimizerConfig


@dataclass(frozen=True)
class InitialState:
    """What every training begins with: a checkpoint's encoder and vocabulary."""

    architecture: RoFormerConfig
    # The encoder's, under the checkpoints' names; none from scratch.
    weights: dict[str, np.ndarray]
    tokenizer: RoFormerTokenizer
    # The name of a Keras dtype policy.
    precision: str

    def model(self, task: Task) -> PretrainedModel:
        """A model for the task: a new head on the checkpoint's encoder."""
        architecture = self.architecture.replace(num_labels=task.outputs, crf=task.crf)
        model = task.objective.model_class()(
            task.decoding.described_in(architecture), dtype=self.precision
        )
        variables = model.named_variables()
        # The checkpoint's weights come last: where both have a weight, it is the learned one.
        for name, array in {**task.objective.first_weights(), **self.weights}.items():
            variables[name].assign(array)
        model.tokenizer = self.tokenizer.with_units(task.units)
        return model


@dataclass
class Trainer:
    """A model that several trainings use one after the other, so that its step is compiled once.

    Compiling takes longer than many short trainings. Each training starts as if its model were new,
    to the bit: weights, a head by its own seed, random states of dropout, optimizer and schedule.
    """

    initial: InitialState
    task: Task
    loss: LossConfig
    # Class weights are counted in these examples.
    train: Sequence[Example]
    # In which a batch's vectors are computed, if the task has vectors.
    micro_batches: int = 1
    # The model as the last training left it, and what is compiled: itself, or its wrapper.
    compiled: tuple[PretrainedModel, PretrainedModel] | None = field(default=None, init=False)

    def begin(
        self, seed: int, optimizer: FinetuneOptimizerConfig, batches: int
    ) -> tuple[PretrainedModel, PretrainedModel]:
        """For a training of this number of batches: the model, and the model or wrapper to fit."""
        keras.utils.set_random_seed(seed)
        fresh = self.initial.model(self.task)
        wrapper = self._wrapped(fresh)
        if self.compiled is None or not may_restart(self.compiled[1].optimizer, optimizer, wrapper):
            wrapper.compile(
                make_finetune_optimizer(optimizer, wrapper, batches),
                self._loss(),
                jit_compile=choose_jit(),
            )
            self.compiled = fresh, wrapper
            return self.compiled
        _, compiled = self.compiled
        for variable, new in zip(compiled.variables, wrapper.variables, strict=True):
            variable.assign(new)
        restart(compiled.optimizer, optimizer, compiled, batches)
        compiled.reset_metrics()
        return self.compiled

    def _wrapped(self, model: PretrainedModel) -> PretrainedModel:
        """What is compiled to train a model: itself, or a wrapper with the same weights."""
        if self.task.writes or self.task.compares:
            return BatchTraining(model, self.task)
        if self.task.separate_texts:
            return VectorTraining(model, self.task, self.micro_batches)
        return AdversarialModel(model, self.loss.fgm) if self.loss.fgm else model

    def _loss(self) -> TaskLoss | None:
        """The loss of sequences; None if the wrapper computes the loss of a whole batch."""
        if self.task.separate_texts or self.task.compares:
            return None
        targets = [self.task.labelling.target(example) for example in self.train]
        return make_loss(self.task, self.loss, targets)

    def forget(self) -> None:
        """Have the next training compile a new model, after one that failed within a step."""
        self.compiled = None
