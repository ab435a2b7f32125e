#!/bin/bash
# Runs real processes under mpirun, one of which misbehaves. The others must end soon after the deadline, and at least
# one of them must name the culprit (mpirun ends all ranks as soon as one has left). No process may keep running.
#   mpi_fault_test.sh MPI_RANK
set -uo pipefail
mpi_rank=$1

# Open MPI names its files after process ids, which repeat from sandbox to sandbox: a folder of our own keeps tests that
# run at the same time apart. Its path must be short, because it has sockets.
scratch=$(mktemp -d /tmp/starring_mpi.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch OMPI_MCA_btl_vader_backing_directory=$scratch

marker=fault_test_$$_$RANDOM
failures=0

fail() {
  echo "FAILED: $1"
  failures=$((failures + 1))
}

# expect NAME EXIT_CODE SECONDS_MAX PATTERN MPIRUN_ARGUMENTS... : rank 1 of 3 misbehaves as NAME says.
expect() {
  local name=$1 expected_status=$2 seconds_max=$3 pattern=$4
  shift 4
  local output status start=$SECONDS
  output=$(timeout 60 mpirun -np 3 "$@" 2>&1)
  status=$?
  local seconds=$((SECONDS - start))
  [[ $status == "$expected_status" ]] || fail "$name: exit code $status, expected $expected_status: $output"
  grep -q -- "$pattern" <<<"$output" || fail "$name: no line like '$pattern' in: $output"
  [[ $seconds -le $seconds_max ]] || fail "$name: took $seconds s, at most $seconds_max are allowed"
  # mpirun has returned; the processes that it killed may need a moment to disappear.
  for _ in $(seq 50); do
    pgrep -f "$marker" >/dev/null || break
    read -rt 0.1 <> <(:)
  done
  if pgrep -f "$marker" >/dev/null; then
    fail "$name: still running: $(pgrep -af "$marker")"
    pgrep -f "$marker" | xargs -r kill -KILL
  fi
  [[ $failures == 0 ]] && echo "passed: $name in $seconds s"
  return 0
}

for sync in ring star memory mpi; do
  rank=("$mpi_rank" --sync="$sync" --deadline_ms=3000 --marker="$marker")
  expect "$sync, another seed" 3 30 'rank [02]: INVALID_ARGUMENT: rank 1 has --seed=777, rank 0 has --seed=1' \
    "${rank[@]}" --fault=seed
  expect "$sync, a NaN" 3 30 'rank [02]: INTERNAL: rank 1 gave up: gradient of fc1.weight is NaN at step 2' \
    "${rank[@]}" --fault=abort
  expect "$sync, stopped" 3 30 \
    '\(bucket . did not come\|a sum over all ranks did not end\) within 3s.*: rank 1 does not answer' \
    "${rank[@]}" --fault=stop
  expect "$sync, slow" 3 30 'rank 1 lives but is . calls\? behind' \
    "${rank[@]}" --fault=slow
done
rank=("$mpi_rank" --deadline_ms=3000 --marker="$marker")
expect 'never joins' 3 30 'rank [02]: .*joining did not end within 3s: rank 1 does not answer' "${rank[@]}" --fault=late
# Rank 1 starts when rank 0 has said that a rank is missing. Rank 0's lines are in a file.
cat >"$scratch/late" <<'END'
if [[ $OMPI_COMM_WORLD_RANK == 0 ]]; then exec "$@" 2>"$0.said"; fi
if [[ $OMPI_COMM_WORLD_RANK == 1 ]]; then
  until grep -qs 'stuck for .* (joining): another of 3 ranks is not in MPI_Init yet' "$0.said"; do
    read -rt 0.1 <> <(:)
  done
fi
exec "$@"
END
expect 'starts late' 0 30 '' bash "$scratch/late" "$mpi_rank" --deadline_ms=8000 --marker="$marker"
grep -q ': the job goes on after' "$scratch/late.said" || fail "starts late: $(<"$scratch/late.said")"
# By default mpirun ends all ranks when one dies of a signal.
# With --enable-recovery the ranks must notice it themselves.
expect 'killed' 137 30 'rank 1 .* exited on signal 9' "${rank[@]}" --fault=die
# mpirun then returns 0.
expect 'killed, mpirun does not care' 0 30 'rank [02]: .*rank 1 does not answer' \
  --enable-recovery "${rank[@]}" --fault=die

# srun without PMI starts ranks that do not find each other.
output=$(SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=3 timeout 60 "${rank[@]}" 2>&1)
status=$?
[[ $status == 2 ]] || fail "singleton: exit code $status: $output"
grep -q 'MPI sees 1 rank, srun started 3: the library is Open MPI' <<<"$output" || fail "singleton: $output"

exit $((failures > 0))
