"""Image garbage collection: policy and selection (pure), one run, and the manager that acts.

`policy` says when and how much, `selection` which rows of an `ImageTable` and in which order, `collection`
is one run over the records, `manager` lists, measures and removes through the runtime. May touch
`engine.api`, `tables`, `_fast`, `metrics` and `cri.client`; of the disk only statvfs and its own
records file. Importing this package loads what decides.
"""

from engine.images.policy import ImageGCPolicy
from engine.images.records import ImageRecords, SeenImage
from engine.images.report import ImageGCReport, ImageVerdict

__all__ = ["ImageGCPolicy", "ImageGCReport", "ImageRecords", "ImageVerdict", "SeenImage"]
