"""A checkpoint as an ONNX file, by way of PyTorch.

    python3 -m starring.export CHECKPOINT MODEL.onnx

The input `images` is (samples, channels, height, width) in float32: pixels from 0 to 255, or numbers, as the data have
them. The file normalises them as the worker does. The number of samples is free. The output is (samples, outputs), and
its name depends on the loss of the layer file:

    softmax  `logits`, whose softmax are the probabilities of worker --predict
    mse      `numbers`, those of worker --predict
    bce      `probabilities` that the bits are 1, those of worker --predict
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from typing import Any, Dict, Sequence

import torch

from . import models
from .weights import WeightsError

OUTPUT_NAMES = {"softmax": "logits", "mse": "numbers", "bce": "probabilities"}  # by TrainedModel.loss

_OPSET = 13  # the newest that PyTorch 1.13 and 2 both write well


def export(checkpoint: str, path: str) -> models.TrainedModel:
    """Writes the file, whole or not at all, and returns the model."""
    model = models.from_checkpoint(checkpoint)
    options: Dict[str, Any] = {}
    # The exporter that is the default since PyTorch 2.9 needs a further package.
    if "dynamo" in inspect.signature(torch.onnx.export).parameters:
        options["dynamo"] = False
    output = OUTPUT_NAMES[model.loss]
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        torch.onnx.export(model, (torch.zeros(2, *model.image),), temporary, input_names=["images"],
                          output_names=[output], opset_version=_OPSET,
                          dynamic_axes={"images": {0: "samples"}, output: {0: "samples"}}, **options)
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)
    return model


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m starring.export", formatter_class=argparse.RawTextHelpFormatter,
                                     description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a run's --checkpoint_dir, or a folder in it")
    parser.add_argument("out", metavar="MODEL.onnx", help="the file")
    flags = parser.parse_args(arguments)
    try:
        model = export(flags.checkpoint, flags.out)
    except (OSError, RuntimeError, models.CheckpointError, models.LayerFileError, WeightsError) as error:
        print(f"starring.export: error: {error}", file=sys.stderr)
        return 2
    print(f"{flags.out}: images (samples, {', '.join(map(str, model.image))}), {OUTPUT_NAMES[model.loss]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
