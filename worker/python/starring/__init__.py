"""Star and ring under PyTorch. `starring.torch` is the place to begin:

    import starring.torch

    model = torch.nn.parallel.DistributedDataParallel(model)
    starring.torch.attach(model, sync="star")

`python -m starring.servers` starts the servers of a star that has servers. Importing `starring` alone imports neither
PyTorch nor NumPy, and loads no library.
"""

from starring._library import StarringError

__all__ = ["StarringError", "__version__"]

__version__ = "0.1"
