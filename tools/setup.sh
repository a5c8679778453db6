# Sourced by ./quickstart and ./test, with $root set: installs what is missing and builds the release.
# Everything here prints to standard error only, and says nothing where nothing is to be done.

say() { printf 'tercet: %s\n' "$*" >&2; }

die() {
  say "error: $*"
  exit 1
}

build_packages=(ca-certificates nlohmann-json3-dev libcli11-dev libfmt-dev libspdlog-dev libexpected-dev
  libssl-dev libboost-dev libxxhash-dev)
test_packages=(libgtest-dev libgmock-dev clang libclang-rt-14-dev clang-tidy clang-format
  g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user chromium chromium-driver)

# The oldest toolchain that the bridge's crates build with.
cargo_minimum=1.87.0

installed() { dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null | grep -q '^.i'; }

# install_packages NAME…: those that are not there yet. Does not call apt where all are.
install_packages() {
  local name missing=() apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
  command -v dpkg-query >/dev/null || return 0  # no Debian: CMake will name what it does not find
  for name in "$@"; do
    installed "$name" || missing+=("$name")
  done
  ((${#missing[@]})) || return 0
  if (($(id -u) != 0)); then
    command -v sudo >/dev/null || die "as root, run: apt-get install ${missing[*]}"
    apt=(sudo "${apt[@]}")
  fi
  say "installing ${missing[*]}"
  "${apt[@]}" -q update >&2 </dev/null || die "apt-get update failed"
  "${apt[@]}" -q install -y --no-install-recommends "${missing[@]}" >&2 </dev/null ||
    die "apt-get could not install ${missing[*]}"
}

# packages_of_missing COMMAND:PACKAGE…: the packages of the commands that are not on the PATH.
packages_of_missing() {
  local pair
  for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null || printf '%s\n' "${pair#*:}"
  done
}

cargo_is_new_enough() {
  local version
  version=$("$1/cargo" --version 2>/dev/null | cut -d' ' -f2) && [ -n "$version" ] && [ -x "$1/rustc" ] &&
    [ "$(printf '%s\n' "$cargo_minimum" "$version" | sort -V | head -n1)" = "$cargo_minimum" ]
}

# Makes the PATH's cargo a new enough one: the user's own, or Debian's packages for building web browsers.
ensure_cargo() {
  local found folder
  found=$(dirname "$(command -v cargo || echo none)")
  cargo_is_new_enough "$found" && return
  for folder in "${HOME:-}/.cargo/bin" /usr/bin; do
    if cargo_is_new_enough "$folder"; then
      PATH=$folder:$PATH
      return
    fi
  done
  install_packages rustc-web cargo-web
  cargo_is_new_enough /usr/bin || die "cargo $cargo_minimum or newer is needed"
  PATH=/usr/bin:$PATH
}

ensure_build_tools() {
  # shellcheck disable=SC2046
  install_packages "${build_packages[@]}" $(packages_of_missing g++:g++ cmake:cmake ninja:ninja-build)
  ensure_cargo
}

# NVIDIA's compiler as it comes to PyPI, in .cuda, where no toolkit is installed. Sets $cuda to ON, or to OFF where
# there is none for this processor.
cuda=AUTO
ensure_cuda() {
  local folder=$root/.cuda nvidia=$root/.cuda/nvidia/cu13 name packages=()
  cuda=ON
  command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] && return
  [ -f "$folder/complete" ] && return
  if [ "$(uname -m)" != x86_64 ]; then
    say "no CUDA toolkit is installed; testing without"
    cuda=OFF
    return
  fi
  say "fetching NVIDIA's CUDA compiler (270 MB)"
  for name in nvcc nvvm crt runtime cccl; do
    [ $name = nvvm ] && packages+=("nvidia-nvvm==13.0.*") || packages+=("nvidia-cuda-$name==13.0.*")
  done
  rm -rf "$folder"
  "$root/.venv/bin/pip" install -q --disable-pip-version-check --no-deps --only-binary=:all: --target "$folder" \
    "${packages[@]}" >&2 || die "NVIDIA's compiler could not be fetched"
  # Two links that its own installer would make.
  ln -s lib "$nvidia/lib64"
  ln -s libcudart.so.13 "$nvidia/lib/libcudart.so"
  touch "$folder/complete"
}

# configure on|off: with or without the tests; a build that has them keeps them.
configure() {
  local build=$root/build/release cache=$root/build/release/CMakeCache.txt
  if [ -f "$cache" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$cache"; then
    say "this folder was moved; building anew"
    rm -rf "$build"
  fi
  if [ ! -f "$build/build.ninja" ] || { [ "$1" = on ] && ! grep -qxi 'TERCET_TESTS:BOOL=on' "$cache"; } ||
    { [ $cuda != AUTO ] && ! grep -qx "TERCET_CUDA:STRING=$cuda" "$cache"; }; then
    (cd "$root" && cmake --preset release -DTERCET_TESTS="$1" -DTERCET_CUDA=$cuda >&2) || die "CMake could not configure the build"
  fi
}

# build TARGET: silent where it is up to date.
build() {
  # CMake looks for new files each time, so ninja always has something to say.
  ninja -C "$root/build/release" "$1" |
    sed -u -e '/^ninja: Entering directory/d' -e '/^ninja: no work to do/d' -e '/Re-checking globbed/d' >&2 ||
    die "the build failed"
}
