#!/bin/bash
# Real processes over TCP: the ring gives the reference's bits for 1 to 4 ranks, and so does the star with servers; when
# one process misbehaves the others end by themselves, soon, and name it.
#   tcp_processes_test.sh TCP_RANK
set -uo pipefail
tcp_rank=$1

scratch=$(mktemp -d "${TEST_TMPDIR:-/tmp}/starring_tcp.XXXXXX")
pids=()
# shellcheck disable=SC2317  # the trap calls it
clean_up() {
  [[ ${#pids[@]} == 0 ]] || kill -KILL "${pids[@]}" 2>/dev/null
  rm -rf "$scratch"
}
trap clean_up EXIT
failures=0

fail() {
  echo "FAILED: $1"
  failures=$((failures + 1))
}

# start RANKS ARGUMENTS... : starts the ranks given, "0 1 2", of a job of three or of as many as there are.
start() {
  local ranks=$1 world_size=$2
  shift 2
  rm -f "$scratch"/*
  pids=()
  for rank in $ranks; do
    "$tcp_rank" --rank="$rank" --world_size="$world_size" --address_file="$scratch/address" "$@" \
      >"$scratch/$rank" 2>&1 &
    pids[rank]=$!
  done
}

# await RANKS : waits for these ranks, 40 s at most, and puts their exit codes into `codes`.
await() {
  local rank end=$((SECONDS + 40))
  codes=
  for rank in $1; do
    while kill -0 "${pids[rank]}" 2>/dev/null && [[ $SECONDS -lt $end ]]; do read -rt 0.05 <> <(:); done
    kill -KILL "${pids[rank]}" 2>/dev/null && echo "rank $rank did not end" >>"$scratch/$rank"
    wait "${pids[rank]}" 2>/dev/null
    codes+=" $?"
  done
}

for world_size in 1 2 3 4; do for way in --shared_memory=false --shared_memory --ring_memory; do
  ranks=$(seq -s ' ' 0 $((world_size - 1)))
  start "$ranks" "$world_size" $way
  await "$ranks"
  if [[ $(cat "$scratch"/[0-9]* | grep -c ': ok$') != "$world_size" ]]; then
    fail "$world_size ranks, $way: exit codes$codes: $(cat "$scratch"/[0-9]*)"
  else
    echo "passed: $world_size ranks, $way"
  fi
done; done

# A rank that waits for a slow one checks what that costs.
start '0 1 2' 3 --fault=sleep
await '0 1 2'
[[ $codes == ' 0 0 0' ]] || fail "waiting: exit codes$codes: $(cat "$scratch"/[012])"
echo "ended: waiting"

# expect NAME SECONDS_MAX PATTERN ARGUMENTS... : rank 1 of 3 misbehaves; ranks 0 and 2 both fit the pattern.
expect() {
  local name=$1 seconds_max=$2 pattern=$3 began=$SECONDS rank
  shift 3
  start '0 1 2' 3 --deadline_ms=3000 "$@"
  await '0 2'
  local seconds=$((SECONDS - began))
  [[ $codes == ' 3 3' ]] || fail "$name: exit codes$codes, expected 3 3: $(cat "$scratch"/[0-9]*)"
  for rank in 0 2; do
    grep -q -- "$pattern" "$scratch/$rank" ||
      fail "$name: no line like '$pattern' of rank $rank: $(cat "$scratch/$rank")"
  done
  [[ $seconds -le $seconds_max ]] || fail "$name: took $seconds s, at most $seconds_max are allowed"
  kill -KILL "${pids[1]}" 2>/dev/null
  wait "${pids[1]}" 2>/dev/null
  echo "ended: $name in $seconds s"
}

expect 'another seed' 10 'INVALID_ARGUMENT: rank 1 has --seed=777, rank 0 has --seed=1' --fault=seed
expect 'a NaN' 10 'INTERNAL: rank 1 gave up: gradient of fc1.weight is NaN at step 2' --fault=abort
# The rank that notices it later may hear of two ends at a time. That of the rank which noticed it comes with a reason.
killed='UNAVAILABLE: \(rank [02] gave up: \)\?rank 1 (127.0.0.1:[0-9]*) \(has closed its\|cannot be reached\)'
expect 'killed' 10 "$killed" --fault=die
# The others wait in shared memory, and find it by the connection all the same.
expect 'killed, shared memory' 10 "$killed" --fault=die --shared_memory
expect 'stopped, shared memory' 20 'rank 1 does not answer' --fault=stop --shared_memory
expect 'killed, ring in memory' 10 "$killed" --fault=die --ring_memory
expect 'stopped, ring in memory' 20 'rank 1 does not answer' --fault=stop --ring_memory
expect 'stopped' 20 'rank 1 does not answer' --fault=stop
expect 'slow' 20 'rank 1 lives but is . calls\? behind' --fault=slow
expect 'never starts training' 20 'rank 1 does not answer' --fault=late

start '0 2' 3 --deadline_ms=4000
await '0 2'
for rank in 0 2; do
  grep -q 'rank 1 of 3 has not joined at 127.0.0.1:[0-9]* within 4s' "$scratch/$rank" ||
    fail "missing: rank $rank says $(cat "$scratch/$rank")"
done
# A star of three workers, ranks 0 to 2, and two servers, ranks 3 and 4.
for shared_memory in false true; do
  start '0 1 2 3 4' 3 --server_count=2 --shared_memory=$shared_memory
  await '0 1 2 3 4'
  if [[ $(cat "$scratch"/[0-9]* | grep -c ': ok$') != 5 ]]; then
    fail "a star with servers, shared memory $shared_memory: exit codes$codes: $(cat "$scratch"/[0-9]*)"
  else
    echo "passed: 3 workers and 2 servers, shared memory $shared_memory"
  fi
done

# expect_of_star NAME PATTERN ARGUMENTS... : worker 1 misbehaves; workers 0 and 2 and one of the servers name it.
expect_of_star() {
  local name=$1 pattern=$2 rank
  shift 2
  start '0 1 2 3 4' 3 --server_count=2 --deadline_ms=3000 "$@"
  await '0 2 3 4'
  [[ $codes == ' 3 3 3 3' ]] || fail "$name: exit codes$codes, expected 3 3 3 3: $(cat "$scratch"/[0-9]*)"
  for rank in 0 2 3 4; do
    grep -q -- "$pattern" "$scratch/$rank" ||
      fail "$name: no line like '$pattern' of rank $rank: $(cat "$scratch/$rank")"
  done
  kill -KILL "${pids[1]}" 2>/dev/null
  wait "${pids[1]}" 2>/dev/null
  echo "ended: $name, with servers"
}

expect_of_star 'another seed' 'INVALID_ARGUMENT: rank 1 has --seed=777, rank 0 has --seed=1' --fault=seed
expect_of_star 'a NaN' 'INTERNAL: rank 1 gave up: gradient of fc1.weight is NaN at step 2' --fault=abort
gone='\(rank [012]\|server [01]\) (127.0.0.1:[0-9]*) \(has closed its\|cannot be reached\)'
expect_of_star 'killed' "$gone" --fault=die
grep -q 'UNAVAILABLE: rank 1 ' "$scratch"/[0234] || fail "killed: nobody names rank 1: $(cat "$scratch"/[0234])"
expect_of_star 'stopped' 'rank 1 has not contributed bucket [0-9]* of step 2 within 3 s' --fault=stop
expect_of_star 'slow' 'rank 1 ' --fault=slow
# In shared memory the workers wait for counts, and find out themselves who is missing.
expect_of_star 'killed, in memory' "$gone" --fault=die --shared_memory
expect_of_star 'stopped, in memory' 'rank 1 does not answer' --fault=stop --shared_memory

# A server is killed, and then one is stopped, in the middle of a job without end.
for signal in KILL STOP; do for shared_memory in false true; do
  start '0 1 2 3 4' 3 --server_count=2 --deadline_ms=3000 --steps=100000000 --shared_memory=$shared_memory
  read -rt 2 <> <(:)
  kill -"$signal" "${pids[4]}"
  await '0 1 2 3'
  [[ $codes == ' 3 3 3 3' ]] || fail "server, $signal: exit codes$codes, expected 3 3 3 3: $(cat "$scratch"/[0-9]*)"
  grep -q 'server 1 ' "$scratch"/[012] || fail "server, $signal: nobody names it: $(cat "$scratch"/[0-9]*)"
  kill -KILL "${pids[4]}" 2>/dev/null
  wait "${pids[4]}" 2>/dev/null
  echo "ended: a server by SIG$signal, shared memory $shared_memory"
done; done
exit $((failures > 0))
