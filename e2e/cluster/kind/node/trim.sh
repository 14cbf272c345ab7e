#!/bin/sh
# Runs at the end of mmdebstrap, with the new root as its argument. What systemd would start beside Kubernetes is not
# wanted in a container; kind's own base image does without the same.
set -eu
root=$1
rm -f "$root"/lib/systemd/system/multi-user.target.wants/* "$root"/etc/systemd/system/*.wants/* \
  "$root"/lib/systemd/system/local-fs.target.wants/* "$root"/lib/systemd/system/basic.target.wants/* \
  "$root"/lib/systemd/system/sockets.target.wants/*udev* "$root"/lib/systemd/system/sockets.target.wants/*initctl* \
  "$root"/lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service
chroot "$root" systemctl mask --quiet systemd-binfmt.service
echo ReadKMsg=no >>"$root/etc/systemd/journald.conf"
# Empty, systemd makes one when it starts: no two nodes have the same.
: >"$root/etc/machine-id"
mkdir -p "$root/kind/proxy"
# The container that this release of containerd makes by default; node_image.py takes the limits out.
chroot "$root" ctr oci spec >"$root/kind/container.json"
# iptables with its libraries and extensions, for the image of kube-proxy.
legacy=/usr/sbin/xtables-legacy-multi
for file in $(chroot "$root" sh -c "ldd $legacy /usr/lib/*/xtables/*.so" | grep --only-matching '/[^ :]*' | sort --unique); do
  mkdir -p "$root/kind/proxy$(dirname "$file")"
  cp --dereference "$root$file" "$root/kind/proxy$file"
done
mkdir -p "$root/kind/proxy/usr/sbin"
for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
  cp "$root$legacy" "$root/kind/proxy/usr/sbin/$name"
done
