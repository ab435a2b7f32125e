#!/bin/bash
# deploy/setup.sh where it has nothing to do, and where it refuses. Installing is what deploy/test.sh begins with.
set -uo pipefail
readonly SETUP=$1

fail() {
  echo "FAILED (line ${BASH_LINENO[0]}): $*" >&2
  exit 1
}

# Elsewhere it stops, and says what is needed.
for system in 'ID=ubuntu VERSION_ID="22.04"' 'ID=debian VERSION_ID="11"' 'ID=debian' ''; do
  tr ' ' '\n' <<<"${system}" >"${TEST_TMPDIR}/os-release"
  output=$(OS_RELEASE=${TEST_TMPDIR}/os-release "${SETUP}" 2>&1) && fail "went on with '${system}'"
  grep -q libopenmpi-dev <<<"${output}" || fail "does not list the packages: ${output}"
done
OS_RELEASE=/nonexistent "${SETUP}" >/dev/null 2>&1 && fail "went on without os-release"

# apt-get, dpkg-query and id, as the cases below want them.
readonly BIN=${TEST_TMPDIR}/bin LOG=${TEST_TMPDIR}/apt.log
mkdir "${BIN}"
printf 'ID=debian\nVERSION_ID="12"\n' >"${TEST_TMPDIR}/os-release"
printf '#!/bin/bash\necho "$*" >>%s\n! grep -qE -- "${APT_FAILS:-^$}" <<<"$*"\n' "${LOG}" >"${BIN}/apt-get"
printf '#!/bin/bash\n[[ " ${ABSENT:-} " != *" ${@: -1} "* ]] && echo installed\n' >"${BIN}/dpkg-query"
printf '#!/bin/bash\nexec "$@"\n' >"${BIN}/sudo"
chmod +x "${BIN}"/*
setup() {
  : >"${LOG}"
  OS_RELEASE=${TEST_TMPDIR}/os-release PATH=${BIN}:${PATH} "${SETUP}" "$@" >"${TEST_TMPDIR}/output" 2>&1
}

# All there: apt is left alone.
setup || fail "all is installed, yet it failed"
[[ ! -s ${LOG} ]] || fail "called apt-get without need: $(cat "${LOG}")"

# Only what is missing is installed, and without recommendations.
ABSENT="zlib1g-dev curl" setup || fail "could not install"
grep -qE -- '--no-install-recommends( zlib1g-dev| curl){2}$' "${LOG}" || fail "wrong: $(cat "${LOG}")"

# What is needed must install; torch need not, and an update that fails may be harmless.
ABSENT="curl" APT_FAILS="install.*curl" setup && fail "went on without curl"
ABSENT="curl python3-torch" APT_FAILS="install.*torch|update" setup || fail "stopped for want of torch or of an update"
grep -q "all works but the comparison with PyTorch" "${TEST_TMPDIR}/output" || fail "does not say what is lost"

# A Slurm only for tests, and only where its daemons are not started.
ABSENT="munge" setup || fail "all but munge is installed, yet it failed"
[[ ! -s ${LOG} ]] || fail "installed munge unasked: $(cat "${LOG}")"
ABSENT="munge" SYSTEMD=${TEST_TMPDIR} setup --test || fail "failed where systemd runs"
[[ ! -s ${LOG} ]] || fail "installed munge where systemd runs: $(cat "${LOG}")"
ABSENT="libclang-rt-14-dev munge" SYSTEMD=${TEST_TMPDIR} setup --test || fail "could not install libFuzzer"
grep -q -- '--no-install-recommends libclang-rt-14-dev$' "${LOG}" || fail "did not install libFuzzer: $(cat "${LOG}")"
ABSENT="munge" SYSTEMD=/nonexistent setup --test || fail "could not install munge"
grep -q -- '--no-install-recommends munge$' "${LOG}" || fail "did not install munge: $(cat "${LOG}")"
ABSENT="munge" SYSTEMD=/nonexistent APT_FAILS="install.*munge" setup --test || fail "stopped for want of munge"
echo PASSED
