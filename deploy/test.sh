#!/bin/bash
# Tests Starring: installs missing packages, then builds as released and runs every test but the long ones.
#
#   deploy/test.sh         for people. Budget: 15 minutes on two cores after deploy/quickstart.sh
#   deploy/test.sh --all   for continuous integration. Also runs the long tests (chaos, strangers, load, Slurm, the
#                          bundle, network namespaces, golden digests, jobs on emulated GPUs), tests under
#                          AddressSanitizer and UndefinedBehaviorSanitizer, tests under ThreadSanitizer, and clang-tidy.
#                          Budget: an hour on two cores with empty caches
#
# A test is long if it is tagged `long` or has the size large: Bazel tags each test with the name of its timeout.
#
# Prints the time of each part, and its ten slowest tests. A part fails if it takes more than 1.5 times its budget; on a
# machine that compiles more slowly than the one of the budgets, as many times more (machine_pace.py). The last line is
# `N passed, N failed, N skipped`, over all parts. Exit status 0 means that nothing failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

all=no
case "$*" in
  "") ;;
  --all) all=yes ;;
  *)
    echo "test: unexpected \"$*\": deploy/test.sh [--all]" >&2
    exit 2
    ;;
esac

setup=()
if [[ ${all} == yes ]]; then setup=(--test); fi
if ! deploy/setup.sh "${setup[@]}"; then
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
fi

if ! pace=$(deploy/machine_pace.py); then
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
fi
echo "test: this machine takes ${pace} times as long to compile as the one of the budgets"

events=$(mktemp -d) || exit 1
trap 'rm -rf "${events}"' EXIT

# Many tests mostly wait, for a deadline or for each other. With half as many more actions at a time as there are cores,
# the cores work meanwhile: tests under AddressSanitizer took 242 instead of 303 s.
slots=$((($(nproc) * 3 + 1) / 2))

counted=()
# run NAME BUDGET_S COMMAND ARGUMENT...: runs one part. A failure does not end it: count_tests.py reads the events.
run() {
  local name=$1 budget_s=$2 command=$3
  shift 3
  echo "test: ${name}"
  bazel "${command}" --jobs="${slots}" --local_cpu_resources="${slots}" --keep_going --noshow_progress \
    --build_event_json_file="${events}/${name}" "$@" || true
  counted+=("${name}:${budget_s}=${events}/${name}")
}

# Tests and binaries by name: `//...` would also build each library as a target of its own, which compiles every source
# a second time, with -fPIC. Targets that only sanitizers can build are left out.
targets=${events}/targets
bazel query --noshow_progress \
  'kind("_(test|binary) rule", //...) except attr("target_compatible_with", "never", //...)' >"${targets}"

# With --all nothing may be cached: the first part then also builds what the quick start has built for people.
plain_budget_s=900
if [[ ${all} == yes ]]; then plain_budget_s=1180; fi
run plain "${plain_budget_s}" test --test_tag_filters=-long --target_pattern_file="${targets}"
if [[ ${all} == yes ]]; then
  run long 600 test --test_tag_filters=long --build_tests_only //...
  run asan_ubsan 900 test --config=asan_ubsan //...
  run tsan 320 test --config=tsan //...
  run tidy 600 build --config=tidy //...
fi

deploy/count_tests.py --pace="${pace}" "${counted[@]}"
