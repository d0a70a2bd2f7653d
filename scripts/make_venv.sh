#!/bin/sh
# Make a virtual environment with pip in it: scripts/make_venv.sh PYTHON FOLDER
# Debian's python3 often comes without ensurepip (package python3-venv) and without pip, so several ways are tried.
# Nothing is installed outside FOLDER.
set -eu
python=$1
folder=$2

say() { printf '%s\n' "$*" >&2; }

has_pip() { "$folder/bin/python" -m pip --version >/dev/null 2>&1; }

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    version=$("$python" --version 2>/dev/null) || version="not to be found"
    say "Stitchwork needs Python 3.11 or newer; '$python' is $version."
    say "Name another one: make PYTHON=python3.12 ..."
    exit 1
fi

with_ensurepip() { "$python" -m venv --clear "$folder" >/dev/null 2>&1; }

bare() { "$python" -m venv --clear --without-pip "$folder" >/dev/null 2>&1; }

with_outer_pip() {
    "$python" -m pip --version >/dev/null 2>&1 && bare || return 1
    "$python" -m pip --quiet --python "$folder/bin/python" install pip
}

with_virtualenv() { "$python" -m virtualenv --quiet --clear "$folder" >/dev/null 2>&1; }

# Debian keeps pip as a wheel in a package of its own. Fetching and unpacking that needs no root, and pip runs from
# its wheel.
with_debian_wheel() {
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null && bare || return 1
    scratch=$(mktemp -d) || return 1
    if (
        cd "$scratch"
        apt-get --quiet --quiet download python3-pip-whl >/dev/null 2>&1 && dpkg-deb -x python3-pip-whl_*.deb .
    ); then
        wheel=$(find "$scratch" -name 'pip-*.whl' | head -n 1)
        [ -n "$wheel" ] && "$folder/bin/python" "$wheel/pip" --quiet install pip
    fi
    rm -rf "$scratch"
}

for way in with_ensurepip with_outer_pip with_virtualenv with_debian_wheel; do
    if "$way" && has_pip; then
        exit 0
    fi
done

rm -rf "$folder"
say "'$python' can make no virtual environment: it has neither ensurepip, pip nor virtualenv, and apt gave no pip."
say "On Debian or Ubuntu: apt-get update && apt-get install python3-venv   (as root), then run make again."
exit 1
