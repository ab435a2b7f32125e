#!/bin/bash
# Tests that mpirun starts more ranks than cores, as any user, inside Bazel's sandbox.
set -euo pipefail
# With this variable set, the ranks would overwrite each other's result files.
unset XML_OUTPUT_FILE TEST_PREMATURE_EXIT_FILE
exec mpirun -np 3 -x EXPECTED_RANKS=3 "$1"
