#!/bin/busybox sh
# The first process of a virtual machine: makes it look like a small node, runs /job, says how that ended, switches off.
# The kernel's own messages go to the first serial line, the job's output to the second.

export PATH=/fuse-detector:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp LANG=C.UTF-8 TERM=dumb NO_COLOR=1
/bin/busybox --install -s /bin

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs tmpfs /run
stty -F /dev/ttyS1 raw -echo
exec </dev/null >/dev/ttyS1 2>&1

mount -t tracefs tracefs /sys/kernel/tracing
mount -t securityfs securityfs /sys/kernel/security
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
ip link set lo up

# As systemd-tmpfiles does: opening them loads their modules.
depmod
[ -e /dev/fuse ] || mknod -m 666 /dev/fuse c 10 229
[ -e /dev/loop-control ] || mknod /dev/loop-control c 10 237
ln -sf /proc/self/fd /dev/fd
# The directory for it appears with the module.
: 3<>/dev/fuse
mount -t fusectl fusectl /sys/fs/fuse/connections

sh /job
echo "fuse-detector-vm ends: $?"
# Setting a terminal waits until what was written before has left it.
stty -F /dev/ttyS1 raw
poweroff -f
