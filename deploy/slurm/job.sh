#!/bin/bash
# What star.sbatch, ring.sbatch and compare.sbatch share. They source it, on the first node of a job, with STARRING set.

SERVERS_SECONDS_MAX=${SERVERS_SECONDS_MAX:-60}

fail() {
  echo "${SLURM_JOB_NAME}: error: $*" >&2
  exit 2
}

# program NAME: its path in a built clone (bazel-bin/NAME, a folder or the program itself), or in a bundle (bin/).
program() {
  local name=${1##*/} path
  for path in "${STARRING}"/{bazel-bin/,}"$1"{"/${name}",} "${STARRING}/bin/${name}"; do
    if [[ -f ${path} && -x ${path} ]]; then
      echo "${path}"
      return
    fi
  done
  return 1
}

# node_address NODE: how Slurm itself reaches it.
node_address() {
  scontrol show node "$1" --oneliner | grep -oP '\bNodeAddr=\K\S+'
}

# job_secret: the file of the job's secret, which all its nodes see and its user alone may read. JOB_SECRET names one
# that is there; else one is made where the job was submitted, for the caller to remove.
job_secret() {
  if [[ -n ${JOB_SECRET:-} ]]; then
    echo "${JOB_SECRET}"
    return
  fi
  local launch path=${SLURM_SUBMIT_DIR}/.starring-secret-${SLURM_JOB_ID}-${SLURM_RESTART_COUNT:-0}
  launch=$(program deploy/launch) || fail "no launch in ${STARRING}: bazel build //deploy:launch, or set STARRING"
  rm -f "${path}"
  "${launch}" --make_secret="${path}" >/dev/null || fail "cannot make the job's secret: make one, and set JOB_SECRET"
  echo "${path}"
}

# finish PID: waits for the workers, and returns their status. Ahead of the time limit, and when asked by
# `scancel --batch --signal=USR1`, they are asked to save and to end; srun and mpirun both pass on SIGUSR1. `scancel`
# alone tells them by itself, and this script too, which then waits for them instead of ending.
finish() {
  local status
  trap 'echo "${SLURM_JOB_NAME}: asking the workers to save and to end" >&2; kill -USR1 '"$1" USR1
  trap 'echo "${SLURM_JOB_NAME}: cancelled: waiting for the workers to save and to end" >&2' TERM
  while true; do
    wait "$1"
    status=$?
    # A wait that a signal has interrupted returns more than 128, while the process is still there.
    if ((status <= 128)) || ! kill -0 "$1" 2>/dev/null; then return "${status}"; fi
  done
}

# A job of the same name goes on where this one stopped.
CHECKPOINTS=${CHECKPOINTS:-${SLURM_SUBMIT_DIR}/starring-checkpoints/${SLURM_JOB_NAME}}
RECORD=${RECORD:-${SLURM_SUBMIT_DIR}/starring-${SLURM_JOB_ID}.json}
TRAIN=(--checkpoint_dir="${CHECKPOINTS}" --resume --record="${RECORD}" --progress=plain)

# CHECK=1, or --check among the worker's flags: no training, but one table of who reaches whom (deploy/README.md). A
# worker that reaches nobody ends before the others, which are to finish their table.
KILL_ON_BAD_EXIT=1
for flag in "$@"; do
  if [[ ${flag} =~ ^--?check(=(true|1))?$ ]]; then
    CHECK=1
    TRAIN=()
  fi
done
if [[ ${CHECK:-0} == 1 ]]; then
  KILL_ON_BAD_EXIT=0
  if ((${#TRAIN[@]} > 0)); then TRAIN=(--check); fi
fi
