# SPDX-License-Identifier: Apache-2.0
# Functions of .ci/run and .ci/clusters, which set `only`, a regular expression of the stages to run,
# and `clone`, the tree that is tested.

# stage NAME COMMAND...: run a stage, and exit if it fails. (In a condition, bash ignores `set -e`.)
times=()
stage() {
  local name=$1 begin=$SECONDS
  shift
  [[ $name =~ $only|^prerequisites ]] || return 0
  printf '\n=== %s\n' "$name"
  if ! "$@"; then
    printf '=== %s FAILED after %d s\n' "$name" $((SECONDS - begin))
    exit 1
  fi
  times+=("$(printf '%5d s  %s' $((SECONDS - begin)) "$name")")
}

# in_venv NAME COMMAND...: run a command in the clone, with an active virtual environment.
in_venv() {
  local venv=$1
  shift
  (cd "$clone" && . "$venv/bin/activate" && "$@")
}

# report: print the time of each stage.
report() {
  printf '\n'
  printf '%s\n' "${times[@]}"
  printf '%5d s  in all\n' "$SECONDS"
}

# Tests of all parts of the package that take little time.
short_tests=(tests/{cli,util,core/test_locale.py,devices/test_wrong_arrays.py,devices/cpu/test_variables.py}
  tests/package/test_{checkpoint,golden_messages,import,logs,messages}.py
  tests/project/test_{architecture_pages,changes_page,error_examples,errors_page,house_rules}.py
  tests/project/test_{inject_package,links,prose,raise_sites,reference,training_docstrings}.py
  tests/comm/test_{arrays,collective_signatures,collectives,environment,misused_collectives}.py
  tests/comm/test_thread_counts.py)
