"""Moves buckets between a GPU and pinned host memory, on a stream of its own, so that no copy waits for backward."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Tuple

import torch


class Staged(NamedTuple):
    """A bucket on its way. `host` holds its values once `copied` has happened."""
    bucket: torch.Tensor
    host: torch.Tensor
    copied: Any  # torch.cuda.Event


class PinnedStaging:
    """Host memory for the buckets of one model, made at a bucket's first use and kept.

    Copies of a device are in one stream, in order: a bucket's copy of the next step to the host begins only after its
    copy of this step back to the GPU. copy_to_host() is called by the thread that runs backward, the other methods by
    the threads that exchange; no method is called for one bucket by two threads at once.
    """

    def __init__(self) -> None:
        self._streams: Dict[torch.device, Any] = {}
        self._hosts: Dict[Tuple[int, int, torch.dtype], torch.Tensor] = {}

    def copy_to_host(self, index: int, bucket: torch.Tensor) -> Staged:
        """Begins the copy of bucket `index`, after all work that is in the current stream. Returns at once."""
        stream = self._streams.get(bucket.device)
        if stream is None:
            stream = self._streams[bucket.device] = torch.cuda.Stream(bucket.device)
        key = (index, bucket.numel(), bucket.dtype)
        if key not in self._hosts:
            # DDP makes other buckets after the first steps. The old ones' memory would never be used again.
            self._hosts = {old: host for old, host in self._hosts.items() if old[0] != index}
            self._hosts[key] = torch.empty(bucket.numel(), dtype=bucket.dtype, pin_memory=True)
        host = self._hosts[key]
        stream.wait_stream(torch.cuda.current_stream(bucket.device))
        with torch.cuda.stream(stream):
            host.copy_(bucket, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record(stream)
        bucket.record_stream(stream)
        return Staged(bucket, host, copied)

    def wait(self, staged: Staged) -> None:
        """Returns when `staged.host` holds the bucket."""
        staged.copied.synchronize()

    def copy_back(self, staged: Staged, future: Any) -> None:
        """Begins the copy to the GPU and completes `future`, whose consumers' streams then wait for the copy."""
        with torch.cuda.stream(self._streams[staged.bucket.device]):
            staged.bucket.copy_(staged.host, non_blocking=True)
            future.set_result(staged.bucket)
