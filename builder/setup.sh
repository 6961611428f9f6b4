#!/usr/bin/env bash
# Sets up the virtual environment in .venv; does nothing when it is up to date.
# Usage: builder/setup.sh [run|test]
#
# SPECWORKER_DEVICE=cpu or gpu overrides what is found; PYTHON names the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

purpose=${1:-run}
python=${PYTHON:-python3}
# Where the CPU build of torch is, for a pip that does not find it by itself.
torch_cpu_index=https://download.pytorch.org/whl/cpu

if [ -n "${SPECWORKER_DEVICE:-}" ]; then
  device=$SPECWORKER_DEVICE
elif command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
  device=gpu
else
  device=cpu
fi

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }

if [ "$purpose" = test ] && ! command -v chromium >/dev/null; then
  say "Chromium, for the tests of the page …"
  { [ "$(id -u)" = 0 ] && apt-get update && apt-get install --yes --no-install-recommends chromium; } >&2 ||
    say "Not installed: as root, 'apt-get install chromium' does it. Until then those tests fail."
fi

files=(builder/requirements-"$device".txt builder/requirements.txt builder/requirements-nodeps.txt)
[ "$purpose" = test ] && files+=(builder/requirements-suffix.txt builder/requirements-dev.txt)
stamp=.venv/.set-up-for-$purpose
wanted=$(cat builder/setup.sh pyproject.toml "${files[@]}" | sha256sum)
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0

"$python" - <<'EOF' || { say "Python 3.11 to 3.13 is needed; set PYTHON to one."; exit 1; }
import sys
sys.exit(not (3, 11) <= sys.version_info < (3, 14))
EOF

say "Setting up for $device in .venv (a few minutes the first time) …"
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@" >&2; }

say "1/3 vLLM"
if [ "$device" = cpu ]; then
  pip install -r builder/requirements-cpu.txt ||
    pip install -r builder/requirements-cpu.txt --extra-index-url "$torch_cpu_index"
  # Built against another torch: importing them fails, and text models need none of them.
  pip uninstall --quiet --yes torchvision torchaudio torchcodec
else
  pip install -r builder/requirements-gpu.txt
fi

say "2/3 the worker"
pip install --quiet -r builder/requirements.txt
pip install --quiet --no-deps -r builder/requirements-nodeps.txt
pip install --quiet --no-deps --editable .

if [ "$purpose" = test ]; then
  say "3/3 the tests' tools"
  pip install --quiet -r builder/requirements-dev.txt
  # Its own dependencies are those of a training set-up; the decoder needs none of them.
  pip install --quiet --no-deps -r builder/requirements-suffix.txt
fi
printf '%s' "$wanted" > "$stamp"
say "Set up."
