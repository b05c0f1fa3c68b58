# Following a file that grows: by descriptor and by name, while it is replaced.
# needs: tail head
set -euo pipefail
# Waits until a file has a number of lines.
lines() { local i; touch "$1"; for i in $(seq 400); do [ "$(wc -l < "$1")" -ge "$2" ] && return; sleep 0.02; done; echo "$1: not $2 lines" >&2; return 1; }
seq 5 > log
tail -n 2 -f -s 0.05 log > followed & follower=$!
lines followed 2
for i in $(seq 6 40); do echo $i >> log; done
lines followed 37
mv log moved; echo moved >> moved; lines followed 38
( for i in $(seq 200); do echo "a$i"; done >> moved ) & a=$!
( for i in $(seq 200); do echo "b$i"; done >> moved ) & wait $a $!
lines followed 438
kill $follower; wait $follower 2> /dev/null || echo "ended: $?"
head -n 38 followed | tr '\n' ' '; sort followed | sha256sum; cmp <(tail -n 400 moved) <(tail -n 400 followed) && echo same order

# By name: a new file under the name is followed from its beginning.
echo one > name
tail -F -n +1 -s 0.05 name > by-name 2> messages & follower=$!
lines by-name 1
echo two >> name; lines by-name 2
mv name name.1; echo three > name; lines by-name 3
echo four > new; mv new name; lines by-name 4
rm name; for i in $(seq 400); do grep -q inaccessible messages && break; sleep 0.02; done
echo five > name; lines by-name 5
: > name; for i in $(seq 400); do grep -q truncated messages && break; sleep 0.02; done; echo six >> name; lines by-name 6
kill $follower; wait $follower 2> /dev/null || echo "ended: $?"
cat by-name
grep -q 'name.*inaccessible' messages && grep -q 'name.*file truncated' messages && echo said so

# Until the writer ends.
( for i in $(seq 20); do echo "line $i"; sleep 0.01; done > written ) & writer=$!
until [ -e written ]; do sleep 0.01; done
tail -n +1 -f -s 0.02 --pid=$writer written | sha256sum
echo 'tail of standard input' | tail -n 1; tail -n 3 -q moved name | wc -l
# Which messages come depends on what tail sees when it looks; which line comes first, on chance.
rm messages followed moved
