#!/usr/bin/env bash
# A SLURM of two nodes that are both this machine, for tests: cluster.sh start|stop DIR
#
# Needs root and Debian's packages slurmctld, slurmd, slurm-client and munge; touches nothing
# outside DIR. Then: SLURM_CONF=DIR/slurm.conf sbatch ... Partition `low` is preempted by `high`.
set -euo pipefail
nodes=2 cpus=2                       # of a node; they need not exist
port=${SLURM_TEST_PORT:-16817}       # and the next ones
dir=$(realpath -m "$2")
host=$(hostname -s)

die() {
    echo "cluster.sh: $*" >&2
    exit 1
}

start_munge() {
    local tries
    install -d -m 0755 "$dir"
    install -d -o munge -g munge -m 0755 "$dir/munge"
    head -c 1024 /dev/urandom >"$dir/munge/key"
    chown munge:munge "$dir/munge/key"
    chmod 0400 "$dir/munge/key"
    setpriv --reuid=munge --regid=munge --clear-groups munged --force \
        --socket="$dir/munge/socket" --key-file="$dir/munge/key" \
        --pid-file="$dir/munge/pid" --log-file="$dir/munge/log" --seed-file="$dir/munge/seed"
    for tries in $(seq 50); do
        munge -S "$dir/munge/socket" -n >/dev/null 2>&1 && return
        sleep 0.1
    done
    die "munged does not answer after $tries tries"
}

write_settings() {
    local node
    cat >"$dir/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# a requeued job waits until its old credential has expired: 2 minutes by default, 5 s at least
AuthInfo=socket=$dir/munge/socket,cred_expire=5
# no systemd and no cgroups in a container
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
# more CPUs than there are
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=20
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
TmpFS=$dir/tmp-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd-%n.log
CONF
    install -d "$dir/state"
    for node in $(seq "$nodes"); do
        echo "NodeName=n$node NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + node))" \
            "CPUs=$cpus RealMemory=1000 State=UNKNOWN"
        # steps of two nodes of one machine would meet in a common folder
        install -d "$dir/spool-n$node" && install -d -m 1777 "$dir/tmp-n$node"
    done >>"$dir/slurm.conf"
    {
        echo "PartitionName=low Nodes=n[1-$nodes] PriorityTier=1 GraceTime=${GRACE:-60} Default=YES"
        echo "PartitionName=high Nodes=n[1-$nodes] PriorityTier=2 PreemptMode=OFF"
    } >>"$dir/slurm.conf"
}

start() {
    local node tries
    start_munge
    write_settings
    export SLURM_CONF=$dir/slurm.conf
    slurmctld
    for node in $(seq "$nodes"); do slurmd -N "n$node"; done
    for tries in $(seq 100); do
        [ "$(sinfo -h -N -p low -o %T 2>/dev/null | grep -c idle)" = "$nodes" ] && return
        sleep 0.2
    done
    tail -n 5 "$dir"/*.log >&2
    die "the nodes did not come up after $tries tries"
}

stop() {
    local file pid tries
    export SLURM_CONF=$dir/slurm.conf
    timeout 10 scancel --full --signal=KILL --user=root 2>/dev/null || true
    timeout 10 scancel --user=root 2>/dev/null || true
    for file in "$dir"/slurmd-*.pid "$dir"/slurmctld.pid "$dir"/munge/pid; do
        pid=$(cat "$file" 2>/dev/null) || continue
        kill "$pid" 2>/dev/null || continue
        for tries in $(seq 50); do
            grep -qs '^State:[[:space:]]*[RSD]' "/proc/$pid/status" || break
            sleep 0.1
        done
        [ "$tries" -lt 50 ] || kill -9 "$pid" 2>/dev/null || true
    done
}

case "$1" in
start) start ;;
stop) stop ;;
*) die "start or stop" ;;
esac
