"""How the attention over `M_U` depends on the digit: means, distinct patterns, decisions.

A pattern is a group of similar attention vectors of one component, found by k-means (Euclidean distance, unscaled
vectors). Groups can always be formed; they are *distinct* if the mean silhouette is at least 0.5, "a reasonable
structure" in Kaufman and Rousseeuw (1990). Otherwise the attention varies continuously from image to image.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage  # type: ignore[import-untyped]  # scipy ships no type stubs
from scipy.spatial.distance import cdist  # type: ignore[import-untyped]
from torch import Tensor, nn

import neurocoder as nc

Array = NDArray[np.float64]
Groups = NDArray[np.int64]

COMPONENTS = 3
"""How many of the first components are grouped, as in the paper's Figure 4."""
MOST = 6
"""The largest number of patterns considered."""
DISTINCT = 0.5
"""The mean silhouette from which groups count as distinct."""
SAMPLE = 1_000
"""Vectors that are grouped; the silhouette uses all pairwise distances."""
CONSTANT = 1e-3
"""Attention whose standard deviation is below this share of its norm is constant."""


def observe(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """What the figures and tables need from the model's only program layer.

    Args:
        x: images (N, d_in)
        y: their classes (N,), 0 to 9

    Returns:
        `mean` (10, r, P): of the attention over each digit's images
        `components`: for each of the first three, what `find` returns
        `paths` (10, 2^components): how many of each digit's images follow which of the two patterns in each component,
            the first component's choice being the highest bit
        `bits`: mutual information of path and digit
    """
    with torch.no_grad(), nc.record(model) as trace:
        model(x)
    (programs,) = trace.values()
    attention = programs.u.double().cpu().numpy()
    digits = y.cpu().numpy()
    components, path = [], np.zeros(len(digits), np.int64)
    for vectors in attention.swapaxes(0, 1)[:COMPONENTS]:
        found, groups = find(vectors)
        components.append(found)
        path = 2 * path + groups
    paths = np.stack([np.bincount(path[digits == digit], minlength=1 << len(components)) for digit in range(10)])
    return {
        "images": len(digits),
        "mean": rounded([attention[digits == digit].mean(0) for digit in range(10)]),
        "components": components,
        "paths": paths.tolist(),
        "bits": round(information(paths), 4),
    }


def find(vectors: Array) -> tuple[dict[str, Any], Groups]:
    """The patterns of one component.

    Args:
        vectors: attention (N, P)

    Returns:
        `count`: how many distinct patterns
        `silhouettes`: for 2, 3, ... patterns
        `best`, `two`: the patterns with the largest silhouette, distinct or not, and exactly two; each with `centres`
            (k, P), the `share` of images of each, largest first, and the share of the variance that they `explain`
        and which of the two each image follows (N,)
    """
    spread = float(np.sqrt(((vectors - vectors.mean(0)) ** 2).sum(-1).mean()))
    constant = spread <= CONSTANT * float(np.linalg.norm(vectors.mean(0)))
    sample = vectors[:: -(-len(vectors) // SAMPLE)]
    tree, distances = linkage(sample, "ward"), torch.from_numpy(cdist(sample, sample))
    grouped = {k: group(sample, fcluster(tree, k, "maxclust")) for k in range(2, MOST + 1)}
    silhouettes = {k: nc.inspect.silhouette(distances, torch.from_numpy(groups)) for k, groups in grouped.items()}
    best = max(silhouettes, key=lambda k: silhouettes[k])
    two = follow(vectors, means_of(sample, grouped[2]))
    return {
        "count": best if silhouettes[best] >= DISTINCT and not constant else 1,
        "silhouettes": rounded([silhouettes[k] for k in sorted(silhouettes)]),
        "best": describe(vectors, follow(vectors, means_of(sample, grouped[best]))),
        "two": describe(vectors, two),
    }, two


def means_of(vectors: Array, groups: Groups) -> Array:
    """The centre of each group (k, P)."""
    return np.stack([vectors[groups == index].mean(0) for index in range(groups.max() + 1)])


def group(vectors: Array, start: Groups) -> Groups:
    """k-means initialised by Ward's method, so that nothing is random; a group that becomes empty is dropped."""
    groups = np.unique(start, return_inverse=True)[1]
    for _ in range(100):
        nearest = np.unique(cdist(vectors, means_of(vectors, groups)).argmin(1), return_inverse=True)[1]
        if np.array_equal(nearest, groups):
            break
        groups = nearest
    return groups


def follow(vectors: Array, centres: Array) -> Groups:
    """The index of the nearest centre (N,), with centres sorted by how many follow them."""
    nearest = np.unique(cdist(vectors, centres).argmin(1), return_inverse=True)[1]
    order = np.argsort(-np.bincount(nearest), kind="stable")
    return np.argsort(order)[nearest]


def describe(vectors: Array, groups: Groups) -> dict[str, Any]:
    """The groups in numbers for the record."""
    centres = means_of(vectors, groups)
    total = ((vectors - vectors.mean(0)) ** 2).sum()
    within = ((vectors - centres[groups]) ** 2).sum()
    return {
        "centres": rounded(centres),
        "share": rounded(np.bincount(groups) / len(groups)),
        "explain": round(float(1 - within / total), 4) if total > 0 else 0.0,
    }


def information(paths: Groups) -> float:
    """Mutual information of path and digit, in bits, from their joint counts (digits, paths).

    Ten equally frequent digits have 3.32 bits; three binary decisions carry at most 3.
    """
    joint = paths / paths.sum()
    independent = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    met = joint > 0
    return float((joint[met] * np.log2(joint[met] / independent[met])).sum())


def rounded(values: Any) -> Any:
    """Nested lists with four decimals: more than any figure shows."""
    return np.round(np.asarray(values, np.float64), 4).tolist()
