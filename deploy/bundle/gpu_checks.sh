#!/bin/sh
# Everything that only a GPU can show, in order, from an unpacked bundle on a GPU box:
#
#   tests/gpu_checks.sh FOLDER [--torch_python=PYTHON] [--quick]
#
# Writes one text file a check to FOLDER, and prints a line for each: PASSED, FAILED or SKIPPED, with the reason. Needs
# a driver of the CUDA that the bundle was built with, cuBLASLt (in the search path of the loader, /usr/local/cuda/lib64
# or the bundle) and python3; one with torch for the comparison, and compute-sanitizer on PATH or in /usr/local/cuda/bin
# for what it checks. --quick: fewer repeats. Exit status 1 if anything failed, 2 where there is no GPU.
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 1 ] || { echo "usage: gpu_checks.sh FOLDER [--torch_python=PYTHON] [--quick]" >&2; exit 2; }
mkdir -p "$1" && out=$(cd "$1" && pwd) || exit 2
shift
torch_python=python3
quick=no
for flag in "$@"; do
  case $flag in
    --torch_python=*) torch_python=${flag#--torch_python=} ;;
    --quick) quick=yes ;;
    *) echo "gpu_checks.sh: $flag is no flag of it" >&2; exit 2 ;;
  esac
done
export STARRING_BIN="$top/bin" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
status=0

# check NAME COMMAND...: its output to NAME.txt.
check() {
  name=$1
  shift
  if "$@" >"$out/$name.txt" 2>&1; then
    if grep -q "no kernel ran on a real GPU" "$out/$name.txt"; then
      echo "SKIPPED  $name: no GPU was used, see $out/$name.txt"
    else
      echo "PASSED   $name"
    fi
  else
    echo "FAILED   $name (exit status $?): $out/$name.txt"
    status=1
  fi
}
skip() { echo "SKIPPED  $1: $2" | tee "$out/$1.txt"; }

if ! "$top/bin/worker" --device=cuda --dataset=synthetic --synthetic_train_count=640 --synthetic_test_count=64 \
  --epochs=1 --progress=plain >"$out/gpu.txt" 2>&1; then
  echo "NO GPU CAN BE USED HERE, NOTHING WAS CHECKED:" >&2
  cat "$out/gpu.txt" >&2
  exit 2
fi
head -n 1 "$out/gpu.txt"

check device_suite "$top/tests/cuda_device_test"
# Of it: CPU and GPU curves agree, star = ring, graph = no graph, resume, refusals with numbers.
if command -v python3 >/dev/null; then
  check jobs env PYTHONPATH="$top" python3 -m unittest -v tests.e2e.cuda_test
else
  skip jobs "no python3"
fi

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
for tool in memcheck racecheck synccheck initcheck; do
  if [ -n "$sanitizer" ]; then
    check "sanitizer_$tool" "$sanitizer" --tool "$tool" --error-exitcode 9 "$top/tests/cuda_device_test"
  else
    skip "sanitizer_$tool" "no compute-sanitizer: it comes with the CUDA toolkit"
  fi
done
# A whole step, captured, with events between four streams.
if [ -n "$sanitizer" ]; then
  check sanitizer_step "$sanitizer" --tool memcheck --error-exitcode 9 "$top/bin/worker" --device=cuda \
    --dataset=synthetic --synthetic_train_count=640 --synthetic_test_count=64 --epochs=2 --model=mnist_cnn
fi

for batch in 64 512; do check "kernels_$batch" "$top/bench/cuda_kernels_bench" "$batch"; done
repeats=5
[ $quick = yes ] && repeats=1
if "$torch_python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  check steps "$torch_python" "$top/bench/gpu_steps.py" --torch_python="$torch_python" --repeats=$repeats \
    --record="$out/steps.json"
else
  skip steps "$torch_python has no torch that sees a GPU: --torch_python=PYTHON"
fi
exit $status
