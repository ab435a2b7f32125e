"""How good a model is on the test set, as worker/model/quality.h has it: `test` of the run record."""

from __future__ import annotations

import math
from typing import Any, TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from device import Device

# The limits of worker/model/quality.h.
CONFUSION_CLASSES_MAX = 64
AUC_SCORES_MAX = 1 << 21
TOP_CLASSES = 5


def right(loss: str, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """By sample, whether it counts as a correct answer. All bits of a sample must be right; numbers never count."""
    if loss == "softmax":
        return outputs.argmax(1) == labels
    if loss == "bce":
        return ((outputs > 0) == (labels > 0.5)).all(1)
    return torch.zeros(len(labels), dtype=torch.bool)


def score(loss: str, mean_loss: float, accuracy: float) -> str:
    """For people, in the worker's words."""
    return f"RMSE {math.sqrt(mean_loss):.4g}" if loss == "mse" else f"accuracy {100 * accuracy:.2f} %"


def area_under_curve(scores: np.ndarray, bits: np.ndarray) -> float | None:
    """The probability that a sample whose bit is 1 has a higher score than one whose bit is 0; equal scores count half.
    None if one of both kinds is not there. Both arrays have one dimension."""
    positives = int(np.count_nonzero(bits))
    negatives = len(bits) - positives
    if positives == 0 or negatives == 0:
        return None
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]  # equal scores have the mean of their ranks
    return float((ranks[bits].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def _top(outputs: np.ndarray, labels: np.ndarray) -> int:
    """Samples whose class is among the largest outputs; of equal outputs the first counts as the larger."""
    own = outputs[np.arange(len(labels)), labels][:, None]
    earlier = np.arange(outputs.shape[1]) < labels[:, None]
    above = (outputs > own) | ((outputs == own) & earlier)
    return int(np.count_nonzero(above.sum(1) < TOP_CLASSES))


def _mean_area(scores: np.ndarray, bits: np.ndarray, begin: int, device: Device) -> float:
    """The mean over the columns of `bits` (all samples, columns); 0 if none can be measured. This rank has `scores` of
    the samples from `begin` on: each rank adds its own to zeros of the others."""
    whole = np.zeros(bits.shape)
    whole[begin:begin + len(scores)] = scores
    whole = np.array(device.sum_over_ranks(whole.ravel().tolist())).reshape(bits.shape)
    areas = [area for column in range(bits.shape[1])
             if (area := area_under_curve(whole[:, column], bits[:, column])) is not None]
    return float(np.mean(areas)) if areas else 0.0


def measure(outputs: np.ndarray, labels: np.ndarray, result: dict[str, Any], rank: int, device: Device
            ) -> dict[str, Any]:
    """TestQuality of the run record. `outputs` are those of this rank's part of the test set, `labels` those of all
    samples; `result` has the names of the loss and its mean, and the accuracy, under TestQuality's names. All ranks
    call it."""
    count, width = len(labels), outputs.shape[1]
    begin = count * rank // device.world_size
    found = {**result, "top5_accuracy": 0.0, "auc": 0.0, "rmse": 0.0, "r2": 0.0, "confusion": []}
    # Outputs that are not finite have no order. The loss says that training has failed.
    finite = np.where(np.isfinite(outputs), outputs, 0)
    if result["loss"] == "softmax":
        mine = labels[begin:begin + len(outputs)]
        confusion = np.zeros((width, width) if width <= CONFUSION_CLASSES_MAX else (0, 0))
        if confusion.size:
            np.add.at(confusion, (mine, finite.argmax(1)), 1)
        top, *counts = device.sum_over_ranks([float(_top(finite, mine)), *confusion.ravel().tolist()])
        found.update(top5_accuracy=top / count, confusion=[int(value) for value in counts])
        if width == 2 and count <= AUC_SCORES_MAX:
            found["auc"] = _mean_area(finite[:, 1:] - finite[:, :1], labels[:, None] == 1, begin, device)
    elif result["loss"] == "bce":
        if width <= AUC_SCORES_MAX // count:
            found["auc"] = _mean_area(finite, labels > 0.5, begin, device)
    else:
        variance = float(labels.astype(np.float64).var(0).mean())
        found.update(rmse=math.sqrt(result["mean_loss"]),
                     r2=1 - result["mean_loss"] / variance if variance > 0 else 0.0)
    return found
