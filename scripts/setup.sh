# Sourced by the other scripts: creates .venv and installs the named extras; fast if nothing changed.
#   setup dev bench     the package (editable) with these extras, at the versions in constraints.txt
# An active virtual environment (or FLATOUT_PYTHON) is ignored, so that everybody runs the same as CI.
setup() {
    local extras stamp wanted
    extras=$(IFS=,; echo "$*")
    stamp=.venv/.installed-${extras:-core}
    wanted=$(cat pyproject.toml constraints.txt | cksum)
    if [[ ! -x .venv/bin/python ]]; then
        echo "setting up .venv (once)" >&2
        "${PYTHON:-python3}" -c 'import sys; sys.exit("flatout needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
        "${PYTHON:-python3}" -m venv .venv
    fi
    if [[ ! -f $stamp || $(cat "$stamp") != "$wanted" ]]; then
        echo "installing flatout${extras:+[$extras]} (once)" >&2
        .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".${extras:+[$extras]}"
        echo "$wanted" >"$stamp"
    fi
    PATH="$PWD/.venv/bin:$PATH"
}

# fastai, into .venv/fastai: see fastai.txt
setup_fastai() {
    local stamp=.venv/fastai/.installed wanted
    wanted=$(cksum <scripts/fastai.txt)
    if [[ ! -f $stamp || $(cat "$stamp") != "$wanted" ]]; then
        echo "installing fastai for tests of the docs (once)" >&2
        rm -rf .venv/fastai
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target .venv/fastai -r scripts/fastai.txt
        echo "$wanted" >"$stamp"
    fi
}
