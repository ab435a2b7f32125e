#!/usr/bin/env python3
"""What it costs to protect a star's connections: star_bench in each way, in turn, and a table of the medians.

    bazel build -c opt //bench:star_bench //deploy:launch
    python3 bench/star_security.py --repeats=7

Arrays go through sockets, as between machines: two workers and two servers on loopback. The site's certificate
authority is made with the program openssl.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def run(*argv):
    done = subprocess.run(argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("%s: %s" % (" ".join(argv), done.stderr))
    return done.stdout


def make_site(folder):
    """A certificate authority, and a certificate by it for 127.0.0.1."""
    def path(name):
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--bytes", default="4194304,67108864")
    parser.add_argument("--binaries", default=os.path.join(ROOT, "bazel-bin"))
    flags = parser.parse_args()
    sizes = [int(size) for size in flags.bytes.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        secret = "--job_secret=" + os.path.join(folder, "secret")
        run(os.path.join(flags.binaries, "deploy/launch"), "--make_secret=" + os.path.join(folder, "secret"))
        ways = {"plain": [], "token": [secret], "mutual TLS": [secret, "--tls"],
                "mutual TLS, a site's own CA": [secret, "--tls", *make_site(folder)]}
        times = {(way, size): [] for way in ways for size in sizes}
        for _ in range(flags.repeats):
            for way, more in ways.items():
                text = run(os.path.join(flags.binaries, "bench/star_bench"), "--shared_memory=false", "--format=json",
                           "--bytes=" + flags.bytes, *more)
                for line in text.splitlines():
                    row = json.loads(line)
                    times[way, row["bytes"]].append(row["latency_us"] / 1e3)
    print("| connections | " + " | ".join("%d MiB, ms" % (size >> 20) for size in sizes) + " |")
    print("| --- |" + " --- |" * len(sizes))
    for way in ways:
        cells = []
        for size in sizes:
            median = statistics.median(times[way, size])
            spread = (max(times[way, size]) - min(times[way, size])) / median
            plain = statistics.median(times["plain", size])
            cells.append("%.2f (%.0f %%), %.2f times" % (median, 100 * spread, median / plain))
        print("| %s | %s |" % (way, " | ".join(cells)))


if __name__ == "__main__":
    main()
