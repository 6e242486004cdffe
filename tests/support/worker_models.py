"""What a worker's process opens in the tests: it must be found by name there."""

import gc
import os
import time


def doubling():
    """Twice each number; 13 ends the process, as a crash would, and "wrong" is our mistake.

    "kept": how many objects the garbage collector passes over.
    """

    def answer(numbers):
        if 13 in numbers:
            os._exit(1)
        if "wrong" in numbers:
            raise ValueError("no number")
        if "slow" in numbers:
            time.sleep(0.5)
            return [os.getpid()]
        if "kept" in numbers:
            return [gc.get_freeze_count()]
        return [2 * number for number in numbers]

    return answer


def refusing():
    """Cannot be opened."""
    raise ValueError("no model")
