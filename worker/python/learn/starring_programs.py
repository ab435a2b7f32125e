"""Starring's own programs: two workers and a parameter server, then two workers in a ring, train one small network.

Start: python3 starring_programs.py starring-launch (of the wheel starring-programs), or bazel-bin/deploy/launch
Check by hand: both lines have the same digest, so every bit of every parameter is the same.
"""
import json
import os
import subprocess
import sys
import tempfile

JOB = ["--dataset=synthetic", "--synthetic_train_count=400", "--synthetic_test_count=50", "--max_steps=5"]

for flags in (["--sync=star", "--workers=2", "--servers=1"], ["--sync=ring", "--workers=2"]):
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "record.json")
        subprocess.run([sys.argv[1], *flags, "--", *JOB, f"--record={record}"], check=True, timeout=60,
                       capture_output=True)
        with open(record, encoding="utf-8") as file:
            print(flags[0], json.load(file)["parameter_sha256"])
