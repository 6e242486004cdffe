"""Fit the baseline of a task as a report does."""

from roformer_tf.tasks.tfidf import fit_tfidf


def baseline_of(task, training, test, valid=(), metric=None):
    """The baseline's name and its predictions for the test set."""
    if not task.metrics.linear_model:
        return task.metrics.rule(training, test, valid)
    fitted = fit_tfidf(task, training, valid, metric or task.metrics.usable()[0])
    return fitted.name, fitted.predictions(task, test, valid)
