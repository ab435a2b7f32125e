#!/bin/bash
# Tests functions of deploy/slurm/job.sh with a scontrol of this test's own.
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
