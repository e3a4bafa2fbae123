#!/usr/bin/env bash
# tf-models-official 2.20.0 and tf_keras 2.21.0, Python 3.11 to 3.13.
# Guess: they install together, for tf-models-official asks for tf-keras>=2.16.0 alone.
# Behaviour: pip refuses. tf_keras 2.21 wants tensorflow 2.21, tf-models-official wants ~=2.20.0;
# tf_keras 2.20.1, left to pip, is found.
# Output: tf_keras 2.21.0: refused. tf_keras 2.20.1: found
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
found() {
  "$folder/venv/bin/pip" install --quiet --dry-run tf-models-official==2.20.0 "tf_keras==$1" \
    >"$folder/log" 2>&1
}
found 2.20.1 || { cat "$folder/log"; exit 1; }
if found 2.21.0; then
  echo "tf_keras 2.21.0 is found now"
  exit 1
fi
grep -q "tf-keras==2.21.0 and tf-models-official==2.20.0" "$folder/log" || { cat "$folder/log"; exit 1; }
echo "tf_keras 2.21.0: refused. tf_keras 2.20.1: found"
