#!/bin/bash
# Tests quickstart.sh with stubs for all programs that it calls: which commands it runs, from any folder and twice in a
# row, and what it does if one of them fails.
set -euo pipefail
script=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "${work}"' EXIT
tree="${work}/a clone"
export CALLS="${work}/calls"

fail() {
  echo "FAILED: $*" >&2
  cat "${CALLS}" >&2
  exit 1
}

# stub PATH: makes a program that logs its name and arguments, writes the file of --record, and fails if FAIL names it.
stub() {
  mkdir -p "$(dirname "$1")"
  cat >"$1" <<'STUB'
#!/bin/bash
echo "$(basename "$0") $*" >>"${CALLS}"
for word in "$@"; do
  if [[ ${word} == --record=* ]]; then echo '{}' >"${word#--record=}"; fi
done
[[ ${FAIL:-} != "$(basename "$0")" ]]
STUB
  chmod +x "$1"
}

for name in deploy/setup.sh bazel-bin/deploy/launch bazel-bin/deploy/table; do stub "${tree}/${name}"; done
for name in bazel python3; do stub "${work}/bin/${name}"; done
cp "${script}" "${tree}/deploy/quickstart.sh"
export PATH="${work}/bin:${PATH}"
cd /

for round in 1 2; do
  : >"${CALLS}"
  "${tree}/deploy/quickstart.sh" >"${work}/out" || fail "round ${round}"
  for expected in \
      "setup.sh " \
      "bazel build //deploy:launch //deploy:table" \
      "launch --sync=star --workers=2 --servers=2 -- --model=lenet5 --dataset=fashion-mnist --epochs=2 " \
      "launch --sync=ring --workers=2 -- --model=lenet5 " \
      "python3 bench/ddp/train.py --world_size=2 --model=lenet5 " \
      "table report/quickstart/star.json report/quickstart/ring.json report/quickstart/ddp.json"; do
    grep -qF -- "${expected}" "${CALLS}" || fail "no call of: ${expected}"
  done
done

: >"${CALLS}"
"${tree}/deploy/quickstart.sh" 5 >"${work}/out"
[[ $(grep -c -- '--epochs=5' "${CALLS}") == 3 ]] || fail "5 epochs were asked for"

for name in setup.sh bazel launch table; do
  if FAIL="${name}" "${tree}/deploy/quickstart.sh" >"${work}/out" 2>&1; then
    fail "the failure of ${name} went unseen"
  fi
done

# Without PyTorch the table has two lines. /usr/bin/python3 may have torch, but there is no train.py in this tree.
: >"${CALLS}"
FAIL=python3 "${tree}/deploy/quickstart.sh" >"${work}/out" 2>&1 || fail "PyTorch must not be needed"
grep -qE 'SKIPPED|has no row for it' "${work}/out" || fail "a silent skip"
grep -qx 'table report/quickstart/star.json report/quickstart/ring.json' "${CALLS}" || fail "a table without DDP"

: >"${CALLS}"
status=0
"${tree}/deploy/quickstart.sh" many >"${work}/out" 2>&1 || status=$?
[[ ${status} == 2 && ! -s ${CALLS} ]] || fail "EPOCHS=many gave ${status}"
echo "quickstart_test: passed"
