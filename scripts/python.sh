#!/bin/sh
# Runs a Python program with the first Python on PATH that this project can use: sh scripts/python.sh PROGRAM ARGS…
# Why not plain python3: on macOS and older Linux it is too old, while a newer one is often installed beside it.
# $PYTHON, if set, is the only one looked at. A version manager's shim that cannot run is passed over.
seen=""
no_venv=""
for python in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10 python3.14}; do
    command -v "$python" >/dev/null 2>&1 || continue
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    case "$version" in
    3.1[0-4])
        if "$python" -c 'import ensurepip, venv' 2>/dev/null; then exec "$python" "$@"; fi
        no_venv="$python $version"
        ;;
    *) seen="$seen $python=$version" ;;
    esac
done
if [ -n "$no_venv" ]; then
    echo "minirt: $no_venv cannot make virtual environments. On Debian or Ubuntu: apt-get install python3-venv" >&2
else
    echo "minirt: Python 3.10 to 3.14 is needed, found:${seen:- none}." \
        "Install one, or name it: make PYTHON=/path/to/python3.12 lab" >&2
fi
exit 1
