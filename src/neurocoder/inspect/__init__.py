"""What programs and slots do, as numbers: `nc.inspect.attention(trace["fc"])`.

`nc.plot` draws these numbers as figures, `neurocoder explore` as a page. Tensors come back on the CPU, in float32.
"""

from .clusters import Clusters, clusters, silhouette
from .data import Call, calls
from .views import Written, attention, by_label, drift, thumbnails, vectors, written

__all__ = [
    "Call",
    "Clusters",
    "Written",
    "attention",
    "by_label",
    "calls",
    "clusters",
    "drift",
    "silhouette",
    "thumbnails",
    "vectors",
    "written",
]
