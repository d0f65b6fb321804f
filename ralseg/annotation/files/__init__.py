"""Labels as files of other tools: CVAT, COCO, Pascal VOC, plain PNGs.

Each format is a module with two pure functions: ``encode`` makes files of label records, ``decode`` makes labelled
images of files. Nothing here decides what is wanted or keeps answers.
"""
