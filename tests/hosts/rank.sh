#!/bin/sh
# Runs a rank, "rank.sh FILE COMMAND...", and appends "RANK CODE" to FILE when it ends by itself. Variables of the host
# alone are in HOST.variables.
file=$1
shift
. "$TESSERA_TEST_HOSTS/$(hostname).variables"
"$@" &
child=$!
trap 'kill -TERM $child' TERM
wait $child
code=$?
echo "${PMI_RANK:-$OMPI_COMM_WORLD_RANK} $code" >>"$file"
exit $code
