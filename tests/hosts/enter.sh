#!/bin/sh
# In place of ssh, as Hydra calls it: enter.sh [-x] HOST COMMAND... runs COMMAND on a simulated host of the folder
# TESSERA_TEST_HOSTS.
[ "$1" = -x ] && shift
pid=$(cat "$TESSERA_TEST_HOSTS/$1.pid") && shift && exec nsenter -t "$pid" -m -u -i -p -n -- sh -c "cd '$PWD' && $*"
