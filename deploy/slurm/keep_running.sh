#!/bin/bash
# A task of an elastic job (elastic.sh): runs one process, and starts it again when it dies.
#
#     keep_running.sh RESTARTS_MAX FLAG FIRST COMMAND...
#
# The process gets FLAG=NUMBER: FIRST plus the number of the task in its step. It is not started again after exit code 0
# (the run is over, or the process has left it), 2 (it would be refused again) or 4 (the run is over, and its result is
# not written), nor when it was asked to end: SIGUSR1, which srun passes on to this script, asks for that.
#
# SIGTERM comes from Slurm, to all processes of a job that is cancelled. Shard 0 ends the run then, and the others wait
# for that.
restarts_max=$1 flag=$2 number=$(($3 + SLURM_PROCID))
shift 3
name=${flag#--}\ ${number}

process='' stopping=no terminated=no
trap 'stopping=yes; kill -INT "${process}" 2>/dev/null' USR1
trap 'terminated=yes' TERM
for ((restarts = 0; ; ++restarts)); do
  # SIGUSR1 may reach the process as well, and would end it before it listens to signals.
  (trap '' USR1 && exec "$@" "${flag}=${number}") &
  process=$!
  while true; do
    wait "${process}" 2>/dev/null  # bash would show the command of a process that was killed
    status=$?
    # A status over 128 may also mean that a signal interrupted this wait. Then the process still exists: wait again.
    if ((status <= 128)) || ! kill -0 "${process}" 2>/dev/null; then break; fi
  done
  if [[ ${stopping} == yes ]] || ((status == 2 || status == 4)); then exit "${status}"; fi
  case ${name} in
    # Its exit code is that of the run, unless a signal has ended it.
    "shard 0") if ((status <= 128)) || [[ ${terminated} == yes ]]; then exit "${status}"; fi ;;
    *) if ((status == 0)) || [[ ${terminated} == yes ]]; then exit "${status}"; fi ;;
  esac
  terminated=no
  if ((restarts == restarts_max)); then
    echo "${SLURM_JOB_NAME}: ${name} has ended with exit code ${status}: given up after ${restarts} restarts" >&2
    exit "${status}"
  fi
  # Not in a tight loop if it fails at once. And if the run has failed, the job ends in this time: shard 0 stays for
  # up to two seconds, to tell everyone.
  sleep 3 &
  wait $! 2>/dev/null
  if [[ ${stopping} == yes ]]; then exit "${status}"; fi
  echo "${SLURM_JOB_NAME}: ${name} on ${SLURMD_NODENAME} has ended with exit code ${status}:" \
    "starting it again, $((restarts + 1)) of ${restarts_max}" >&2
done
