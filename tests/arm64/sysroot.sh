#!/bin/sh
# Makes FOLDER/sysroot, Debian's Python for arm64, and FOLDER/bin/python, which qemu runs it with: what
# boards have, for tests. Uses apt's sources and keys of this machine with a state of its own, so that
# the machine's dpkg knows nothing of it and root is not needed.
set -eu
folder=$1

missing=
command -v apt-get >/dev/null && command -v dpkg >/dev/null || {
    echo 'test-arm64 takes its Python from Debian, and there is no apt-get here.' >&2
    exit 1
}
# Newer releases have it without the ending.
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || missing="$missing qemu-user-static"
command -v aarch64-linux-gnu-gcc >/dev/null || missing="$missing gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
if [ -n "$missing" ]; then
    echo "test-arm64 needs more: \`apt-get install$missing\` brings it." >&2
    exit 1
fi

rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/apt/state/lists/partial" "$folder/apt/cache/archives/partial" "$folder/sysroot"
folder=$(cd "$folder" && pwd)
: >"$folder/apt/status"
cat >"$folder/apt/apt.conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "";
Acquire::Retries "3";
Acquire::Languages "none";
Debug::NoLocking "1";
Dir::State "$folder/apt/state";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt/cache";
Dir::Log "$folder/apt";
CONF
export APT_CONFIG="$folder/apt/apt.conf"
apt-get update -qq
# The status is empty, so that all they need comes along.
apt-get install -qq -y --no-install-recommends --download-only python3 libgomp1 libstdc++6 >/dev/null
for package in "$folder"/apt/cache/archives/*.deb; do
    dpkg -x "$package" "$folder/sysroot"
done
# Newer releases have everything in /usr, and the loader's path in every program is /lib.
[ -e "$folder/sysroot/lib" ] || ln -s usr/lib "$folder/sysroot/lib"
rm -rf "$folder/apt"

# A virtual environment whose python is a script: the kernel runs it without knowing of arm64, and
# sys.executable is its name, so that what is started in turn runs the same way.
echo "home = $folder/sysroot/usr/bin" >"$folder/pyvenv.cfg"
cat >"$folder/bin/python" <<SCRIPT
#!/bin/sh
ulimit -c 0
exec "$qemu" -L "$folder/sysroot" -0 "\$0" "$folder/sysroot/usr/bin/python3" "\$@"
SCRIPT
# And for programs that the tests compile.
cat >"$folder/bin/run" <<SCRIPT
#!/bin/sh
exec "$qemu" -L "$folder/sysroot" "\$@"
SCRIPT
chmod +x "$folder/bin/python" "$folder/bin/run"
"$folder/bin/python" -c 'import ctypes, platform, sqlite3, ssl; assert platform.machine() == "aarch64"'
