#!/bin/bash
# From a fresh Debian 12 machine to trained models and a table: installs what is missing, builds, trains LeNet-5 on
# Fashion-MNIST with a star of 2 workers and 2 servers, with a ring of 2 ranks, and, where a python3 with torch is
# found, with PyTorch DDP in 2 processes.
#
#   deploy/quickstart.sh [EPOCHS]        2 epochs unless said otherwise
#
# The run records stay in report/quickstart. Exit status: 0 when star and ring trained and ended with the same
# parameters, bit for bit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly EPOCHS=${1:-2}
readonly RECORDS=report/quickstart
readonly JOB=(--model=lenet5 --dataset=fashion-mnist --epochs="${EPOCHS}" --global_batch=128 --learning_rate=0.05
              --momentum=0.9 --seed=1 --threads=1)

say() { printf '\n== %s\n' "$*"; }

# The first of the usual python3 that has torch.
python_with_torch() {
  local python
  for python in python3 /usr/bin/python3; do
    if "${python}" -c 'import numpy, torch.distributed' 2>/dev/null; then
      echo "${python}"
      return
    fi
  done
}

if [[ ! ${EPOCHS} =~ ^[1-9][0-9]*$ ]]; then
  echo "quickstart: EPOCHS is \"${EPOCHS}\", it must be a number of 1 or more" >&2
  exit 2
fi

say "set-up"
deploy/setup.sh

say "build"
bazel build //deploy:launch //deploy:table

mkdir -p "${RECORDS}"
rm -f "${RECORDS}"/*.json

say "star: 2 workers, 2 servers"
bazel-bin/deploy/launch --sync=star --workers=2 --servers=2 -- "${JOB[@]}" --device=cpu --record="${RECORDS}/star.json"

say "ring: 2 ranks"
bazel-bin/deploy/launch --sync=ring --workers=2 -- "${JOB[@]}" --device=cpu --record="${RECORDS}/ring.json"

say "PyTorch DDP: 2 processes"
records=("${RECORDS}/star.json" "${RECORDS}/ring.json")
python=$(python_with_torch)
if [[ -z ${python} ]]; then
  echo "SKIPPED: no python3 with torch (Debian: apt-get install python3-torch)"
elif "${python}" bench/ddp/train.py --world_size=2 "${JOB[@]}" --device=cpu --record="${RECORDS}/ddp.json"; then
  records+=("${RECORDS}/ddp.json")
else
  echo "quickstart: PyTorch DDP failed; the table does without it" >&2
fi

say "one job, LeNet-5 on Fashion-MNIST, ${EPOCHS} epochs, global batch 128"
bazel-bin/deploy/table "${records[@]}"
