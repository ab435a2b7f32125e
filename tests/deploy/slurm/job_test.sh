#!/bin/bash
# Tests functions of deploy/slurm/job.sh and elastic.sh with a scontrol and a server of this test's own.
set -euo pipefail

scontrol() {
  case $3 in
  four) echo "NodeName=four NodeAddr=10.0.0.4 Port=0" ;;
  six) echo "NodeName=six NodeAddr=::1 Port=0" ;;
  *) return 1 ;;
  esac
}

check() {
  if [[ $2 != "$3" ]]; then
    echo "$1 is $2, expected $3" >&2
    exit 1
  fi
}

export SLURM_JOB_NAME=test SLURM_SUBMIT_DIR=. SLURM_JOB_ID=1
# shellcheck source=deploy/slurm/job.sh
source deploy/slurm/job.sh

check "an IPv4 node" "$(node_address four)" 10.0.0.4
check "an IPv6 node" "$(node_address six)" "[::1]"
if node_address unknown; then
  echo "an unknown node has an address" >&2
  exit 1
fi
NODE_ADDRESSES="six=fd00::6,four=192.0.2.4"
check "a node of NODE_ADDRESSES" "$(node_address four)" 192.0.2.4
check "an IPv6 node of NODE_ADDRESSES" "$(node_address six)" "[fd00::6]"
NODE_ADDRESSES="other=192.0.2.1"
place=$(rendezvous six)
check "the rendezvous without its port" "${place%:*}" "[::1]"

# As `server --print_log` prints a log.
server() {
  check "the call" "$1" --print_log
  check "the state of the call" "$2" "--state_dir=${STATE_DIR}/run-1"
  echo 'run { name: "slurm-7-1" leaves: 8 shards: 2 job: "ab" first_step: 0 }'
  echo 'prepare: 1'
  ((${ended:-0} == 0)) || echo 'end { step: 0 }'
  return "${result:-0}"
}

export STARRING=.
# shellcheck source=deploy/slurm/elastic.sh
source deploy/slurm/elastic.sh
STATE_DIR=$(mktemp -d)
trap 'rm -rf "${STATE_DIR}"' EXIT
run_id=mine
take_up_run server
check "the run without a log" "${run_id}" mine
mkdir "${STATE_DIR}"/run-{0,1}
touch -d yesterday "${STATE_DIR}/run-0/generations.log"
touch "${STATE_DIR}/run-1/generations.log"
ended=1 take_up_run server
check "the run after one that has ended" "${run_id}" mine
result=2 take_up_run server
check "the run with a log that is refused" "${run_id}" mine
take_up_run server
check "the run that goes on" "${run_id} ${run_dir:-}" "slurm-7-1 ${STATE_DIR}/run-1"
