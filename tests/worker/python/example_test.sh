#!/bin/bash
# Runs the example in C, as a star and as a ring, and compares what its ranks print with the means of their arrays.
set -euo pipefail
example=$1
for topology in star ring; do
  "$example" "$topology" | sort >"$TEST_TMPDIR/output"
  for rank in 0 1 2 3; do
    echo "rank $rank: bucket 0 has the mean 1.5 2.5 ... 8.5"
    echo "rank $rank: bucket 1 has the mean 2.5 3.5 ... 9.5"
  done | diff - "$TEST_TMPDIR/output"
done
