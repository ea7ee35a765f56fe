#!/bin/sh
# slurm.sh: Slurm over the two hosts of two_hosts.sh, with its own keys and ports, beside whatever this machine has.
#
#   slurm.sh begin DIR HOSTS     HOSTS: the directory of two_hosts.sh. Then SLURM_CONF=DIR/slurm.conf is all that
#                                srun, salloc, sbatch need on a host. Exit status 77, and why, where there is no Slurm
#   slurm.sh end DIR             after which the hosts may end
set -eu
what=$1 dir=$2
hosts=$(dirname "$0")/two_hosts.sh

begin() {
    for tool in slurmctld slurmd srun munged; do
        command -v $tool >/dev/null || PATH=$PATH:/usr/sbin command -v $tool >/dev/null || {
            echo "there is no $tool (Debian: slurm-wlm, munge)"
            exit 77
        }
    done
    mkdir -p "$dir/state" "$dir/spool.sbpa" "$dir/spool.sbpb" "$dir/munge"
    chmod 755 "$dir"
    chmod 711 "$dir/munge" # munged wants it so
    head -c 128 /dev/urandom >"$dir/munge/key"
    chmod 400 "$dir/munge/key"
    cat >"$dir/slurm.conf" <<END
ClusterName=two
SlurmctldHost=sbpa
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool.%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.%n.log
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
NodeName=sbpa,sbpb CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
END
    PATH=$PATH:/usr/sbin SLURM_CONF=$dir/slurm.conf
    export PATH SLURM_CONF
    munged --force --socket="$dir/munge/socket" --key-file="$dir/munge/key" --pid-file="$dir/munge/pid" \
        --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" --num-threads=2 2>/dev/null
    "$hosts" on "$1" sbpa slurmctld -c
    "$hosts" on "$1" sbpa slurmd -N sbpa
    "$hosts" on "$1" sbpb slurmd -N sbpb
    for _ in $(seq 200); do
        [ "$("$hosts" on "$1" sbpa sinfo -h -t idle -o %D 2>/dev/null)" != 2 ] || return 0
        sleep 0.1
    done
    echo "Slurm does not come up:"
    tail -n 5 "$dir"/*.log
    exit 1
}

case $what in
begin) begin "$3" ;;
end)
    if [ -e "$dir/munge/pid" ]; then
        kill "$(cat "$dir/munge/pid")"
    fi
    ;;
esac
