"""Open several checkpoints with bert4keras in one process, because importing it takes longest.

Run with TF_KERAS=1 TF_USE_LEGACY_KERAS=1. Reads JSON from standard input: for each checkpoint the
arguments of `roformer_tf.conversion.other_libraries.main`.
"""

import json
import sys

from roformer_tf.conversion.other_libraries import main

if __name__ == "__main__":
    for arguments in json.load(sys.stdin):
        main(*arguments)
