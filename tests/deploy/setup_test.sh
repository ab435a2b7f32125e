#!/bin/bash
# Tests deploy/setup.sh against a fake apt-get. deploy/test.sh begins with a real installation.
set -uo pipefail
readonly SETUP=$1

fail() {
  echo "FAILED (line ${BASH_LINENO[0]}): $*" >&2
  exit 1
}

# On other systems it stops and lists the packages.
for system in 'ID=ubuntu VERSION_ID="22.04"' 'ID=debian VERSION_ID="11"' 'ID=debian' ''; do
  tr ' ' '\n' <<<"${system}" >"${TEST_TMPDIR}/os-release"
  output=$(OS_RELEASE=${TEST_TMPDIR}/os-release "${SETUP}" 2>&1) && fail "went on with '${system}'"
  grep -q libopenmpi-dev <<<"${output}" || fail "does not list the packages: ${output}"
done
OS_RELEASE=/nonexistent "${SETUP}" >/dev/null 2>&1 && fail "went on without os-release"

# Fakes: apt-get logs its arguments and fails if they match $APT_FAILS; dpkg-query knows all packages but $ABSENT.
readonly BIN=${TEST_TMPDIR}/bin LOG=${TEST_TMPDIR}/apt.log
mkdir "${BIN}"
printf 'ID=debian\nVERSION_ID="12"\n' >"${TEST_TMPDIR}/os-release"
# shellcheck disable=SC2016  # the fakes expand the variables
printf '#!/bin/bash\necho "$*" >>%s\n! grep -qE -- "${APT_FAILS:-^$}" <<<"$*"\n' "${LOG}" >"${BIN}/apt-get"
# shellcheck disable=SC2016
printf '#!/bin/bash\n[[ " ${ABSENT:-} " != *" ${@: -1} "* ]] && echo installed\n' >"${BIN}/dpkg-query"
printf '#!/bin/bash\nexec "$@"\n' >"${BIN}/sudo"
chmod +x "${BIN}"/*
setup() {
  : >"${LOG}"
  OS_RELEASE=${TEST_TMPDIR}/os-release PATH=${BIN}:${PATH} "${SETUP}" "$@" >"${TEST_TMPDIR}/output" 2>&1
}

# A word that it does not know is refused: a person would take the packages of the tests for installed.
setup --tests
[[ $? == 2 ]] || fail "took --tests"
grep -q 'unexpected arguments "--tests"' "${TEST_TMPDIR}/output" || fail "wrong: $(cat "${TEST_TMPDIR}/output")"

# If everything is installed, it does not call apt-get.
setup || fail "everything is installed, yet it failed"
[[ ! -s ${LOG} ]] || fail "called apt-get without need: $(cat "${LOG}")"

# It installs only the missing packages, and without recommendations.
ABSENT="zlib1g-dev curl" setup || fail "could not install"
grep -qE -- '--no-install-recommends( zlib1g-dev| curl){2}$' "${LOG}" || fail "wrong: $(cat "${LOG}")"

# It fails if a needed package cannot be installed, but not for want of torch or of an update.
ABSENT="curl" APT_FAILS="install.*curl" setup && fail "went on without curl"
ABSENT="curl python3-torch" APT_FAILS="install.*torch|update" setup || fail "stopped for want of torch or of an update"
grep -q "only the comparison with PyTorch DDP needs them" "${TEST_TMPDIR}/output" || fail "does not say what is lost"

# It installs Slurm only with --test, and only where systemd does not run.
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
