# Shared by demo.sh and test.sh, which source it from the root of the repository: packages, compiler cache, builds.

say() { printf '\n==> %s\n' "$*"; }
die() { printf '%s\n' "$*" >&2; exit 1; }

# One compiler cache serves every clone and build folder.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

preprocesses() { printf '%s\n' "$1" | "${CXX:-c++}" -std=c++20 -E -x c++ - > /dev/null 2>&1; }
at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

# has PACKAGE: whether what this Debian package gives is here, wherever it comes from.
has() {
  case $1 in
    g++) preprocesses $'#include <source_location>\n#if !(__GNUC__ >= 12 || __clang_major__ >= 14)\n#error too old\n#endif' ;;
    cmake) command -v cmake > /dev/null && at_least 3.25 "$(cmake --version | awk 'NR == 1 { print $3 }')" ;;
    ninja-build) command -v ninja > /dev/null ;;
    pkg-config) command -v pkg-config > /dev/null ;;
    ccache) command -v ccache > /dev/null ;;
    python3) command -v python3 > /dev/null ;;
    python3-pip) python3 -m pip --version > /dev/null 2>&1 ;;
    python3-jinja2) python3 -c 'import jinja2' 2> /dev/null ;;
    libpcre2-dev) pkg-config --exists libpcre2-8 2> /dev/null ;;
    libcli11-dev) preprocesses '#include <CLI/CLI.hpp>' ;;
    libfmt-dev) preprocesses '#include <fmt/format.h>' ;;
    libboost1.81-dev) preprocesses $'#include <boost/version.hpp>\n#if BOOST_VERSION < 108100\n#error too old\n#endif' ;;
    libeigen3-dev) pkg-config --exists eigen3 2> /dev/null ;;
    libjpeg-dev) pkg-config --exists libjpeg 2> /dev/null ;;
    libpng-dev) pkg-config --exists libpng 2> /dev/null ;;
    libwebp-dev) pkg-config --exists libwebp libwebpdemux 2> /dev/null ;;
    libavformat-dev) pkg-config --exists libavformat 2> /dev/null ;;
    libavcodec-dev) pkg-config --exists libavcodec 2> /dev/null ;;
    libswscale-dev) pkg-config --exists libswscale 2> /dev/null ;;
    libedit-dev) pkg-config --exists libedit 2> /dev/null ;;
    nlohmann-json3-dev) preprocesses '#include <nlohmann/json.hpp>' ;;
    catch2) preprocesses '#include <catch2/catch.hpp>' || preprocesses '#include <catch2/catch_test_macros.hpp>' ;;
    clang) command -v clang++ > /dev/null ;;
    libclang-rt-dev) [ -n "$(find "$(clang++ -print-resource-dir 2> /dev/null || echo /nowhere)" -name '*fuzzer*' 2> /dev/null | head -n 1)" ] ;;
  esac
}

# missing PACKAGE...: those that are not here.
missing() {
  local package
  for package in "$@"; do has "$package" || printf '%s\n' "$package"; done
}

# can_install: whether packages can be installed through apt; asks for a password where there is someone to ask.
can_install() {
  command -v apt-get > /dev/null || return 1
  as_root=()
  [ "$(id -u)" -eq 0 ] && return
  as_root=(sudo)
  command -v sudo > /dev/null && { sudo -n true 2> /dev/null || { [ -t 0 ] && sudo -v; }; }
}

# need PACKAGE...: installs what is missing, or says what it is and ends.
need() {
  local packages package wanted=()
  mapfile -t packages < <(missing "$@")
  [ ${#packages[@]} -eq 0 ] && return
  say "missing: ${packages[*]}"
  can_install || die "Install these first (Debian's names; g++ 12 or clang 14, CMake 3.25, Boost 1.81 or newer): ${packages[*]}"
  "${as_root[@]}" apt-get -qq update || true
  for package in "${packages[@]}"; do
    if [ "$package" = libboost1.81-dev ] && ! apt-cache show "$package" > /dev/null 2>&1; then package=libboost-dev; fi
    wanted+=("$package")
  done
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get -qq install --yes --no-install-recommends "${wanted[@]}" > /dev/null ||
    die "apt could not install: ${wanted[*]}"
  mapfile -t packages < <(missing "$@")
  [ ${#packages[@]} -eq 0 ] || die "This system's packages are too old: ${packages[*]} (g++ 12, CMake 3.25, Boost 1.81 or newer are needed)"
}

# want PACKAGE...: like need, for what is only useful; says what is missing where it cannot be installed.
want() {
  local packages
  mapfile -t packages < <(missing "$@")
  [ ${#packages[@]} -eq 0 ] || (need "${packages[@]}") || say "going on without: ${packages[*]}"
}

need_for_programs() {
  need g++ cmake ninja-build pkg-config python3 python3-pip libpcre2-dev libcli11-dev libfmt-dev libboost1.81-dev libeigen3-dev nlohmann-json3-dev
  want libedit-dev  # editing of lines in conversations
  want libjpeg-dev libpng-dev libwebp-dev  # images of these kinds
  want libavformat-dev libavcodec-dev libswscale-dev  # video files
}
need_for_tests() {
  need_for_programs
  need catch2
  want python3-jinja2  # renders the chat templates of real models, for the tests to compare
}

has_gpu() { nvidia-smi --list-gpus 2> /dev/null | grep -q GPU; }

# cuda_options: the CUDA kernels for the GPUs that are here. Where there is none, tests of a change still compile them, for one.
cuda_options() {
  if has_gpu; then return; fi
  if [ -n "${CI:-}" ]; then echo -DTIERED_CUDA_ARCHITECTURES=90; else echo -DTIERED_CUDA=OFF; fi
}

# build PRESET: configures and builds; CMake's own words only where something is wrong.
build() {
  local options
  mapfile -t options < <(cuda_options)
  cmake --preset "$1" "${options[@]}" > /dev/null
  cmake --build --preset "$1" --parallel "$(nproc)"
}
