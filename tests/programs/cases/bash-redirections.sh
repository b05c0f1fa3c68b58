# A shell's use of descriptors, directories, globs, tests and jobs.
# needs: mktemp
set -euo pipefail
source "$CASES/../lib.sh"

section redirections
echo one > f; echo two >> f; cat f; cat < f
ls missing > out 2>&1 || true; cat out
ls f missing &> both || true; cat both
ls missing2 &>> both || true; cat both
{ echo to-out; echo to-err >&2; } > o 2> e; cat o e
{ echo to-out; echo to-err >&2; } 2>&1 > o | cat
echo 'abcdef' > rw; exec 7<> rw; read -n 2 -u 7 x; printf 'XY' >&7; exec 7>&-; echo "$x"; cat rw
: > empty; [ ! -s empty ] && echo empty
cat <<END > here
home of $((6 * 7))
END
cat here
cat <<'END' >> here
no $expansion
END
cat here; cat <<< "a string" >> here; wc -l < here
mkdir tmp; export TMPDIR="$WORK/tmp"
big=$(seq 1 60000); wc -c <<< "$big"; sha256sum <<END
$big
END
unset TMPDIR; ls tmp; rmdir tmp

section descriptors
exec 3> three; echo a >&3; (echo b >&3); echo c | cat >&3; bash -c 'echo d >&3'; exec 3>&-; cat three
! { echo x >&3; } 2> /dev/null && echo closed
exec 4< three; read -r l1 <&4; read -r l2 <&4; echo "$l1 $l2"; cat <&4; exec 4<&-
exec 5> five 6>&5; echo five >&5; echo six >&6; exec 5>&-; echo still >&6; exec 6>&-; cat five
exec {fd}>> five; echo named >&$fd; exec {fd}>&-; cat five
exec 8>&1 > hidden; echo into hidden; exec 1>&8 8>&-; cat hidden
{ echo 1; { echo 2; } >&2; echo 3; } > mixed 2>&1; cat mixed
( exec 9> moved 1>&9-; echo by a moved descriptor ); cat moved
( exec 2> errors; set -x; true ); cat errors
echo over > three; cat three

section noclobber
set -o noclobber
! { echo again > three; } 2> /dev/null && echo refused
echo forced >| three; cat three
echo fresh > fresh-file; cat fresh-file
set +o noclobber

section shared
( echo s1; echo s2; (echo s3); bash -c 'echo s4'; /bin/echo s5 ) > seq-file; cat seq-file
{ echo first; ( sleep 0.1; echo child ) & wait; echo last; } > offset; cat offset
for i in 1 2 3 4; do ( for j in $(seq 25); do echo "job $i line $j" >> appended; done ) & done; wait
wc -l < appended; sort -u appended | wc -l; sort -V appended > appended.sorted; mv appended.sorted appended
for i in 1 2 3; do echo "out $i"; done > loop; while read -r a b; do echo "$b:$a"; done < loop
while read -r x; do [ "$x" = "out 2" ] && { head -n 1; break; }; done < loop
{ read -r x; echo "first $x"; cat; } < loop
exec 3< loop; head -c 6 <&3; cat <&3; exec 3<&-
mapfile -t lines < loop; echo "${#lines[@]} ${lines[2]}"
echo "$(< loop)" | tail -n 1

section processes
paste <(cat loop) <(tac loop) > pasted; cat pasted
tee >(tr a-z A-Z > upper) < loop > lower; for i in $(seq 100); do [ "$(wc -l < upper)" = 3 ] && break; sleep 0.05; done; cat upper lower
cat loop | sort -r | sed -n 1,1p > piped; cat piped
{ yes || true; } | head -n 3 > yes; cat yes
for i in 1 2 3; do ( sleep 0.0$i; echo "job $i" > job-$i ) & done; wait; cat job-*
sleep 30 > sleeper & until [ -e sleeper ]; do sleep 0.01; done; kill $!; wait $! 2> /dev/null || echo "ended $?"
echo 'echo sourced "$1"; v=set' > lib-in-work.sh; source ./lib-in-work.sh arg; echo "$v"
printf '#!/bin/bash\necho script "$0" "$#"; exit 3\n' > script; chmod +x script; ./script a b || echo "code $?"
bash script x || true; bash < script || true
export PATH="$WORK/bin:$PATH"; mkdir bin; cp script bin/my-own-command; hash -r; my-own-command 1 | sed "s,$WORK,@," || true
type -P my-own-command | sed "s,$WORK,@,"
exec 3> trace; BASH_XTRACEFD=3; set -x; : traced; set +x; exec 3>&-; unset BASH_XTRACEFD; cat trace
trap 'echo bye > trapped' EXIT; ( trap 'echo sub > sub-trapped' EXIT; true ); trap - EXIT; cat sub-trapped

section directories
mkdir -p d1/d2/d3 e1; echo deep > d1/d2/d3/deep
cd d1/d2; pwd | sed "s,$WORK,@,"; cat d3/deep ../../loop | sed -n 1,2p; echo here > ./here2; cat ../d2/here2
cd ..; pwd | sed "s,$WORK,@,"; cd - > "$OUTER/cd"; sed "s,$WORK,@," "$OUTER/cd"; cd d3; /bin/pwd | sed "s,$WORK,@,"; cat deep; cat ../../../loop | wc -l
pushd "$WORK/e1" > /dev/null; pwd | sed "s,$WORK,@,"; echo e > e; popd > /dev/null; pwd | sed "s,$WORK,@,"
cd "$WORK"; ln -s d1/d2 short; cd short; pwd | sed "s,$WORK,@,"; pwd -P | sed "s,$WORK,@,"; cd -P ..; pwd | sed "s,$WORK,@,"
cd "$WORK"; (cd e1 && mkdir made && echo rel > made/rel && cat ../e1/made/rel); cat e1/made/../made/./rel
! cd missing 2> /dev/null && echo no such; ! cd loop 2> /dev/null && echo not a directory
(cd d1/d2/d3 && echo $OLDPWD | sed "s,$WORK,@," && bash -c 'pwd; echo from child > child; cat ../../../e1/e' | sed "s,$WORK,@,")
mkdir gone; (cd gone && rmdir ../gone && ! ls "$WORK/gone" > /dev/null 2>&1 && echo removed under us)
cd "$WORK"; mkdir walk; cd walk; mv ../walk ../walked; echo x > y; cat ../walked/y; cd "$WORK"

section globs
mkdir g; touch g/{a,b,c}.txt g/{x1,x2,x10} g/.dot 'g/sp ace'; mkdir -p g/s1/t g/s2; touch g/s1/t/q.txt
echo g/*; echo g/*.txt; echo g/x?; echo g/[ab]*; echo g/*/; echo g/.[a-z]*; echo g/none*
shopt -s nullglob globstar dotglob extglob
echo g/none*; echo g/**; echo g/*; echo g/!(*.txt); echo ./**/q.txt
shopt -u nullglob globstar dotglob; cd g; echo *; for f in *.txt; do mv "$f" "${f%.txt}.md"; done; echo *; cd ..
compgen -f g/x | sort; echo ~+/g/x1 | sed "s,$WORK,@,"

section tests
for op in -e -f -d -s -r -w -x -L -h -p -S -b -c -u -g -k -O -G; do
  for t in loop d1 short empty missing script; do if [ $op $t ]; then echo "$op $t"; fi; done
done
touch -d 2001-01-01 old; touch -d 2002-02-02 new
[ new -nt old ] && echo newer; [ old -ot new ] && echo older; [ missing -nt old ] || echo not newer; [ old -nt missing ] && echo newer than none
ln old same; [ old -ef same ] && echo same; [ old -ef new ] || echo other
[[ -f loop && ! -d loop ]] && echo file
test -t 1 || echo no terminal

section mktemp
t=$(mktemp -p .); [[ $t == ./tmp.* && -f $t && ! -s $t ]] && stat -c %a "$t"; rm "$t"
t=$(mktemp -d -p "$WORK" dir.XXXX); [ -d "$t" ] && stat -c %a "$t"; rmdir "$t"
t=$(TMPDIR=$WORK mktemp); [[ $t == "$WORK"/tmp.* ]] && echo in place; rm "$t"
t=$(mktemp ./pre.XXXXXX.suf); mv "$t" pre.suf
