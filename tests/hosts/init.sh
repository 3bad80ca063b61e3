#!/bin/sh
# The first process of a simulated host: init.sh NAME FOLDER. Gives the host a name, a boot id, shared memory and a folder
# FOLDER/own that the other hosts do not see, and stays until it is killed.
hostname "$1"
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/$1.boot" /proc/sys/kernel/random/boot_id
mount --bind "$2/$1.own" "$2/own"
mount -t tmpfs tmpfs /dev/shm
touch "$2/$1.up"
exec sleep infinity
