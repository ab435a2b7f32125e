#!/usr/bin/env python3
"""Measures what it costs to protect the connections of a star: runs star_bench in each way in turn, prints a table.

    bazel build -c opt //bench:star_bench //deploy:launch
    python3 bench/star_security.py --repeats=7

Two workers and two servers on loopback exchange arrays through sockets, as between machines. A cell has the median time
of an exchange, or the processor time that all four processes together spend on one, which depends less on other load.
The program openssl makes the certificate authority of the site.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

PLAIN = ["gRPC, plain", "TCP, plain"]
ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def run(*argv: str) -> str:
    done = subprocess.run(argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("%s: %s" % (" ".join(argv), done.stderr))
    return done.stdout


def make_site(folder: str) -> list[str]:
    """Makes a certificate authority and its certificate for 127.0.0.1. Returns the flags that name them."""
    def path(name: str) -> str:
        return os.path.join(folder, name)
    with open(path("names"), "w") as file:
        file.write("subjectAltName=IP:127.0.0.1\n")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    run("openssl", "req", "-x509", *curve, "-keyout", path("ca_key"), "-out", path("ca"), "-days", "2", "-subj",
        "/CN=site")
    run("openssl", "req", *curve, "-keyout", path("key"), "-out", path("request"), "-subj", "/CN=host")
    run("openssl", "x509", "-req", "-in", path("request"), "-CA", path("ca"), "-CAkey", path("ca_key"),
        "-CAcreateserial", "-days", "2", "-out", path("certificate"), "-extfile", path("names"))
    os.chmod(path("key"), 0o600)
    return ["--tls_ca=" + path("ca"), "--tls_certificate=" + path("certificate"), "--tls_key=" + path("key")]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--bytes", default="4194304,67108864")
    parser.add_argument("--binaries", default=os.path.join(ROOT, "bazel-bin"))
    flags = parser.parse_args()
    sizes = [int(size) for size in flags.bytes.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        secret = "--job_secret=" + os.path.join(folder, "secret")
        run(os.path.join(flags.binaries, "deploy/launch"), "--make_secret=" + os.path.join(folder, "secret"))
        ways: dict[str, list[str]] = {
            PLAIN[0]: [], "gRPC, secret": [secret], "gRPC, mutual TLS": [secret, "--tls"],
            "gRPC, mutual TLS, a site's own CA": [secret, "--tls", *make_site(folder)],
            PLAIN[1]: ["--transport=tcp"], "TCP, secret": ["--transport=tcp", secret],
            "TCP, mutual TLS": ["--transport=tcp", secret, "--tls"]}
        exchange_ms: dict[tuple[str, int], list[float]] = {(way, size): [] for way in ways for size in sizes}
        processor_ms: dict[tuple[str, int], list[float]] = {(way, size): [] for way in ways for size in sizes}
        for _ in range(flags.repeats):
            for way, more in ways.items():
                text = run(os.path.join(flags.binaries, "bench/star_bench"), "--shared_memory=false",
                           "--bytes=" + flags.bytes, *more)
                for line in text.splitlines()[1:]:
                    size, p50_ms, _, _, user_ms, system_ms = map(float, line.split()[:6])
                    exchange_ms[way, int(size)].append(p50_ms)
                    processor_ms[way, int(size)].append(user_ms + system_ms)
    heads = ["%d MiB, %s" % (size >> 20, what) for size in sizes for what in ("ms", "CPU ms")]
    print("| connections | " + " | ".join(heads) + " |\n| --- |" + " --- |" * len(heads))
    for way in ways:
        cells = [_cell(values, way, size) for size in sizes for values in (exchange_ms, processor_ms)]
        print("| %s | %s |" % (way, " | ".join(cells)))


def _cell(values: dict[tuple[str, int], list[float]], way: str, size: int) -> str:
    """The median, the spread, and the ratio to plain connections of the same transport."""
    plain, = [name for name in PLAIN if name.split(",")[0] == way.split(",")[0]]
    median = statistics.median(values[way, size])
    spread = (max(values[way, size]) - min(values[way, size])) / median
    return "%.1f (%.0f %%), %.2f" % (median, 100 * spread, median / statistics.median(values[plain, size]))


if __name__ == "__main__":
    main()
