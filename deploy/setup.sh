#!/bin/bash
# Installs the packages that Starring is built and tested with, from Debian 12's own archive. Installs only what is
# missing: a second run changes nothing and takes no time.
#
#   --test  also installs the packages of the long tests: clang with its sanitizers, libFuzzer and OpenMP, python3-venv
#           for the wheel, python3-yaml and iproute2 for containers, and Slurm for deploy/slurm. Slurm is left out where
#           systemd runs, because systemd would start its daemons. To install it there: apt-get install slurm-wlm munge
#
# Exit status: 0 if everything but the optional packages is installed, 2 for another argument, 1 otherwise.
set -euo pipefail

if [[ $# -gt 1 || ${1:---test} != --test ]]; then
  echo "setup: unexpected arguments \"$*\": deploy/setup.sh [--test]" >&2
  exit 2
fi

PACKAGES=(
  bazel-bootstrap g++                                        # the build
  libabsl-dev libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler
  libopenmpi-dev openmpi-bin libdnnl-dev zlib1g-dev libssl-dev prometheus-cpp-dev
  libgtest-dev libgmock-dev libbenchmark-dev                 # the tests
  python3 python3-numpy python3-grpcio python3-protobuf
  clang-format clang-tidy shellcheck flake8 mypy procps
  python3-pyelftools                                         # deploy:bundle, deploy:wheel
  curl ca-certificates                                       # deploy/get_data.sh
  dataset-fashion-mnist                                      # the images that //worker trains on by default
)
# Only the comparison needs these: PyTorch as the peer, mpi4py for its exchange alone, the others for the report's page.
# PyTorch uses the BLAS that is installed. With the reference BLAS the peer would be unfairly slow: 6 GFLOP/s instead of
# 90 with OpenBLAS.
OPTIONAL_PACKAGES=(python3-torch libopenblas0-pthread python3-mpi4py python3-matplotlib python3-jinja2)
WITHOUT_SLURM=(clang libclang-rt-14-dev libomp-14-dev python3-venv python3-h5py python3-pil python3-yaml iproute2 mpich)
TEST_PACKAGES=("${WITHOUT_SLURM[@]}" slurm-wlm munge)
# The test of this file sets SYSTEMD.
if [[ -d ${SYSTEMD:-/run/systemd/system} ]]; then TEST_PACKAGES=("${WITHOUT_SLURM[@]}"); fi
if [[ ${1:-} != --test ]]; then TEST_PACKAGES=(); fi

# Prints the arguments that are not installed packages, one per line.
missing() {
  local package
  for package in "$@"; do
    # dpkg-query fails for a package that it does not know. Such a package is missing as well.
    if ! dpkg-query -W -f='${db:Status-Status}\n' "${package}" 2>/dev/null | grep -qx installed; then
      echo "${package}"
    fi
  done
}

as_root() {
  if [[ ${EUID} -eq 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    echo "setup: needs root for: $*" >&2
    echo "setup: run it as root, or install sudo" >&2
    return 1
  fi
}

apt_install() {
  # A machine that has just started often runs another apt: wait for its lock.
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq \
    install --yes --no-install-recommends "$@"
}

main() {
  # The test of this file sets OS_RELEASE.
  local os_release=${OS_RELEASE:-/etc/os-release} id version
  # shellcheck source=/dev/null
  id=$(. "${os_release}" 2>/dev/null && echo "${ID:-}") || true
  # shellcheck source=/dev/null
  version=$(. "${os_release}" 2>/dev/null && echo "${VERSION_ID:-}") || true
  if [[ ${id} != debian || ${version} != 12 ]]; then
    echo "setup: this is ${id:-an unknown system} ${version}. Needed are, by their names in Debian 12:" >&2
    printf '  %s\n' "${PACKAGES[@]}" >&2
    printf '  %s (optional)\n' "${OPTIONAL_PACKAGES[@]}" >&2
    echo "setup: install their counterparts (Bazel 4.2.3), then adapt the paths in WORKSPACE and third_party/" >&2
    return 1
  fi

  local wanted wanted_optional wanted_test
  mapfile -t wanted < <(missing "${PACKAGES[@]}")
  mapfile -t wanted_optional < <(missing "${OPTIONAL_PACKAGES[@]}")
  mapfile -t wanted_test < <(missing "${TEST_PACKAGES[@]}")
  if [[ $((${#wanted[@]} + ${#wanted_optional[@]} + ${#wanted_test[@]})) -eq 0 ]]; then
    echo "setup: everything is installed"
    return 0
  fi

  # Stale lists name files that the archive no longer has. If the archive cannot be reached, go on: the packages may be
  # in apt's cache.
  as_root apt-get -o DPkg::Lock::Timeout=300 -qq update || echo "setup: apt-get update failed: using the old lists" >&2
  if [[ ${#wanted[@]} -gt 0 ]]; then
    echo "setup: installing ${wanted[*]}"
    if ! apt_install "${wanted[@]}"; then
      echo "setup: could not install all of: ${wanted[*]}" >&2
      return 1
    fi
  fi
  if [[ ${#wanted_optional[@]} -gt 0 ]]; then
    echo "setup: installing ${wanted_optional[*]}"
    if ! apt_install "${wanted_optional[@]}"; then
      echo "setup: could not install ${wanted_optional[*]}: only the comparison with PyTorch DDP needs them" >&2
    fi
  fi
  if [[ ${#wanted_test[@]} -gt 0 ]]; then
    echo "setup: installing ${wanted_test[*]}"
    if ! apt_install "${wanted_test[@]}"; then
      echo "setup: could not install ${wanted_test[*]}: only long tests need them" >&2
    fi
  fi
  echo "setup: done"
}

main
