# tree.sh - fresh Debian systems in folders, to build packages in and to try them in. Sourced by
# tools/package and tools/check-packages; needs root, because debootstrap and chroot do.
#
# Packages come from where this machine's apt gets its own: the same mirror, proxy and checks. Bases are
# kept in the cache folder (TESSERA_DEPS_DIR, else ~/.cache/tessera) as trees/SUITE.tar.
# shellcheck shell=bash
deps=${TESSERA_DEPS_DIR:-${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/tessera}
trees=$deps/trees

die() {
    echo "${0##*/}: $*" >&2
    exit 1
}

tree_needs() {
    local tool
    [ "$(id -u)" -eq 0 ] || die "trees need root: debootstrap and chroot do"
    for tool in debootstrap unshare chroot "$@"; do
        command -v "$tool" >/dev/null || die "no $tool: run tools/setup --package"
    done
}

# The mirror of this machine's own packages.
tree_mirror() {
    # shellcheck disable=SC2016  # apt expands
    apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
        awk '$2 !~ /-/ && !found {found = 1; print $1}'
}

tree_base() { # suite: makes trees/SUITE.tar if it is missing
    local suite=$1 new=$trees/$1.new mirror
    [ ! -f "$trees/$suite.tar" ] || return 0
    mirror=$(tree_mirror)
    [ -n "$mirror" ] || die "apt has no mirror configured"
    echo "debootstrap $suite"
    rm -rf "$new"
    mkdir -p "$trees"
    debootstrap --variant=minbase "$suite" "$new" "$mirror" >"$trees/$suite.log" 2>&1 ||
        die "debootstrap $suite: $(tail -n 3 "$trees/$suite.log")"
    # How this machine reaches the mirror.
    apt-config dump | grep -E '^Acquire::(https?::|Check-Valid-Until)' >"$new/etc/apt/apt.conf.d/90machine"
    # Nothing starts in a tree.
    printf '#!/bin/sh\nexit 101\n' >"$new/usr/sbin/policy-rc.d"
    chmod 755 "$new/usr/sbin/policy-rc.d"
    tree_in "$new" apt-get -qq update || die "apt-get update in $suite"
    tar -C "$new" --exclude='./var/cache/apt/archives/*.deb' -cf "$trees/$suite.tar.new" .
    mv "$trees/$suite.tar.new" "$trees/$suite.tar"
    rm -rf "$new"
}

tree_make() { # folder, suite: a fresh tree
    tree_base "$2"
    rm -rf "$1"
    mkdir -p "$1"
    tar -C "$1" -xf "$trees/$2.tar"
    cp -L /etc/resolv.conf "$1/etc/resolv.conf"
}

# Runs a command in a tree, in a world of processes and mounts that ends with it.
# TREE_USER=name: as that user. Names of this machine's environment do not get in.
tree_in() { # folder, command...
    local tree=$1 setpriv=()
    shift
    [ -z "${TREE_USER:-}" ] || setpriv=(setpriv --reuid="$TREE_USER" --regid="$TREE_USER" --init-groups)
    # shellcheck disable=SC2016  # the inner shell expands
    unshare --mount --pid --ipc --fork --kill-child bash -c '
        mount -t proc proc "$0/proc" && mount -t tmpfs -o mode=1777 tmpfs "$0/dev/shm" && exec chroot "$0" "$@"' \
        "$tree" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
        HOME="${TREE_HOME:-/root}" DEBIAN_FRONTEND=noninteractive "${setpriv[@]}" "$@"
}

tree_install() { # folder, packages or files in the tree
    local tree=$1
    shift
    tree_in "$tree" apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends "$@" \
        >"$tree.log" 2>&1 || die "apt-get install $*: $(tail -n 5 "$tree.log")"
}

# The files of the working tree that git knows of, or would if they were added.
tree_source() { # folder
    rm -rf "$1"
    mkdir -p "$1"
    git ls-files -z --cached --others --exclude-standard | xargs -0 ls -d 2>/dev/null |
        tar -cf - -T - | tar -C "$1" -xf -
}
