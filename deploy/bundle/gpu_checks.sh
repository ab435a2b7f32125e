#!/bin/sh
# Everything that only a GPU can show, in order of value, from an unpacked bundle on a GPU box:
#
#   starring/tests/gpu_checks.sh FOLDER [--only=NAME,NAME...] [--torch_python=PYTHON] [--quick]
#
# Writes one text file a check to FOLDER, and prints a line for each: PASSED, FAILED or SKIPPED, with the reason and the
# time. A check that takes longer than its limit has failed. Needs a driver of the CUDA that the bundle was built with,
# cuBLASLt (in the search path of the loader, the toolkit, a wheel of Python's or the bundle) and python3; cuDNN 9, in
# the same places, for convolutions by it, which otherwise are not checked; a python3 with torch for the comparison,
# and compute-sanitizer on PATH or in /usr/local/cuda/bin for what it checks. --quick: fewer repeats, so that everything
# but the sanitizers takes ten minutes. Exit status 1 if anything failed, 2 where there is no GPU.
#
# The checks: device_suite jobs steps kernels_64 kernels_cudnn_64 kernels_512 kernels_cudnn_512 sanitizer_memcheck
# sanitizer_racecheck sanitizer_synccheck sanitizer_initcheck sanitizer_step
set -u
usage="usage: gpu_checks.sh FOLDER [--only=NAME,NAME...] [--torch_python=PYTHON] [--quick]"
top=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 1 ] || { echo "$usage" >&2; exit 2; }
mkdir -p "$1" && out=$(cd "$1" && pwd) || exit 2
shift
names="device_suite jobs steps kernels_64 kernels_cudnn_64 kernels_512 kernels_cudnn_512 sanitizer_memcheck"
names="$names sanitizer_racecheck sanitizer_synccheck sanitizer_initcheck sanitizer_step"
torch_python=python3
quick=no
only=all
for flag in "$@"; do
  case $flag in
    --torch_python=*) torch_python=${flag#--torch_python=} ;;
    --only=*)
      only=$(echo "${flag#--only=}" | tr ',' ' ')
      for name in $only; do
        case " $names " in
          *" $name "*) ;;
          *) echo "gpu_checks.sh: $name is no check: $names" >&2; exit 2 ;;
        esac
      done
      ;;
    --quick) quick=yes ;;
    *) echo "gpu_checks.sh: $flag is no flag of it: $usage" >&2; exit 2 ;;
  esac
done
export STARRING_BIN="$top/bin" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
status=0

# What the programs find by themselves in most places, the suites and benches look for in the loader's path alone.
wheels=$("$torch_python" -c '
import glob, os, site, sysconfig
roots = {sysconfig.get_paths()["purelib"], site.getusersitepackages(), *site.getsitepackages()}
print(":".join(path for root in sorted(roots) for path in sorted(glob.glob(os.path.join(root, "nvidia/*/lib")))))' \
  2>/dev/null)
if [ -n "$wheels" ]; then
  LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$wheels
  export LD_LIBRARY_PATH
fi

wanted() {
  [ "$only" = all ] && return 0
  case " $only " in
    *" $1 "*) return 0 ;;
  esac
  return 1
}

# check NAME SECONDS COMMAND...: its output to NAME.txt.
check() {
  name=$1
  limit_s=$2
  shift 2
  wanted "$name" || return
  begin=$(date +%s)
  timeout -k 10 "$limit_s" "$@" >"$out/$name.txt" 2>&1
  code=$?
  took="$(($(date +%s) - begin)) s"
  if [ $code = 124 ] || [ $code = 137 ]; then
    echo "FAILED   $name: no end after $limit_s s: $out/$name.txt"
    status=1
  elif grep -q "Device not supported\|not supported on this platform" "$out/$name.txt"; then
    echo "SKIPPED  $name ($took): compute-sanitizer is not allowed here: $out/$name.txt"
  elif [ $code != 0 ]; then
    echo "FAILED   $name ($took, exit status $code): $out/$name.txt"
    status=1
  elif grep -q "no kernel ran on a real GPU" "$out/$name.txt"; then
    echo "SKIPPED  $name ($took): no GPU was used, see $out/$name.txt"
  else
    echo "PASSED   $name ($took)"
  fi
}
skip() {
  wanted "$1" || return
  echo "SKIPPED  $1: $2" | tee "$out/$1.txt"
}

if ! timeout -k 10 120 "$top/bin/worker" --device=cuda --dataset=synthetic --synthetic_train_count=640 \
  --synthetic_test_count=64 --epochs=1 --progress=plain >"$out/gpu.txt" 2>&1; then
  echo "NO GPU CAN BE USED HERE, NOTHING WAS CHECKED:" >&2
  cat "$out/gpu.txt" >&2
  exit 2
fi
head -n 1 "$out/gpu.txt"

check device_suite 180 "$top/tests/cuda_device_test"
# Of it: CPU and GPU curves agree, star = ring, graph = no graph, resume, refusals with numbers.
if command -v python3 >/dev/null; then
  check jobs 240 env PYTHONPATH="$top" python3 -m unittest -v tests.e2e.cuda_test
else
  skip jobs "no python3"
fi

few="--repeats=5"
limit_s=7200
if [ $quick = yes ]; then
  few="--repeats=1 --steps=500 --seconds=1 --warmup_s=0.5 --maths=fp32,tf32 --models=mnist_cnn,resnet20"
  limit_s=300
fi
if "$torch_python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  check steps "$limit_s" "$torch_python" "$top/bench/gpu_steps.py" --torch_python="$torch_python" $few \
    --record="$out/steps.json"
else
  skip steps "$torch_python has no torch that sees a GPU: --torch_python=PYTHON"
fi
for batch in 64 512; do
  check "kernels_$batch" 60 "$top/bench/cuda_kernels_bench" "$batch"
  check "kernels_cudnn_$batch" 60 "$top/bench/cuda_kernels_bench" "$batch" fp32 auto
done

# Of the suite the smallest shapes of each layer, as every access is checked at a hundred times the cost. What cuBLASLt
# does inside is not ours.
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
for tool in memcheck racecheck synccheck initcheck; do
  if [ -n "$sanitizer" ]; then
    check "sanitizer_$tool" 600 "$sanitizer" --tool "$tool" --error-exitcode 9 \
      --kernel-name-exclude kernel_substring=cublas --kernel-name-exclude kernel_substring=cutlass \
      "$top/tests/cuda_device_test" --gtest_filter='*/Fp32:*/Fp32InChunks:CudaDeviceTest*'
  else
    skip "sanitizer_$tool" "no compute-sanitizer: it comes with the CUDA toolkit"
  fi
done
# A whole step, captured, with events between four streams.
if [ -n "$sanitizer" ]; then
  check sanitizer_step 300 "$sanitizer" --tool memcheck --error-exitcode 9 "$top/bin/worker" --device=cuda \
    --dataset=synthetic --synthetic_train_count=640 --synthetic_test_count=64 --epochs=2 --model=mnist_cnn
else
  skip sanitizer_step "no compute-sanitizer: it comes with the CUDA toolkit"
fi
exit $status
