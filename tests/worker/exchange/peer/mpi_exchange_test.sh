#!/bin/bash
# Runs real processes under mpirun: ring, co-located star (also in shared memory) and mpi must give the reference's bits
# for 1 to 4 ranks, and a rank that waits must leave the core to others.
#   mpi_exchange_test.sh MPI_RANK
set -uo pipefail
mpi_rank=$1

# Open MPI names its files after process ids, which repeat from sandbox to sandbox: a folder of our own keeps tests that
# run at the same time apart. Its path must be short, because it has sockets.
scratch=$(mktemp -d /tmp/starring_mpi.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch OMPI_MCA_btl_vader_backing_directory=$scratch

for sync in ring star memory mpi; do
  for ranks in 1 2 3 4; do
    output=$(timeout 60 mpirun -np "$ranks" "$mpi_rank" --sync=$sync 2>&1)
    status=$?
    if [[ $status != 0 || $(grep -c ': ok$' <<<"$output") != "$ranks" ]]; then
      echo "FAILED: --sync=$sync with $ranks ranks: exit code $status, output:"
      echo "$output"
      exit 1
    fi
    echo "passed: --sync=$sync with $ranks ranks"
  done
  # A rank that waits for a slow one checks what that costs.
  output=$(timeout 60 mpirun -np 2 "$mpi_rank" --sync=$sync --fault=sleep 2>&1)
  status=$?
  if [[ $status != 0 || $(grep -c ': ok$' <<<"$output") != 2 ]]; then
    echo "FAILED: --sync=$sync, waiting: exit code $status, output:"
    echo "$output"
    exit 1
  fi
  echo "passed: --sync=$sync, waiting"
done
