"""The discriminator of offline mining (paper, section 3.3): features that compare boxes.

Any pretrained network, such as a self-supervised one (`load`), or one trained on the user's own
images (`pretrain`, MoCo v2).
"""
