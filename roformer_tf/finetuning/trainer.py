"""What the trainings of a run share: the checkpoint that they begin with, and a compiled model."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import keras
import numpy as np

from roformer_tf.config import RoFormerConfig
from roformer_tf.finetuning.fgm import trainable
from roformer_tf.finetuning.losses import TaskLoss, make_loss
from roformer_tf.finetuning.vectors import BatchTraining, VectorTraining
from roformer_tf.labelled.examples import Example
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.training.devices import choose_jit
from roformer_tf.training.optimizers.factory import (
    make_restartable_optimizer,
    may_restart,
    restart,
)
from roformer_tf.training.optimizers.settings import FinetuneOptimizerConfig


@dataclass(frozen=True)
class Start:
    """What every training begins with: a checkpoint's encoder and vocabulary."""

    architecture: RoFormerConfig
    weights: dict[str, np.ndarray]
    """The encoder's, under the checkpoints' names; none from scratch."""
    tokenizer: RoFormerTokenizer
    precision: str
    """A Keras dtype policy's name."""

    def model(self, task: Task) -> PretrainedModel:
        """A model for the task, its head new, its encoder the checkpoint's."""
        architecture = self.architecture.replace(num_labels=task.outputs, crf=task.crf)
        model = task.objective.model_class()(
            task.decoding.described_in(architecture), dtype=self.precision
        )
        variables = model.named_variables()
        for name, array in {**task.objective.first_weights(), **self.weights}.items():
            variables[name].assign(array)
        model.tokenizer = self.tokenizer.with_units(task.units)
        return model


@dataclass
class Trainer:
    """A model that several trainings use one after the other, so that its step is compiled once.

    Each of them finds it as one just made and compiled would be, to the bit: weights, a new head by
    its own seed, dropout's random states, the optimizer's slots and schedule.
    """

    start: Start
    task: Task
    loss: LossConfig
    train: Sequence[Example]
    """The examples that balanced weights are counted in."""
    pieces: int = 1
    """That a batch's vectors are computed in, where the task makes vectors."""
    made: tuple[PretrainedModel, PretrainedModel] | None = field(default=None, init=False)
    """The model as the last training left it, and what is compiled: itself, or what trains it."""

    def begin(
        self, seed: int, optimizer: FinetuneOptimizerConfig, batches: int
    ) -> tuple[PretrainedModel, PretrainedModel]:
        """For a training of so many batches: the model, and what to fit, which holds its weights.

        Raises InputError where the batches make no step.
        """
        keras.utils.set_random_seed(seed)
        fresh = self.start.model(self.task)
        around = self._around(fresh)
        if self.made is None or not may_restart(self.made[1].optimizer, optimizer, around):
            around.compile(
                make_restartable_optimizer(optimizer, around, batches),
                self._loss(),
                jit_compile=choose_jit(),
            )
            self.made = fresh, around
            return self.made
        _, compiled = self.made
        for variable, new in zip(compiled.variables, around.variables, strict=True):
            variable.assign(new)
        restart(compiled.optimizer, optimizer, compiled, batches)
        compiled.reset_metrics()
        return self.made

    def _around(self, model: PretrainedModel) -> PretrainedModel:
        """What is compiled to train a model: itself, or what holds its weights."""
        if self.task.writes:
            return BatchTraining(model, self.task)
        if self.task.texts_apart:
            return VectorTraining(model, self.task, self.pieces)
        return trainable(model, self.loss.fgm)

    def _loss(self) -> TaskLoss | None:
        """The loss of rows; None where the model compares whole batches by itself."""
        if self.task.texts_apart:
            return None
        return make_loss(
            self.task, self.loss, [self.task.labelling.target(one) for one in self.train]
        )

    def forget(self) -> None:
        """Let the next training make a model of its own, after one that broke off in a step."""
        self.made = None
