"""Keras layers of RoFormer. After `import roformer_tf.layers`, `.keras` files can be loaded."""

import keras as keras  # `register` needs it

from roformer_tf.registration import register

register()
