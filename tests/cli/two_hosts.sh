#!/bin/sh
# two_hosts.sh: two hosts on this machine, for tests of ranks on several: sbpa and sbpb have their own names,
# networks (joined by one cable), shared memory and /tmp; sbpb its own processes as well. Needs root.
#
#   two_hosts.sh begin DIR OWNER KEEP...   until `end`, or until the process OWNER has ended. The directories
#                                          KEEP that lie in /tmp are seen by both; DIR/own is each host's own
#   two_hosts.sh on DIR HOST COMMAND...    runs a command there
#   two_hosts.sh rsh DIR HOST LINE...      the same for mpirun, in place of ssh: a line for the shell, with few
#                                          variables: --mca plm_rsh_agent "two_hosts.sh rsh DIR"
#   two_hosts.sh signal DIR HOST SIGNAL    to every process there
#   two_hosts.sh cable DIR up|down
#   two_hosts.sh rank DIR NUMBER           the process, as this machine numbers it, of that rank
#   two_hosts.sh left DIR                  the processes of ranks and of MPI on both
#   two_hosts.sh end DIR
#
# DIR/hostfile is mpirun's, with two slots each. `begin` says why where it is not possible, with exit status 77.
set -eu
what=$1 dir=$2
shift 2

# The id of the process that stays on a host, as this one sees it.
pid_of() {
    cat "$dir/$1.pid"
}

# In the same directory.
enter() {
    host=$1 spaces="-m -u -n -i"
    shift
    [ "$host" = sbpa ] || spaces="$spaces -p"
    # shellcheck disable=SC2016,SC2086
    exec nsenter -t "$(pid_of "$host")" $spaces -- sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
}

# All of its processes: those in its network.
processes_of() {
    network=$(readlink "/proc/$(pid_of "$1")/ns/net") || return 0
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/ns/net" 2>/dev/null)" != "$network" ] || echo "${process#/proc/}"
    done
}

# What a host does first, and that it stays.
be_host() {
    host=$1
    shift
    hostname "$host"
    mount --bind "$dir/hosts" /etc/hosts
    mount -t tmpfs tmpfs /dev/shm
    for keep in "$@"; do
        mkdir -p "/dev/shm/$keep"
        mount --bind "$keep" "/dev/shm/$keep"
    done
    mount -t tmpfs tmpfs /tmp
    for keep in "$@"; do
        mkdir -p "$keep"
        mount --bind "/dev/shm/$keep" "$keep"
        umount "/dev/shm/$keep"
    done
    mount -t tmpfs tmpfs "$dir/own"
    ip link set lo up
    touch "$dir/$host.ready"
    while :; do sleep 1; done # and ends what is left of others
}

wait_for() {
    for _ in $(seq 200); do
        [ ! -e "$1" ] || return 0
        sleep 0.05
    done
    refuse "no host: $(cat "$dir/said")"
}

refuse() {
    echo "$1"
    "$0" end "$dir"
    exit 77
}

begin() {
    owner=$1
    shift
    kept=
    for keep in "$@"; do
        keep=$(realpath "$keep")
        case $keep in /tmp/*) kept="$kept $keep" ;; esac
    done
    mkdir -p "$dir/own"
    printf '127.0.0.1 localhost\n10.77.0.1 sbpa\n10.77.0.2 sbpb\n' >"$dir/hosts"
    printf 'sbpa slots=2\nsbpb slots=2\n' >"$dir/hostfile"
    for tool in unshare nsenter ip; do
        command -v $tool >/dev/null || refuse "there is no $tool"
    done
    [ "$(id -u)" = 0 ] || refuse "only root may make hosts"
    # shellcheck disable=SC2086
    unshare -m -u -n -i -- "$0" host "$dir" sbpa $kept >"$dir/said" 2>&1 </dev/null &
    echo $! >"$dir/sbpa.pid"
    # shellcheck disable=SC2086
    unshare -m -u -n -i -p --fork --kill-child --mount-proc -- "$0" host "$dir" sbpb $kept >>"$dir/said" 2>&1 </dev/null &
    outer=$!
    echo $outer >"$dir/sbpb.outer"
    echo $outer >"$dir/sbpb.pid"
    wait_for "$dir/sbpa.ready"
    wait_for "$dir/sbpb.ready"
    inner=$(cat "/proc/$outer/task/$outer/children")
    inner=${inner% }
    echo "$inner" >"$dir/sbpb.pid"
    nsenter -t "$(pid_of sbpa)" -n -- ip link add cable type veth peer name cable netns "$inner" ||
        refuse "no network between hosts"
    nsenter -t "$(pid_of sbpa)" -n -- ip addr add 10.77.0.1/24 dev cable
    nsenter -t "$inner" -n -- ip addr add 10.77.0.2/24 dev cable
    "$0" cable "$dir" up
    (
        while [ -e "$dir/sbpb.outer" ] && kill -0 "$owner" 2>/dev/null; do sleep 1; done
        "$0" end "$dir"
    ) >/dev/null 2>&1 </dev/null &
}

case $what in
begin) begin "$@" ;;
host) be_host "$@" ;;
on) enter "$@" ;;
rsh)
    host=$1
    shift
    enter "$host" env -i PATH="$PATH" HOME=/root sh -c "$*"
    ;;
signal)
    for process in $(processes_of "$1"); do
        kill "-$2" "$process" 2>/dev/null || true
    done
    ;;
cable)
    nsenter -t "$(pid_of sbpa)" -n -- ip link set cable "$1"
    nsenter -t "$(pid_of sbpb)" -n -- ip link set cable "$1"
    ;;
rank)
    for process in $(processes_of sbpa) $(processes_of sbpb); do
        name=$(cat "/proc/$process/comm" 2>/dev/null) || continue
        read -r _ _ _ parent _ <"/proc/$process/stat" || continue
        [ "$name" = sbprun ] || continue
        [ "$(cat "/proc/$parent/comm")" != sbprun ] || continue # but one that stands by a rank
        ! tr '\0' '\n' <"/proc/$process/environ" | grep -qxE "(OMPI_COMM_WORLD|PMIX)_RANK=$1" || echo "$process"
    done
    ;;
left)
    for process in $(processes_of sbpa) $(processes_of sbpb); do
        case $(cat "/proc/$process/comm" 2>/dev/null) in
        sbprun | orted | mpirun | mpiexec | orterun) echo "$process" ;;
        esac
    done
    ;;
end)
    for host in sbpa sbpb; do
        [ -e "$dir/$host.pid" ] || continue
        for process in $(processes_of "$host") $(cat "$dir/$host.outer" 2>/dev/null); do
            kill -KILL "$process" 2>/dev/null || true
        done
    done
    rm -f "$dir"/sbp?.pid "$dir"/sbp?.outer "$dir"/sbp?.ready
    ;;
*)
    echo "two_hosts.sh: unknown: $what" >&2
    exit 2
    ;;
esac
