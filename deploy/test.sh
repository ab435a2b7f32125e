#!/bin/bash
# Tests everything, as continuous integration does: installs what is missing, then runs every test as it ships, every
# test under AddressSanitizer and UndefinedBehaviorSanitizer, those that can run under ThreadSanitizer, and clang-tidy.
#
# The last line is `N passed, N failed, N skipped`, over all runs. Exit status 0 means that nothing failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

if ! deploy/setup.sh --test; then
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
fi

events=$(mktemp -d) || exit 1
trap 'rm -rf "${events}"' EXIT

counted=()
# run NAME COMMAND FLAG...: every run goes on after failures; count_tests.py finds them in the events.
run() {
  local name=$1 command=$2
  shift 2
  echo "test: ${name}"
  bazel "${command}" --keep_going --noshow_progress --build_event_json_file="${events}/${name}" "$@" //... || true
  counted+=("${name}=${events}/${name}")
}

run plain test
run asan_ubsan test --config=asan_ubsan
run tsan test --config=tsan
run tidy build --config=tidy

deploy/count_tests.py "${counted[@]}"
