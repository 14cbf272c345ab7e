#!/bin/bash -eu
# Makes a program of each target in $OUT, as the base image of OSS-Fuzz wants it.
pip3 install --require-hashes -r tests/requirements.txt
pip3 install --no-deps --no-build-isolation . ./sidecar

# Where targets run there is no compiler: modules in C are built here, with the sanitizer's flags, and lie beside them.
export CARPOOL_FUZZ_NATIVE=$OUT/carpool-native
mkdir -p "$CARPOOL_FUZZ_NATIVE"
for name in forms numbers; do
  LD_PRELOAD=${OUT}/sanitizer_with_fuzzer.so ASAN_OPTIONS=detect_leaks=0 python3 -c \
    "from benchmarks.fuzz import targets; targets.load('$name')(b'[[1]]')"
done

python3 -m benchmarks.fuzz --list | while read -r name _; do
  module=$(python3 -c "from benchmarks.fuzz import targets; print(targets.TARGETS['$name'].where.partition(':')[0])")
  cat >"$SRC/carpool_${name}_fuzzer.py" <<EOF
import os, sys
os.environ["CARPOOL_FUZZ_NATIVE"] = os.path.join(os.path.dirname(sys.executable), "carpool-native")
from benchmarks.fuzz import targets
targets.run("$name", sys.argv[1:])
EOF
  PYTHONPATH=$PWD compile_python_fuzzer "$SRC/carpool_${name}_fuzzer.py" --paths "$PWD" --hidden-import "$module" \
    --hidden-import atheris --collect-submodules carpool --collect-submodules carpool_sidecar \
    --add-data "$PWD/sidecar/carpool_sidecar:sidecar/carpool_sidecar"
done
