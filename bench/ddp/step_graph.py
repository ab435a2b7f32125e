"""A training step that is captured once in a CUDA graph and launched as a whole from then on.

As PyTorch's notes on CUDA graphs say: some steps before the capture, which here are steps of the training like any
other; all of it off the default stream, the making of DistributedDataParallel too; tensors that the graph reads and
writes stay where they are.
"""

import inspect

import torch

EAGER_STEPS = 11  # before a capture, for DDP; one process would need fewer


class CaptureError(RuntimeError):
    """PyTorch could not capture the step. The process should end: what a broken capture leaves behind is unknown."""


def _version():
    return tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2] if number.isdigit())


def obstacle(flags, device):
    """Why no step of this job can be captured; empty if nothing is known to stand in the way."""
    if flags.graph_failure:
        return flags.graph_failure
    if not device.is_gpu:
        return "the CPU has none"
    if flags.data == "dataloader":
        return "the batches of a DataLoader lie on the host"
    if device.backend == "gloo":
        return "Gloo's allreduce runs on the host"
    if device.world_size > 1 and _version() < (2, 0):
        return f"torch {torch.__version__} captures no step of DistributedDataParallel, 2.0 does"
    if flags.schedule == "cosine" or flags.warmup_steps > 0:
        return "the learning rate changes in every step, and a captured optimizer keeps its own"
    return ""


def capture(work):
    """A function that does by one launch what `work` does, and returns what `work` returned while it was captured:
    tensors that every launch overwrites."""
    # NCCL's watchdog asks for the state of older work meanwhile, in a thread of its own: a capture may stand that.
    known = "capture_error_mode" in inspect.signature(torch.cuda.graph.__init__).parameters
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, **({"capture_error_mode": "thread_local"} if known else {})):
            result = work()
    except RuntimeError as error:
        raise CaptureError(str(error).split("\n", maxsplit=1)[0]) from error

    def launch():
        graph.replay()
        return result

    return launch


class GraphedStep:
    """Calls `work` with tensors, the first EAGER_STEPS times as it is, then in a graph for each `key`: what `work`
    depends on besides, as the learning rate. All calls have tensors of the same shapes."""

    def __init__(self, work):
        self._work = work
        self._eager_left = EAGER_STEPS
        self._graphs = {}  # key: (the tensors that the graph reads, the function that launches it)

    def __call__(self, key, tensors):
        if self._eager_left > 0:
            self._eager_left -= 1
            return self._work(*tensors)
        if key not in self._graphs:
            inputs = [tensor.clone() for tensor in tensors]
            self._graphs[key] = inputs, capture(lambda: self._work(*inputs))
        inputs, launch = self._graphs[key]
        for mine, given in zip(inputs, tensors):
            mine.copy_(given, non_blocking=True)
        return launch().clone()
