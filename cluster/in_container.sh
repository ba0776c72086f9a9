#!/bin/sh
# The interpreter of a job with --container: runs Python inside the image, on the node where it is called.
#   in_container.sh FILE.py …            as Python does
#   in_container.sh --command WORD …     any program of the image's
# BIGBATCH_CONTAINER: the image. BIGBATCH_CONTAINER_PYTHON: the Python in it (default: python3).
set -eu

runtime=$(command -v apptainer || command -v singularity) || {
    echo "in_container.sh: neither apptainer nor singularity is on PATH of $(uname -n)" >&2
    exit 127
}
# --nv is for nodes with NVIDIA's driver; elsewhere it would only warn.
gpu=
if [ -e /dev/nvidiactl ]; then gpu=--nv; fi
user_tmp=${BIGBATCH_USER_TMPDIR:-/tmp}  # the user's own TMPDIR, for --stage '$TMPDIR'
[ -d "$user_tmp" ] || user_tmp=/tmp
if [ "${1:-}" = --command ]; then shift; else set -- "${BIGBATCH_CONTAINER_PYTHON:-python3}" "$@"; fi
imports=$BIGBATCH_ROOT/src  # where Python finds the package, see src/bigbatch/base/root.py
[ -d "$imports/bigbatch" ] || imports=$(dirname "$BIGBATCH_ROOT")
exec "$runtime" exec $gpu \
    --bind "$BIGBATCH_ROOT" --bind "$imports" --bind "$BIGBATCH_HOME" --bind "${BIGBATCH_NODE_TMP:-/tmp}" --bind "${TMPDIR:-/tmp}" --bind "$user_tmp" --bind "$PWD" --pwd "$PWD" \
    "$BIGBATCH_CONTAINER" "$@"
