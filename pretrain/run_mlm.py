"""Run `roformer-tf pretrain` from a clone, without installing the package.

python pretrain/run_mlm.py --config base --corpus 'data/*.jsonl'
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from roformer_tf.cli import main

if __name__ == "__main__":
    sys.exit(main(["pretrain", *sys.argv[1:]]))
