"""What is planned for: a model, a cluster, and the buckets and messages that follow from both."""

from __future__ import annotations

import dataclasses
import math

KIB = 1024
MESSAGE_BYTES = 128 * KIB  # one message between ranks carries the chunks of several blocks up to this
CHUNK_BYTES_MIN = 4 * KIB
SMALL_WORLD = 4  # up to so many workers a chunk has MESSAGE_BYTES
SLICE_BYTES_MIN = 16 * KIB  # of an owner of a short last block in a star without servers
BUCKET_BYTES = 1 << 20  # the worker's default
SHARED_BUCKET_BYTES = 4 << 20  # the worker's default where servers share memory with the workers


class WorkloadError(Exception):
    """A number or a text describes no job and no cluster; the message says which, and what it can be."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """One worker's step. All workers are alike."""
    name: str
    bytes: int  # of the parameter vector
    compute_s: float = 0.0  # forward and backward, on a core that nothing else uses
    batch: int = 64  # samples of one worker in a step
    threads: int = 1
    bucket_bytes: int = BUCKET_BYTES  # 0: the worker's default, which depends on the cell

    def __post_init__(self) -> None:
        if self.bytes < 4:
            raise WorkloadError(f"a model of {self.bytes} bytes: it has at least one parameter of 4 bytes")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Equal hosts on one switch without contention. Where there is one, all processes are on it."""
    hosts: int = 1
    workers_per_host: int = 1
    cores: float = 1  # of each host; a fraction where emulated hosts share them
    bytes_per_second: float = 0.0  # payload of a link in either direction; 0 where there is one host
    latency_s: float = 0.0  # what a message needs between two hosts in addition to one within a host
    burst_s: float = 0.0  # of its idle time a link catches up on so much; 0 unless it is emulated (bench/netlab)

    def __post_init__(self) -> None:
        if not self.cores:
            raise WorkloadError("hosts of 0 cores: each has at least a part of a core")
        if self.hosts > 1 and not self.bytes_per_second:
            raise WorkloadError("several hosts need the rate of a link: give --gbits, or --measure=HOST,HOST")

    def hosts_of(self, workers: int) -> int:
        """The hosts that so many workers use."""
        return 1 if self.hosts == 1 else -(-workers // self.workers_per_host)

    def most_on_a_host(self, processes: int, workers: int) -> int:
        """`processes` are spread over the hosts that so many workers use."""
        return -(-processes // self.hosts_of(workers))


def chunk_bytes(workers: int) -> int:
    """The part of a block that one rank owns: smaller with more ranks, or the smallest bucket would grow with them."""
    if workers <= SMALL_WORLD:
        return MESSAGE_BYTES
    return int(max(CHUNK_BYTES_MIN, 2 ** math.floor(math.log2(2 * MESSAGE_BYTES / workers))))


def block_bytes(workers: int) -> int:
    return workers * chunk_bytes(workers)


def rounded_bucket_bytes(total: int, asked: int, workers: int) -> int:
    """As common/job/bucket_map.h rounds: whole blocks, and no more of them than the vector has."""
    block = block_bytes(workers)
    return block * min(-(-asked // block), -(-total // block))


def bucket_sizes(total: int, asked: int, workers: int) -> list[tuple[int, int]]:
    """[(bytes, number of such buckets), ...]: whole buckets, if there are any, and the last one."""
    bucket = rounded_bucket_bytes(total, asked, workers)
    whole = (total - 1) // bucket
    return [(bucket, whole)] * (whole > 0) + [(total - whole * bucket, 1)]


@dataclasses.dataclass(frozen=True)
class Group:
    """Blocks whose messages travel together between ranks: one message carries all that a rank owns of them."""
    bytes: int
    owners: int
    count: int  # of such groups


def groups(total: int, asked: int, workers: int, few_owners: bool) -> list[Group]:
    """As common/reduce/star_pieces.h cuts the buckets. With `few_owners`, a short last block is a group of its
    own with an owner for each SLICE_BYTES_MIN (common/reduce/owner_map.h), as in a star without servers."""
    block = block_bytes(workers)
    longest = MESSAGE_BYTES // chunk_bytes(workers) * block
    last_block = total - (total - 1) // block * block
    owners = min(workers, max(1, last_block // SLICE_BYTES_MIN)) if few_owners and last_block < block else workers
    apart = last_block if owners < workers else 0
    found = []
    *whole_buckets, (last_bucket, _) = bucket_sizes(total, asked, workers)
    for size, count in (*whole_buckets, (last_bucket - apart, 1)):
        whole, rest = divmod(size, longest)
        found += [Group(longest, workers, whole * count), Group(rest, workers, count)]
    return [group for group in (*found, Group(apart, owners, 1)) if group.bytes and group.count]
