"""How much the readers take. What exceeds a limit is an error that says so; docs/limits.md lists
all of them with their reasons.
"""

from __future__ import annotations

# Pictures
PICTURE_PIXELS = 100_000_000
WEBP_PIXELS = 50_000_000  # and AVIF
PICTURE_SIDE = 250_000  # resizing takes memory in proportion to a side, and 100 times as much
PICTURE_BYTES = 1 << 30

# Annotations
COCO_BYTES = 1 << 34
RECORD_CHARACTERS = 1 << 23  # of one record of a JSON list
FIRST_KEYS_BYTES = 1 << 26  # in which to find out whether a JSON file is COCO
JSON_KEYS = 1000  # at the top of a JSON file; and names of unread keys that are remembered
JSON_NON_OBJECTS = 1_000_000  # elements of one list that are not objects
IMAGES = 10_000_000  # of one file or folder
BOXES = 50_000_000  # of one file or folder
CLASSES = 20_000
LABEL_BYTES = 1 << 24  # of the label file or XML file of one image
LABEL_LINES = 1_000_000  # of the label file of one image
BOXES_PER_LABEL = 50_000  # of the label file or XML file of one image
LIST_BYTES = 1 << 26  # of a text file that lists pictures
CVAT_BYTES = 1 << 29  # of CVAT's XML file, which holds all images
CVAT_ELEMENTS = 200_000  # XML elements of one image in it

# Exports in a .zip
ZIP_ENTRIES = 2_000_000
ZIP_DIRECTORY_BYTES = 1 << 28  # the list of its entries
ZIP_RATIO = 100  # bytes unpacked for each byte of the .zip, from ZIP_FREE_BYTES on
ZIP_FREE_BYTES = 1 << 26

# Few-shot lists (shots.official)
LISTS_BYTES = 1 << 26

# Detections given to `mini eval`
DETECTIONS_BYTES = 1 << 33
DETECTIONS = 20_000_000

# Configurations, data.yaml, descriptions of studies
YAML_BYTES = 1 << 20
YAML_VALUES = 50_000  # keys count too
STUDY_RUNS = 5_000


# What mini wrote itself, and weights
STATE_BYTES = 1 << 24  # of a JSON file in a run's folder
POOL_BYTES = 1 << 26  # of a pool that is compared with the mined one
RUN_POOL_BYTES = 1 << 30  # of a pool in a run's folder, which is read at once
PAIRS_BYTES = 1 << 34  # of what a scan found
LOG_BYTES = 1 << 28  # of the log of a training
CANDIDATES_BYTES = 1 << 30  # of the candidates of a run
WEIGHTS_BYTES = 1 << 33  # of a file of weights or a checkpoint
TENSORS = 20_000  # in it; the largest networks have a few thousand
KEPT_DETECTIONS_BYTES = 1 << 30  # unpacked, of the detections beside a score
PICKLE_BYTES = 1 << 23  # of the pickle in a file of weights; ten thousand tensors need 3 MB
PICKLE_READS = (
    4_000_000  # of old files of weights, whose pickle has no length: reads of a few bytes
)
DIGESTS_BYTES = 1 << 30  # of the known contents of a data set's pictures
ONNX_BYTES = 2047 << 20  # protobuf holds 2 GB

# The review page
JOURNAL_BYTES = 1 << 26  # of the decisions of a review: half a million of them
BODY_BYTES = 1 << 20  # of a request to the page: some thousand decisions

# Problems
PROBLEMS_KEPT = 1000  # of each kind and file; one more line counts the others
PROBLEMS_OF_A_FILE = 20_000  # then the reader stops: a file of another kind is wrong everywhere
QUOTED = 200  # characters of a name or value in a message
MESSAGE = 2000  # characters of a message
