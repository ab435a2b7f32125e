#!/bin/sh
# Asks a machine with a GPU what nobody can find out without one, within the ten minutes of a borrowed machine, from an
# unpacked bundle:
#
#   starring/tests/gpu_first_contact.sh FOLDER [--seconds=540] [--spike_seconds=90] [FLAG or CELL ...]
#
#   bench/gpu_wait_spike      may two processes share the GPU's memory, and how may their streams wait for each other
#   bench/gpu_exchange.py     what two workers on the GPU wait for each other in each cell, beside a control; the flags
#                             and cells are its own
#
# Writes their output, and what nvidia-smi says, to FOLDER, and prints a summary, which is FOLDER/summary.txt. No
# setting of the machine is changed. Where the daemon of NVIDIA's MPS runs, the spike also runs without it.
#
# Needed: a driver for the CUDA version that the bundle was built with; cuBLASLt (in the loader's search path, the CUDA
# toolkit, a Python wheel or the bundle); python3. Exit status: 0; 1 a part failed; 2 no GPU can be used.
set -u
usage="usage: gpu_first_contact.sh FOLDER [--seconds=540] [--spike_seconds=90] [FLAG or CELL ...]"
top=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 1 ] || { echo "$usage" >&2; exit 2; }
case $1 in -*) echo "$usage" >&2; exit 2 ;; esac
mkdir -p "$1" && out=$(cd "$1" && pwd) || exit 2
shift
seconds=540
spike_seconds=90
case ${1:-} in
  --seconds=*) seconds=${1#--seconds=}; shift ;;
esac
case ${1:-} in
  --spike_seconds=*) spike_seconds=${1#--spike_seconds=}; shift ;;
esac
for number in "$seconds" "$spike_seconds"; do
  case $number in
    ''|*[!0-9]*) echo "gpu_first_contact.sh: \"$number\" is no number of seconds: $usage" >&2; exit 2 ;;
  esac
done
begin=$(date +%s)
status=0

# part SECONDS COMMAND...: runs the command, which has failed after so many seconds. A SIGTERM to this script ends the
# command and keeps others from beginning, so that the summary has what there is.
running=
stopped=no
trap 'stopped=yes; [ -z "$running" ] || kill -TERM "$running"' TERM
part() {
  limit_s=$1
  shift
  [ $stopped = no ] || return 143
  timeout -k 5 "$limit_s" "$@" &
  running=$!
  [ $stopped = no ] || kill -TERM "$running"  # it has come before there was a number
  wait "$running"
  code=$?
  # The signal ends a wait and not the command. timeout sends it twice.
  while [ $stopped = yes ] && kill -0 "$running" 2>/dev/null; do
    wait "$running"
    code=$?
  done
  running=
  return $code
}

if command -v nvidia-smi >/dev/null; then
  timeout -k 5 20 sh -c 'nvidia-smi -L; nvidia-smi topo -m; nvidia-smi -q -d COMPUTE,CLOCK,PERFORMANCE; nvidia-smi' \
    >"$out/nvidia_smi.txt" 2>&1
fi

# spike NAME: its table goes to NAME.txt.
spike() {
  part $((spike_seconds + 30)) "$top/bench/gpu_wait_spike" --seconds_max="$spike_seconds" >"$out/$1.txt" 2>&1
  code=$?
  echo "exit status $code" >>"$out/$1.txt"
  return $code
}
spike gpu_wait_spike
case $? in
  0) ;;
  2) echo "NO GPU CAN BE USED HERE, NOTHING WAS MEASURED:" >&2; cat "$out/gpu_wait_spike.txt" >&2; exit 2 ;;
  *) status=1 ;;
esac
if grep -q "all rows are with MPS" "$out/gpu_wait_spike.txt"; then
  CUDA_MPS_PIPE_DIRECTORY=/nonexistent spike gpu_wait_spike_without_mps || status=1
fi

# It begins no job that would take longer than the rest of the time. 25 s more are for a job that hangs.
left=$((seconds - ($(date +%s) - begin)))
[ "$left" -ge 1 ] || left=1
part $((left + 25)) python3 "$top/bench/gpu_exchange.py" --seconds="$left" --record="$out/gpu_exchange.json" \
  "$@" >"$out/gpu_exchange.txt" 2>"$out/gpu_exchange_log.txt" || status=1

{
  echo "gpu_first_contact.sh, $(date -u +%Y-%m-%d), $(uname -r), $(nproc) cores, $(($(date +%s) - begin)) s"
  for part in gpu_wait_spike gpu_wait_spike_without_mps gpu_exchange; do
    [ -f "$out/$part.txt" ] || continue
    echo
    echo "$part"
    cat "$out/$part.txt"
  done
  echo
  if [ $status = 0 ]; then
    echo "ALL PARTS RAN"
  else
    [ $stopped = no ] || echo "STOPPED by SIGTERM"
    echo "A PART FAILED:"
    grep -h "FAILED\|DIFFER\|NOTHING WAS MEASURED\|exit status [^0]" "$out"/gpu_*.txt
  fi
} >"$out/summary.txt"
cat "$out/summary.txt"
exit $status
