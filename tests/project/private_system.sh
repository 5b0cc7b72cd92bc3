# private_system.sh NAME SCRATCH COMMAND...: run COMMAND where it has the machine to itself. Cgroups are below one called
# NAME, what is written to /etc and /var is gone afterwards; /run, the network and the processes are of its own.
# The caller removes the cgroup: everything else is gone with the last process.
set -e
name=$1; scratch=$2; shift 2
hierarchies() { awk '$3 ~ /^cgroup/ { print $2 }' /proc/mounts; }

if [ "$(cat "$scratch/stage" 2>/dev/null)" != inside ]; then
    for top in $(hierarchies); do
        if [ -e "$top/cgroup.controllers" ]; then  # groups below have them then
            for controller in $(cat "$top/cgroup.controllers"); do
                echo "+$controller" > "$top/cgroup.subtree_control"
            done
        fi
        mkdir "$top/$name"
        for file in cpuset.cpus cpuset.mems; do
            if [ -e "$top/$file" ]; then cat "$top/$file" > "$top/$name/$file"; fi
        done
        echo $$ > "$top/$name/cgroup.procs"
    done
    echo inside > "$scratch/stage"
    exec unshare --cgroup --mount --net --uts --pid --fork --kill-child --mount-proc --propagation private \
        sh "$0" "$name" "$scratch" "$@"
fi

for top in $(hierarchies); do
    mount --bind "$top/$name" "$top"
    if [ -e "$top/cgroup.controllers" ]; then  # there a group has members or groups
        mkdir "$top/first"
        echo $$ > "$top/first/cgroup.procs"
    fi
done
mkdir "$scratch/sys"  # of the new network
mount -t sysfs sysfs "$scratch/sys"
mount --rbind /sys/fs/cgroup "$scratch/sys/fs/cgroup"
mount --rbind "$scratch/sys" /sys
mkdir "$scratch/layers"
mount -t tmpfs tmpfs "$scratch/layers"
for tree in etc var; do
    layer=$scratch/layers/$tree
    mkdir -p "$layer/changed" "$layer/work"
    mount -t overlay overlay -o "lowerdir=/$tree,upperdir=$layer/changed,workdir=$layer/work" "/$tree"
done
mount -t tmpfs tmpfs /run
for directory in /var/lib/kubelet /var/lib/kubengine /var/lib/cni /var/log/pods /etc/kubernetes /etc/kubengine /etc/cni; do
    mkdir -p "$directory"
    mount -t tmpfs tmpfs "$directory"
done
for tree in vm kernel; do  # an agent on it would set those of the machine
    mount --bind "/proc/sys/$tree" "/proc/sys/$tree"
    mount -o remount,bind,ro "/proc/sys/$tree"
done
ip link set lo up
hostname node
exec "$@"
