#!/bin/bash
# Goes from a fresh Debian 12 machine to trained models and a table. The script installs what is missing, builds, and
# trains LeNet-5 on Fashion-MNIST three times: with a star of 2 workers and 2 servers, with a ring of 2 ranks, and with
# PyTorch DDP in 2 processes if it finds a python3 with torch.
#
#   deploy/quickstart.sh [EPOCHS]        2 epochs by default
#
# The run records stay in report/quickstart. Exit status: 0 if star and ring trained and ended with the same parameters,
# bit for bit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly EPOCHS=${1:-2}
readonly RECORDS=report/quickstart
# Every flag that decides the result, so that a changed default does not change the table that README.md shows.
readonly JOB=(--model=lenet5 --dataset=fashion-mnist --epochs="${EPOCHS}" --global_batch=128 --optimizer=sgd
              --learning_rate=0.05 --momentum=0.9 --weight_decay=0 --schedule=constant --seed=1 --threads=1)

say() { printf '\n== %s\n' "$*"; }

# Prints the first of the usual python3 that has torch, or nothing.
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
  echo "quickstart: PyTorch DDP failed, so the table has no row for it" >&2
fi

say "one job, LeNet-5 on Fashion-MNIST, ${EPOCHS} epochs, global batch 128"
bazel-bin/deploy/table "${records[@]}"
