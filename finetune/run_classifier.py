"""`roformer-tf finetune` for people who work from a clone.

python finetune/run_classifier.py --checkpoint chinese_roformer-base --train train.tsv --output run
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from roformer_tf.cli import main

if __name__ == "__main__":
    sys.exit(main(["finetune", *sys.argv[1:]]))
