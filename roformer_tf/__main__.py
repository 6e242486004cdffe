"""`python -m roformer_tf`: the commands where Python's folder of scripts is not on the path."""

import sys

from roformer_tf.cli import main

if __name__ == "__main__":
    sys.exit(main())
