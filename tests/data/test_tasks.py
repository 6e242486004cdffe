"""What a task keeps of its training examples, and in which order."""

from roformer_tf.data.tasks import Example, Task, make_task

NUMBERS = tuple(map(str, range(-5, 40)))


def test_labels_have_one_order_numbers_by_size_and_then_words():
    """A killed run counts them anew: another order would be another model."""
    for words in (("a", "b"), ("nan", "nü"), ("NaN", "nan", "南")):
        examples = [Example((label,), label, "") for label in (*words[::-1], *NUMBERS[::-1])]
        assert make_task("classification", examples).labels == (*NUMBERS, *words)


def test_a_folder_keeps_the_order_of_the_labels(tmp_path):
    task = Task(name="classification", labels=("好", "坏", "10", "2"), text_columns=("a",))
    task.save(tmp_path)
    assert Task.load(tmp_path) == task
