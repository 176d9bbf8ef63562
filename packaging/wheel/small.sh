#!/usr/bin/env bash
# small.sh - expat, libcurl, libxml2 and libmicrohttpd for the wheel, from Debian's own sources with Debian's
# patches, but only the parts that Tessera calls. Runs in the tree of packaging/wheel/build.sh.
#
# Debian's binaries would bring 31 more libraries and 47 MB (Kerberos, LDAP, SSH, GnuTLS, ICU), and need newer
# systems: expat calls arc4random_buf, which glibc has from 2.36 on, and ICU needs the libstdc++ of gcc 12.
#
#   small.sh TRIPLET PREFIX      such as x86_64-linux-gnu /opt/small
set -eu
triplet=$1 prefix=$2
work=/tmp/small-$triplet
[ ! -f "$prefix/done" ] || exit 0
rm -rf "$work" "$prefix"
mkdir -p "$work"
cd "$work"
CFLAGS="$(dpkg-buildflags --get CFLAGS) -g0" CPPFLAGS=$(dpkg-buildflags --get CPPFLAGS)
LDFLAGS=$(dpkg-buildflags --get LDFLAGS)
export CFLAGS CPPFLAGS LDFLAGS
export PKG_CONFIG_LIBDIR=/usr/lib/$triplet/pkgconfig

failed() {
    tail -n 20 "$1" >&2
    exit 1
}

sources() { # package: its folder, with Debian's patches
    apt-get -qq source "$1" >"$1.log" 2>&1 || failed "$1.log"
    find . -maxdepth 1 -type d -name "$1-*"
}

with_cmake() { # package, folder of its CMakeLists, options...
    local folder
    folder=$(sources "$1")/$2
    # Debian's patches of expat want the value that configure gives it.
    [ "$1" != expat ] || sed -i 's/^#cmakedefine XML_DTD$/#cmakedefine XML_DTD 1/' "$folder/expat_config.h.cmake"
    shift 2
    cmake -S "$folder" -B "$folder/small" -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib \
        -DCMAKE_BUILD_TYPE=None -DBUILD_SHARED_LIBS=ON -DCMAKE_C_COMPILER="$triplet-gcc" \
        -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR="${triplet%%-*}" "$@" >"$folder.log" 2>&1 || failed "$folder.log"
    make -C "$folder/small" -j"$(nproc)" install >>"$folder.log" 2>&1 || failed "$folder.log"
}

with_cmake expat expat -DEXPAT_BUILD_TOOLS=OFF -DEXPAT_BUILD_EXAMPLES=OFF -DEXPAT_BUILD_TESTS=OFF \
    -DEXPAT_BUILD_DOCS=OFF -DHAVE_ARC4RANDOM_BUF=OFF -DHAVE_ARC4RANDOM=OFF
# HTTP and HTTPS alone. Where else certificates are, s3_ca_file names them.
with_cmake curl . -DBUILD_CURL_EXE=OFF -DBUILD_TESTING=OFF -DHTTP_ONLY=ON -DCURL_USE_OPENSSL=ON \
    -DCURL_USE_LIBSSH2=OFF -DCURL_USE_LIBPSL=OFF -DUSE_LIBIDN2=OFF -DCURL_ZLIB=OFF -DCURL_BROTLI=OFF -DCURL_ZSTD=OFF \
    -DUSE_NGHTTP2=OFF -DCURL_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt -DCURL_CA_PATH=none
with_cmake libxml2 . -DLIBXML2_WITH_ICU=OFF -DLIBXML2_WITH_LZMA=OFF -DLIBXML2_WITH_ZLIB=OFF -DLIBXML2_WITH_PYTHON=OFF \
    -DLIBXML2_WITH_PROGRAMS=OFF -DLIBXML2_WITH_TESTS=OFF -DLIBXML2_WITH_HTTP=OFF -DLIBXML2_WITH_FTP=OFF \
    -DLIBXML2_WITH_MODULES=OFF

folder=$(sources libmicrohttpd)
(cd "$folder" && ./configure --host="$triplet" --prefix="$prefix" --disable-https --disable-doc --disable-examples \
    --disable-curl --disable-static && make -j"$(nproc)" -C src/microhttpd install-libLTLIBRARIES &&
    make -C src/include install && make install-pkgconfigDATA) >"$folder.log" 2>&1 || failed "$folder.log"
for name in expat curl libxml2 libmicrohttpd; do
    install -D -m 644 "$(find . -maxdepth 1 -type d -name "$name-*")/debian/copyright" "$prefix/licenses/$name"
done
touch "$prefix/done"
