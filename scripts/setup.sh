#!/usr/bin/env bash
# Prepare this machine, then run a command in the project's environment:
#   scripts/setup.sh [COMMAND ARGUMENT...]
# Needs Python 3 with pip. Brings what is missing: system libraries (apt, as root or through sudo), uv, Python packages.
set -euo pipefail

APT_PACKAGES=(libegl1 libgl1-mesa-dri libosmesa6 ffmpeg)

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

missing_packages() {
    local package
    for package in "${APT_PACKAGES[@]}"; do
        dpkg-query --show --showformat='${Status}\n' "$package" 2>/dev/null | grep -q 'install ok installed' || echo "$package"
    done
}

# The command that lets this user install packages: nothing for root, sudo where it works, else failure.
become_root() {
    if [ "$(id -u)" = 0 ]; then
        echo env
    elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || { [ -t 0 ] && sudo -v; }; }; then
        echo sudo
    else
        return 1
    fi
}

system_libraries() {
    if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
        say "no apt-get here: simulators draw through libEGL or libOSMesa and videos need ffmpeg; if they are missing," \
            "install your system's packages for them"
        return
    fi
    local missing as_root
    mapfile -t missing < <(missing_packages)
    [ ${#missing[@]} -gt 0 ] || return 0
    if ! as_root=$(become_root); then
        say "not root and no sudo, so these stay missing: ${missing[*]}. Ask an administrator to run:" \
            "apt-get install -y ${missing[*]}"
        return
    fi
    say "installing ${missing[*]}"
    "$as_root" env DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2 </dev/null ||
        say "apt-get update failed; trying with the package lists that are here"
    "$as_root" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2 </dev/null ||
        die "apt-get could not install ${missing[*]}; install them, then run this again"
}

# A Python 3 with pip. Tried from / as well, because pyenv's python3 fails under our .python-version where 3.12 is absent.
python_with_pip() {
    local python
    for python in python3 /usr/local/bin/python3 /usr/bin/python3; do
        if (cd / && "$python" -m pip --version) >/dev/null 2>&1; then
            echo "$python"
            return
        fi
    done
    return 1
}

# A uv that really runs here: a pyenv shim can be on the PATH and still find no uv for this folder's Python.
find_uv() {
    local uv
    for uv in "$root/.tools/bin/uv" uv "$HOME/.local/bin/uv" "$HOME/.cargo/bin/uv"; do
        if "$uv" --version >/dev/null 2>&1; then
            echo "$uv"
            return
        fi
    done
    return 1
}

bring_uv() {
    find_uv && return
    local python
    python=$(python_with_pip) || die "no Python 3 with pip found; install them (Debian: apt-get install python3-pip)"
    say "installing uv into .tools"
    (cd / && PIP_ROOT_USER_ACTION=ignore "$python" -m pip install --quiet --upgrade --target "$root/.tools" 'uv>=0.7' \
        >&2 </dev/null) ||
        die "pip could not install uv; install uv yourself so that 'uv --version' works, then run this again"
    find_uv || die "the installed uv does not run; see: .tools/bin/uv --version"
}

require_python() {
    "$1" python find >/dev/null 2>&1 && return
    say "no Python $(cat .python-version) found; asking uv to fetch one"
    "$1" python install "$(cat .python-version)" >&2 </dev/null ||
        die "Python $(cat .python-version) is needed and could not be fetched; install it (your system's packages or pyenv)" \
            "so that 'python$(cat .python-version)' runs, then run this again"
}

system_libraries
uv=$(bring_uv)
require_python "$uv"
if [ $# -eq 0 ]; then
    exec "$uv" sync --all-extras
fi
exec "$uv" run --all-extras "$@"
