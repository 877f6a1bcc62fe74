#!/usr/bin/env bash
# Train under a name, and lose nothing: an earlier run of that name moves to the history first.
#
#   ./train_with_backup.sh run_name [options passed on to python -m marl_framework.main]
#
# Runs lie in runs/ of this repository, or where --set logging.directory=… says; the history
# lies beside that folder, in training_history/run_name/<UTC time>/. CONFIG_FILE_PATH and
# relative paths mean what they mean to main: they are seen from the folder of the caller.
# Output goes to the screen and to train.log in the run folder; the exit code is the training's.
set -euo pipefail

script=$(readlink -f -- "${BASH_SOURCE[0]}")
root=$(dirname -- "$script")
usage="usage: train_with_backup.sh run_name [options passed on to python -m marl_framework.main]"

fail() { # one line, exit code 2: nothing was touched
  printf 'error: %s\n' "$1" >&2
  exit 2
}

check_name() {
  local LC_ALL=C name=$1 # C: no accented letters inside A-Z
  if [[ ! $name =~ ^[A-Za-z0-9._-]+$ || $name == . || $name == .. || $name == -* ]]; then
    fail "run name ${name@Q}: use letters, digits, '.', '_', '-'; not '.', '..' or a leading '-'"
  fi
}

find_python() { # prints the interpreter: .venv beside this script, else the active environment
  local candidate probe='import sys, importlib.util; sys.exit(not importlib.util.find_spec("torch"))'
  for candidate in "$root/.venv/bin/python" python python3; do
    if "$candidate" -P -c "$probe" 2>/dev/null; then # Python 3.11 is the first to know -P
      printf '%s\n' "$candidate"
      return
    fi
  done
  fail "no Python 3.11 with PyTorch in $root/.venv or the active environment; run 'make venv' there"
}

# Sets runs, check_only and options from the caller's options.
read_options() {
  local previous='' argument setting
  runs='' check_only=no options=("$@")
  for argument in "$@"; do
    case $argument in
      --run-name | --run-name=*) fail "the run name is the first argument; leave out --run-name" ;;
      -h | --help | --check) check_only=yes ;;
    esac
    setting=$argument
    [[ $previous == --set ]] || setting=${argument#--set=}
    if [[ $previous == --set || $argument == --set=* ]] && [[ $setting == logging.directory=* ]]; then
      runs=${setting#logging.directory=}
    fi
    previous=$argument
  done
  if [[ -z $runs ]]; then
    runs=$root/runs
    options=(--set "logging.directory='${runs//\'/\'\'}'" "$@") # quoted: main reads YAML
  fi
}

move_earlier_run() {
  [[ -e $runs/$name || -L $runs/$name ]] || return 0
  local history target copy=1
  history=$(dirname -- "$runs")/training_history/$name
  target=$history/$started
  while [[ -e $target || -L $target ]]; do
    copy=$((copy + 1))
    target=$history/$started-$copy
  done
  if ! { mkdir -p -- "$history" && mv -- "$runs/$name" "$target"; } 2>/dev/null; then
    rm -- "$log"
    fail "cannot move $runs/$name to $target"
  fi
  echo "The earlier run '$name' is now in $target"
}

keep_log() { # at every end: the log goes where the results are
  exec 3>&-
  [[ -z $child ]] || kill -- "-$child" 2>/dev/null || true # workers that outlived the training
  wait "$tee" || true
  mv -- "$log" "$runs/$name/train.log" 2>/dev/null || echo "The log is $log" >&2
}

forward() { # main saves on INT and TERM; this script waits for it
  signal=$1
  [[ -z $child ]] || kill -s "$signal" "$child" 2>/dev/null || true
}

[[ $# -gt 0 ]] || fail "$usage"
[[ $1 != -h && $1 != --help ]] || { echo "$usage" && exit 0; }
name=$1
shift
check_name "$name"
read_options "$@"
python=$(find_python)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
main=("$python" -Pu -m marl_framework.main) # P: no modules from the caller's folder; u: no delay

# A configuration that main does not accept ends here, before anything is moved.
"${main[@]}" --check "${options[@]}"
[[ $check_only == no ]] || exit 0

started=$(date -u +%Y%m%dT%H%M%SZ)
mkdir -p -- "$runs" 2>/dev/null || fail "cannot make the folder $runs"
log=$(mktemp -- "$runs/.$name.log.XXXXXX" 2>/dev/null) || fail "cannot write in the folder $runs"
move_earlier_run

child='' signal=''
trap 'forward INT' INT
trap 'forward TERM' TERM HUP
exec 3> >(trap '' INT TERM HUP PIPE && exec tee -- "$log")
tee=$!
trap keep_log EXIT

# Job control gives the training a process group of its own, where Ctrl-C is not ignored and
# arrives once: through forward.
set -m
"${main[@]}" "${options[@]}" --run-name "$name" </dev/null >&3 2>&1 3>&- &
child=$!
set +m
[[ -z $signal ]] || kill -s "$signal" "$child"

# A signal interrupts wait; only a wait without one returns the training's exit code.
while :; do
  signal='' status=0
  wait "$child" 2>/dev/null || status=$?
  [[ -n $signal ]] || exit "$status"
done
