#!/usr/bin/env bash
# Train under a name, and lose nothing: an earlier run of that name moves to the history first.
#
#   ./train_with_backup.sh run_name [options passed on to python -m marl_framework.main]
#
# With --resume nothing moves: the run of that name goes on, or starts where there is none.
# Runs lie in runs/ of this repository, or where --set logging.directory=… says; the history
# lies beside that folder, in training_history/run_name/<UTC time>/; python -m
# marl_framework.history lists, compares and restores what is there. CONFIG_FILE_PATH and
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

# Sets runs, check_only, resume and options from the caller's options.
read_options() {
  local previous='' argument setting
  runs='' check_only=no resume=no options=("$@")
  for argument in "$@"; do
    case $argument in
      --run-name | --run-name=*) fail "the run name is the first argument; leave out --run-name" ;;
      -h | --help | --check) check_only=yes ;;
      --resume) resume=yes ;;
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

move_earlier_run() { # refused, with one line, where the run is being trained
  [[ $resume == no && (-e $runs/$name || -L $runs/$name) ]] || return 0
  "$python" -P -m marl_framework.history "--runs=$runs" archive "$name" || {
    rm -- "$log"
    exit 2
  }
}

keep_log() { # at every end: the log goes where the results are
  exec 3>&-
  [[ -z $child ]] || kill -- "-$child" 2>/dev/null || true # workers that outlived the training
  wait "$tee" || true
  if [[ $status == 2 ]]; then # refused: nothing was trained, and the folder may be another's
    rm -f -- "$log"
  elif [[ -d $runs/$name ]] && cat -- "$log" 2>/dev/null >>"$runs/$name/train.log"; then
    rm -- "$log"
  else
    echo "The log is $log" >&2
  fi
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

mkdir -p -- "$runs" 2>/dev/null || fail "cannot make the folder $runs"
log=$(mktemp -- "$runs/.$name.log.XXXXXX" 2>/dev/null) || fail "cannot write in the folder $runs"
move_earlier_run

child='' signal='' status=0
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
