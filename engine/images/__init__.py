"""Collects unused images: policy and selection (pure), one run, and the manager that acts.

`policy` tells when and how much to free, `selection` which rows of an `ImageTable` in which order,
`collection` is one run over the records, and `manager` lists, measures and removes through the runtime. The
package may import `engine.api`, `tables`, `_fast`, `metrics` and `cri.client`; on disk it touches only
statvfs and its own records file. Importing it loads pure modules only.
"""

from engine.images.policy import ImageGCPolicy
from engine.images.records import ImageRecords, SeenImage
from engine.images.report import ImageGCReport, ImageVerdict

__all__ = ["ImageGCPolicy", "ImageGCReport", "ImageRecords", "ImageVerdict", "SeenImage"]
