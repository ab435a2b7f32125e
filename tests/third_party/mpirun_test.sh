#!/bin/bash
# mpirun starts more ranks than there may be cores, as any user, inside Bazel's sandbox.
set -euo pipefail
# The ranks would overwrite one another's result files.
unset XML_OUTPUT_FILE TEST_PREMATURE_EXIT_FILE
exec mpirun -np 3 -x EXPECTED_RANKS=3 "$1"
