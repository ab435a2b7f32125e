#!/bin/sh
# Runs all checks that need a GPU, the most valuable first, from an unpacked bundle on a machine with a GPU:
#
#   starring/tests/gpu_checks.sh FOLDER [--only=NAME,NAME...] [--torch_python=PYTHON] [--quick]
#   starring/tests/gpu_checks.sh FOLDER --exchange [--only=NAME,NAME...] [--torch_python=PYTHON] [--short]
#
# Writes a text file for each check to FOLDER, and prints a line for each: PASSED, FAILED or SKIPPED, with the reason
# and the time. A check that takes longer than its limit has failed.
#
# Needed: a driver for the CUDA version that the bundle was built with; cuBLASLt (in the loader's search path, the CUDA
# toolkit, a Python wheel or the bundle); python3. Optional, each for its own checks: cuDNN 9 in the same places; a
# python3 with torch; compute-sanitizer on PATH or in /usr/local/cuda/bin. --quick: fewer repeats; everything but the
# sanitizers then takes ten minutes. Exit status 1 if a check failed, 2 if no GPU can be used.
#
# The checks: device_suite jobs steps kernels_64 kernels_cudnn_64 kernels_512 kernels_cudnn_512 sanitizer_memcheck
# sanitizer_racecheck sanitizer_synccheck sanitizer_initcheck sanitizer_step
#
# --exchange: instead, within eight minutes, the checks of what several workers exchange on one GPU. Each row has a
# limit, and the last one has the time that the others leave, three and a half minutes or more. --short: a job or two of
# each, to see that the script goes through.
#
#   nccl            two ranks on one GPU, which NCCL allows since 2.30; skipped with NCCL's or our reason
#   faults          a rank that is killed or stopped is named, and the next job runs
#   cuda_aware_mpi  --cuda_aware_mpi=try, if an MPI is there
#   bf16            steps in bf16 beside fp32: resnet20 and mnist_cnn; with PyTorch's, mnist_cnn alone
#   first_contact   gpu_first_contact.sh: how streams wait for each other, and up to five pairs of control and cell for
#                   mlp, mnist_cnn and resnet20 in star and ring by way of the host, of shared memory, and of GPU memory
#                   paced by hosts and in the graph, and nccl if the row nccl has passed
set -u
started=$(date +%s)
usage="usage: gpu_checks.sh FOLDER [--exchange] [--only=NAME,NAME...] [--torch_python=PYTHON] [--quick] [--short]"
top=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 1 ] || { echo "$usage" >&2; exit 2; }
mkdir -p "$1" && out=$(cd "$1" && pwd) || exit 2
shift
names="device_suite jobs steps kernels_64 kernels_cudnn_64 kernels_512 kernels_cudnn_512 sanitizer_memcheck"
names="$names sanitizer_racecheck sanitizer_synccheck sanitizer_initcheck sanitizer_step"
torch_python=python3
quick=no
exchange=no
short=no
first_run_s=120
only=all
case " $* " in
  *" --exchange "*)
    exchange=yes
    first_run_s=40
    names="nccl faults cuda_aware_mpi bf16 first_contact"
    ;;
esac
for flag in "$@"; do
  case $flag in
    --exchange) ;;
    --short) short=yes ;;
    --torch_python=*) torch_python=${flag#--torch_python=} ;;
    --only=*)
      only=$(echo "${flag#--only=}" | tr ',' ' ')
      for name in $only; do
        case " $names " in
          *" $name "*) ;;
          *) echo "gpu_checks.sh: there is no check $name, only: $names" >&2; exit 2 ;;
        esac
      done
      ;;
    --quick) quick=yes ;;
    *) echo "gpu_checks.sh: unknown flag $flag: $usage" >&2; exit 2 ;;
  esac
done
export STARRING_BIN="$top/bin" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
status=0
grace_s=8  # between the signals SIGTERM and SIGKILL, to a check that is late

# The worker searches for cuBLAS and cuDNN in Python wheels by itself. The test suites and benchmarks search only the
# loader's path, so it gets the wheels' folders here.
wheels=$(timeout -s KILL 10 "$torch_python" -c '
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

# check NAME SECONDS COMMAND...: runs the command and writes its output to NAME.txt. With refusal_is=skip a job that is
# refused with a sentence is skipped. `passed` is yes or no.
refusal_is=failure
check() {
  passed=no
  name=$1
  limit_s=$2
  shift 2
  wanted "$name" || return
  begin=$(date +%s)
  timeout -k "$grace_s" "$limit_s" "$@" >"$out/$name.txt" 2>&1
  code=$?
  took="$(($(date +%s) - begin)) s"
  if [ $code = 124 ] || [ $code = 137 ]; then
    echo "FAILED   $name: no end after $limit_s s: $out/$name.txt"
    status=1
  elif grep -q "Device not supported\|not supported on this platform" "$out/$name.txt"; then
    echo "SKIPPED  $name ($took): compute-sanitizer is not allowed here: $out/$name.txt"
  elif [ $code = 2 ] && [ $refusal_is = skip ]; then
    echo "SKIPPED  $name ($took): $(grep -m 1 error "$out/$name.txt")"
  elif [ $code != 0 ]; then
    echo "FAILED   $name ($took, exit status $code): $out/$name.txt"
    status=1
  elif grep -q "no kernel ran on a real GPU" "$out/$name.txt"; then
    echo "SKIPPED  $name ($took): no GPU was used, see $out/$name.txt"
  else
    echo "PASSED   $name ($took)"
    passed=yes
  fi
}
skip() {
  wanted "$1" || return
  echo "SKIPPED  $1: $2" | tee "$out/$1.txt"
}
# check_by_python NAME SECONDS COMMAND...: a check that needs python3.
check_by_python() {
  if command -v python3 >/dev/null; then
    check "$@"
  else
    passed=no
    skip "$1" "no python3"
  fi
}
torch_sees_a_gpu() {
  timeout -s KILL 20 "$torch_python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null
}

if ! timeout -k "$grace_s" "$first_run_s" "$top/bin/worker" --device=cuda --model=logreg --dataset=synthetic \
  --synthetic_train_count=640 --synthetic_test_count=64 --epochs=1 --progress=plain --checkpoint_dir=none \
  >"$out/gpu.txt" 2>&1; then
  echo "NO GPU CAN BE USED HERE, NOTHING WAS CHECKED:" >&2
  cat "$out/gpu.txt" >&2
  exit 2
fi
head -n 1 "$out/gpu.txt"

# check_two_ranks NAME SECONDS SYNC TRANSPORT FLAG...: a short job of two ranks on one GPU, skipped if it is refused.
# shellcheck disable=SC2086  # $ranks are several words
check_two_ranks() {
  row=$1 limit_s=$2 ranks="--sync=$3 --transport=$4 --workers=2"
  shift 4
  refusal_is=skip
  check "$row" "$limit_s" env NCCL_MULTI_RANK_GPU_ENABLE=1 "$top/bin/launch" $ranks --worker_binary="$top/bin/worker" \
    -- --share_gpus --device=cuda --model=logreg --dataset=synthetic --synthetic_train_count=640 \
    --synthetic_test_count=10 --max_steps=8 --progress=plain --checkpoint_dir=none "$@"
  refusal_is=failure
}

# The last row, which ends eight minutes after the script began. A repeat is 33 jobs of some two seconds each; with less
# time there are fewer repeats.
# shellcheck disable=SC2086  # words of the lists are arguments
first_contact() {
  wanted first_contact || return
  if [ "$nccl" = yes ]; then
    cells="$cells nccl:tcp"
  elif ! wanted nccl; then
    echo "         first_contact is without the cell nccl:tcp, which needs --only=nccl,first_contact"
  fi
  left_s=$((480 - grace_s - ($(date +%s) - started)))
  # gpu_first_contact.sh may take 30 s longer than it is told, and then has 5 s for its summary.
  check_by_python first_contact "$left_s" "$top/tests/gpu_first_contact.sh" "$out/first_contact" \
    --seconds=$((left_s - 35)) --spike_seconds=45 $models $cells
  [ ! -f "$out/first_contact.txt" ] || sed -n 's/^each cell has /         each cell has /p' "$out/first_contact.txt"
}

# shellcheck disable=SC2046,SC2086  # words of the lists are arguments
exchange_checks() {
  cells=
  for memory in socket shared_memory gpu_memory; do
    cells="$cells star:tcp:--same_host=$memory ring:tcp:--same_host=$memory"
  done
  for sync in star ring; do
    cells="$cells $sync:tcp:--same_host=gpu_memory:--gpu_waits=graph"
  done
  models="--models=mlp:400,mnist_cnn:150,resnet20:50 --repeats=5 --overlap_s=1.2 --job_seconds=15"
  steps="--batches=512 --repeats=1 --steps=400 --seconds=0 --warmup_s=0"
  networks=resnet20,mnist_cnn
  tests="test_a_rank_that_is_killed_is_named test_a_rank_that_is_stopped_is_named"
  if [ $short = yes ]; then
    cells="star:tcp:--same_host=socket ring:tcp:--same_host=gpu_memory"
    models="--models=logreg:3 --batch=16 --train_count=32 --overlap_s=0 --repeats=1"
    steps="--batches=64 --repeats=1 --steps=10 --seconds=0 --warmup_s=0"
    networks=logreg
    tests=test_a_rank_that_is_killed_is_named
  fi
  check_two_ranks nccl 20 nccl tcp
  nccl=$passed
  check_by_python faults 45 env PYTHONPATH="$top" STARRING_TEST_NCCL="$nccl" python3 -m unittest -v \
    $(printf 'tests.e2e.cuda_test.CudaTest.%s ' $tests)
  check_two_ranks cuda_aware_mpi 20 ring mpi --cuda_aware_mpi=try --record="$out/cuda_aware_mpi.json"
  [ "$passed" = no ] ||
    sed -n 's/^ *"gpu_transfer": "\(.*\)",*$/         its messages went \1/p' "$out/cuda_aware_mpi.json"
  if ! wanted bf16 || ! torch_sees_a_gpu; then
    torch_python=
  elif [ $short = no ]; then
    networks=mnist_cnn
  fi
  check_by_python bf16 60 python3 "$top/bench/gpu_steps.py" --maths=fp32,bf16 --models=$networks $steps \
    --torch_python="$torch_python" --record="$out/bf16.json"
  first_contact
}
if [ $exchange = yes ]; then
  exchange_checks
  exit $status
fi

check device_suite 180 "$top/tests/cuda_device_test"
# The test's checks: CPU and GPU curves agree, star = ring, graph = no graph, resume, and the refusals' messages.
check_by_python jobs 240 env PYTHONPATH="$top" python3 -m unittest -v tests.e2e.cuda_test

set -- --repeats=5
limit_s=7200
if [ "$quick" = yes ]; then
  set -- --repeats=1 --steps=500 --seconds=1 --warmup_s=0.5 --maths=fp32,tf32 --models=mnist_cnn,resnet20
  limit_s=300
fi
if torch_sees_a_gpu; then
  check steps "$limit_s" "$torch_python" "$top/bench/gpu_steps.py" --torch_python="$torch_python" "$@" \
    --record="$out/steps.json"
else
  skip steps "$torch_python has no torch that sees a GPU: --torch_python=PYTHON"
fi
for batch in 64 512; do
  check "kernels_$batch" 60 "$top/bench/cuda_kernels_bench" "$batch"
  check "kernels_cudnn_$batch" 60 "$top/bench/cuda_kernels_bench" "$batch" fp32 auto
done

# All processes: a program begins as its starter, which has nothing to check.
# Layers in fp32 only, because a checked memory access costs a hundred times as much, and without one test that needs
# kernels to take their usual time. cuBLASLt's own kernels are left out: their findings would not be ours to mend.
tests='*/Fp32:*/Fp32InChunks:*CudaDevice*-*WaitingBehindALaunch*'
# To memcheck a call of CUDA that fails is an error, and in these tests one fails on purpose.
failing='*AllocateSaysHowMuch*:*AGraphHasABranch*:*IsPinned*:*NothingAllocatesInACapture*:*FirstError*'
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
for tool in memcheck racecheck synccheck initcheck; do
  left_out=
  [ $tool = memcheck ] && left_out=":$failing"
  if [ -n "$sanitizer" ]; then
    check "sanitizer_$tool" 600 "$sanitizer" --tool "$tool" --error-exitcode 9 --target-processes all \
      --kernel-name-exclude kernel_substring=cublas --kernel-name-exclude kernel_substring=cutlass \
      "$top/tests/cuda_device_test" --gtest_filter="$tests$left_out"
  else
    skip "sanitizer_$tool" "no compute-sanitizer: it comes with the CUDA toolkit"
  fi
done
# A whole step as a captured graph, with events between four streams.
if [ -n "$sanitizer" ]; then
  check sanitizer_step 300 "$sanitizer" --tool memcheck --error-exitcode 9 --target-processes all "$top/bin/worker" \
    --device=cuda --dataset=synthetic --synthetic_train_count=640 --synthetic_test_count=64 --epochs=2 \
    --model=mnist_cnn --checkpoint_dir=none
else
  skip sanitizer_step "no compute-sanitizer: it comes with the CUDA toolkit"
fi
exit $status
