#!/bin/bash
# flux_rsh.sh HOST COMMAND: a remote shell for the nodes of a Flux instance. Ranks are in the order of the host list.
rank=0
for host in $(flux hostlist --expand instance); do
    [[ $host != "$1" ]] || exec flux exec --rank "$rank" bash -c "${*:2}"
    ((rank += 1))
done
echo "flux_rsh.sh: $1 isn't in this instance" >&2
exit 1
