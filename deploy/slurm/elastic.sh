#!/bin/bash
# Functions of an elastic run's jobs: star.sbatch starts the run, join.sbatch adds workers. Both source this file after
# job.sh.

# How often each process is started again (keep_running.sh).
RESTART_PROCESSES=${RESTART_PROCESSES:-10}
# How long the workers have to end after a server has.
END_SECONDS_MAX=20

# --overlap: a step never waits for another step of its job.
step=(srun --overlap --kill-on-bad-exit=0 --wait=0)
keep=(bash "${STARRING}/deploy/slurm/keep_running.sh" "${RESTART_PROCESSES}")
server_steps=() worker_steps=()  # process ids of srun

# start_workers WORKER_FLAGS COMMAND...: starts the command of a worker in each task of the job, or of group 1 of a
# heterogeneous job. WORKER_FLAGS is a file with the flags, one a line. Each node is a step of its own, because srun
# ends a step that loses one of its nodes.
start_workers() {
  local cores count first=0 flags group=() node nodes
  mapfile -t cores < <(cores_option "${SLURM_CPUS_PER_TASK:-}")
  if [[ -n ${SLURM_HET_SIZE:-} ]]; then
    group=(--het-group=1)
    mapfile -t cores < <(cores_option "${SLURM_CPUS_PER_TASK_HET_GROUP_1:-}")
  fi
  mapfile -t flags <"$1"
  shift
  mapfile -t nodes < <("${step[@]}" "${group[@]}" printenv SLURMD_NODENAME | sort | uniq -c)
  ((${#nodes[@]} > 0)) || fail "srun cannot start anything on the workers' nodes"
  for node in "${nodes[@]}"; do
    read -r count node <<<"${node}"
    "${step[@]}" "${group[@]}" "${cores[@]}" --nodes=1 --ntasks="${count}" --nodelist="${node}" \
      "${keep[@]}" --rank "${first}" "$@" "${flags[@]}" &
    worker_steps+=($!)
    first=$((first + count))
  done
}

# pause SECONDS: a signal ends it.
pause() {
  sleep "$1" &
  wait $! 2>/dev/null
}

# any_runs PID...: whether one of these processes has not ended.
any_runs() {
  local pid
  for pid in "$@"; do
    if kill -0 "${pid}" 2>/dev/null; then return 0; fi
  done
  return 1
}

# run_is_over: whether shard 0 has ended, which decides that, or another server has failed. Sets `status` to the status
# of a server that has failed.
run_is_over() {
  local pid
  for pid in "${server_steps[@]}"; do
    kill -0 "${pid}" 2>/dev/null || wait "${pid}" || status=$?
  done
  ((status != 0)) || ! kill -0 "${server_steps[0]}" 2>/dev/null
}

# workers_status: 0 if the workers of a step have ended well, else the last step's. REQUIRES: all steps have ended.
workers_status() {
  local pid last=1
  for pid in "${worker_steps[@]}"; do
    wait "${pid}"
    last=$?
    if ((last == 0)); then break; fi
  done
  return "${last}"
}

# take_up_run SERVER: if the newest run in STATE_DIR has not ended, sets `run_dir` to its folder and `run_id` to its
# name.
# shellcheck disable=SC2034  # star.sbatch reads run_id
take_up_run() {
  local entries log='' name one
  for one in "${STATE_DIR}"/run-*/generations.log; do
    if [[ -f ${one} && ( -z ${log} || ${one} -nt ${log} ) ]]; then log=${one}; fi
  done
  [[ -n ${log} ]] || return 0
  entries=$("$1" --print_log --state_dir="${log%/*}") || return 0
  name=$(sed -n '1s/^run { name: "\([^"\\]\+\)" .*/\1/p' <<<"${entries}")
  if [[ -z ${name} || ${entries} == *$'\n'"end { "* ]]; then return 0; fi
  run_dir=${log%/*} run_id=${name}
  echo "${SLURM_JOB_NAME}: going on with the run in ${run_dir}"
}

# run_has_begun: whether the coordinator has begun its log, as it does when the first worker comes.
run_has_begun() {
  [[ -f ${run_dir}/generations.log ]]
}

# start_elastic SERVER WORKER FLAG...: starts a run: the servers in group 0 of this job and the workers in group 1. The
# flags are the workers'. REQUIRES: `secure` has the flags that servers and workers share; `run_dir` is a folder for the
# run's state.
# shellcheck disable=SC2154
start_elastic() {
  local coordinator flags here node nodes port_flags server=$1 shard worker=$2
  shift 2
  mapfile -t port_flags < <(ports)
  mapfile -t nodes < <("${step[@]}" --het-group=0 --label printenv SLURMD_NODENAME | sort -n | sed 's/.*: //')
  ((${#nodes[@]} == SLURM_NTASKS_HET_GROUP_0)) || fail "srun cannot start all tasks on the servers' nodes"
  if ((SLURM_JOB_NUM_NODES_HET_GROUP_0 < 2 || SLURM_JOB_NUM_NODES_HET_GROUP_1 < 2)); then
    echo "${SLURM_JOB_NAME}: warning: Slurm ends this job when it loses a node. To go on each group needs two nodes:" \
      "sbatch --no-kill --nodes=2, where --nodes is for the servers" >&2
  fi
  # Shard 0 comes back at the same port, so that must be one that the system gives to no other process.
  coordinator=$(rendezvous "${nodes[0]}") || exit 2
  mkdir -p "${STATE_DIR}" || fail "set STATE_DIR to a folder that all nodes see"
  printf '%s\n' --elastic --coordinator="${coordinator}" "${secure[@]}" "${TRAIN[@]}" "$@" >"${STATE_DIR}/worker_flags"

  for ((shard = 0; shard < ${#nodes[@]}; ++shard)); do
    node=${nodes[shard]}
    flags=(--elastic --shard_count="${#nodes[@]}" --state_dir="${run_dir}")
    if ((shard == 0)); then
      flags+=(--listen="${coordinator}" --first_workers="${SLURM_NTASKS_HET_GROUP_1}")
    else
      here=$(node_address "${node}") || fail "Slurm does not know the address of node ${node}"
      flags+=(--listen="${here}:0" --coordinator="${coordinator}" "${port_flags[@]}")
    fi
    "${step[@]}" --het-group=0 "${server_cores[@]}" --nodes=1 --ntasks=1 --nodelist="${node}" \
      "${keep[@]}" --shard "${shard}" "${server}" "${flags[@]}" "${secure[@]}" &
    server_steps+=($!)
  done
  echo "${SLURM_JOB_NAME}: coordinator ${coordinator}, servers on ${SLURM_JOB_NODELIST_HET_GROUP_0}, workers on" \
    "${SLURM_JOB_NODELIST_HET_GROUP_1}; for more workers: sbatch deploy/slurm/join.sbatch ${STATE_DIR}"
  start_workers "${STATE_DIR}/worker_flags" "${worker}"
}

# finish_elastic: waits until the run is over, and returns the job's status. SIGUSR1, which asks a job to save and to
# end (finish in job.sh), goes to shard 0 alone, which ends the run.
finish_elastic() {
  local code end pid status=0
  trap 'echo "${SLURM_JOB_NAME}: asking shard 0 to end the run" >&2; kill -USR1 "${server_steps[0]}"' USR1
  trap 'echo "${SLURM_JOB_NAME}: cancelled: waiting for the run to end" >&2' TERM
  until run_is_over; do
    # Workers of other jobs may train when those of this job have failed: the coordinator ends a run that has too few.
    # Before the run begins, it would wait for a first worker without end.
    any_runs "${worker_steps[@]}" || run_has_begun || workers_status || { status=$? && break; }
    pause 0.5
  done
  # Slurm may take minutes to notice that a node is lost, and its step does not end before.
  end=$((SECONDS + END_SECONDS_MAX))
  while ((status == 0 && SECONDS < end)) && any_runs "${worker_steps[@]}"; do pause 0.2; done
  run_is_over
  # Workers that have ended say whether the result is on the disk.
  for pid in "${worker_steps[@]}"; do
    code=0
    if ! kill -0 "${pid}" 2>/dev/null; then wait "${pid}" || code=$?; fi
    if ((status == 0 && code == 4)); then status=4; fi
  done
  # Steps that still run have nothing left to do. The signal also prevents their restart when Slurm ends them.
  kill -USR1 "${server_steps[@]}" "${worker_steps[@]}" 2>/dev/null
  end=$((SECONDS + 2))
  while ((SECONDS < end)) && any_runs "${server_steps[@]}" "${worker_steps[@]}"; do pause 0.1; done
  return "${status}"
}

# finish_workers WORKER_FLAGS: waits until the workers of this job have left the run, as the same signals ask them to,
# or the run is over. Its job removes the file then.
finish_workers() {
  local gone_since=''
  trap 'echo "${SLURM_JOB_NAME}: the workers leave the run" >&2; kill -USR1 "${worker_steps[@]}"' USR1
  trap 'echo "${SLURM_JOB_NAME}: cancelled: waiting for the workers to leave the run" >&2' TERM
  while any_runs "${worker_steps[@]}"; do
    if [[ -f $1 ]]; then gone_since=''; else gone_since=${gone_since:-${SECONDS}}; fi
    # A worker that does not know of the end would wait for the coordinator, and be started again to wait once more.
    if [[ -n ${gone_since} ]] && ((SECONDS - gone_since > END_SECONDS_MAX)); then
      kill -USR1 "${worker_steps[@]}" 2>/dev/null
      gone_since=${SECONDS}
    fi
    pause 0.2
  done
  workers_status
}
