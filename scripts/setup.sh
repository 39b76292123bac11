#!/usr/bin/env bash
# Installs what longspan needs on Debian 12 or Ubuntu 24.04. Does nothing where all is in place.
#
#   scripts/setup.sh demo    system packages, the demo's documents, and a small .venv: the torch wheel as home of libtorch
#   scripts/setup.sh test    system packages, and the full .venv: transformers, the oracle of the tests (4.9 GB)
#   scripts/setup.sh fuzz    system packages, and clang 16 for the fuzzers; no .venv
set -euo pipefail
cd "$(dirname "$0")/.."
level=${1:-demo}

# One list; each name exists on both distributions.
packages=(g++ cmake ninja-build ccache lld pkg-config git make
  libtomlplusplus-dev nlohmann-json3-dev libcli11-dev libgtest-dev zlib1g-dev
  libopenmpi-dev openmpi-bin python3-venv python3-pip)
case $level in
  demo) packages+=(perl-doc) ;;
  test) packages+=(clang-format) ;;
  fuzz) packages+=(clang-16 libclang-rt-16-dev) ;;
  *) echo "usage: scripts/setup.sh demo|test|fuzz" >&2; exit 2 ;;
esac

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if ((${#missing[@]})); then
  echo "setup: installing system packages: ${missing[*]}"
  as_root=()
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || { echo "setup: run as root, or install sudo; missing: ${missing[*]}" >&2; exit 2; }
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
else
  echo "setup: system packages are in place"
fi

[[ $level != fuzz ]] || exit 0
[[ -x .venv/bin/python ]] || python3 -m venv .venv
marker=.venv/longspan-$level
requirements=scripts/requirements-$level.txt
if [[ -f $marker && $marker -nt $requirements ]]; then
  echo "setup: .venv ($level) is in place"
  exit 0
fi
if [[ $level == demo && -f .venv/longspan-test ]]; then
  echo "setup: .venv (test) is in place and holds all that the demo needs"
  exit 0
fi
echo "setup: installing Python wheels into .venv ($level)"
if [[ $level == demo ]]; then
  # Without torch's own dependencies: its libraries are all that is needed.
  .venv/bin/pip install --quiet --disable-pip-version-check --no-deps -r "$requirements"
else
  .venv/bin/pip install --quiet --disable-pip-version-check -r "$requirements"
fi
touch "$marker"
