"""The discriminator of offline mining (the paper's section 3.2): features of boxes, by their looks.

A network that knows nothing of the classes at hand, such as a self-supervised one (`load`), or one
trained on the images themselves (`pretrain`, MoCo v2).
"""
