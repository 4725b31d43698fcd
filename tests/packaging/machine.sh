#!/bin/sh
# Boots systemd in namespaces of its own, over a copy of this machine that is forgotten at the end. Called by machine.py:
#   unshare --pid --mount --uts --ipc --cgroup --fork sh machine.sh LAYERS SHARED
# LAYERS: an empty directory; SHARED: a directory that inside and outside have in common.
set -eu
layers=$1 shared=$2
mount --make-rprivate /
mount -t tmpfs tmpfs "$layers"
mkdir "$layers/upper" "$layers/work" "$layers/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$layers/upper,workdir=$layers/work" "$layers/root"
cd "$layers/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for each in null zero full random urandom tty; do
  touch "dev/$each" && mount --bind "/dev/$each" "dev/$each"
done
mkdir dev/shm dev/pts
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mkdir -p ".$shared"
mount --bind "$shared" ".$shared"
# Only what a service needs to start: of this machine's own services only the journal.
: >etc/fstab
rm -rf etc/systemd/system/*.wants usr/lib/systemd/system/*.target.wants etc/systemd/system-generators
mkdir -p etc/systemd/system/machine.target.wants
cat >etc/systemd/system/machine.target <<END
[Unit]
Requires=basic.target systemd-journald.service
After=basic.target systemd-journald.service
AllowIsolate=yes
END
printf '[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=no\n' >etc/systemd/journald.conf
# A package's services are started here, whatever a container's image has against it.
rm -f usr/sbin/policy-rc.d
mkdir old
pivot_root . old
umount -l old
# As process 1 has it on a real machine; a service gets its credentials that way.
mount --make-rshared /
exec env -i container=namespaces PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  /lib/systemd/systemd --system --unit=machine.target --log-target=journal --show-status=no
