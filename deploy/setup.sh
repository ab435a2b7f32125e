#!/bin/bash
# Installs what Starring is built and tested with, from Debian 12's own archive. Installs only what is missing: a second
# run changes nothing and takes no time.
#
#   --test  also what only tests need: clang and libFuzzer, for bench/fuzz, and a Slurm, for deploy/slurm. A Slurm not
#           where systemd runs, which would start its daemons; there: apt-get install slurm-wlm munge iproute2
#
# Exit status: 0 when everything but the optional packages is there, 1 otherwise.
set -euo pipefail

PACKAGES=(
  bazel-bootstrap g++                                        # the build
  libabsl-dev libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler
  libopenmpi-dev openmpi-bin libdnnl-dev zlib1g-dev libssl-dev prometheus-cpp-dev
  libgtest-dev libgmock-dev libbenchmark-dev                 # the tests
  python3 python3-numpy python3-grpcio python3-protobuf
  clang-format clang-tidy procps
  curl ca-certificates                                       # deploy/get_data.sh
  dataset-fashion-mnist                                      # the images that //worker trains on by default
)
# Only the comparison needs these: PyTorch as the peer, the others for the page.
# torch takes whatever BLAS is installed; the reference one would make an unfair peer (measured: 6 against 90 GFLOP/s).
OPTIONAL_PACKAGES=(python3-torch libopenblas0-pthread python3-matplotlib python3-jinja2)
TEST_PACKAGES=(clang libclang-rt-14-dev slurm-wlm munge iproute2)
# SYSTEMD is for the test of this file.
if [[ -d ${SYSTEMD:-/run/systemd/system} ]]; then TEST_PACKAGES=(clang libclang-rt-14-dev); fi
if [[ ${1:-} != --test ]]; then TEST_PACKAGES=(); fi

# The packages among the arguments that are not installed, one a line.
missing() {
  local package
  for package in "$@"; do
    # dpkg-query fails for a package it has never heard of, which is a package that is missing.
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
  # Another apt may be at work, as one is on a machine that has just started.
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq \
    install --yes --no-install-recommends "$@"
}

main() {
  # OS_RELEASE is for the test of this file.
  local os_release=${OS_RELEASE:-/etc/os-release} id version
  id=$(. "${os_release}" 2>/dev/null && echo "${ID:-}") || true
  version=$(. "${os_release}" 2>/dev/null && echo "${VERSION_ID:-}") || true
  if [[ ${id} != debian || ${version} != 12 ]]; then
    echo "setup: this is ${id:-an unknown system} ${version}, and these are names of Debian 12. Needed are:" >&2
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

  # Stale lists name files that the archive no longer has. An archive out of reach is no reason to stop: the packages
  # may be in apt's cache.
  as_root apt-get -o DPkg::Lock::Timeout=300 -qq update || echo "setup: apt-get update failed, going on without" >&2
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
      echo "setup: could not install ${wanted_optional[*]}: all works but the comparison with PyTorch DDP" >&2
    fi
  fi
  if [[ ${#wanted_test[@]} -gt 0 ]]; then
    echo "setup: installing ${wanted_test[*]}"
    if ! apt_install "${wanted_test[@]}"; then
      echo "setup: could not install ${wanted_test[*]}: all works but bench/fuzz and tests of Slurm and netlab" >&2
    fi
  fi
  echo "setup: done"
}

main
