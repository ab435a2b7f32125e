#!/bin/bash
# Functions of star.sbatch, ring.sbatch and compare.sbatch. They source this file on the first node of a job, with
# STARRING set.
# shellcheck disable=SC2034  # the scripts that source this file read its variables

SERVERS_SECONDS_MAX=${SERVERS_SECONDS_MAX:-60}

fail() {
  echo "${SLURM_JOB_NAME}: error: $*" >&2
  exit 2
}

# program NAME: prints its path in a built clone (bazel-bin/NAME, a folder or the program itself) or in a bundle (bin/).
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

# node_address NODE: prints the address at which Slurm itself reaches the node, or that of NODE_ADDRESSES, which has
# NODE=ADDRESS, separated by commas. An IPv6 address gets brackets, because a port follows it.
node_address() {
  local address
  if [[ ,${NODE_ADDRESSES:-}, == *,"$1="* ]]; then
    address=,${NODE_ADDRESSES},
    address=${address#*,"$1="}
    address=${address%%,*}
  else
    address=$(scontrol show node "$1" --oneliner | grep -oP '\bNodeAddr=\K\S+') || return 1
  fi
  if [[ ${address} == *:* && ${address} != \[* ]]; then address="[${address}]"; fi
  echo "${address}"
}

# ports: prints the flag by which servers, and ranks over TCP, listen at ports of PORT_RANGE, if it is set.
ports() {
  [[ -z ${PORT_RANGE:-} ]] || echo "--port_range=${PORT_RANGE}"
}

# rendezvous NODE: prints host:port for the ranks of a job to meet: rank 0 runs on NODE. The port
# is below those that a system gives to processes that ask for any, and nothing listens there now.
# With PORT_RANGE it is one of the last of that range: processes on NODE take its first ones.
rendezvous() {
  local address bare first=20000 last=31999 port try node=$1
  if [[ -n ${PORT_RANGE:-} ]]; then
    [[ ${PORT_RANGE} =~ ^[1-9][0-9]{0,4}-[1-9][0-9]{0,4}$ ]] || fail "PORT_RANGE is ${PORT_RANGE}, not like 7000-7100"
    first=${PORT_RANGE%-*} last=${PORT_RANGE#*-}
  fi
  address=$(node_address "${node}") || fail "Slurm does not know the address of node ${node}"
  bare=${address#[}
  bare=${bare%]}
  for ((try = 0; try < 20; ++try)); do
    port=$((first + RANDOM % (last - first + 1)))
    [[ -z ${PORT_RANGE:-} ]] || port=$((last - try))
    ((port >= first)) || break
    if ! timeout 2 bash -c "exec 3<>/dev/tcp/${bare}/${port}" 2>/dev/null; then
      echo "${address}:${port}"
      return
    fi
  done
  fail "found no free port from ${first} to ${last} at ${address}: set RENDEZVOUS to host:port, or widen PORT_RANGE"
}

# job_secret: prints the path of the job's secret, a file that all nodes see and only the user may read. JOB_SECRET may
# name an existing one. Otherwise this makes one in the folder where the job was submitted; the caller removes it.
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

# cores_option COUNT: prints the option by which srun gives each task of a step as many cores as the job asked for, if
# it did: since Slurm 22.05 srun does not take them from the job.
cores_option() {
  [[ -z $1 ]] || echo "--cpus-per-task=$1"
}

# refuse_ended_run: a job of the same name continues where the one before was stopped. A run that has ended has no step
# left: the job would end at once, with the result of the other run. A job that Slurm starts again is its own.
refuse_ended_run() {
  local manifests=("${CHECKPOINTS}"/step-[0-9]*/manifest.json)
  if [[ ${CHECK:-0} == 1 || -n ${RESUME:-} ]] || ((${SLURM_RESTART_COUNT:-0} > 0)); then return; fi
  if grep -q '"finished": true' "${manifests[-1]}" 2>/dev/null; then
    fail "the run in ${CHECKPOINTS} has ended: submit a new run with another --job-name, or go on with this one, with" \
      "more --epochs: RESUME=1 sbatch ..."
  fi
}

# finish PID: waits for the workers and returns their status. Slurm sends SIGUSR1 to this script before the time limit,
# and `scancel --batch --signal=USR1` does the same. It is passed on, through srun or mpirun, and the workers save and
# end. Plain `scancel` sends SIGTERM to the workers and to this script, which then waits for them instead of ending.
finish() {
  local status
  trap 'echo "${SLURM_JOB_NAME}: asking the workers to save and to end" >&2; kill -USR1 '"$1" USR1
  trap 'echo "${SLURM_JOB_NAME}: cancelled: waiting for the workers to save and to end" >&2' TERM
  while true; do
    wait "$1"
    status=$?
    # A status over 128 may also mean that a signal interrupted this wait. Then the process still exists: wait again.
    if ((status <= 128)) || ! kill -0 "$1" 2>/dev/null; then return "${status}"; fi
  done
}

# The folder has the job's name, so that a job of the same name continues where this one stopped.
CHECKPOINTS=${CHECKPOINTS:-${SLURM_SUBMIT_DIR}/starring-checkpoints/${SLURM_JOB_NAME}}
RECORD=${RECORD:-${SLURM_SUBMIT_DIR}/starring-${SLURM_JOB_ID}.json}
# Each task of an array is a run.
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
  CHECKPOINTS+=/task-${SLURM_ARRAY_TASK_ID}
  RECORD=${RECORD%.json}-task-${SLURM_ARRAY_TASK_ID}.json
fi
TRAIN=(--checkpoint_dir="${CHECKPOINTS}" --resume --record="${RECORD}" --progress=plain)

# CHECK=1, or --check among the worker's flags: prints a table of who reaches whom (deploy/README.md), without training.
# A worker that reaches no other ends early. Srun must not kill the others then, because they complete the table.
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
