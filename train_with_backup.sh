#!/usr/bin/env bash
# Train under a name and keep what an earlier run of that name left.
#
#   ./train_with_backup.sh run_name [options of python -m marl_framework.main]
#
# An earlier run moves to training_history/run_name/<UTC time>/ beside the folder of the runs;
# python -m marl_framework.history lists it. With --resume the run of
# that name continues and nothing moves. Runs lie in runs/ of this repository, or where --set
# logging.directory=… says. Relative paths start at the caller's folder.
set -euo pipefail

usage="usage: train_with_backup.sh run_name [options of python -m marl_framework.main]"
root=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")

fail() { # bad input: one line and exit code 2
  printf 'error: %s\n' "$1" >&2
  exit 2
}

find_python() { # .venv beside this script, else the active environment
  local candidate probe='import sys, importlib.util; sys.exit(not importlib.util.find_spec("torch"))'
  for candidate in "$root/.venv/bin/python" python python3; do
    if "$candidate" -P -c "$probe" 2>/dev/null; then # Python 3.11 is the first to know -P
      python=$candidate
      return
    fi
  done
  fail "no Python 3.11 with PyTorch in $root/.venv or the active environment; run 'make venv' there"
}

[[ $# -gt 0 ]] || fail "$usage"
[[ $1 != -h && $1 != --help ]] || { echo "$usage" && exit 0; }
[[ $1 != -* ]] || fail "run name ${1@Q}: the run name comes first and has no leading '-'; $usage"
for option in "${@:2}"; do
  [[ $option != --run-name?(=*) ]] || fail "the run name is the first argument; leave out --run-name"
done
find_python
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
runs="--set=logging.directory='${root//\'/\'\'}/runs'" # quoted: main reads YAML

# -P: no modules from the caller's folder. -u: no delay. A later --set wins over the first.
exec "$python" -Pu -m marl_framework.main "$runs" "${@:2}" "--run-name=$1" --archive-earlier </dev/null
